"""The use of a pool over time as SVG: an area, with the entitlement as a line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.display.pools import pooluse

WIDTH, HEIGHT = 320, 40
GAP_S = 3600.0
"""The longest time between two samples that a line spans; in a longer one the server did not run."""


class Picture(msgspec.Struct, frozen=True):
    """`areas` are polygons of the use, `lines` polylines of the entitlement: one for each time without a gap."""

    areas: tuple[str, ...]
    lines: tuple[str, ...]


def draw(use: pooluse.Use, since: float, until: float, most: float) -> Picture:
    """Return the picture of the time between; `most` is the amount at its upper edge."""
    across, up = WIDTH / max(1.0, until - since), HEIGHT / (most or 1.0)
    gap = max(GAP_S, 3 * (until - since) / WIDTH)
    areas, lines = [], []
    for first, last in _stretches(use.times, gap):
        xs = [f"{(at - since) * across:.1f}" for at in use.times[first:last]]
        used = _points(xs, use.used[first:last], up)
        areas.append(f"{xs[0]},{HEIGHT} {used} {xs[-1]},{HEIGHT}")
        lines.append(_points(xs, use.entitled[first:last], up))
    return Picture(tuple(areas), tuple(lines))


def _points(xs: Sequence[str], values: Sequence[float], up: float) -> str:
    return " ".join(f"{x},{HEIGHT - min(HEIGHT, value * up):.1f}" for x, value in zip(xs, values, strict=True))


def _stretches(times: Sequence[float], gap: float) -> list[tuple[int, int]]:
    """Return the first and the end of each run of samples without a gap."""
    begins = [0, *(place for place in range(1, len(times)) if times[place] - times[place - 1] > gap)] if times else []
    return list(zip(begins, [*begins[1:], len(times)], strict=True)) if begins else []
