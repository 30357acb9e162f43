"""The fall of a job's loss and the number of steps left, fitted to past samples (Optimus, EuroSys '18, section 3.1).

The loss of stochastic gradient descent falls as loss(k) = 1 / (b0 k + b1) + b2. With b2 fixed, 1 / (loss - b2) is
linear in the step k. So b0 and b1 follow from non-negative least squares, and only b2 is searched for. Errors are
measured in the loss itself, and later points weigh more, because the fit is used to predict the future.

Losses jump from batch to batch, so they are first averaged over spans of steps. That also bounds the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from oarlock.scheduler.speed import fitting
from oarlock.spec import curves

SPANS = 48
"""Number of averages to which the points are reduced."""

FEWEST = 4
"""Spans needed to fit three unknowns with one degree of freedom left."""

LATER = 4.0
"""Weight of the last span, relative to the first."""

SETTLED = 0.05
"""Part of the whole fall of the loss at which a job counts as converged. In Optimus each owner sets it."""

_FLOORS = 24
"""Values of b2 tried in each of two passes; the second pass searches between the neighbours of the first one's best."""


def fitted(points: Iterable[tuple[float, float]]) -> curves.Convergence | None:
    """Fit the curve to (step, loss). Return None for too few points, or for losses that do not fall."""
    spans = _spans(points)
    if len(spans) < FEWEST:
        return None
    least = min(loss for _, loss in spans)
    drop = max(loss for _, loss in spans) - least
    if drop <= 0 or spans[-1][1] >= spans[0][1]:
        return None
    lowest = min(0.0, least - 2 * drop)  # a loss may be negative; its limit is not far below
    low, high = lowest, least - 1e-3 * drop
    best: tuple[float, curves.Convergence] | None = None
    for _ in range(2):
        floors = [low + (high - low) * i / (_FLOORS - 1) for i in range(_FLOORS)]
        tried = [(_error(model, spans), i, model) for i, b2 in enumerate(floors) if (model := _above(b2, spans))]
        if not tried:
            break
        error, i, model = min(tried, key=lambda it: it[:2])
        if best is None or error < best[0]:
            best = error, model
        low, high = floors[max(0, i - 1)], floors[min(_FLOORS - 1, i + 1)]
    return best[1] if best else None


def loss(model: curves.Convergence, step: float) -> float:
    """Return the fitted loss at `step`; infinity beyond the pole of the model."""
    below = model.b0 * step + model.b1
    return 1 / below + model.b2 if below > 0 else math.inf


def steps_to(model: curves.Convergence, step: float, target: float) -> float | None:
    """Return the steps from `step` until the loss is `target`; None if it never gets there."""
    if target <= model.b2:
        return None
    if model.b0 <= 0:
        return 0.0 if loss(model, step) <= target else None
    return max(0.0, (1 / (target - model.b2) - model.b1) / model.b0 - step)


def steps_left(model: curves.Convergence, step: float, *, epoch: float, drop: float) -> float:
    """Return the steps from `step` until an epoch of `epoch` steps lowers the loss by less than `drop`."""
    rise = model.b0 * epoch
    if rise <= 0 or drop <= 0:
        return 0.0 if rise <= 0 else math.inf
    # b0 * epoch / (u * (u + b0 * epoch)) = drop, with u = b0 k + b1
    u = (math.sqrt(rise * rise + 4 * rise / drop) - rise) / 2
    return max(0.0, (u - model.b1) / model.b0 - step)


def to_go(model: curves.Convergence, step: float) -> float:
    """Return the steps from `step` until all but `SETTLED` of the fall is done.

    A job that reports no end is expected to end then.
    """
    if model.b0 <= 0:
        return 0.0
    return max(0.0, (max(model.b1, model.b0) / SETTLED - model.b1) / model.b0 - step)


def _spans(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means of (step, loss) over spans of equally many points, in the order of steps."""
    usable = sorted((step, loss) for step, loss in points if math.isfinite(loss) and math.isfinite(step) and step >= 0)
    size = max(1, math.ceil(len(usable) / SPANS))
    parts = [usable[i : i + size] for i in range(0, len(usable), size)]
    return [(sum(step for step, _ in part) / len(part), sum(loss for _, loss in part) / len(part)) for part in parts]


def _weight(i: int, n: int) -> float:
    return 1 + (LATER - 1) * i / (n - 1)


def _above(b2: float, spans: Sequence[tuple[float, float]]) -> curves.Convergence | None:
    """Return the model with the best b0 and b1 for this b2.

    Errors in 1 / (loss - b2) are weighted as errors in the loss.
    """
    rows, targets, weights = [], [], []
    for i, (step, value) in enumerate(spans):
        above = value - b2
        rows.append([step, 1.0])
        targets.append(1 / above)
        weights.append(_weight(i, len(spans)) * above**4)
    b0, b1 = fitting.nonnegative(rows, targets, weights)
    return curves.Convergence(b0=b0, b1=b1, b2=b2) if b0 > 0 else None


def _error(model: curves.Convergence, spans: Sequence[tuple[float, float]]) -> float:
    return sum(_weight(i, len(spans)) * (loss(model, step) - value) ** 2 for i, (step, value) in enumerate(spans))
