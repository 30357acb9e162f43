"""A task that prints 1,000,000 lines, or 200 MB, against the same script writing to a file; and whether all arrives."""

from __future__ import annotations

import filecmp
import subprocess
import sys
import time
from pathlib import Path

from bench import server as servers
from bench import table

SCRIPT = Path(__file__).parent / "scripts" / "lines.py"
LINES = 1_000_000
FLOOD = """
line = "x" * 99
for _ in range(2_000_000):
    print(line)
"""
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
        *_flood(pairs),
        table.Row("lines", "such jobs with missing or unordered lines", wrong, "jobs", 0),
    ]


def _flood(pairs: int) -> list[table.Row]:
    """Whole commands, from start to end, as a user waits for them."""
    whole, without_start, wrong = [], [], 0
    with servers.server() as server:
        (server.work / "flood.py").write_text(FLOOD)
        plain, told = server.home / "plain.out", server.home / "told.out"
        run = [servers.OARLOCK, "run", "--env", "PYTHONUNBUFFERED=", "--", "python"]
        for _ in range(pairs):
            direct_s = _whole(server, [sys.executable, "flood.py"], plain)
            start_s = _whole(server, [*run, "-c", "pass"], told)
            job_s = _whole(server, [*run, "flood.py"], told)
            whole.append(job_s / direct_s)
            without_start.append((job_s - start_s) / direct_s)
            wrong += not filecmp.cmp(plain, told, shallow=False)
    what = "`oarlock run -- python flood.py > file` of 200 MB, against `python flood.py > file`"
    return [
        table.Row("lines", what, table.median(whole), "x", detail=table.spread(whole, "")),
        table.Row(
            "lines",
            "the same, less an `oarlock run` that prints nothing",
            table.median(without_start),
            "x",
            1.5,
            detail=table.spread(without_start, ""),
        ),
        table.Row("lines", "such runs with other output than the script", wrong, "runs", 0),
    ]


def _whole(server: servers.Server, command: list[str], into: Path) -> float:
    began = time.monotonic()
    with into.open("wb") as file:
        subprocess.run(
            command,
            stdout=file,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env=server.env,
            cwd=server.work,
            check=True,
        )
    return time.monotonic() - began


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
