"""From samples to a speed curve, in closed form: deterministic, and fast enough to run for each new sample.

All models here are linear in their times once the rest is fixed. So each is a non-negative least squares problem with
two to five unknowns. Measured times are fitted in relative terms (a step of 50 ms counts as much as one of 5 s), which
is equivalent to the logarithmic error of Pollux (OSDI '21, section 4.1). `Allreduce` has one unknown that is not
linear: the overlap of the exchange with the computation. It is taken from a grid.

A young job was measured at one or two shapes only. A scheduler that trusted only those would never try a third. So
unobserved times are assumed such that other shapes are tried:

- With one local batch size only, half of its time is assumed to be constant, but for the waiting for data: twice the
  examples take twice the reading.
- An exchange that was not observed within a node costs nothing. Between nodes it costs at least as much as within one.
- The growth of an exchange with more devices is extrapolated from the measured growth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from oarlock.scheduler.speed import rates
from oarlock.spec import curves

OVERLAPS = (1.0, 1.2, 1.5, 1.9, 2.5, 3.5, 5.0, 10.0)
"""Exponents that are tried. Beyond 10 the result is, within measurement error, the larger of the two times."""

OVERLAP_PENALTY = 1e-3
"""Penalty on the squared distance of the overlap from 1, in squared relative error: it prefers the simpler of two
equals.
"""

GROWTH_PENALTY = 0.1
"""Penalty on the growth of an exchange per further device, relative to the exchange: it prefers no growth."""

FAR = 1.1
"""Assumed ratio of an exchange between nodes, before it is measured, to the largest measured one within a node.

In six recorded models the ratio is 2 to 7. But to try costs one restart, and not to try costs the rest of the job.
"""

MAX_SAMPLES = 64
"""Samples kept of one job, each at another shape. The one with the fewest measurements is dropped first."""

_SMALLEST_S = 1e-9


def allreduce(samples: Iterable[curves.Sample], noise: float | None = None) -> curves.Allreduce | None:
    """Return the model of a synchronous step that explains `samples` best; None without a usable sample."""
    used = [one for one in samples if one.devices >= 1 and one.step_s > 0 and math.isfinite(one.step_s)]
    if not used:
        return None
    used.sort(key=lambda one: (one.nodes, one.devices, one.local, one.step_s, one.sync_s, one.count))
    data_s = _data(used)
    constant_s, each_s = _computing(used, data_s)
    near = [one for one in used if one.devices > 1 and one.nodes <= 1]
    far = [one for one in used if one.devices > 1 and one.nodes > 1]
    best: tuple[float, curves.Allreduce] | None = None
    for overlap in OVERLAPS if near or far else OVERLAPS[:1]:
        near_s, near_each_s = _exchange(near, overlap) or (0.0, 0.0)
        across_s = FAR * (near_s + near_each_s * max((one.devices - 2 for one in near), default=0))
        far_s, far_each_s = _exchange(far, overlap) or (across_s, 0.0)
        model = curves.Allreduce(
            compute_s=constant_s,
            compute_per_example_s=each_s,
            data_per_device_s=data_s,
            near_s=near_s,
            near_per_device_s=near_each_s,
            far_s=far_s,
            far_per_device_s=far_each_s,
            overlap=overlap,
        )
        error = _error(model, used) + OVERLAP_PENALTY * (overlap - 1) ** 2
        if best is None or error < best[0] * (1 - 1e-9):
            best = error, model
    assert best is not None
    return msgspec.structs.replace(best[1], noise=noise, seen=max(one.devices for one in used))


def servers(
    samples: Iterable[curves.Sample], *, batch: float = 0.0, synchronous: bool = False
) -> curves.Servers | None:
    """Return the model of parameter servers that explains `samples` best; None if no sample has servers.

    `batch` is the batch size of a synchronous step of all workers together, in examples. It only scales the first time.
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
    """Return `known` with `new` folded into the mean of its shape. The shape that was measured last stands last."""
    same = [one for one in known if _shape(one) == _shape(new)]
    others = [one for one in known if _shape(one) != _shape(new)]
    for one in same:
        count = one.count + new.count
        share = max(new.count / count, 1 / MAX_SAMPLES)  # an old mean still moves
        new = msgspec.structs.replace(
            new,
            step_s=one.step_s + share * (new.step_s - one.step_s),
            sync_s=one.sync_s + share * (new.sync_s - one.sync_s),
            data_s=one.data_s + share * (new.data_s - one.data_s),
            count=count,
        )
    if len(others) >= MAX_SAMPLES:
        others.remove(min(others, key=lambda one: (one.count, _shape(one))))
    return (*others, new)


def _shape(one: curves.Sample) -> tuple[int, int, int, int, str, str]:
    return one.nodes, one.devices, one.servers, one.local, one.beside, one.gpu_type


def _data(used: Sequence[curves.Sample]) -> float:
    """Return the seconds per example by which the waiting for data grows with each further device.

    Where the devices read from one source, it bounds the examples that all of them take in a second.
    """
    roots = [max(1, one.local) / one.step_s for one in used]
    points = [
        (float(one.devices - 1), one.data_s / max(1, one.local), root * root)
        for one, root in zip(used, roots, strict=True)
    ]
    return _line(points, ridge=(GROWTH_PENALTY * sum(roots) / len(roots)) ** 2)[1]


def _computing(used: Sequence[curves.Sample], data_each_s: float) -> tuple[float, float]:
    """Return the seconds per part of a step, and per example of the part, without any exchange, and without the
    waiting for data that further devices add.
    """
    found: list[tuple[float, float, float]] = []
    for one in used:
        local = float(max(1, one.local))
        added_s = data_each_s * (one.devices - 1) * local
        own_s = max(_SMALLEST_S, one.step_s - one.sync_s - added_s)
        found.append((local, own_s, min(1.0, max(0.0, one.data_s - added_s) / own_s)))
    if len({local for local, _, _ in found}) == 1:
        local = found[0][0]
        mean_s = math.exp(sum(math.log(own_s) for _, own_s, _ in found) / len(found))
        constant_s = mean_s / 2 * (1 - sum(share for _, _, share in found) / len(found))
        return constant_s, (mean_s - constant_s) / local
    return _line([(local, own_s, 1 / own_s**2) for local, own_s, _ in found])


def _exchange(used: Sequence[curves.Sample], overlap: float) -> tuple[float, float] | None:
    """Return the seconds of an exchange between two devices, and per further device; None if there is no sample.

    Each sample gives the time of its exchange alone. An error in that time is weighted by its effect on the whole step.
    """
    if not used:
        return None
    points: list[tuple[float, float, float]] = []
    scale = 0.0
    for one in used:
        grad_s = max(_SMALLEST_S, min(one.step_s, one.step_s - one.sync_s))
        hidden = (grad_s / one.step_s) ** overlap
        alone_s = one.step_s * max(_SMALLEST_S, 1 - hidden) ** (1 / overlap)
        root = (alone_s / one.step_s) ** overlap / alone_s
        points.append((float(one.devices - 2), alone_s, root * root))
        scale += root / len(used)
    return _line(points, ridge=(GROWTH_PENALTY * scale) ** 2)


def _error(model: curves.Allreduce, used: Sequence[curves.Sample]) -> float:
    """Return the mean squared logarithmic error of the steps."""
    total = 0.0
    for one in used:
        predicted_s = rates.step_s(model, one.nodes, one.devices, max(1, one.local))
        total += math.log(max(_SMALLEST_S, predicted_s) / one.step_s) ** 2
    return total / len(used)


def _line(points: Sequence[tuple[float, float, float]], *, ridge: float = 0.0) -> tuple[float, float]:
    """Fit a line to (x, y, weight). Its value at 0 and its slope are not negative; `ridge` penalises the slope.

    Return the value at 0, and the slope.
    """
    w = wx = wxx = wy = wxy = 0.0
    for x, y, weight in points:
        w += weight
        wx += weight * x
        wxx += weight * x * x
        wy += weight * y
        wxy += weight * x * y
    wxx += ridge
    determinant = w * wxx - wx * wx
    if determinant > 1e-12 * w * wxx:
        at_zero, slope = (wy * wxx - wxy * wx) / determinant, (wxy * w - wy * wx) / determinant
        if at_zero >= 0 and slope >= 0:
            return at_zero, slope
    flat, steep = max(0.0, wy / w), max(0.0, wxy / wxx) if wxx > 0 else 0.0
    return (flat, 0.0) if flat * wy >= steep * wxy else (0.0, steep)


def nonnegative(rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the x >= 0 that minimises the weighted squares of `rows` x - `targets` (Lawson and Hanson's active sets).

    With so few unknowns the normal equations are enough; a small ridge separates unknowns that the rows do not.
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
    """Return the least squares over the free unknowns.

    Unknowns that would fall below zero are fixed there, one by one.
    """
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
    """Solve the equations by Gaussian elimination with pivoting. The ridge makes the matrix regular."""
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
