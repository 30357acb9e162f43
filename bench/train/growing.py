"""The exchange by the number of workers, and an embedding of which a step uses few rows.

Each worker, and the parameter server, has a machine in miniature with a link of 100 Mbit/s. A sleep takes the place of
computing, so that eight workers do not compete for two cores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.train import links, ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "together.py"
MEGABITS = 100
FEW, MANY = 2, 8
NETWORK, SLEEP_S = "GoogLeNet", 0.1
METHODS = {"allreduce": "allreduce", "dgc": "DGC 99.9 %"}
STEPS = int(os.environ.get("BENCH_STEPS", "15"))


def run() -> list[table.Row]:
    with links.network(MEGABITS, MANY) as machines:
        rows = [row for method in METHODS for row in _by_workers(machines, method)]
        return [*rows, *_embedding(machines[:3])]


def _by_workers(machines: Sequence[links.Machine], method: str) -> list[table.Row]:
    """Compare the bytes that a worker sends in a step, and its waiting for the exchange, with few workers and many."""
    few, many = (ranks.run(machines[:count], SCRIPT, [method, STEPS, NETWORK, SLEEP_S]) for count in (FEW, MANY))
    waits = [1e3 * (table.median(each["seconds"]) - SLEEP_S) for each in (few, many)]
    what = f"{NETWORK}'s shapes, {METHODS[method]}, bytes that each of {MANY} workers sends, over those with {FEW}"
    detail = (
        f"{few['sent'] / 1e3:.0f} KB with {FEW}, {many['sent'] / 1e3:.0f} KB with {MANY}, headers included; a step "
        f"takes {waits[0]:.0f} and {waits[1]:.0f} ms longer than its computing, over links of {MEGABITS} Mbit/s; "
        f"load {os.getloadavg()[0]:.0f}"
    )
    return [table.Row("growing", what, many["sent"] / few["sent"], "x", detail=detail)]


def _embedding(machines: Sequence[links.Machine]) -> list[table.Row]:
    """Compare a table by rows at a parameter server apart with its dense gradient by allreduce."""
    workers, others = machines[:2], machines[2:]
    dense = ranks.run(workers, SCRIPT, ["allreduce", STEPS, "table"])
    with ranks.servers(others) as known:
        by_row = ranks.run(workers, SCRIPT, ["ps", STEPS, "table"], {**known, **ranks.SERVED})
    steps = [table.median(each["seconds"]) for each in (dense, by_row)]
    what = f"embedding of 25 MB, 512 rows a step of a worker, by row at a parameter server, {MEGABITS} Mbit/s"
    detail = (
        f"a step takes {1e3 * steps[0]:.0f} ms by allreduce and {1e3 * steps[1]:.0f} ms by row; a worker sends "
        f"{_kilobytes(dense)} and {_kilobytes(by_row)}, headers included; load {os.getloadavg()[0]:.0f}"
    )
    return [table.Row("growing", f"{what}, times as fast as allreduce", steps[0] / steps[1], "x", detail=detail)]


def _kilobytes(run: dict[str, Any]) -> str:
    return f"{run['sent'] / 1e3:,.0f} KB"
