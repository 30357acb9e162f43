"""The recorded curves of a simulation: the simulator writes them, a page draws them."""

from __future__ import annotations

from typing import Annotated

import msgspec

Points = tuple[tuple[float, float], ...]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
"""A whole number of the file. A longer one would be too large to compute with."""


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """A stay of a job on a device, in seconds; `useful` is the part that advanced the job."""

    row: Count
    job: Count
    start: float
    end: float
    useful_start: float
    useful_end: float


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of a run. Times are seconds; `hidden_rows` and `hidden_bars` are left out of `rows` and `bars`."""

    run: str
    devices: Count
    over: float
    completion: Points
    held: Points
    useful: Points
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    hidden_rows: Count = 0
    hidden_bars: Count = 0
