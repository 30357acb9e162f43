"""A sum of 25 MB between two processes of one host: by gloo, and by the memory that they share, in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench import table

SCRIPT = Path(__file__).parents[1] / "scripts" / "reducing.py"
SIZE = 25 << 20
PORT = 29_581
RANKS = 2


def run(times: int = 40) -> list[table.Row]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OARLOCK_")}
    place = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    running = []
    try:
        for rank in range(RANKS):
            env = {**ours, **place, "MASTER_PORT": str(PORT), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, str(SCRIPT), str(SIZE), str(times)]
            running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        said = running[0].communicate(timeout=300)[0]
    finally:
        for each in running:
            each.kill()
            each.communicate()
    if not said:
        raise RuntimeError(f"{SCRIPT.name} ended with {running[0].returncode}")
    pairs = json.loads(said.splitlines()[-1])
    ratios = [theirs / ours for theirs, ours, _, _ in pairs]
    gloo, memory, gloo_cpu, memory_cpu = (1e3 * table.median(column) for column in zip(*pairs, strict=True))
    detail = (
        f"{table.spread(ratios, '')}; gloo {gloo:.1f} ms, memory {memory:.1f} ms; processor time of a rank "
        f"{gloo_cpu:.1f} against {memory_cpu:.1f} ms; load {os.getloadavg()[0]:.0f}"
    )
    what = "allreduce of 25 MB between two processes of one host, times faster than gloo"
    return [table.Row("reducing", what, table.median(ratios), "x", 4.0, True, detail)]
