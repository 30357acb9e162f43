"""The speed of a job by its number of devices as SVG: measured points, and the curve that was fitted to them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.display import amounts
from oarlock.spec import bodies
from oarlock.web.drawing import charts, colours

WIDTH, HEIGHT, EDGE = 320, 120, 6


class Dot(msgspec.Struct, frozen=True):
    """A measured point."""

    x: float
    y: float
    colour: int
    words: str


class Drawing(msgspec.Struct, frozen=True):
    """`curves` are polylines with their colours, one for each type of GPU."""

    curves: tuple[tuple[str, int, str], ...]
    dots: tuple[Dot, ...]
    most: str
    devices: str


def draw(points: Sequence[bodies.SpeedPoint]) -> Drawing | None:
    """Return the drawing, None without a point."""
    if not points:
        return None
    most, devices = max(one.per_s for one in points), max(one.devices for one in points)
    across, up = charts.Scale(0, devices, WIDTH - 2 * EDGE), charts.Scale(0, most, HEIGHT - 2 * EDGE)
    types = list(dict.fromkeys(one.gpu_type for one in points))
    fitted = []
    for number, kind in enumerate(types):
        best: dict[int, float] = {}
        for one in points:
            if one.gpu_type == kind and not one.measured:
                best[one.devices] = max(one.per_s, best.get(one.devices, 0.0))
        if len(best) > 1:
            line = " ".join(f"{EDGE + across.at(one):.1f},{_y(up, value):.1f}" for one, value in sorted(best.items()))
            fitted.append((line, number % colours.COLOURS, kind))
    dots = [
        Dot(EDGE + across.at(one.devices), _y(up, one.per_s), types.index(one.gpu_type) % colours.COLOURS, _words(one))
        for one in points
        if one.measured
    ]
    return Drawing(tuple(fitted), tuple(dots), amounts.rate(most), amounts.counted(devices, "device"))


def _y(up: charts.Scale, value: float) -> float:
    return HEIGHT - EDGE - up.at(value)


def _words(one: bodies.SpeedPoint) -> str:
    return f"{amounts.counted(one.devices, 'device')}: {amounts.rate(one.per_s)}, measured {one.measured} times"
