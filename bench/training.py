"""The same two-worker training of about a minute, through a running Oarlock and under bare torchrun, in turn."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench import server as servers
from bench import table

SCRIPT = Path(__file__).parent / "scripts" / "train60.py"
STEPS = "4200"


def run(pairs: int = 3) -> list[table.Row]:
    ratios, seconds = [], []
    with servers.server() as server:
        (server.work / "train60.py").write_text(SCRIPT.read_text())
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            str(SCRIPT),
            STEPS,
        ]
        for _ in range(pairs):
            ours = _timed(
                lambda: server.run("run", "--workers", "2", "--", "python", "train60.py", STEPS, cwd=server.work)
            )
            theirs = _timed(
                lambda: subprocess.run(
                    torchrun, env=server.env | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True
                )
            )
            ratios.append(ours / theirs)
            seconds.append(theirs)
    detail = f"{table.spread(ratios, '')}; torchrun took {table.median(seconds):.1f} s"
    return [
        table.Row(
            "training",
            "two-worker training against torchrun, wall time",
            table.median(ratios),
            "x",
            1.03,
            detail=detail,
        )
    ]


def _timed(action: object) -> float:
    began = time.perf_counter()
    action()  # type: ignore[operator]
    return time.perf_counter() - began
