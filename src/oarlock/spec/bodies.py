"""Bodies of the REST API that are not nouns of their own. The server and the client share these structs.

A server may be newer than its client: the client ignores unknown fields of an answer. A client may be newer, too: a
field that is added to an answer later has a default. Requests are strict, so that a mistyped field is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from oarlock.spec import events, holdings, intents, jobs, phases, plans, refusals, summaries
from oarlock.spec.access import kubernetessecrets, users
from oarlock.spec.cluster import nodes, pools, samples

T = TypeVar("T")
Amounts = dict[str, float]
"""Amounts by resource: devices, cores, bytes."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list. The parameter `after` of the next request takes `next`, which is null at the end of the list."""

    items: tuple[T, ...]
    next: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error. `code` names a class of `oarlock.spec.errors`, `hint` the next step, `path` the wrong field."""

    code: str
    message: str
    hint: str = ""
    path: str = ""
    detail: Any = None


class Failure(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorBody


# Jobs


class JobPage(msgspec.Struct, frozen=True):
    """Jobs, newest first. The parameter `after` of the next request takes `next`, which is null at the end."""

    items: tuple[jobs.Job, ...]
    next: str | None


class SummaryPage(Page[summaries.Summary], frozen=True, kw_only=True):
    """Jobs in short. `phases` counts the filter's jobs by phase, whatever its phases; `now` is the server's time."""

    phases: dict[phases.Phase, int]
    now: float


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The intent of a user for a job: halt, cancel, or run, which resumes a halted job."""

    intent: intents.Intent
    reason: str = ""


class Manifests(msgspec.Struct, frozen=True):
    """The Kubernetes objects of a gang, in the order of their creation."""

    items: tuple[dict[str, Any], ...]


class CheckpointList(Page[jobs.Checkpoint], frozen=True):
    """Checkpoints of a job, best first."""


class RecordPage(msgspec.Struct, frozen=True):
    """Records of the event log. The next `after` takes `next`, which has passed the records that are hidden, too."""

    items: tuple[events.Record, ...]
    next: int


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why the job is in its phase: three plain lines, and the values that they were made of.

    `ends` has the expected end of each holder of `refusal`, in their order.
    """

    phase: phases.Phase
    reason: str
    refusal: refusals.Refusal | None
    forecast: plans.Forecast | None
    lines: tuple[str, ...]
    ends: tuple[ExpectedEnd, ...] = ()


class What(StrEnum):
    ADMITTED = "admitted"
    REFUSED = "refused"
    PREEMPTED = "preempted"
    RESIZED = "resized"
    MOVED = "moved"
    BATCH = "batch"
    OWNER = "owner"  # its owner halted, resumed, canceled or changed it


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about a job, made at `at` (Unix seconds). A refusal was made `count` times, the last at `until`."""

    at: float
    what: What
    text: str
    reason: str = ""
    code: str = ""  # of a refusal
    attempt: int = 0
    until: float = 0.0
    count: int = 1


class DecisionList(Page[Decision], frozen=True):
    """Decisions about a job, oldest first. `complete` is false where older ones are no longer in the event log."""

    complete: bool = True


class Unit(StrEnum):
    EXAMPLES = "examples"
    STEPS = "steps"  # the processes do not say how many examples they take


class SpeedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Examples or steps per second with this number of devices.

    `measured` counts the measurements; a fitted point has none. `beside` is the job that shared the device. `gpu_type`
    is the type that was measured or fitted for, empty where no type is known.
    """

    devices: int
    nodes: int
    per_s: float
    servers: int = 0
    local: int = 0  # examples that each process takes at once; 0: unknown
    measured: int = 0
    beside: str = ""
    gpu_type: str = ""


class Speed(Page[SpeedPoint], frozen=True):
    """The speed of a job at several sizes, fewest devices first; empty before the first measurement.

    `noise` is the gradient noise scale in examples, `per_s` the speed of the attempt that runs now.
    """

    unit: Unit = Unit.EXAMPLES
    noise: float | None = None
    per_s: float | None = None


class Ended(msgspec.Struct, frozen=True):
    """The end of a job."""

    phase: phases.Phase
    exit_code: int | None


class End(msgspec.Struct, frozen=True):
    """The last line of a log that is followed."""

    end: Ended


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a job.

    `path` is its key (`oarlock.data.filekeys`) in the job's tree of files; `modified_at` is in Unix seconds. `version`
    differs if the content may differ.
    """

    path: str
    bytes: int
    modified_at: float
    version: str = ""


class Elsewhere(msgspec.Struct, frozen=True):
    """A part of the tree that the job file sends to a place of its own."""

    path: str
    url: str


class FileList(msgspec.Struct, frozen=True):
    """A page of a job's files, by path. `files` and `bytes` count all pages; the next `after` takes `next`."""

    items: tuple[JobFile, ...]
    next: str | None
    files: int
    bytes: int
    elsewhere: tuple[Elsewhere, ...] = ()


# The cluster


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a job that every user sees: its owner, pool and name. `job` is its id, empty where ids are hidden."""

    user: str
    pool: str
    name: str
    job: str = ""


class Held(Tenant, frozen=True, kw_only=True):
    """A job and the amount that it holds."""

    amount: holdings.Resources


class NodeState(msgspec.Struct, frozen=True):
    """A node and the jobs on it. `holdings` name the jobs by their ids; a hidden id is empty."""

    node: nodes.Node
    held: holdings.Resources
    holdings: tuple[holdings.Holding, ...]
    holders: tuple[Held, ...] = ()


class NodeList(Page[NodeState], frozen=True):
    """The nodes of the cluster."""


class QueueRow(Held, frozen=True, kw_only=True):
    """A job that runs or waits. A waiting job holds nothing. `since` is the time of its phase's start, Unix seconds.

    A waiting job has the amount that its smallest gang needs, the code of the reason why it waits, and the jobs that
    hold what it lacks, as all users may see them.
    """

    phase: phases.Phase
    since: float
    nodes: tuple[str, ...] = ()
    needs: holdings.Resources | None = None
    code: refusals.Code | None = None
    holders: tuple[refusals.Holder, ...] = ()


class Queue(Page[QueueRow], frozen=True):
    """The jobs that run, then the jobs that wait, oldest first."""


class Place(msgspec.Struct, frozen=True):
    """A node, and devices of it by their index."""

    node: str
    devices: tuple[int, ...] = ()


class ExpectedStart(Tenant, frozen=True, kw_only=True):
    """The forecast of a waiting job, as `plans.Forecast` has it. `message` says why it waits, to those who see the job.

    `starts` is `expected` in short; `places` are expected ones, empty where no start time is known.
    """

    when: plans.When
    expected: str
    starts: str = ""
    message: str = ""
    start: float | None = None
    latest: float | None = None
    position: int = 0
    places: tuple[Place, ...] = ()


class ExpectedEnd(Tenant, frozen=True, kw_only=True):
    """The end of a job that holds something, in Unix seconds; `latest` is that of its time-out. None: not known."""

    end: float | None = None
    latest: float | None = None


class Forecasts(msgspec.Struct, frozen=True, kw_only=True):
    """The expected starts of all waiting jobs, in the order of the queue, and the ends of all running ones.

    They were made at `at` (Unix seconds), after line `seq` of the event log: in a large cluster lines may have been
    written since. Without `computed` the starts are the last refusals, without times.
    """

    at: float
    starts: tuple[ExpectedStart, ...]
    ends: tuple[ExpectedEnd, ...]
    computed: bool = True
    seq: int = 0


class HeldBefore(Tenant, frozen=True, kw_only=True):
    """One attempt of a job with its places. Times are Unix seconds; `ended_at` is None while it holds them.

    `outcome` is COMPLETED, FAILED, CANCELED or HALTED, or QUEUED where the attempt was stopped and the job waited
    again, as after a preemption; None while it runs.
    """

    attempt: int
    started_at: float
    ended_at: float | None
    places: tuple[Place, ...]
    outcome: phases.Phase | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts that held something between `since` and `until`, oldest first.

    `cut` says that there were more: the attempts that ended first are left out.
    """

    since: float
    until: float
    items: tuple[HeldBefore, ...]
    cut: bool = False


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """A pool with everything below it. Amounts by resource: devices, cores, bytes."""

    pool: pools.Pool
    held: holdings.Resources
    entitled: Amounts  # the amounts that it may hold now
    demand: Amounts  # the amounts that its jobs hold and wait for, at their largest sizes
    reserved: Amounts  # the limit of its jobs that must not be preempted; empty for a pool that has children
    running: int
    waiting: int


class PoolList(Page[PoolState], frozen=True):
    """Pools, each before its children. `capacity` sums the nodes that are ready; `notes` are plain sentences."""

    capacity: Amounts = {}
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[PoolState]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Refused(Tenant, frozen=True, kw_only=True):
    """A job that waits, with the reason in numbers."""

    refusal: refusals.Refusal


class PoolPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of a change that is not made: the tree before and after it, and the jobs that are affected at once.

    `starts` would start because of it, `stops` would give way and wait again, `shrinks` would go on with another
    number of tasks. `waits` would wait: jobs of the pool and those below it, and jobs with another reason than they
    have without the change, in the order of the queue. They are the first of `waiting` ones. Without `planned` the
    cluster is too large for a plan on demand, and no job is told.
    """

    pool: pools.Pool
    before: tuple[PoolState, ...]
    after: tuple[PoolState, ...]
    notes: tuple[str, ...] = ()
    starts: tuple[Tenant, ...] = ()
    stops: tuple[Tenant, ...] = ()
    shrinks: tuple[Tenant, ...] = ()
    waits: tuple[Refused, ...] = ()
    waiting: int = 0
    planned: bool = True


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of the cluster from `since` to `until`, Unix seconds, oldest first, spread over that time."""

    since: float
    until: float
    items: tuple[samples.Sample, ...]


class UsageRow(msgspec.Struct, frozen=True):
    """The use of one user, pool, type of GPU or day. A day is named `2026-11-23`, in UTC.

    `device_hours` counts devices from launch to release. They were useful while the attempt was PROCESSING, and idle
    before and after that: in launch, download, storing, and when a failure was kept for a look inside. Attempts that an
    earlier version recorded are in neither of the two.
    """

    name: str
    device_hours: float
    cpu_hours: float
    cost: float
    useful_hours: float = 0.0
    idle_hours: float = 0.0


class UsageList(Page[UsageRow], frozen=True):
    """The use of each user, pool, type of GPU or day, by name."""


# The server, its users and secrets


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the server, and the user that asks."""

    version: str
    backend: str
    home: str
    url: str
    local: bool
    started_at: float
    user: str
    right: users.Right
    capabilities: tuple[str, ...]
    currency: str  # of all prices; empty where it is not set
    seq: int = 0  # the last line of the event log
    now: float = 0.0  # the time on the server's clock


class UserList(Page[users.User], frozen=True):
    """The users of the server."""


class TokenList(Page[users.Token], frozen=True):
    """The tokens of a user: their notes and digests, and never the tokens."""


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """The `python` of a PATH, empty without one. `fault` says why it does not run."""

    path: str = ""
    version: str = ""
    torch: bool = False
    fault: str = ""


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU driver, by its tool: the devices, or why it does not answer (`silence`), or does not run (`fault`).

    `tool` is empty where there is none; `device` tells whether there is a GPU then.
    """

    tool: str = ""
    devices: tuple[str, ...] = ()
    silence: str = ""
    fault: str = ""
    device: bool = False


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """The programs of a machine that its jobs use."""

    python: Python
    gpus: Driver


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The server as its administrators see it. `problems` are by part: none means ready.

    `settings` has those with which it was started, without secrets. `expires_at` is the end of the leader's term.
    The disk is the one with the server's home, `file_system` its type; `shared_memory_bytes` is the size of the
    machine's shared memory. 0, or empty: it could not be read. `readable` are the secret files of the home that others
    than its owner may read, each with its mode. `file_skew_s` tells how far the times of new files in the home are
    ahead of the clock. `programs` is None where jobs do not run on the server's machine, and until it was read.
    """

    settings: dict[str, str]
    problems: dict[str, str]
    leader: str = ""
    epoch: int = 0
    expires_at: float | None = None
    users: int = 0
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    file_system: str = ""
    shared_memory_bytes: int = 0
    readable: dict[str, int] = {}
    file_skew_s: float | None = None
    programs: Programs | None = None


class NewUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user to add."""

    name: str
    right: users.Right = users.Right.USER


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to make."""

    note: str = ""


class ShownToken(msgspec.Struct, frozen=True):
    """A new token. No other answer shows `token`; later requests name the token by its `sha256`."""

    token: str
    sha256: str
    user: str


class LoginCode(msgspec.Struct, frozen=True):
    """A code that makes one session, until `expires_at` (Unix seconds). No other answer shows it."""

    code: str
    expires_at: float


class NewSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A session to make. `secret` is a login code or a token, `note` the program that logs in, in its own words."""

    secret: str
    note: str = ""


class ShownSession(msgspec.Struct, frozen=True, kw_only=True):
    """A new session. No other answer shows `secret`, which is used like a token."""

    secret: str
    user: str
    expires_at: float


class TensorBoardState(StrEnum):
    NONE = "none"  # the job has none, or the server cannot run one
    STARTING = "starting"  # or waits for something: `reason`
    RUNNING = "running"


class TensorBoard(msgspec.Struct, frozen=True, kw_only=True):
    """The TensorBoard that runs beside a job."""

    state: TensorBoardState
    reason: str = ""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session without its secret, named by its `sha256`. `current` is the session of the request."""

    sha256: str
    created_at: float
    used_at: float
    expires_at: float
    note: str
    current: bool


class SessionList(Page[SessionInfo], frozen=True):
    """The sessions of the user, oldest first."""


class SecretInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value. `owner` is empty for a secret of the server, which `users` or `everyone` may use.

    `kubernetes` is the key of a Kubernetes Secret to which it refers; null: it has a value.
    """

    name: str
    owner: str = ""
    everyone: bool = False
    users: tuple[str, ...] = ()
    kubernetes: kubernetessecrets.Reference | None = None


class SecretList(Page[SecretInfo], frozen=True):
    """The secrets that the jobs of the user may name."""


class NewSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A secret to make or change. Without `value` and `kubernetes`, its value or reference stays as it is.

    `kubernetes` makes a secret that refers to a key of a Kubernetes Secret in the namespace of the pods. Only
    administrators may set `kubernetes`, `server`, `everyone` and `users`.
    """

    value: str | None = None
    kubernetes: kubernetessecrets.Reference | None = None
    server: bool = False
    everyone: bool = False
    users: tuple[str, ...] = ()
