"""A task that prints 1,000,000 lines, against the same script writing to a file; and whether every line arrives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import server as servers
from bench import table

SCRIPT = Path(__file__).parent / "scripts" / "lines.py"
LINES = 1_000_000


def run(pairs: int = 3) -> list[table.Row]:
    ratios, missing = [], 0
    with servers.server() as server:
        (server.work / "lines.py").write_text(SCRIPT.read_text())
        for number in range(pairs):
            took = server.home / f"took-{number}"
            name = f"lines-{number}"
            server.run(
                "run",
                "--detach",
                "--name",
                name,
                "--env",
                "PYTHONUNBUFFERED=",
                "--",
                "python",
                "lines.py",
                str(LINES),
                str(took),
                cwd=server.work,
            )
            server.wait_for(name)
            ours = float(took.read_text())
            with (server.home / "plain.out").open("wb") as file:
                subprocess.run([sys.executable, str(SCRIPT), str(LINES), str(took)], stdout=file, check=True)
            ratios.append(ours / float(took.read_text()))
            arrived = server.run("logs", name).stdout.splitlines()
            wanted = [f"line {place} of a task that has much to say" for place in range(LINES)]
            missing += sum(1 for _ in wanted) - len(arrived) if arrived != wanted else 0
            missing += 1 if arrived != wanted and len(arrived) == LINES else 0
    return [
        table.Row(
            "lines",
            "printing 1,000,000 lines, against a file",
            table.median(ratios),
            "x",
            1.10,
            detail=table.spread(ratios, ""),
        ),
        table.Row("lines", "of those lines, missing or out of order", missing, "lines", 0),
    ]
