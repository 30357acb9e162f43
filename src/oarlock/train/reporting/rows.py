"""The rows of values that a training process logs, and the receivers of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """The values logged together, at a step and a Unix time."""

    step: int
    time: float
    names: tuple[str, ...]
    values: tuple[float, ...]


class Sink(Protocol):
    """A receiver of rows, in the order of logging."""

    def write(self, rows: Sequence[Row]) -> None: ...
    def close(self) -> None: ...
