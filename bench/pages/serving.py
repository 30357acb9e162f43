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
        return [
            stage.row(
                f"list of {STORED:,} jobs, the dearest filter and order",
                max(costs),
                "ms",
                50,
                f"processor time of the server; median of {len(taken)} addresses {table.median(costs):.3g}; {slowest}; "
                f"p95 of the time on a loaded machine {table.percentile(walls, 0.95):.0f} ms",
            ),
            stage.row(
                f"page of a job with {RANKS} ranks",
                gang[GANG[0]][0],
                "ms",
                100,
                f"processor time of the server; with the grid of its ranks {gang[GANG[1]][0]:.3g} ms",
            ),
        ]


def _cost(server: servers.Server, ask: Callable[[], httpx.Response]) -> tuple[float, float]:
    """Return the server's processor time and the longest time of a request, in ms."""
    ask().raise_for_status()
    walls = []
    before = processes.cpu_s(server.pid)
    for _ in range(EACH):
        began = time.perf_counter()
        ask().raise_for_status()
        walls.append(1000 * (time.perf_counter() - began))
    return 1000 * (processes.cpu_s(server.pid) - before) / EACH, table.percentile(walls, 0.95)
