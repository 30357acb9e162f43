"""The speedup of two workers over one, by the ratio of computing to parameters: the tensors of four networks.

A sleep takes the place of the arithmetic, layer by layer, so the gradients of the last layers travel while the first
ones are still computed. Each network has a quarter of its width, a sixteenth of its parameters. The sleeps are those of
a device with 10 TFLOP/s and 32 images, and the link is as much slower than 10 Gbit/s as the networks are smaller and
the sleeps longer. So the ratio is that of the whole networks on such a device and such a link.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bench import table
from bench.train import links, networks, ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "together.py"
NETWORKS = ("AlexNet", "VGG16", "ResNet-50", "GoogLeNet")
METHODS = {
    "allreduce": "allreduce",
    "ps-async": "asynchronous parameter server apart",
    "dgc": "DGC 99.9 %",
}
SMALLER = 16
SLOWER = 3.125
MEGABITS = round(10_000 / SMALLER / SLOWER)
DEVICE = 10e12
IMAGES = 32
STEPS = 12
PICTURE = "benchmarks/ratios.png"


def run() -> list[table.Row]:
    points: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    rows: list[table.Row] = []
    known = sorted((_ratio(name), name) for name in NETWORKS)
    with links.network(MEGABITS, 3) as machines:
        for ratio, name in known:
            sleep_s = compute_s(name) * SLOWER
            alone = table.median(ranks.run(machines[:1], SCRIPT, ["alone", STEPS, name, sleep_s])["seconds"])
            for method, words in METHODS.items():
                step = _step(machines, method, [method, STEPS, name, sleep_s])
                points[method].append((ratio, 2 * alone / step))
                what = f"{name}'s shapes, {words}, speedup of two workers over one"
                detail = f"computing {ratio:.2f} of the gradients' time on the link; alone a step takes {alone:.2f} s"
                rows.append(table.Row("ratios", what, 2 * alone / step, "x", detail=detail))
    load = f"load {os.getloadavg()[0]:.0f}"
    names = ", ".join(f"{name} {ratio:.2f}" for ratio, name in known)
    best = [max(points[method][place][1] for method in METHODS) for place in range(len(known))]
    what = "speedup of two workers over one by compute-to-parameter ratio, the best of three methods at its least"
    curves = {METHODS[method]: tuple(values) for method, values in points.items()}
    drawn = table.Row(
        "ratios", what, min(best), "x", detail=f"{names}; {load}", curves=curves, picture=PICTURE,
        axes=("computing, over the time of the gradients on the link", "speedup of two workers over one"),
    )  # fmt: skip
    return [*rows, drawn]


def _step(machines: Sequence[links.Machine], method: str, arguments: Sequence[object]) -> float:
    """Return the step of a worker: two of them on two machines, a parameter server on the third."""
    workers, others = machines[:2], machines[2:] if method.startswith("ps") else []
    with ranks.servers(others) as known:
        taken = ranks.run(workers, SCRIPT, arguments, {**known, **ranks.SERVED} if others else {})
    return table.median(taken["seconds"])


def compute_s(name: str) -> float:
    """Return the seconds that the device computes in a step."""
    return IMAGES * sum(layer.operations for layer in networks.named(name)) / DEVICE


def _ratio(name: str) -> float:
    numbers = sum(layer.numbers for layer in networks.named(name))
    return compute_s(name) / (numbers * 4 * 8 / 10e9)
