"""Two parameter servers beside two workers, against two on machines of their own, over links of 1 Gbit/s."""

from __future__ import annotations

import os
from pathlib import Path

from bench import table
from bench.train import links, ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "together.py"
STEPS = 8


def run(rounds: int = 3) -> list[table.Row]:
    beside: list[float] = []
    apart: list[float] = []
    one: list[float] = []
    with links.network(1000, 4) as machines:
        workers, others = machines[:2], machines[2:]
        for _ in range(rounds):
            for places, taken in ((workers, beside), (others, apart), (others[:1], one)):
                with ranks.servers(places) as known:
                    env = {**known, **ranks.SERVED}
                    taken.append(table.median(ranks.run(workers, SCRIPT, ["ps", STEPS], env)["seconds"]))
    load = f"load {os.getloadavg()[0]:.0f}"
    rows = []
    for name, taken in (("on machines of their own", apart), ("beside the workers", beside)):
        ratios = [alone / step for alone, step in zip(one, taken, strict=True)]
        what = f"two parameter servers {name}, two workers, 1 Gbit/s, times as fast as one server apart"
        detail = f"{table.spread(ratios, '')}; a step takes {table.median(taken) * 1e3:.0f} ms; {load}"
        rows.append(table.Row("apart", what, table.median(ratios), "x", detail=detail))
    return rows
