"""Pictures of simulations as SVG: completion times, devices held and at work, and the holder of each device. Pure.

Each has a table of the same numbers, for readers without pictures.

The curves come from a file that a job has left, so they may be anything: every picture has its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from oarlock.spec.simulator import recordings
from oarlock.web.drawing import colours

WIDTH, HEIGHT = 640, 160
ROW = 8
MOST_RUNS = 16
MOST_POINTS = 1000
MOST_BARS = 16_000
"""The most stays that one page draws, of all runs together."""
MOST_ROWS = 512
LONGEST_S = 1e12
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""The shares of completed jobs in the table, each with its time."""

MOMENTS = 12
MOST_STAYS = 100
"""The most stays that the table of a run tells."""


class Line(msgspec.Struct, frozen=True):
    label: str
    path: str
    colour: int
    dash: int


class Box(msgspec.Struct, frozen=True):
    x: float
    y: float
    width: float
    colour: int


class Moment(msgspec.Struct, frozen=True):
    """The devices that were held, and those that did useful work, `at` seconds after the begin."""

    at: float
    held: float
    useful: float


class Stay(msgspec.Struct, frozen=True):
    """A job on a device, from one second to another; `useful_s` of them advanced it."""

    device: str
    job: int
    begin: float
    end: float
    useful_s: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The pictures of one run. `pale` boxes are devices that were held, `full` ones the useful part.

    `moments` and `stays` are the tables behind them, and `hidden_stays` those that have no row.
    """

    curves: recordings.Curves
    held: str
    useful: str
    height: int
    pale: tuple[Box, ...]
    full: tuple[Box, ...]
    moments: tuple[Moment, ...]
    stays: tuple[Stay, ...]
    hidden_stays: int


class Pictures(msgspec.Struct, frozen=True, kw_only=True):
    """`completion` has a line for each run, over the logarithm of the time from `least` to `greatest` seconds.

    `shares` is the table behind it: by when, in seconds, each run had completed such a share of its jobs.
    """

    completion: tuple[Line, ...]
    shares: tuple[tuple[float, tuple[float | None, ...]], ...]
    least: float
    greatest: float
    runs: tuple[Run, ...]


def pictures(found: Sequence[recordings.Curves]) -> Pictures:
    found = found[:MOST_RUNS]
    times = [at for one in found for at, _ in one.completion[:MOST_POINTS] if 1e-6 < at < LONGEST_S] or [1.0]
    least, greatest = min(times), max(times)
    span = math.log(greatest / least) or 1.0

    def place(at: float) -> float:
        return WIDTH * math.log(min(max(at, least), greatest) / least) / span

    lines = tuple(
        Line(
            one.run,
            _steps(one.completion, place, 1.0),
            number % colours.COLOURS,
            number // colours.COLOURS % colours.DASHES,
        )
        for number, one in enumerate(found)
    )
    return Pictures(
        completion=lines,
        shares=tuple(
            (share, tuple(_reached(one.completion[:MOST_POINTS], share) for one in found)) for share in SHARES
        ),
        least=least,
        greatest=greatest,
        runs=tuple(_run(one, MOST_BARS // len(found)) for one in found),
    )


def _run(one: recordings.Curves, most: int) -> Run:
    scale = WIDTH / (one.over if 0 < one.over < LONGEST_S else 1.0)
    bars = [bar for bar in one.bars[:most] if 0 <= bar.row < MOST_ROWS]
    full = max(one.devices, 1)
    over = _bounded(one.over)

    def place(at: float) -> float:
        return at * scale

    return Run(
        curves=one,
        held=_steps(one.held, place, full),
        useful=_steps(one.useful, place, full),
        height=ROW * max(1, min(len(one.rows), MOST_ROWS)),
        pale=tuple(_box(bar, bar.start, bar.end, scale) for bar in bars),
        full=tuple(
            _box(bar, bar.useful_start, bar.useful_end, scale) for bar in bars if bar.useful_end > bar.useful_start
        ),
        moments=tuple(
            Moment(at, _last(one.held[:MOST_POINTS], at), _last(one.useful[:MOST_POINTS], at))
            for at in (over * number / MOMENTS for number in range(MOMENTS + 1))
        ),
        stays=tuple(_stay(one, bar) for bar in bars[:MOST_STAYS]),
        hidden_stays=one.hidden_bars + max(0, len(one.bars) - MOST_STAYS),
    )


def _steps(points: recordings.Points, place: Callable[[float], float], full: float) -> str:
    """Return a polyline that keeps each value until the next time."""
    found: list[str] = []
    before = float(HEIGHT)
    for at, value in points[:MOST_POINTS]:
        x, y = place(at), HEIGHT - HEIGHT * min(value / full, 1.0)
        found += [f"{x:.1f},{before:.1f}", f"{x:.1f},{y:.1f}"]
        before = y
    return " ".join(found)


def _reached(points: recordings.Points, share: float) -> float | None:
    """Return the first time at which the share is reached."""
    return next((_bounded(at) for at, value in points if value >= share - 1e-9), None)


def _last(points: recordings.Points, at: float) -> float:
    """Return the value at a time, which lasts until the next one."""
    before = [value for told, value in points if told <= at]
    return _bounded(before[-1]) if before else 0.0


def _stay(one: recordings.Curves, bar: recordings.Bar) -> Stay:
    device = one.rows[bar.row] if bar.row < len(one.rows) else f"row {bar.row}"
    return Stay(device, bar.job, _bounded(bar.start), _bounded(bar.end), _bounded(bar.useful_end - bar.useful_start))


def _bounded(value: float) -> float:
    return min(max(value, 0.0), LONGEST_S)


def _box(bar: recordings.Bar, start: float, end: float, scale: float) -> Box:
    return Box(start * scale, bar.row * ROW, max(0.5, (end - start) * scale), bar.job % colours.COLOURS)
