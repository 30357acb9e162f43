"""Two ranks on two machines in miniature: the step of each strategy over slow links, against DistributedDataParallel.

All methods take turns, round by round, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.train import links, networks, ranks
from oarlock.train.servers.model import sharding

SCRIPT = Path(__file__).parents[1] / "scripts" / "together.py"
REACH = {
    (1000, "allreduce"): 1.15,
    (100, "allreduce"): 1.08,
    (1000, "dgc"): 5.0,
    (100, "dgc"): 40.0,
}
MLP = "25 MB MLP"
LEAST_FEWER = {MLP: 600.0, "ResNet-50's shapes": 270.0}
"""The goals of the bytes on the wire, headers included, by the model."""
METHODS = ("ddp", "allreduce", "bf16", "powersgd", "dgc", "dgc-half", "ps")
NAMES = {
    "allreduce": "allreduce",
    "bf16": "bf16",
    "powersgd": "PowerSGD, rank 1",
    "dgc": "DGC 99.9 %",
    "dgc-half": "DGC 99.9 %, fp16 values",
    "ps": "parameter server beside rank 0",
}


def run(rounds: int = 3) -> list[table.Row]:
    rows = []
    load = os.getloadavg()[0]
    for megabits in (1000, 100):
        with links.link(megabits) as machines:
            taken: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
            for _ in range(rounds):
                for method in METHODS:
                    slow = megabits < 1000 and method in ("ddp", "allreduce", "ps", "bf16")
                    taken[method].append(measured(machines, method, 3 if slow else 10))
            many = (
                [[measured(machines, method, 10) for method in ("fused", "each")] for _ in range(rounds)]
                if megabits == 1000
                else []
            )
            resnet = (
                [measured(machines, "dgc-half", 10, "whole ResNet-50") for _ in range(rounds)]
                if megabits == 1000
                else []
            )
            alone = [measured(machines[:1], "alone", 10) for _ in range(rounds)]
        rows += _rows(megabits, taken, alone, load)
        if resnet:
            rows.append(fewer_bytes("dgc-half", "ResNet-50's shapes", resnet))
        if many:
            ratios = [median(each) / median(fused) for fused, each in many]
            what = "500 tensors of 10 KB in buckets, 1 Gbit/s, times as fast as one all_reduce each"
            rows.append(
                table.Row(
                    "together", what, table.median(ratios), "x", 10.0, at_least=True, detail=table.spread(ratios, "")
                )
            )
    return rows + divided()


def median(run: dict[str, Any]) -> float:
    """Return the median step of a run, in seconds."""
    return statistics.median(run["seconds"])


def divided() -> list[table.Row]:
    """Divide VGG16 among four parameter servers: the bytes of the fullest against the mean."""
    shapes = networks.shapes(networks.vgg16())
    tensors = [sharding.Tensor(str(number), shape, "float32", 4, 0) for number, shape in enumerate(shapes)]
    rows = []
    for way, reach in (("partition", 1.02), ("greedy", None), ("round_robin", None)):
        held = [sum(part.size for part in parts) for parts in sharding.divide(tensors, 4, way)]
        what = f"VGG16 over 4 parameter servers, {way}, the fullest against the mean"
        rows.append(table.Row("together", what, max(held) / statistics.mean(held), "x", reach))
    return rows


def fewer_bytes(method: str, model: str, runs: Sequence[dict[str, Any]]) -> table.Row:
    """Compare the bytes that rank 0 has put on the link in a step, headers included, with those of the gradients."""
    size, sent = runs[0]["bytes"], min(each["sent"] for each in runs)
    reach = LEAST_FEWER[model] if method == "dgc-half" else None
    what = f"{NAMES[method]}, {model}, times fewer bytes on the wire than dense fp32"
    detail = f"{sent / 1e3:.1f} KB a step of one rank, headers included; the gradients are {size / 1e6:.1f} MB"
    return table.Row("together", what, size / sent, "x", reach, at_least=True, detail=detail)


def measured(machines: Sequence[links.Machine], method: str, steps: int, *model: str) -> dict[str, Any]:
    """Train with one rank on each of these machines, and return the figures of rank 0."""
    return ranks.run(machines, SCRIPT, [method, steps, *model])


def _rows(
    megabits: int, taken: dict[str, list[dict[str, Any]]], alone: list[dict[str, Any]], load: float
) -> list[table.Row]:
    steps = {method: [median(each) for each in runs] for method, runs in taken.items()}
    size = taken["ddp"][0]["bytes"]
    limit = size * 8 / (megabits * 1e6)  # 2(n-1)/n x bytes / rate, of two ranks
    compute = min(median(each) for each in alone)
    rate = "1 Gbit/s" if megabits == 1000 else f"{megabits} Mbit/s"
    about = f"{MLP}, {rate}"
    told = f"load {load:.0f}; alone a step takes {compute * 1e3:.0f} ms, the link's limit is {limit * 1e3:.0f} ms"
    dense = table.median(steps["ddp"])
    rows = [
        table.Row("together", f"DDP, {about}, times the link's limit", dense / limit, "x", detail=told),
        table.Row(
            "together",
            f"allreduce, {about}, times the link's limit",
            table.median(steps["allreduce"]) / limit,
            "x",
            REACH[megabits, "allreduce"],
            detail=f"the fastest of {len(steps['allreduce'])} runs {min(steps['allreduce']) / limit:.3g}",
        ),
    ]
    for method in METHODS[2:]:
        ratios = [theirs / ours for theirs, ours in zip(steps["ddp"], steps[method], strict=True)]
        detail = f"{table.spread(ratios, '')}; a step takes {table.median(steps[method]) * 1e3:.0f} ms"
        reach = REACH.get((megabits, method))
        what = f"{NAMES[method]}, {about}, times as fast as DDP"
        rows.append(table.Row("together", what, table.median(ratios), "x", reach, at_least=True, detail=detail))
    if megabits == 1000:
        rows += [fewer_bytes(each, MLP, taken[each]) for each in ("bf16", "powersgd", "dgc", "dgc-half")]
    return rows
