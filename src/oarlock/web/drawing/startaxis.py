"""The expected start of a waiting job on a time axis, with the expected ends of the jobs in its place. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.display import durations
from oarlock.spec import bodies, plans

WIDTH, HEIGHT = 640, 40
LEAST_S = 60.0
MOST_S = 366 * 86_400.0
STEPS_S = tuple(float(size * unit) for unit in (1, 60) for size in (10, 20, 30)) + tuple(
    float(hours * 3600) for hours in (1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 672, 1344, 2688)
)
MOST_TICKS = 8


class Mark(msgspec.Struct, frozen=True):
    """A time on the axis: where it stands, and its words."""

    x: float
    words: str


class Axis(msgspec.Struct, frozen=True):
    """The axis from now on. The range begins at `x`, and has no width where only one time is known."""

    x: float
    width: float
    words: str
    ticks: tuple[Mark, ...]
    ends: tuple[Mark, ...]


def draw(forecast: plans.Forecast | None, ends: Sequence[bodies.ExpectedEnd], now: float) -> Axis | None:
    """Return the axis, None where the start is not expected at any time."""
    if forecast is None or forecast.when is not plans.When.LATER:
        return None
    known = [at - now for at in (forecast.start, forecast.latest) if at is not None]
    if not known or max(known) > MOST_S:
        return None
    first = max(0.0, forecast.start - now) if forecast.start is not None else 0.0  # it may start at any moment
    last = max(first, *known)
    told = [(one.name, max(0.0, at - now)) for one in ends if (at := one.end or one.latest) is not None]
    span = max(LEAST_S, last * 1.1, *(at * 1.02 for _, at in told if at <= 2 * max(last, LEAST_S)))
    scale = WIDTH / span
    step = next((one for one in STEPS_S if span / one <= MOST_TICKS), MOST_S)
    return Axis(
        x=first * scale,
        width=(last - first) * scale,
        words=_words(first, last),
        ticks=tuple(Mark(place * step * scale, _tick(place * step)) for place in range(int(span // step) + 1)),
        ends=tuple(Mark(at * scale, f"{name} ends in {durations.text(at)}") for name, at in told if at <= span),
    )


def _words(first: float, last: float) -> str:
    if last - first < 1:
        return f"expected start in {durations.whole(first)}"
    early = f"between {durations.whole(first)} and {durations.whole(last)} from now" if first else ""
    return f"expected start {early or f'within {durations.whole(last)}'}"


def _tick(seconds: float) -> str:
    """Return `now`, `20m`, `1h 20m`, `2d 12h`: two ticks never have the same words."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s"))
    return " ".join(f"{count}{unit}" for count, unit in parts if count) or "now"
