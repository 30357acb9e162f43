"""Places in a large cluster: how long the room takes to make, to follow, to say no, and to find a place.

10,000 nodes of 8 GPUs, gangs of 1 to 512 GPUs: filled until nothing fits, then churned, 100 jobs in and out a round.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from bench import table
from oarlock.scheduler.placement import freespace, placing
from oarlock.spec import holdings, jobfile, plans
from oarlock.spec.cluster import nodes

GIB = 1 << 30
TYPES = ("a100", "h100")
SIZES = (1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16, 32, 64, 128, 256, 512)
ROUNDS, CHURN = 20, 100


def run(count: int = 10_000) -> list[table.Row]:
    figures = measure(count)
    on = f"{count:,} nodes of 8 GPUs"
    return [
        table.Row("placing", f"{what}, {on}", value, unit, REACH.get(what), detail=HOW.get(what, ""))
        for what, (value, unit) in figures.items()
    ]


REACH = {
    "a place for 64 tasks of 8 GPUs, median": 5.0,
    "a place for at most 8 GPUs, median": 0.3,
    "100 jobs changed since the last snapshot, median": 10.0,
}
HOW = {"a gang that cannot fit, median": "10,000 gangs of 16 shapes on a full cluster"}


def measure(count: int = 10_000, seed: int = 1) -> dict[str, tuple[float, str]]:
    """Return the measurements, each with its unit."""
    draw = random.Random(seed)
    of = machines(count)
    space, made_ms = _timed(freespace.FreeSpace, of)
    waiting = [gang(f"job-{number:05}", draw) for number in range(count)]
    running, placed = _fill(space, waiting)
    refused = [_timed(placing.place, one, space)[1] for one in waiting if one.job not in running]
    filled = tuple(running.values())
    fresh = freespace.FreeSpace()
    first_ms = _timed(fresh.follow, of, filled)[1]
    follows, replaced = _churn(fresh, of, running, draw)
    small = [ms for gpus, ms in placed + replaced if gpus <= 8]
    whole = [ms for gpus, ms in placed + replaced if gpus == 512]
    everything = [ms for _, ms in placed]
    held = sum(gpus for gpus, _ in placed) / (8 * count)
    return {
        "a room made of it": (made_ms, "ms"),
        "a room of it and all that runs": (first_ms, "ms"),
        "100 jobs changed since the last snapshot, median": (table.median(follows), "ms"),
        "100 jobs changed since the last snapshot, slowest": (max(follows), "ms"),
        "a place for 64 tasks of 8 GPUs, median": (table.median(whole), "ms"),
        "a place for 64 tasks of 8 GPUs, p99": (table.percentile(whole, 0.99), "ms"),
        "a place for at most 8 GPUs, median": (table.median(small), "ms"),
        "a place for at most 8 GPUs, p99": (table.percentile(small, 0.99), "ms"),
        "places found while it fills": (1000 * len(everything) / sum(everything), "/s"),
        "of all GPUs held in the end": (100 * held, "%"),
        "a gang that cannot fit, median": (1000 * table.median(refused), "us"),
        "10,000 gangs that cannot fit": (10_000 * sum(refused) / len(refused), "ms"),
    }


def machines(count: int) -> tuple[nodes.Node, ...]:
    """Return nodes in racks of 16, in zones of 2,000; half of them of each type."""
    return tuple(
        nodes.Node(
            name=f"node-{number:05}",
            capacity=holdings.Resources(96_000, 1024 * GIB, 8),
            devices=tuple(
                nodes.Device(index=index, type=TYPES[number % 2], memory_bytes=80 * GIB) for index in range(8)
            ),
            domains={"rack": f"rack-{number // 16}", "zone": f"zone-{number // 2000}"},
            price_per_h=20.0,
        )
        for number in range(count)
    )


def gang(job: str, draw: random.Random) -> plans.Gang:
    gpus = draw.choice(SIZES)
    each = min(gpus, draw.choice((1, 8)))
    ask = plans.Ask(
        role="worker",
        count=gpus // each,
        min=gpus // each,
        max=gpus // each,
        amount=holdings.Resources(draw.choice((4_000, 8_000)) * each, draw.choice((32, 64)) * each * GIB, each),
        gpu_types=draw.choice(((), ("h100",), ("h100", "a100"))),
    )
    return plans.Gang(
        job=job,
        name=job,
        pool="default",
        asks=(ask,),
        submitted_at=0.0,
        priority=draw.choice((10, 50)),
        topology=draw.choice((None, None, None, jobfile.Topology(same=jobfile.Domain.RACK))) if gpus <= 64 else None,
    )


def _timed(work: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Return the result, and how many milliseconds it took."""
    began = time.perf_counter()
    result = work(*args)
    return result, 1000 * (time.perf_counter() - began)


def _fill(
    space: freespace.FreeSpace, waiting: list[plans.Gang]
) -> tuple[dict[str, plans.Running], list[tuple[int, float]]]:
    running, placed = {}, []
    for one in waiting:
        claims, ms = _timed(placing.place, one, space)
        if claims is not None:
            space.take(claims)
            running[one.job] = plans.Running(gang=one, holdings=claims, started_at=0.0)
            placed.append((one.amount(one.wanted).gpus, ms))
    return running, placed


def _churn(
    space: freespace.FreeSpace, of: tuple[nodes.Node, ...], running: dict[str, plans.Running], draw: random.Random
) -> tuple[list[float], list[tuple[int, float]]]:
    """Every round some jobs end, and waiting jobs take their place."""
    follows, placed = [], []
    for turn in range(ROUNDS):
        started, found = _fill(space, [gang(f"next-{turn}-{number}", draw) for number in range(CHURN)])
        running |= started
        placed += found
        for job in draw.sample(sorted(running), CHURN - len(started)):
            del running[job]
        follows.append(_timed(space.follow, of, tuple(running.values()))[1])
    return follows, placed
