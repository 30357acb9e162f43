"""Stored pictures of pages, and the comparison of a page with its picture.

A picture is stored small: each of its dots is the mean of a block of 4 x 4 pixels. So another smoothing of edges
changes a dot by a few grades at most, and a text or box that has moved changes dozens of dots by far more.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageChops

BLOCK = 4
GRADES = 12
"""A dot has changed when one of its colours differs by more than this, of 255."""
DOTS = 12
"""A page looks as before while no more dots than these have changed: a letter has about six."""


class Change(NamedTuple):
    """The number of changed dots, and the part of the page that has them, in pixels: left, top, right, bottom."""

    dots: int
    box: tuple[int, int, int, int]


def small(shot: bytes) -> Image.Image:
    return Image.open(io.BytesIO(shot)).convert("RGB").reduce(BLOCK)


def change(before: Image.Image, now: Image.Image) -> Change | None:
    """Return how the picture has changed, None where it looks as before."""
    if before.size != now.size:
        return Change(now.width * now.height, (0, 0, now.width * BLOCK, now.height * BLOCK))
    differing = ImageChops.difference(before, now)
    bands = [band.point(lambda grade: 255 if grade > GRADES else 0) for band in differing.split()]
    changed = ImageChops.lighter(ImageChops.lighter(bands[0], bands[1]), bands[2])
    dots = changed.histogram()[255]
    box = changed.getbbox()
    if dots <= DOTS or box is None:
        return None
    left, top, right, bottom = (BLOCK * one for one in box)
    return Change(dots, (left, top, right, bottom))


def store(file: Path, picture: Image.Image) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.save(file, optimize=True)
