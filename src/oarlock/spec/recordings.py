"""The recorded curves of a simulation: the simulator writes them, a page draws them."""

from __future__ import annotations

import msgspec

Points = tuple[tuple[float, float], ...]


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """A stay of a job on a device, in seconds; `useful` is the part that advanced the job."""

    row: int
    job: int
    start: float
    end: float
    useful_start: float
    useful_end: float


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of a run. Times are seconds; `hidden_rows` and `hidden_bars` are left out of `rows` and `bars`."""

    run: str
    devices: int
    over: float
    completion: Points
    held: Points
    useful: Points
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    hidden_rows: int = 0
    hidden_bars: int = 0
