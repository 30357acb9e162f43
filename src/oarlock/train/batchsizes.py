"""The batch size of a process, and the scheduler's decisions about it.

A batch size is the number of examples that a process takes at once, and the number of such batches that it accumulates
before the gang exchanges gradients. The script chooses it, unless the job file leaves it to the scheduler (`batch:`)
and the script follows (`Session(adapt=True)`). The scheduler's first decision is in the environment (environment.py).
Later decisions are in the file `batch.json` beside the reports, which the agent replaces. Only the chief reads the
file; all ranks take up a decision at the same step (agreement.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FILE = "batch.json"
LOOK_EVERY_S = 0.5
_SHIFT = 20
_MOST = 1 << _SHIFT


@dataclass(frozen=True)
class Batch:
    """A batch size: this process takes `local` examples at once, `accumulate` times before an exchange."""

    local: int
    accumulate: int = 1

    @property
    def code(self) -> int:
        """Both numbers in one, greater than 0, for exchanges of integers."""
        return self.local << _SHIFT | self.accumulate

    @classmethod
    def of(cls, code: int) -> Batch:
        return cls(code >> _SHIFT, code & (_MOST - 1))


class BatchFile:
    """The file of the scheduler's later decisions. Without a report directory there are none."""

    def __init__(self, report: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = report / FILE if report else None
        self._clock = clock
        self._looked_at = clock() - LOOK_EVERY_S
        self._seen: tuple[int, int] | None = None
        self._newest: Batch | None = None

    def look(self) -> Batch | None:
        """Return the newest valid decision, or None. Reads the file at most every LOOK_EVERY_S."""
        now = self._clock()
        if self._path is not None and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._read(self._path)
        return self._newest

    def _read(self, path: Path) -> None:
        """Read the file if its inode or time has changed: each decision replaces it by a rename."""
        try:
            status = path.stat()
            if (status.st_ino, status.st_mtime_ns) == self._seen:
                return
            self._seen = (status.st_ino, status.st_mtime_ns)
            told = json.loads(path.read_bytes())
            self._newest = parsed(told["local"], told["accumulate"]) or self._newest
        except (OSError, ValueError, KeyError, TypeError):
            return  # not there yet, or not a decision


class Measuring(Protocol):
    """The measurements of a strategy."""

    measures_noise: bool


class Words:
    """The words about a new batch size, for people."""

    def __init__(self) -> None:
        self._told_of_gain = False

    def of(self, step: int, batch: Batch, ranks: int, measured: Iterable[Measuring]) -> str:
        """Return the words for a batch size that holds from this step on. Once they tell that the gain stays 1."""
        text = f"from step {step} on a step takes {batch.local} examples"
        text += f" {batch.accumulate} times" if batch.accumulate > 1 else ""
        text += f" on each of {ranks} ranks"
        if not self._told_of_gain and not all(one.measures_noise for one in measured):
            self._told_of_gain = True
            text += ". This strategy does not measure the gradients' noise, so session.gain stays 1, whatever the size"
        return text


def gain(initial: int | None, batch: Batch | None, ranks: int, noise: float | None) -> float:
    """Return the progress of a step of all ranks, relative to one with the batch size with which the job began."""
    if initial is None or batch is None or not noise:
        return 1.0
    total = batch.local * batch.accumulate * ranks
    return total / initial * (noise + initial) / (noise + total)


def parsed(local: object, accumulate: object) -> Batch | None:
    """Return the batch size of two numbers, or None if one is not valid."""
    at_once, parts = number(local), number(accumulate)
    return Batch(at_once, parts) if at_once is not None and parts is not None else None


def number(value: object) -> int | None:
    """Return a number of examples, or None if it is not valid."""
    try:
        found = int(value)  # type: ignore[call-overload]  # TypeError if it is not a number
    except (TypeError, ValueError):
        return None
    return found if 0 < found < _MOST else None
