"""Lockstep against asynchronous and stale parameter servers: the speed, and the accuracy after as many gradients.

Three workers train the same model on digits. The computing of a step is a sleep of random length, so lockstep waits for
the slowest of three in each step. The seeds are paired.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import table
from bench.train import ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "staleness.py"
KINDS = {"sync": "lockstep", "stale": "staleness 2", "async": "asynchronous"}
WORKERS = 3
SEEDS = int(os.environ.get("BENCH_SEEDS", "10"))
T_95 = {5: 2.78, 10: 2.26, 20: 2.09}
"""Of Student's distribution, for so many pairs."""


def run() -> list[table.Row]:
    found = {kind: [_trained(kind, seed) for seed in range(SEEDS)] for kind in KINDS}
    load = f"load {os.getloadavg()[0]:.0f}"
    steps = {kind: [step for step, _ in runs] for kind, runs in found.items()}
    reached = {kind: [100 * accuracy for _, accuracy in runs] for kind, runs in found.items()}
    rows = []
    for kind in ("stale", "async"):
        faster = [lockstep / ours for lockstep, ours in zip(steps["sync"], steps[kind], strict=True)]
        gains = [ours - lockstep for ours, lockstep in zip(reached[kind], reached["sync"], strict=True)]
        about = f"{KINDS[kind]} parameter server, three workers of random speed"
        step_ms = 1e3 * table.median(steps["sync"])
        detail = f"{table.spread(faster, '')}; a step in lockstep {step_ms:.0f} ms; {load}"
        what = f"{about}, times as fast as lockstep"
        rows.append(table.Row("staleness", what, table.median(faster), "x", detail=detail))
        detail = f"n={SEEDS} pairs, as many gradients; lockstep {statistics.mean(reached['sync']):.2f} %"
        if SEEDS > 1:
            half = T_95.get(SEEDS, 2.1) * statistics.stdev(gains) / math.sqrt(SEEDS)
            detail += f"; 95 % interval {statistics.mean(gains) - half:+.2f} to {statistics.mean(gains) + half:+.2f}"
        what = f"{about}, accuracy less that of lockstep"
        rows.append(table.Row("staleness", what, statistics.mean(gains), "points", detail=detail))
    return rows


def _trained(kind: str, seed: int) -> tuple[float, float]:
    """Return the mean time of a worker's step, and the accuracy in the end."""
    port = ranks.SERVERS_PORT
    known = {"OARLOCK_SERVERS": f"127.0.0.1:{port}", "OARLOCK_SERVERS_TOKEN": "of this bench"}
    env = {**ranks.bare(), **known, **ranks.SERVED}
    command = [sys.executable, "-m", "oarlock.train.servers"]
    server = subprocess.Popen(command, env={**env, "OARLOCK_SERVER": f"127.0.0.1:{port}"}, stderr=subprocess.DEVNULL)
    running: list[subprocess.Popen[str]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(WORKERS):
                place = {"RANK": str(rank), "WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
                ours = [sys.executable, str(SCRIPT), kind, str(seed), folder]
                running.append(subprocess.Popen(ours, env={**env, **place}, stdout=subprocess.PIPE, text=True))
            said = [each.communicate(timeout=600)[0] for each in running]
    finally:
        for each in [*running, server]:
            ranks.end(each)
    if not all(said):
        raise RuntimeError(f"{SCRIPT.name} {kind}: a worker ended without a result")
    told = [json.loads(each.splitlines()[-1]) for each in said]
    return statistics.mean(one["step_s"] for one in told), told[0]["accuracy"]
