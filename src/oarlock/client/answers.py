"""What the server answers where it is no noun of `oarlock.spec`: see docs/rest-api.md. Unknown fields are ignored, so
that the server may be newer than the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from oarlock.data import storage
from oarlock.spec import errors, extras, holdings, nodes, phases, plans, pools, refusals, users

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list; `next` is the `after` of the part that follows."""

    items: tuple[T, ...]
    next: str | int | None = None


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is, in three lines."""

    phase: phases.Phase
    reason: str = ""
    refusal: refusals.Refusal | None = None
    forecast: plans.Forecast | None = None
    lines: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about a job. `what` is admitted, refused, preempted, resized, moved, batch or owner."""

    at: float
    what: str
    text: str = ""
    reason: str = ""
    code: str = ""
    attempt: int = 0
    until: float = 0.0
    count: int = 1


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest first; not `complete` where the oldest are kept no longer."""

    items: tuple[Decision, ...] = ()
    complete: bool = True


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended: the last line of its log that is followed."""

    phase: phases.Phase
    exit_code: int | None = None


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
    last: int | None = None  # the fields are those of `Lines`
    end: End | None = None
    error: dict[str, Any] | None = None

    def line(self) -> storage.Line:
        if self.last is not None:
            return storage.Lines(
                task=self.task,
                attempt=self.attempt,
                incarnation=self.incarnation,
                stream=self.stream,
                offset=self.offset,
                at=self.at,
                text=self.text,
                last=self.last,
            )
        return storage.Line(
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
    """`value` is None where it was not finite: JSON has no word for it."""

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

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points if point.value is not None]


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    series: tuple[Series, ...] = ()

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


class SpeedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`per_s` with so many devices; `measured` is from how many looks at it, 0: fitted. `beside`: the job with which it
    shared its device then. `gpu_type` is empty where no type was told.
    """

    devices: int
    nodes: int
    per_s: float
    servers: int = 0
    local: int = 0  # examples that each process takes at once; 0: it does not say
    measured: int = 0
    beside: str = ""
    gpu_type: str = ""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a job is with what it is given; empty while nothing was measured."""

    items: tuple[SpeedPoint, ...] = ()
    unit: str = "examples"  # or `steps`
    noise: float | None = None  # gradient noise scale, in examples
    per_s: float | None = None  # of the attempt that runs now


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job's tree of files that its job file sends to a place of its own.

    `failure` says why that could not be looked at from here.
    """

    path: str
    url: str
    failure: str = ""


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a job, by path. `files` and `bytes` are of all pages."""

    items: tuple[storage.JobFile, ...] = ()
    next: str | None = None
    files: int = 0
    bytes: int = 0
    elsewhere: tuple[Elsewhere, ...] = ()


class Downloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a download has put in place. `present` files were there already, the same as the job's."""

    to: str
    files: int = 0
    bytes: int = 0
    present: int = 0


class SecretInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value. `owner` is "" for one of the server's, which `users`, or everyone, may use."""

    name: str
    owner: str = ""
    everyone: bool = False
    users: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A job of any user and what it holds. `job` is "" where the server hides other users' jobs."""

    user: str
    pool: str
    name: str
    job: str = ""
    amount: holdings.Resources = holdings.Resources()


class QueueRow(Held, frozen=True, kw_only=True):
    """A job that runs or waits. `amount` is zero where it waits; `since` is when it came to its phase, Unix seconds."""

    phase: phases.Phase
    since: float
    nodes: tuple[str, ...] = ()


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node: nodes.Node
    held: holdings.Resources = holdings.Resources()
    holdings: tuple[holdings.Holding, ...] = ()
    holders: tuple[Held, ...] = ()


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool with all that lies below it. Amounts by resource: devices, cores, bytes."""

    pool: pools.Pool
    held: holdings.Resources = holdings.Resources()
    entitled: dict[str, float] = {}  # what it may hold now
    demand: dict[str, float] = {}  # what its jobs hold and wait for, at their largest
    reserved: dict[str, float] = {}  # within what its jobs that must not be preempted stay; empty where it is no leaf
    running: int = 0
    waiting: int = 0


class PoolTree(msgspec.Struct, frozen=True, kw_only=True):
    """The pools, a parent before its children. `capacity` is of the nodes that are ready; `notes` are sentences."""

    items: tuple[PoolView, ...]
    capacity: dict[str, float] = {}
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[PoolView]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is a user's or a pool's."""

    name: str = ""
    device_hours: float = 0.0
    cpu_hours: float = 0.0
    cost: float = 0.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    backend: str = ""
    home: str = ""
    url: str = ""
    local: bool = False
    started_at: float = 0.0
    user: str = ""
    right: users.Right = users.Right.USER
    capabilities: tuple[str, ...] = ()
    currency: str = ""


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token is shown this once."""

    token: str
    user: str = ""
    sha256: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """An answer without a body that matters."""
