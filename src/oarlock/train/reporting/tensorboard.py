"""The writer of TensorBoard's event files for one session. `tfevents` has their format.

The checksum in Python costs about 40 us for a row of 20 values. So after the first 1,000 rows of a set of names, at
most ten rows a second are written: TensorBoard itself shows about 1,000 points of a series. The metric frames hold all
rows.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from oarlock.train.reporting import tfevents
from oarlock.train.reporting.reports import Appender
from oarlock.train.reporting.rows import Row

FULL_ROWS = 1000
EVERY_S = 0.1


class EventFile:
    """A sink that writes rows as scalars into a new event file in `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appender(directory / name)
        self._written: dict[tuple[str, ...], tuple[int, float]] = {}
        self._skipped: dict[tuple[str, ...], Row] = {}
        self._file.write(tfevents.version(time.time()))

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(b"".join(_record(row) for row in rows if self._due(row)))

    def close(self) -> None:
        """Write the last row of every set of names, then close the file."""
        self._file.write(b"".join(_record(row) for row in self._skipped.values()))
        self._file.close()

    def _due(self, row: Row) -> bool:
        count, last = self._written.get(row.names, (0, 0.0))
        if count >= FULL_ROWS and 0 <= row.time - last < EVERY_S:
            self._skipped[row.names] = row
            return False
        self._written[row.names] = (count + 1, row.time)
        self._skipped.pop(row.names, None)
        return True


def _record(row: Row) -> bytes:
    return tfevents.scalars(row.step, row.time, zip(row.names, row.values))
