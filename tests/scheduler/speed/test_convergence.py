"""The fall of a loss, fitted to what was seen of it, and the steps that are left."""

from __future__ import annotations

import math
import random

import pytest

from oarlock.scheduler.speed import convergence
from oarlock.spec import curves

LOSS = curves.Convergence(b0=0.002, b1=0.4, b2=0.3)


def noisy_losses(until: int, every: int = 10) -> list[tuple[float, float]]:
    draw = random.Random(11)
    return [(k, convergence.loss(LOSS, k) * math.exp(draw.gauss(0, 0.05))) for k in range(0, until, every)]


def test_the_way_down_is_foretold_better_the_more_of_it_was_seen() -> None:
    true = convergence.steps_to(LOSS, 0, 0.5)
    assert true == pytest.approx((1 / 0.2 - 0.4) / 0.002)
    errors = []
    for until in (400, 1000, 2000):
        model = convergence.fitted(noisy_losses(until))
        assert model is not None
        total = convergence.steps_to(model, 0, 0.5)
        errors.append(math.inf if total is None else abs(total / true - 1))
    assert errors[-1] < 0.1
    assert errors[-1] <= errors[0]


def test_a_loss_that_does_not_come_down_foretells_nothing() -> None:
    assert convergence.fitted([(k, 1.0) for k in range(100)]) is None
    assert convergence.fitted([(k, 1.0 + k) for k in range(100)]) is None
    assert convergence.fitted([(0, 3.0), (1, 2.0)]) is None
    assert convergence.fitted([(k, math.nan) for k in range(100)]) is None


def test_steps_left_until_an_epoch_brings_little() -> None:
    left = convergence.steps_left(LOSS, 100, epoch=50, drop=0.01)
    at = 100 + left
    assert convergence.loss(LOSS, at) - convergence.loss(LOSS, at + 50) == pytest.approx(0.01)
    assert convergence.steps_left(LOSS, at + 1, epoch=50, drop=0.01) == 0
    assert convergence.steps_to(LOSS, 0, 0.3) is None  # its floor


def test_it_is_over_when_the_loss_has_come_down() -> None:
    at = 100 + convergence.to_go(LOSS, 100)
    floor, first = LOSS.b2, convergence.loss(LOSS, 0)
    assert convergence.loss(LOSS, at) - floor == pytest.approx(convergence.SETTLED * (first - floor))
    assert convergence.to_go(LOSS, at + 1) == 0
    assert convergence.to_go(curves.Convergence(b0=0.0, b1=1.0, b2=0.0), 5) == 0


def test_a_loss_without_noise_is_fitted_to_its_curve() -> None:
    """Also where its limit is below zero, as with a likelihood of densities."""
    for limit in (0.3, 0.0, -0.5):
        true = curves.Convergence(b0=0.002, b1=0.4, b2=limit)
        model = convergence.fitted([(k, convergence.loss(true, k)) for k in range(0, 2000, 10)])
        assert model is not None
        assert convergence.loss(model, 4000) == pytest.approx(convergence.loss(true, 4000), abs=0.02)


def test_neither_the_order_of_reports_nor_useless_ones_change_the_fit() -> None:
    points = noisy_losses(1000)
    useless = [(math.inf, 1.0), (500.0, math.nan), (600.0, math.inf), (-5.0, 100.0)]
    assert convergence.fitted([*reversed(points), *useless]) == convergence.fitted(points)


def test_ten_thousand_reports_are_averaged_first() -> None:
    """A search over every report would take two hundred times as long; the fit is as good."""
    model = convergence.fitted(noisy_losses(10_000, every=1))
    assert model is not None
    assert convergence.loss(model, 12_000) == pytest.approx(convergence.loss(LOSS, 12_000), rel=0.02)


def test_late_reports_weigh_more_than_early_ones() -> None:
    """The first losses of many runs fall more slowly than the rest: the fit follows what came last."""
    points = [(float(k), convergence.loss(LOSS, k) + (1.0 if k < 400 else 0.0)) for k in range(0, 2000, 10)]
    model = convergence.fitted(points)
    assert model is not None
    late = abs(convergence.loss(model, 1900) - convergence.loss(LOSS, 1900))
    early = abs(convergence.loss(model, 100) - points[10][1])
    assert late < early


@pytest.mark.parametrize(
    ("points", "fits"),
    [(3, False), (4, True)],
)
def test_four_points_are_enough(points: int, fits: bool) -> None:
    found = convergence.fitted([(float(k), convergence.loss(LOSS, 100 * k)) for k in range(points)])
    assert (found is not None) is fits


FLAT = curves.Convergence(b0=0.0, b1=2.0, b2=0.25)


@pytest.mark.parametrize(
    ("model", "step", "target", "steps"),
    [
        (LOSS, 0, 0.5, 2300.0),
        (LOSS, 2000, 0.5, 300.0),
        (LOSS, 2301, 0.5, 0.0),
        (LOSS, 0, 0.3, None),  # its limit
        (LOSS, 0, 0.29, None),
        (FLAT, 5, 0.75, 0.0),  # it stays at 0.75
        (FLAT, 5, 0.74, None),
    ],
)
def test_steps_until_a_loss(model: curves.Convergence, step: float, target: float, steps: float | None) -> None:
    found = convergence.steps_to(model, step, target)
    assert found == (None if steps is None else pytest.approx(steps))


@pytest.mark.parametrize(
    ("model", "drop", "left"), [(FLAT, 0.01, 0.0), (FLAT, 0.0, 0.0), (LOSS, 0.0, math.inf), (LOSS, -1.0, math.inf)]
)
def test_an_epoch_that_never_brings_less_or_always_nothing(model: curves.Convergence, drop: float, left: float) -> None:
    assert convergence.steps_left(model, 0, epoch=50, drop=drop) == left


def test_a_loss_before_the_pole_of_its_model_is_infinite() -> None:
    model = curves.Convergence(b0=0.1, b1=-1.0, b2=0.0)
    assert convergence.loss(model, 10) == math.inf
    assert convergence.loss(model, 20) == pytest.approx(1.0)
