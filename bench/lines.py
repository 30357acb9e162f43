"""A task that prints 1,000,000 lines, against the same script writing to a file; and whether every line arrives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import server as servers
from bench import table

SCRIPT = Path(__file__).parent / "scripts" / "lines.py"
LINES = 1_000_000
WANTED = [f"line {number} of a task that has much to say" for number in range(LINES)]


def run(pairs: int = 5) -> list[table.Row]:
    buffered, by_line, wrong = [], [], 0
    with servers.server() as server:
        (server.work / "lines.py").write_text(SCRIPT.read_text())
        for number in range(pairs):
            plain = _to_a_file(server)
            for ratios, name, flags in (
                (buffered, f"buffered-{number}", ["--env", "PYTHONUNBUFFERED="]),
                (by_line, f"lines-{number}", []),
            ):
                ratios.append(_as_a_job(server, name, flags) / plain)
                wrong += server.run("logs", name).stdout.splitlines() != WANTED
    return [
        table.Row(
            "lines",
            "printing 1,000,000 lines, against a file",
            table.median(buffered),
            "x",
            1.10,
            detail=f"both buffered as Python does; {table.spread(buffered, '')}",
        ),
        table.Row(
            "lines",
            "the same, each line flushed as it is printed (the default), against a buffered file",
            table.median(by_line),
            "x",
            detail=table.spread(by_line, ""),
        ),
        table.Row("lines", "jobs of those whose lines were not all there, in order", wrong, "jobs", 0),
    ]


def _to_a_file(server: servers.Server) -> float:
    took = server.home / "took-plain"
    with (server.home / "plain.out").open("wb") as file:
        command = [sys.executable, str(SCRIPT), str(LINES), str(took)]
        subprocess.run(command, stdout=file, env=server.env, check=True)
    return float(took.read_text())


def _as_a_job(server: servers.Server, name: str, flags: list[str]) -> float:
    took = server.home / f"took-{name}"
    command = ["python", "lines.py", str(LINES), str(took)]
    server.run("run", "--detach", "--name", name, *flags, "--", *command, cwd=server.work)
    server.wait_for(name)
    return float(took.read_text())
