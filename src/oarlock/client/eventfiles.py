"""Metrics as the content of TensorBoard's event files. The training library has the format."""

from __future__ import annotations

from collections.abc import Sequence

from oarlock.client import answers
from oarlock.train.reporting import tfevents


def encoded(series: Sequence[answers.Series]) -> bytes:
    """Return the bytes of one file: its version, then every point, ordered by step."""
    first = min((point.at for one in series for point in one.points if point.value is not None), default=0.0)
    return tfevents.version(first) + more(series)


def more(series: Sequence[answers.Series]) -> bytes:
    """Return the bytes that add these points to a file, ordered by step."""
    points = sorted(
        (
            (point.step, point.at, one.name, point.value)
            for one in series
            for point in one.points
            if point.value is not None
        ),
        key=lambda point: point[:3],
    )
    return b"".join(tfevents.scalars(step, at, [(name, value)]) for step, at, name, value in points)
