"""`oarlock advise`: the speedup that it predicts from one and two workers, against that of four and eight.

A sleep takes the place of computing, and each worker has a machine in miniature of its own with a slow link, so that
eight workers do not compete for two cores. Each parameter server has such a machine, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import table
from bench.train import links

SCRIPT = Path(__file__).parents[1] / "scripts" / "sleeping.py"
PLACED = SCRIPT.with_name("placed.py")
STRATEGIES = ("allreduce", "dgc", "ps")
CHECKED = (4, 8)
MEGABITS = 66
SECONDS = float(os.environ.get("BENCH_SECONDS", "30"))
"""The duration of each trial."""


def run() -> list[table.Row]:
    oarlock = str(Path(sys.executable).with_name("oarlock"))
    checks = [word for workers in CHECKED for word in ("--check", str(workers))]
    strategies = [word for strategy in STRATEGIES for word in ("--strategy", strategy)]
    options = ["--json", "--no-threads", "--seconds", f"{SECONDS:g}", *strategies, *checks]
    words = [sys.executable, str(PLACED), sys.executable, str(SCRIPT)]
    with links.network(MEGABITS, 2 * max(CHECKED)) as machines, tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "BENCH_MACHINES": links.written(machines)}
        done = subprocess.run(
            [oarlock, "advise", *options, "--", *words],
            cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=1800,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"oarlock advise ended with {done.returncode}: {done.stderr[-2000:]}")
    return rows(json.loads(done.stdout))


def rows(told: Mapping[str, Any]) -> list[table.Row]:
    """Return a row for each strategy with each number of workers. RuntimeError where one was not checked."""
    found = {(one["strategy"], one["workers"]): one for one in told["predictions"]}
    wanted = [found.get((strategy, workers)) for strategy in STRATEGIES for workers in CHECKED]
    if any(one is None or one["error"] is None for one in wanted):
        reasons = [f"{name}: {reason}" for name, reason in {**told["refused"], **told["unchecked"]}.items()]
        raise RuntimeError(f"not every prediction was checked: {'; '.join(reasons) or 'no reason was given'}")
    return [_row(one) for one in wanted if one is not None]


def _row(one: Mapping[str, Any]) -> table.Row:
    what = f"`advise`, {one['strategy']}, speedup with {one['workers']} workers, error of the prediction"
    servers = f" with {one['servers']} servers" if one["servers"] else ""
    detail = (
        f"predicted {one['speedup']:.2f}, measured {one['measured']:.2f}{servers}; links of {MEGABITS} Mbit/s; load "
        f"{os.getloadavg()[0]:.0f}"
    )
    return table.Row("advising", what, 100 * abs(one["error"]), "%", 15.0, detail=detail)
