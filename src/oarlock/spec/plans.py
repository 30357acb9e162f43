"""The input and the output of the scheduler: plain numbers, no server needed."""

from __future__ import annotations

import functools
from enum import StrEnum

import msgspec

from oarlock.spec import curves, holdings, jobfile, refusals
from oarlock.spec.cluster import nodes, pools, profiles
from oarlock.spec.input import edits

Size = tuple[int, ...]
"""How many tasks of each ask of a gang, in the gang's order; all zero: nothing."""


class GangTask(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One task to be placed."""

    role: str
    index: int
    amount: holdings.Resources
    ports: int = 0  # size of its port block, where the node has a port range
    gpu_types: tuple[str, ...] = ()  # acceptable, in order; empty: any
    gpu_memory_bytes: int = 0


class Ask(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The tasks of one role of a gang: `min` tasks of one shape or none at all, `max` at most.

    `count` is the owner's wish, used while no measurement says better. `cap` bounds it for now and may rise: a gang
    that is capped to its least is elastic all the same.
    """

    role: str
    count: int
    min: int
    max: int
    amount: holdings.Resources  # of one task
    ports: int = 0  # size of a task's port block, where the node has a port range
    gpu_types: tuple[str, ...] = ()  # acceptable, in order; empty: any
    gpu_memory_bytes: int = 0  # of each device
    cap: int | None = None  # the most for now; None: `max`
    nproc: int = 1  # processes in each task
    constraints: nodes.Constraints | None = None  # on its nodes; None: no taint is tolerated, no label is needed

    @property
    def most(self) -> int:
        """The most that it may have now."""
        return self.max if self.cap is None else max(self.min, min(self.cap, self.max))

    def task(self, index: int) -> GangTask:
        return GangTask(
            role=self.role,
            index=index,
            amount=self.amount,
            ports=self.ports,
            gpu_types=self.gpu_types,
            gpu_memory_bytes=self.gpu_memory_bytes,
        )


@functools.lru_cache(maxsize=4096)
def _single(count: int) -> Size:
    """Return the same object each time: most gangs have one role, and a plan asks for their size ten thousand times."""
    return (count,)


class Gang(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A job's request and the knowledge about it: admitted as one, or not at all."""

    job: str
    name: str
    pool: str
    asks: tuple[Ask, ...]
    submitted_at: float
    owner: str = ""
    priority: int = 50
    preemptible: bool = True
    placement: jobfile.Placement = jobfile.Placement.PACK
    topology: jobfile.Topology | None = None
    mixed: bool = False  # GPUs of several types within the gang will do
    beside: bool | None = None  # parameter servers on the workers' nodes, away from them, or wherever
    not_before: float | None = None
    refusal: refusals.Refusal | None = None  # the last one written
    served_s: float = 0.0  # device-seconds (CPU-seconds without devices) held by the attempts that have ended
    starts: int = 0  # attempts so far
    silent_starts: int = 0  # attempts that ended before they told of a step, since the last one that did
    stopped_at: float | None = None  # when the scheduler last stopped it
    destined: tuple[holdings.Holding, ...] = ()  # where it was to go, when it was last stopped for a resize or a move
    lasts_s: float | None = None  # seconds that it still needs, were it to run as its owner asked; None: not known
    at_most_s: float | None = None  # seconds after its start by which its time-out has ended it; None: no time-out
    curve: curves.Curve | None = None  # how its speed grows with its size, where that is known
    batch: jobfile.Batch | None = None  # within which its batch size may be chosen
    restart_s: float | None = None  # how long its last start took until it trained; None: not known

    @property
    def smallest(self) -> Size:
        return _single(self.asks[0].min) if len(self.asks) == 1 else tuple(ask.min for ask in self.asks)

    @property
    def constraints(self) -> nodes.Constraints | None:
        """The constraints on its nodes, which all its asks share."""
        return self.asks[0].constraints

    @property
    def wanted(self) -> Size:
        if any(ask.cap is not None for ask in self.asks):
            return tuple(min(ask.count, ask.most) for ask in self.asks)
        return _single(self.asks[0].count) if len(self.asks) == 1 else tuple(ask.count for ask in self.asks)

    @property
    def largest(self) -> Size:
        return tuple(ask.most for ask in self.asks)

    @property
    def elastic(self) -> bool:
        return any(ask.min < ask.max for ask in self.asks)

    @property
    def tasks(self) -> tuple[GangTask, ...]:
        """Its tasks at the size that was asked for."""
        return self.at(self.wanted)

    def at(self, size: Size) -> tuple[GangTask, ...]:
        """Return its tasks at `size`."""
        return tuple(ask.task(index) for ask, count in zip(self.asks, size, strict=True) for index in range(count))

    def amount(self, size: Size) -> holdings.Resources:
        """Return the resources that the gang holds at `size`."""
        return sum((ask.amount.times(count) for ask, count in zip(self.asks, size, strict=True)), holdings.Resources())


def on(gang: Gang, gpu_type: str) -> Gang:
    """Return the gang as it would be if it asked for that type of GPU alone."""
    return msgspec.structs.replace(gang, asks=_on(gang.asks, gpu_type), mixed=False)


@functools.lru_cache(maxsize=4096)
def _on(asks: tuple[Ask, ...], gpu_type: str) -> tuple[Ask, ...]:
    return tuple(
        msgspec.structs.replace(ask, gpu_types=(gpu_type,)) if ask.amount.gpus or ask.amount.gpu_milli else ask
        for ask in asks
    )


class Running(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A job that holds something. Times are Unix seconds."""

    gang: Gang
    holdings: tuple[holdings.Holding, ...]
    started_at: float
    expected_end: float | None = None  # from its progress, its time-out or earlier runs like it, where known
    starting: bool = False  # on its way: it does not train yet, as far as can be told
    began_at: float | None = None  # when it began to train, or else when its processes did; None: not known, or not yet
    latest_end: float | None = None  # by which it is over whatever happens: its time-out
    checkpoint_at: float | None = None  # the progress since then is lost at a preemption; None: since `started_at`
    stopping: bool = False  # its end was decided: its resources will be free
    returns: bool = False  # stopping, and back in the queue afterwards
    speed: float | None = None  # progress per second as measured now, in the curve's unit
    batch: curves.Batch | None = None  # as last decided

    @property
    def job(self) -> str:
        return self.gang.job

    @property
    def name(self) -> str:
        return self.gang.name

    @property
    def pool(self) -> str:
        return self.gang.pool

    @property
    def size(self) -> Size:
        """How many tasks of each ask it holds."""
        return tuple(sum(one.role == ask.role for one in self.holdings) for ask in self.gang.asks)


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The service of a job that is over, in device-seconds (CPU-seconds without devices), however it ended.

    `types` is its speed on each type of GPU on which it ran.
    """

    owner: str
    name: str
    served_s: float
    types: tuple[curves.OnType, ...] = ()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster wants to be scheduled: the server's settings."""

    policy: str = "goodput"  # of pools that name none; see `scheduler/policies`
    round_s: float = 60.0  # running gangs are stopped, resized and moved at most so often
    min_runtime_s: float = 120.0  # a gang that was started is not stopped for others earlier
    restart_s: float = 30.0  # the assumed price of a restart
    backfill: bool = True
    node_classes: tuple[nodes.NodeClass, ...] = ()  # nodes that may be added
    profiles: tuple[profiles.Profile, ...] = ()  # the constraints of gangs on their nodes, by pool and owner
    policies: dict[str, dict[str, float]] = {}  # a policy's own parameters by its name, where they are not the default


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one instant, frozen."""

    nodes: tuple[nodes.Node, ...]
    pools: tuple[pools.Pool, ...] = ()
    waiting: tuple[Gang, ...] = ()
    running: tuple[Running, ...] = ()
    ended: tuple[Ended, ...] = ()  # lately: from which may be learned how long others last
    rules: Rules = Rules()
    reallocate: bool = True  # whether running gangs may be touched by this plan


class Launch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    job: str
    holdings: tuple[holdings.Holding, ...]  # attempt 0: the transaction fills in the number
    reason: str = ""  # why now and why there, one line
    batch: curves.Batch | None = None


class Preemption(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The whole gang is stopped and goes back to the queue."""

    job: str
    reason: str
    by: str = ""  # the job that gets its place


class Resize(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """It is stopped at its next checkpoint, and started again with another number of tasks: for which there is room, at
    `to`, in the same plan.
    """

    job: str
    size: Size
    to: tuple[holdings.Holding, ...]
    reason: str
    by: str = ""  # the job that gets the resources


class Move(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """It is stopped at its next checkpoint, and started again elsewhere: there is room for it in the same plan."""

    job: str
    to: tuple[holdings.Holding, ...]
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's decisions. A job is in one of these at most, `batches` excepted. `refusals` are in the order in
    which the gangs were considered: the first gang is also considered first when resources become free.
    """

    launches: tuple[Launch, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    resizes: tuple[Resize, ...] = ()
    moves: tuple[Move, ...] = ()
    refusals: dict[str, refusals.Refusal] = {}
    batches: dict[str, curves.Batch] = {}  # new batch sizes of running jobs
    restless: bool = False  # time alone, or a measurement, may change decisions about running gangs


class Stop(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A running job that is expected to give way to another one. `job`, its id, is "" where that is hidden."""

    job: str
    name: str
    at: float  # Unix seconds
    shrinks: bool = False  # it goes on with fewer tasks, else it waits again


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was tried, and that would start the job now. `words` follow "It would start now".

    `edit` makes the change (`PATCH /api/v1/jobs/JOB`), None where no edit of the job can make it.
    """

    words: str
    edit: edits.Edit | None = None


class When(StrEnum):
    NOW = "now"
    LATER = "later"
    NEVER = "never"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of `oarlock plan FILE`: `message` says where it starts, or why it waits; `expected` says when.

    `starts` are the words of `expected` for a column of starts: `in about 12 min`. Empty where no start was found.
    `start` (the earliest) and `latest` are Unix seconds, None where no end of the jobs in its place is known.
    """

    when: When
    message: str
    expected: str = ""
    starts: str = ""
    refusal: refusals.Refusal | None = None
    start: float | None = None
    latest: float | None = None  # of the range in which it is expected to start; None: not known
    position: int = 0  # among those that wait, from 1; 0: it does not wait
    waiting: int = 0  # how many wait
    placement: tuple[holdings.Holding, ...] = ()  # the expected one, where the job starts later
    price_per_h: float = 0.0  # of where it starts, or is expected to; 0: not known, or free
    stops: tuple[Stop, ...] = ()  # running jobs that would give way to it
    makes_way: str = ""  # the same in one sentence
    remedies: tuple[Remedy, ...] = ()  # the tried changes of `refusal.change`
