"""The server's side of the pages: its processor time for each page, for open pages, and for their updates."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from urllib.parse import urlencode

import httpx

from bench import processes, table
from bench import server as servers
from bench.pages import stage

STORED, RANKS = 10_000, 512
EACH = 20
FILTERS = ({}, {"phase": "FAILED"}, {"text": "seed 99"}, {"owner": "admin", "name": "bert-11"})
GANG = ("/jobs/ranks", "/jobs/ranks?sections=ranks")
SORTS = ("created", "name", "owner", "pool", "phase")


def run() -> list[table.Row]:
    with stage.server(STORED, ranks=RANKS) as server, stage.session(server) as session:
        taken: dict[str, tuple[float, float]] = {}
        for chosen, sort in itertools.product(FILTERS, SORTS):
            address = f"/jobs?{urlencode({**chosen, 'sort': sort})}"
            taken[address] = _cost(server, lambda address=address: session.get(address))
        gang = {path: _cost(server, lambda path=path: session.get(path)) for path in GANG}
        slowest = max(taken, key=lambda address: taken[address][0])
        costs = [cpu for cpu, _ in taken.values()]
        walls = [wall for _, wall in taken.values()]
        alone, grid = (gang[path] for path in GANG)
        return [
            stage.row(
                f"list of {STORED:,} jobs, any filter and order, p95",
                table.percentile(walls, 0.95),
                "ms",
                50,
                f"to the whole answer; processor time of the server {max(costs):.3g} ms for the dearest, "
                f"{slowest}, and {table.median(costs):.3g} ms for the median of {len(taken)} addresses",
            ),
            stage.row(
                f"page of a job with {RANKS} ranks, p95",
                grid[1],
                "ms",
                100,
                f"with the grid of its ranks, to the whole answer; processor time of the server {grid[0]:.3g} ms; "
                f"without the grid {alone[1]:.3g} ms and {alone[0]:.3g} ms",
            ),
        ]


def _cost(server: servers.Server, ask: Callable[[], httpx.Response]) -> tuple[float, float]:
    """Return the server's mean processor time for a request and the 95th percentile of its time, in ms."""
    ask().raise_for_status()
    walls = []
    before = processes.cpu_s(server.pid)
    for _ in range(EACH):
        began = time.perf_counter()
        ask().raise_for_status()
        walls.append(1000 * (time.perf_counter() - began))
    return 1000 * (processes.cpu_s(server.pid) - before) / EACH, table.percentile(walls, 0.95)
