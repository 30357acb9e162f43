"""How many examples each process takes at once, and how many such it adds up before the gang exchanges gradients.

The script says it with its batch size. Where the job leaves it to the scheduler (`batch:` in the job file) and the
script follows (`Session(adapt=True)`), the scheduler's decision stands in the environment when the process starts
(OARLOCK_LOCAL_BATCH, OARLOCK_ACCUMULATE), and a later one in the file `batch.json` beside the reports, which the agent
replaces. The chief alone looks for it; all ranks take it up at the same step (agreement.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = "batch.json"
LOOK_EVERY_S = 0.5
_SHIFT = 20
_MOST = 1 << _SHIFT


@dataclass(frozen=True)
class Batch:
    """`local` examples that this process takes at once, `accumulate` times before an exchange."""

    local: int
    accumulate: int = 1

    @property
    def code(self) -> int:
        """Both numbers as one, greater than 0, for exchanges that know only integers."""
        return self.local << _SHIFT | self.accumulate

    @classmethod
    def of(cls, code: int) -> Batch:
        return cls(code >> _SHIFT, code & (_MOST - 1))


class Allotment:
    """Where decisions are found. `look` gives the newest, or None while there is none that can be meant."""

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self.first = _batch(environ.get("OARLOCK_LOCAL_BATCH"), environ.get("OARLOCK_ACCUMULATE") or 1)
        self.initial = _number(environ.get("OARLOCK_BATCH_SIZE"))  # of all processes: what the job began with
        report = environ.get("OARLOCK_REPORT")
        self._path = Path(report) / FILE if report else None
        self._clock = clock
        self._looked_at = clock() - LOOK_EVERY_S
        self._seen: tuple[int, int] | None = None
        self._newest: Batch | None = None

    def look(self) -> Batch | None:
        now = self._clock()
        if self._path is not None and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._read(self._path)
        return self._newest

    def _read(self, path: Path) -> None:
        """The file is replaced by rename: another inode or time says that it is another."""
        try:
            status = path.stat()
            if (status.st_ino, status.st_mtime_ns) == self._seen:
                return
            self._seen = (status.st_ino, status.st_mtime_ns)
            told = json.loads(path.read_bytes())
            self._newest = _batch(told["local"], told["accumulate"]) or self._newest
        except (OSError, ValueError, KeyError, TypeError):
            return  # not there yet, or not ours to understand


def _batch(local: object, accumulate: object) -> Batch | None:
    at_once, parts = _number(local), _number(accumulate)
    return Batch(at_once, parts) if at_once is not None and parts is not None else None


def _number(value: object) -> int | None:
    try:
        number = int(value)  # type: ignore[call-overload]  # whatever it is, it is a number or it is not
    except (TypeError, ValueError):
        return None
    return number if 0 < number < _MOST else None
