"""The time axis of an expected start: where the range lies, and which ends of holders stand on it."""

from __future__ import annotations

import pytest

from oarlock.spec import bodies, plans
from oarlock.web.drawing import startaxis

NOW = 1_000_000.0


def forecast(start: float | None, latest: float | None, when: plans.When = plans.When.LATER) -> plans.Forecast:
    times = [None if at is None else NOW + at for at in (start, latest)]
    return plans.Forecast(when=when, message="", start=times[0], latest=times[1])


def end(name: str, at: float | None, latest: float | None = None) -> bodies.ExpectedEnd:
    times = [None if one is None else NOW + one for one in (at, latest)]
    return bodies.ExpectedEnd(user="u", pool="p", name=name, end=times[0], latest=times[1])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (forecast(600.0, 600.0), "expected start in 10m 00s"),
        (forecast(600.0, 1200.0), "expected start between 10m 00s and 20m 00s from now"),
        (forecast(None, 3600.0), "expected start within 1h 00m"),
        (forecast(-5.0, -5.0), "expected start in 0 s"),
    ],
)
def test_the_range_is_told_and_lies_on_the_axis(told: plans.Forecast, words: str) -> None:
    axis = startaxis.draw(told, (), NOW)
    assert axis is not None
    assert axis.words == words
    assert 0 <= axis.x <= axis.x + axis.width <= startaxis.WIDTH
    assert axis.ticks[0].words == "now"
    assert 2 <= len(axis.ticks) <= startaxis.MOST_TICKS + 1


@pytest.mark.parametrize("latest", [10.0, 70.0, 600.0, 5600.0, 30_000.0, 100_000.0, 1e6, 3e7])
def test_no_two_ticks_have_the_same_words(latest: float) -> None:
    axis = startaxis.draw(forecast(None, latest), (), NOW)
    assert axis is not None
    words = [one.words for one in axis.ticks]
    assert len(set(words)) == len(words) >= 2, words


@pytest.mark.parametrize(
    "told", [None, forecast(None, None), forecast(5.0, 5.0, plans.When.NOW), forecast(None, 1e300)]
)
def test_without_a_time_there_is_no_axis(told: plans.Forecast | None) -> None:
    assert startaxis.draw(told, (end("big", 60.0),), NOW) is None


def test_the_ends_of_holders_lie_in_the_order_of_their_times_and_a_far_one_squeezes_nothing() -> None:
    ends = (end("big", 500.0), end("far", 1e7), end("bound", None, 300.0), end("endless", None), end("late", -3.0))
    axis = startaxis.draw(forecast(600.0, 900.0), ends, NOW)
    assert axis is not None
    found = {mark.words.split()[0]: mark.x for mark in axis.ends}
    assert list(found) == ["big", "bound", "late"]
    assert found["late"] == 0 < found["bound"] < found["big"] < axis.x
    assert axis.width > 100, "the range is seen"
