"""From samples to a speed curve, in closed form: deterministic, and quick enough to be done whenever a sample comes.

All models here are linear in their times once the rest is fixed, so each is a non-negative least squares problem of two
to five unknowns. What is measured as a time is fitted in relative terms (a step of 50 ms and one of 5 s count the
same), which is what the logarithmic error of Pollux (OSDI '21, section 4.1) amounts to. `Allreduce` has one unknown
that is not linear, how much of the exchange hides behind the computing: it is taken from a grid.

A young job has been seen at one or two shapes, and a scheduler that believed only those would never try a third. So
what was not observed is assumed, in favour of trying:

- one local batch size only: half of its time is taken to be constant;
- no exchange within a node, or none between nodes: it costs nothing; but between nodes at least a tenth more than
  within one;
- that an exchange takes longer with more devices is believed as far as it was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from oarlock.scheduler import curves as evaluating
from oarlock.spec import curves

OVERLAPS = (1.0, 1.15, 1.35, 1.6, 1.9, 2.3, 2.8, 3.5, 4.5, 6.0, 8.0, 10.0)
"""Exponents that are tried; beyond 10 it is the larger of the two times, as near as can be measured."""

OVERLAP_PENALTY = 1e-3
"""On the squared distance of the overlap from 1, in squared relative error: between equals the simpler one."""

GROWTH_PENALTY = 0.1
"""On the growth of an exchange by each further device, relative to the exchange: between equals none."""

FAR = 1.1
"""An exchange between nodes that nobody has seen takes at least so many times one within a node."""

MAX_SAMPLES = 64
"""Of one job, each at another shape. What was measured least often gives way."""

_SMALLEST_S = 1e-9


def allreduce(samples: Iterable[curves.Sample], noise: float | None = None) -> curves.Allreduce | None:
    """The model of a synchronous step that explains `samples` best; None where there is no usable one."""
    used = [one for one in samples if one.devices >= 1 and one.step_s > 0 and math.isfinite(one.step_s)]
    if not used:
        return None
    used.sort(key=lambda one: (one.nodes, one.devices, one.local, one.step_s, one.sync_s, one.count))
    constant_s, each_s = _computing(used)
    best: tuple[float, curves.Allreduce] | None = None
    for overlap in OVERLAPS if any(one.devices > 1 for one in used) else OVERLAPS[:1]:
        near = _exchange([one for one in used if one.devices > 1 and one.nodes <= 1], constant_s, each_s, overlap)
        far = _exchange([one for one in used if one.devices > 1 and one.nodes > 1], constant_s, each_s, overlap)
        model = _model(constant_s, each_s, near, far, overlap)
        error = _error(model, used) + OVERLAP_PENALTY * (overlap - 1) ** 2
        if best is None or error < best[0] * (1 - 1e-9):
            best = error, model
    assert best is not None
    return msgspec.structs.replace(best[1], noise=noise, seen=max(one.devices for one in used))


def servers(
    samples: Iterable[curves.Sample], *, batch: float = 0.0, synchronous: bool = False
) -> curves.Servers | None:
    """The model of parameter servers that explains `samples` best; None where no sample has any.

    `batch`: of a synchronous step, all workers together, in examples; it only scales the first of the times.
    """
    used = sorted(
        (one for one in samples if one.servers >= 1 and one.devices >= 1 and one.step_s > 0),
        key=lambda one: (one.devices, one.servers, one.step_s, one.count),
    )
    if not used:
        return None
    rows, weights = [], []
    for one in used:
        w, p = float(one.devices), float(one.servers)
        terms = [batch / w, 1.0, w / p, w, p] if synchronous else [1.0, w / p, w, p]
        rows.append([term / one.step_s for term in terms])
        weights.append(float(one.count))
    times = nonnegative(rows, [1.0] * len(rows), weights)
    return curves.Servers(times=tuple(times), synchronous=synchronous, batch=batch)


def merged(known: Sequence[curves.Sample], new: curves.Sample) -> tuple[curves.Sample, ...]:
    """`known` with `new` folded into the mean of its shape; the shape that was measured last stands last."""
    same = [one for one in known if _shape(one) == _shape(new)]
    others = [one for one in known if _shape(one) != _shape(new)]
    for one in same:
        count = one.count + new.count
        share = max(new.count / count, 1 / MAX_SAMPLES)  # an old mean still moves
        new = msgspec.structs.replace(
            new,
            step_s=one.step_s + share * (new.step_s - one.step_s),
            sync_s=one.sync_s + share * (new.sync_s - one.sync_s),
            count=count,
        )
    if len(others) >= MAX_SAMPLES:
        others.remove(min(others, key=lambda one: (one.count, _shape(one))))
    return (*others, new)


def _shape(one: curves.Sample) -> tuple[int, int, int, int]:
    return one.nodes, one.devices, one.servers, one.local


def _computing(used: Sequence[curves.Sample]) -> tuple[float, float]:
    """Seconds per part and per example of it, without any exchange."""
    pairs = [(float(max(1, one.local)), max(_SMALLEST_S, one.step_s - one.sync_s), float(one.count)) for one in used]
    if len({local for local, _, _ in pairs}) == 1:
        local = pairs[0][0]
        mean_s = math.exp(sum(math.log(seconds) for _, seconds, _ in pairs) / len(pairs))
        return mean_s / 2, mean_s / 2 / local
    found = nonnegative([[1 / s, local / s] for local, s, _ in pairs], [1.0] * len(pairs), [1.0] * len(pairs))
    return found[0], found[1]


def _exchange(
    used: Sequence[curves.Sample], constant_s: float, each_s: float, overlap: float
) -> tuple[float, float] | None:
    """Seconds of an exchange between two devices, and for each further one; None: not observed.

    From each sample follows how long its exchange takes by itself; an error in that counts as much as it changes the
    whole step.
    """
    if not used:
        return None
    rows, targets, weights = [], [], []
    for one in used:
        grad_s = max(_SMALLEST_S, min(one.step_s, one.step_s - one.sync_s))
        alone_s = one.step_s * max(_SMALLEST_S, 1 - (grad_s / one.step_s) ** overlap) ** (1 / overlap)
        rows.append([1.0, float(one.devices - 2)])
        targets.append(alone_s)
        weights.append(((alone_s / one.step_s) ** overlap / alone_s) ** 2)
    scale = sum(map(math.sqrt, weights)) / len(weights)
    rows.append([0.0, 1.0])
    targets.append(0.0)
    weights.append((GROWTH_PENALTY * scale) ** 2)
    found = nonnegative(rows, targets, weights)
    return found[0], found[1]


def _model(
    constant_s: float,
    each_s: float,
    near: tuple[float, float] | None,
    far: tuple[float, float] | None,
    overlap: float,
) -> curves.Allreduce:
    near_s, near_each_s = near or (0.0, 0.0)
    far_s, far_each_s = far or (near_s * FAR, near_each_s * FAR)
    return curves.Allreduce(
        compute_s=constant_s,
        compute_per_example_s=each_s,
        near_s=near_s,
        near_per_device_s=near_each_s,
        far_s=far_s,
        far_per_device_s=far_each_s,
        overlap=overlap,
    )


def _error(model: curves.Allreduce, used: Sequence[curves.Sample]) -> float:
    """The mean squared logarithmic error of the steps."""
    total = 0.0
    for one in used:
        predicted_s = evaluating.step_s(model, one.nodes, one.devices, max(1, one.local))
        total += math.log(max(_SMALLEST_S, predicted_s) / one.step_s) ** 2
    return total / len(used)


def nonnegative(rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The x >= 0 with the least weighted squares of `rows` x - `targets` (Lawson and Hanson's active sets).

    A handful of unknowns: the normal equations do, with a trace of ridge where rows do not tell two unknowns apart.
    """
    n = len(rows[0])
    gram = [[sum(w * r[i] * r[j] for r, w in zip(rows, weights, strict=True)) for j in range(n)] for i in range(n)]
    right = [sum(w * r[i] * t for r, t, w in zip(rows, targets, weights, strict=True)) for i in range(n)]
    scale = [math.sqrt(gram[i][i]) or 1.0 for i in range(n)]
    gram = [[gram[i][j] / scale[i] / scale[j] + (1e-9 if i == j else 0.0) for j in range(n)] for i in range(n)]
    right = [right[i] / scale[i] for i in range(n)]
    x = [0.0] * n
    free: list[int] = []
    for _ in range(3 * n):
        slope = [right[i] - sum(gram[i][j] * x[j] for j in range(n)) for i in range(n)]
        best = max((i for i in range(n) if i not in free), key=lambda i: slope[i], default=None)
        if best is None or slope[best] <= 1e-12:
            break
        free.append(best)
        x = _settled(gram, right, x, free)
    return [value / scale[i] for i, value in enumerate(x)]


def _settled(gram: Sequence[Sequence[float]], right: Sequence[float], x: list[float], free: list[int]) -> list[float]:
    """The least squares over the free unknowns; those that would fall below zero are fixed there, one after another."""
    while free:
        found = _solved([[gram[i][j] for j in free] for i in free], [right[i] for i in free])
        if all(value > 0 for value in found):
            settled = dict(zip(free, found, strict=True))
            return [settled.get(i, 0.0) for i in range(len(x))]
        step = min(x[i] / (x[i] - value) for i, value in zip(free, found, strict=True) if value <= 0)
        for i, value in zip(list(free), found, strict=True):
            x[i] += step * (value - x[i])
            if value <= 0 and x[i] <= 1e-15:
                x[i] = 0.0
                free.remove(i)
    return [0.0] * len(x)


def _solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Gauss with pivoting; the matrix is regular by its ridge."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (rows[i][n] - sum(rows[i][j] * found[j] for j in range(i + 1, n))) / rows[i][i]
    return found
