"""Answers that the client completes or converts. `oarlock.spec.bodies` has the other answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oarlock.spec import bodies, errors, tasklogs
from oarlock.spec.hints import extras

if TYPE_CHECKING:
    import pandas as pd


class LogItem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log's NDJSON: the fields of `Line`, or `end`, or `error`."""

    task: str = ""
    attempt: int = 0
    incarnation: int = 0
    stream: str = ""
    offset: int = 0
    at: float = 0.0
    text: str = ""
    partial: bool = False
    last: int = 0
    size: int = 0  # more than 0: so many bytes of `Lines` follow
    end: bodies.Ended | None = None
    error: bodies.ErrorBody | None = None

    def lines(self, data: bytes) -> tasklogs.Lines:
        return tasklogs.Lines(
            task=self.task,
            attempt=self.attempt,
            incarnation=self.incarnation,
            stream=self.stream,
            offset=self.offset,
            at=self.at,
            last=self.last,
            data=data,
        )

    def line(self) -> tasklogs.Line:
        return tasklogs.Line(
            task=self.task,
            attempt=self.attempt,
            incarnation=self.incarnation,
            stream=self.stream,
            offset=self.offset,
            at=self.at,
            text=self.text,
            partial=self.partial,
        )


class Point(msgspec.Struct, frozen=True):
    """A value at a step. JSON cannot express a number that is not finite; `value` is None then."""

    step: int
    at: float
    value: float | None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One name's values in one process of a task: `oarlock.data.storage.Series`."""

    task: str
    process: int
    name: str
    points: tuple[Point, ...]
    count: int = 0
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    gaps: tuple[int, ...] = ()

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points if point.value is not None]


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The names of all metrics of a job, and the series of the requested ones.

    `after` and `groups` are those of `new_metrics`.
    """

    names: tuple[str, ...] = ()
    series: tuple[Series, ...] = ()
    after: str | None = None
    groups: int | None = None

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each point: task, process, name, step, time (UTC) and value (NaN where it was not finite).

        Thinned series have the last point of each part; ask for more `points` where that is too coarse. Raises
        InvalidInput where pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise errors.InvalidInput(
                "pandas is not installed", hint=f"Install it: {extras.command('pandas')}"
            ) from error
        points = [(one, point) for one in self.series for point in one.points]
        at = pd.Series([point.at for _, point in points], dtype="float64")
        return pd.DataFrame(
            {
                "task": pd.Series([one.task for one, _ in points], dtype="str"),
                "process": pd.Series([one.process for one, _ in points], dtype="int64"),
                "name": pd.Series([one.name for one, _ in points], dtype="str"),
                "step": pd.Series([point.step for _, point in points], dtype="int64"),
                "time": pd.to_datetime(at, unit="s", utc=True).astype("datetime64[ns, UTC]"),
                "value": pd.Series([point.value for _, point in points], dtype="float64"),
            }
        )


class Elsewhere(bodies.Elsewhere, frozen=True):
    """A part of the tree that lies elsewhere. `failure` says why this process cannot list it; else it is empty."""

    failure: str = ""


class FileList(bodies.FileList, frozen=True):
    """The files of a job, those that lie elsewhere included."""

    elsewhere: tuple[Elsewhere, ...] = ()


class Downloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a download. `present` counts the files that were there already, with the same content."""

    to: str
    files: int = 0
    bytes: int = 0
    present: int = 0


class Nothing(msgspec.Struct, frozen=True):
    """An answer without a body that matters."""
