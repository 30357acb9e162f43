"""Interface of every store: the one place where decisions meet.

A caller hands `write` a function; it runs inside one transaction and either all of it happens or nothing. It may run
twice (a serialisation failure is retried), so it must have no effects but through its `Transaction`. It must not block
on anything else: in SQLite all writes pass through one thread and are committed in groups.

Every implementation (memory, SQLite, PostgreSQL) passes `tests/store/contract.py`. All methods of `Store` may be
awaited from any event loop of any thread of the process that opened it. Over the memory store they never suspend, but
for `wait` while nothing is new.

Errors: `VersionMismatch` when a job, node, pool or user has changed since it was read; `AlreadyHeld` when a device or a
port of a node has a holder, or more of a device, its CPUs or memory is asked for than is left; `NameTaken`;
`StaleEpoch` when `epoch` is not the leader's; `Gone` when records before a compaction are asked for; `Unavailable` when
the database cannot be reached or its disk is full.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

# Names, not modules: the methods below bear the modules' names.
from oarlock.spec.access.users import Session, Token, User
from oarlock.spec.cluster.nodes import Node
from oarlock.spec.cluster.pools import Pool
from oarlock.spec.cluster.samples import Sample
from oarlock.spec.events import AnyEvent, Record
from oarlock.spec.holdings import Holding
from oarlock.spec.jobs import Checkpoint, Job
from oarlock.spec.phases import Phase
from oarlock.spec.process.clocks import Anchor

T = TypeVar("T")


class Leader(msgspec.Struct, frozen=True):
    """The leader's row. `expires_at` is Unix seconds on the leader's clock."""

    holder: str
    epoch: int
    expires_at: float


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one attempt of one job, written when it was released; or the sum of a user or a pool.

    `gpu_type` names the types of its devices; empty with devices: an earlier Oarlock wrote it, and knew neither the
    type nor the useful part (None). A sum has no type, and no useful part.
    """

    owner: str
    pool: str
    job: str = ""
    attempt: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    gpu_type: str = ""  # `a100`, or `a100, h100`
    device_seconds: float = 0.0
    useful_seconds: float | None = None  # the part of the device-seconds in which its gang was PROCESSING
    cpu_seconds: float = 0.0
    cost: float = 0.0


class Sort(StrEnum):
    """The field by which jobs are sorted; equal ones are sorted by age."""

    CREATED = "created"
    NAME = "name"
    OWNER = "owner"
    POOL = "pool"
    PHASE = "phase"


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs, and their order: newest first, unless `sort` and `ascending` say otherwise.

    `text` is a part of the name or the command, in any case of letters. `since` and `until` bound the time of
    submission. `after` is the id of the last job of the page before: Gone when that was removed since. `after_phase` is
    the phase that it had there, so that its change moves no place in an order by phase.
    """

    phases: frozenset[Phase] | None = None
    owner: str | None = None
    pool: str | None = None
    name: str | None = None
    continues: str | None = None  # the id of the job that gave their first checkpoint
    text: str | None = None
    since: float | None = None
    until: float | None = None
    sort: Sort = Sort.CREATED
    ascending: bool = False
    after: str | None = None
    after_phase: Phase | None = None
    limit: int = 100


class View(Protocol):
    """A consistent state of the store, to be read."""

    def job(self, job_id: str) -> Job | None: ...

    def jobs_by_id(self, ids: Collection[str]) -> dict[str, Job]:
        """Return those of these jobs that there are."""
        ...

    def find(self, name_or_id: str, owner: str | None = None) -> Job | None:
        """Return the job by id, else the newest of that name, else the newest whose id ends in it (`jobs.SHORT_ID`
        letters).

        `owner`, where given, limits the search to that owner's jobs.
        """
        ...

    def jobs(self, which: JobFilter) -> list[Job]: ...

    def active(self) -> list[Job]:
        """Return every job that is not terminal, oldest first: the jobs of the controllers.

        A job that is halted, released and meant to stay so is left out.
        """
        ...

    def count(self, which: JobFilter = JobFilter()) -> dict[Phase, int]:  # noqa: B008  (it is frozen)
        """Return the number of jobs by phase; `phases`, `after` and `limit` of the filter do not count."""
        ...

    def holdings(self, job: str | None = None) -> list[Holding]: ...

    def holdings_by_job(self, ids: Collection[str]) -> dict[str, list[Holding]]:
        """Return the holdings of these jobs, of those that have any."""
        ...

    def records(
        self, after: int, *, job: str | None = None, kinds: Collection[str] = (), limit: int = 1000
    ) -> list[Record]:
        """Return the event log's lines with `seq` > after, in order; only those of `kinds`, if any are given.

        Raises Gone when some of them (of that job, where given) were compacted away; its `detail["first"]` is where
        the log begins now. The lines of a removed job are missing without that: its `removed` line stands for them.
        """
        ...

    def changed_jobs(self, after: int) -> dict[str, int]:
        """Return the jobs that the event log names after `after`, each with the version in the last of its lines.

        Raises Gone as `records` does.
        """
        ...

    def last_seq(self) -> int: ...

    def newest_seq(self, count: int, *, of_jobs: bool) -> int:
        """Return the `seq` of the line that is the `count`th newest of those of jobs, or of those of no job; 0 where
        there are fewer.
        """
        ...

    def nodes(self) -> list[Node]: ...

    def pools(self) -> list[Pool]: ...

    def checkpoints(self, job: str) -> list[Checkpoint]:
        """Return the visible ones, best (newest step of the newest attempt) first."""
        ...

    def checkpoints_by_job(self, ids: Collection[str]) -> dict[str, list[Checkpoint]]:
        """Return those of these jobs, of the jobs that have any, as `checkpoints` does."""
        ...

    def submitted(self, owner: str, idempotency_key: str) -> tuple[str, str] | None:
        """Return the job id and the digest of the request that this key made: also of a job that was removed since."""
        ...

    def user(self, name: str) -> User | None: ...

    def users(self) -> list[User]: ...

    def users_by_name(self, names: Collection[str]) -> dict[str, User]:
        """Return those of these users that there are."""
        ...

    def token(self, sha256: str) -> Token | None: ...

    def tokens_by_digest(self, digests: Collection[str]) -> dict[str, Token]:
        """Return those of these tokens that there are."""
        ...

    def tokens(self, user: str) -> list[Token]:
        """Return the user's tokens, oldest first."""
        ...

    def session(self, sha256: str) -> Session | None:
        """Return the session or login code, also one that has expired."""
        ...

    def sessions_by_digest(self, digests: Collection[str]) -> dict[str, Session]:
        """Return those of these sessions and login codes that there are, also expired ones."""
        ...

    def sessions(self, user: str) -> list[Session]:
        """Return the user's sessions and login codes, oldest first."""
        ...

    def usage(self, *, since: float = 0.0) -> list[Usage]:
        """Return sums by owner and pool of usage that ended after `since`, with the first start and the last end.

        Running attempts are in `holdings`.
        """
        ...

    def attempts_used(
        self, *, since: float, until: float, owner: str | None = None, limit: int | None = None
    ) -> list[Usage]:
        """Return the usage of each attempt that was held at some time between `since` and `until`, newest end first.

        Running attempts are in `holdings`. The usage of a removed job stays.
        """
        ...

    def samples(self, *, since: float, until: float, limit: int) -> list[Sample]:
        """Return the samples of the cluster from `since` to before `until`, oldest first: `limit` at most, spread over
        the time.
        """
        ...

    def snapshots_in_use(self) -> set[str]:
        """Return the digests that a stored job names."""
        ...

    def leader(self) -> Leader | None: ...

    def cursor(self, name: str) -> int | None:
        """Return the place in the event log (a `seq`) that this reader has come to; None before it has said so."""
        ...

    def clock_anchor(self) -> Anchor | None:
        """Return how the last leader's clock stood; None before the first one has said so."""
        ...


class Transaction(View, Protocol):
    """A view that sees its own writes. Jobs and holdings that are read together are not read one by one again."""

    def add_job(self, job: Job, *, at: float, idempotency_key: str = "", request_sha256: str = "") -> Job:
        """Insert, at version 1, with a `submitted` record.

        Raises NameTaken when the owner has an active job of that name, Conflict when the id or the key is taken.
        """
        ...

    def put_job(self, job: Job, happened: Iterable[AnyEvent] = (), *, at: float) -> Job:
        """Write the job that `lifecycle.step` made of the stored job, at version + 1, with a record for each event
        (progress and `Measured` excepted) and one for a change of phase.

        Raises VersionMismatch unless `job.version` is the stored one, Conflict when the stored job is terminal or the
        name, owner or time is another, NotFound when it was removed, NameTaken when a resumed job's name has been taken
        meanwhile. A `TaskReported` is progress, unless the task's phase (or whether it can rejoin) is another after it.
        """
        ...

    def remove_jobs(self, ids: Collection[str], *, at: float) -> None:
        """Forget terminal jobs with their records and checkpoints; leaves a `removed` record each.

        Usage stays, and so do idempotency keys until `forget_keys`. Unknown ids are left aside. Raises Conflict, and
        removes none, when one is not terminal or still holds something.
        """
        ...

    def forget_keys(self, before: float) -> None:
        """Forget the idempotency keys of jobs that were removed before that time."""
        ...

    def hold(self, claims: Sequence[Holding]) -> None:
        """Hold all of them, or raise AlreadyHeld.

        Checked against the node's row: devices and ports once each, CPUs, memory and the shares of a device in sum; a
        device is held whole or in shares. Raises Conflict when the node, or its device or port, is not there (any
        more), and for an invalid share; NotFound when the job is not.
        """
        ...

    def release(self, job: str, attempt: int, tasks: Collection[str] | None = None) -> list[Holding]:
        """Free the attempt's holdings and return them; those of these tasks alone (`worker-1`), where they are named.
        A repeated call frees nothing.
        """
        ...

    def add_usage(self, usage: Usage) -> None:
        """Add the usage of an attempt, once."""
        ...

    def add_sample(self, sample: Sample) -> None:
        """Add a sample of the cluster. Do nothing where there is one of that time."""
        ...

    def forget_samples(self, before: float) -> None:
        """Forget the samples that were taken before that time."""
        ...

    def tell(self, kind: str, names: Collection[str], *, at: float) -> None:
        """Write a line of no job: nodes or pools of these names have changed (`events.NODES`, `events.POOLS`).

        The methods below write no line. Each writer tells of its changes, once for all of them.
        """
        ...

    def put_node(self, node: Node) -> Node:
        """Insert at version 0, else compare and swap; returned at version + 1. So are pools and users."""
        ...

    def remove_node(self, name: str) -> None:
        """Remove a node. Raise Conflict while anything is held on it."""
        ...

    def put_pool(self, pool: Pool) -> Pool: ...

    def remove_pool(self, name: str) -> None:
        """Remove a pool, if it is there. Raise Conflict while a job that is not over is in it."""
        ...

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint. Do nothing where one with its path is there."""
        ...

    def remove_checkpoint(self, job: str, path: str) -> None: ...

    def put_user(self, user: User) -> User: ...

    def remove_user(self, name: str) -> None:
        """Remove a user, if it is there, with all its tokens and sessions. Raise Conflict while the user has a job that
        is not over; jobs that are over keep the name of their owner.
        """
        ...

    def put_token(self, token: Token) -> None:
        """Write a token; the sessions of an earlier one end. Raises NotFound when there is no such user."""
        ...

    def remove_token(self, sha256: str) -> None:
        """Remove a token, if it is there. The sessions that were made from the token end with it."""
        ...

    def put_session(self, session: Session) -> None:
        """Insert or replace. Raises NotFound when its token is not there, or is another user's."""
        ...

    def remove_session(self, sha256: str) -> None:
        """Remove a session, if it is there."""
        ...

    def forget_sessions(self, before: float) -> None:
        """Remove the sessions and login codes that expired before that time."""
        ...

    def put_cursor(self, name: str, seq: int) -> None:
        """Set the place that this reader of the event log has come to. It never goes back. No record tells of it."""
        ...

    def put_clock_anchor(self, anchor: Anchor) -> None: ...

    def compact(self, before: int, *, cluster_before: int = 0) -> None:
        """Drop event-log lines with `seq` < before, and those of no job with `seq` < cluster_before.

        A reader behind the latter misses them without a word: a later line says again that nodes or pools have changed.
        """
        ...


class Store(Protocol):
    async def write(self, change: Callable[[Transaction], T], *, epoch: int | None = None) -> T:
        """Run `change` in one transaction and return its result, once it is durable.

        With `epoch` the leader's row is locked and compared first: StaleEpoch unless it is the present one.
        """
        ...

    async def read(self, look: Callable[[View], T]) -> T: ...

    async def probe(self, *, at: float) -> None:
        """Write a row of the store's own, and return once it is durable: no record tells of it.

        Before that the store tries the writes of a submission, and undoes them. Raises Unavailable where a submission
        would meet it: no room, no disk, damaged tables.
        """
        ...

    async def lead(self, holder: str, *, now: float, ttl_s: float) -> int | None:
        """Take or renew the leadership: return the epoch, or None while another's has not expired.

        A new holder gets a new, greater epoch. The same holder keeps its own, even after its expiry when no other led
        meanwhile: every process needs a name of its own.
        """
        ...

    async def resign(self, holder: str, epoch: int) -> None: ...

    async def wait(self, after: int, timeout_s: float) -> int:
        """Return the last seq once it is greater than `after`, or after the time-out.

        A hint: a lost wake-up costs time only.
        """
        ...

    async def close(self) -> None: ...
