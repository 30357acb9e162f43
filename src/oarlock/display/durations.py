"""Durations and times in words. A time is in Unix seconds and is told in this machine's zone."""

from __future__ import annotations

import time

from oarlock.spec.input import quantities


def text(seconds: float) -> str:
    """Return `3.2 s`, `4m 05s`, `2h 10m`; a negative duration is told as none."""
    return quantities.duration_text(max(0.0, seconds))


def whole(seconds: float) -> str:
    """Return `text` in whole seconds, so that a line that is drawn again and again does not flicker."""
    return f"{max(0.0, seconds):.0f} s" if seconds < 60 else text(seconds)


def age(seconds: float) -> str:
    """Return `12s`, `3m`, `5h`, `2d`."""
    seconds = max(0.0, seconds)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def ago(seconds: float) -> str:
    """Return `3m ago`."""
    return f"{age(seconds)} ago"


def ahead(seconds: float) -> str:
    """Return `in 4m 05s`."""
    return f"in {whole(seconds)}" if seconds > 0 else "at any moment"


def within(seconds: float) -> str:
    """Return `within 4m 05s`."""
    return f"within {whole(seconds)}"


def clock(at: float, now: float) -> str:
    """Return the time of day, or the day if that is not today: `16:03`, `21 Nov`."""
    return _local(at, "%H:%M" if _same_day(at, now) else "%d %b")


def moment(at: float, now: float) -> str:
    """Return the time with its seconds, after the date if that is not today's: `16:03:05`, `2026-11-21 16:03:05`."""
    return _local(at, "%H:%M:%S" if _same_day(at, now) else "%Y-%m-%d %H:%M:%S")


def _same_day(at: float, now: float) -> bool:
    return _local(at, "%Y-%m-%d") == _local(now, "%Y-%m-%d")


def _local(at: float, form: str) -> str:
    return time.strftime(form, time.localtime(at))
