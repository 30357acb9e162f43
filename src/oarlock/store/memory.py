"""The store in memory: the fake behind every other room's tests, and the oracle of the databases' tests.

A change writes into the dictionaries in place and leaves behind how to undo each write; when it fails, that is played
backwards. One lock for readers and writers makes every view consistent. Nothing is kept when the process ends.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import msgspec

from oarlock.spec import errors

# Names, not modules: the methods below bear the modules' names.
from oarlock.spec.access.users import Session, Token, User
from oarlock.spec.cluster.nodes import Node
from oarlock.spec.cluster.pools import Pool
from oarlock.spec.cluster.samples import Sample
from oarlock.spec.events import AnyEvent, Record
from oarlock.spec.holdings import Holding, Resources
from oarlock.spec.jobs import Checkpoint, Job
from oarlock.spec.phases import NOT_OVER, Phase
from oarlock.spec.process.clocks import Anchor
from oarlock.store import rules, stores, waiting

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class MemoryStore:
    """`stores.Store`. Nothing suspends but `wait` with nothing new."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = MemoryTransaction()
        self._waiters = waiting.Waiters()
        self._closed = False

    async def write(self, change: Callable[[stores.Transaction], T], *, epoch: int | None = None) -> T:
        with self._lock:
            self._check_open()
            if epoch is not None:
                rules.check_epoch(self._state.row, epoch)
            try:
                result = change(self._state)
            except BaseException:
                self._state.rollback()
                raise
            self._state.commit()
            seq = self._state.last_seq()
        self._waiters.publish(seq)
        return result

    async def read(self, look: Callable[[stores.View], T]) -> T:
        with self._lock:
            self._check_open()
            return look(self._state)

    async def probe(self, *, at: float) -> None:
        self._check_open()

    async def lead(self, holder: str, *, now: float, ttl_s: float) -> int | None:
        with self._lock:
            self._check_open()
            row = rules.lead(self._state.row, holder, now, ttl_s)
            if row is None:
                return None
            self._state.row = row
            return row.epoch

    async def resign(self, holder: str, epoch: int) -> None:
        with self._lock:
            self._check_open()
            self._state.row = rules.resign(self._state.row, holder, epoch)

    async def wait(self, after: int, timeout_s: float) -> int:
        self._check_open()
        return await self._waiters.wait(after, timeout_s)

    async def close(self) -> None:
        self._closed = True
        self._waiters.close()

    def _check_open(self) -> None:
        if self._closed:
            raise errors.Unavailable("the store is closed", hint="Open it again.")


class Table(dict[K, V]):
    """A dictionary with changes that can be undone, newest first."""

    def __init__(self, undo: list[Callable[[], object]]) -> None:
        super().__init__()
        self._undo = undo

    def put(self, key: K, value: V) -> None:
        self._remember(key)
        self[key] = value

    def drop(self, key: K) -> None:
        if key in self:
            self._remember(key)
            del self[key]

    def _remember(self, key: K) -> None:
        if key in self:
            old = self[key]
            self._undo.append(lambda: self.__setitem__(key, old))
        else:
            self._undo.append(lambda: self.pop(key))


class MemoryTransaction:
    """`stores.Transaction`, and between transactions the state itself."""

    def __init__(self) -> None:
        undo: list[Callable[[], object]] = []
        self._undo = undo
        self._jobs: Table[str, Job] = Table(undo)
        self._active: Table[str, None] = Table(undo)
        self._names: Table[tuple[str, str], str] = Table(undo)  # (owner, name) of the active ones
        self._keys: Table[tuple[str, str], tuple[str, str]] = Table(undo)
        self._removed_keys: Table[tuple[str, str], float] = Table(undo)  # when their jobs were removed
        self._first_seq: Table[str, int] = Table(undo)
        self._claims: Table[tuple[str, int, str, int, str], Holding] = Table(undo)
        self._slots: Table[tuple[str, str, int], str] = Table(undo)
        self._used: Table[str, Resources] = Table(undo)
        self._shared: Table[tuple[str, int], int] = Table(undo)  # thousandths of (node, device)
        self._nodes: Table[str, Node] = Table(undo)
        self._pools: Table[str, Pool] = Table(undo)
        self._checkpoints: Table[tuple[str, str], Checkpoint] = Table(undo)
        self._users: Table[str, User] = Table(undo)
        self._tokens: Table[str, Token] = Table(undo)
        self._sessions: Table[str, Session] = Table(undo)
        self._usage: Table[tuple[str, int], stores.Usage] = Table(undo)
        self._samples: Table[float, Sample] = Table(undo)
        self._anchors: Table[str, Anchor] = Table(undo)  # one at most
        self._cursors: Table[str, int] = Table(undo)
        self._log: list[Record] = []
        self._seq = 0
        self._floor = 1
        self.row = stores.Leader("", 0, 0.0)

    def commit(self) -> None:
        self._undo.clear()

    def rollback(self) -> None:
        while self._undo:
            self._undo.pop()()

    # -- reading ----------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def jobs_by_id(self, ids: Collection[str]) -> dict[str, Job]:
        return {job_id: self._jobs[job_id] for job_id in ids if job_id in self._jobs}

    def find(self, name_or_id: str, owner: str | None = None) -> Job | None:
        if (found := self._jobs.get(name_or_id)) is not None:
            return found
        named = [job for job in self._jobs.values() if job.name == name_or_id and owner in (None, job.owner)]
        if not named and rules.is_short_id(name_or_id):
            named = [one for one in self._jobs.values() if one.id.endswith(name_or_id) and owner in (None, one.owner)]
        return max(named, key=_age, default=None)

    def jobs(self, which: stores.JobFilter) -> list[Job]:
        matching = (job for job in self._jobs.values() if _matches(job, which))
        if which.after is not None:
            if which.after not in self._jobs:
                raise rules.page_gone(which.after)
            last = _place(rules.as_listed(self._jobs[which.after], which.after_phase), which.sort)
            page = (job for job in matching if _place(job, which.sort) != last)
            matching = (job for job in page if (_place(job, which.sort) > last) is which.ascending)
        least = heapq.nsmallest if which.ascending else heapq.nlargest
        return least(max(which.limit, 0), matching, key=lambda job: _place(job, which.sort))

    def active(self) -> list[Job]:
        return sorted((self._jobs[job_id] for job_id in self._active), key=_age)

    def count(self, which: stores.JobFilter = stores.JobFilter()) -> dict[Phase, int]:  # noqa: B008  (it is frozen)
        every = msgspec.structs.replace(which, phases=None)
        return dict(Counter(job.phase for job in self._jobs.values() if _matches(job, every)))

    def holdings(self, job: str | None = None) -> list[Holding]:
        return [claim for _, claim in sorted(self._claims.items()) if job in (None, claim.job)]

    def holdings_by_job(self, ids: Collection[str]) -> dict[str, list[Holding]]:
        found: dict[str, list[Holding]] = {}
        for claim in self.holdings():
            if claim.job in ids:
                found.setdefault(claim.job, []).append(claim)
        return found

    def records(
        self, after: int, *, job: str | None = None, kinds: Collection[str] = (), limit: int = 1000
    ) -> list[Record]:
        if after < self._floor - 1 and (job is None or self._first_seq.get(job, self._floor) < self._floor):
            raise rules.compacted(after, self._floor)
        found: list[Record] = []
        for record in self._log[bisect.bisect_right(self._log, after, key=_seq) :]:
            if len(found) >= limit:
                break
            if job in (None, record.job) and (not kinds or record.kind in kinds):
                found.append(record)
        return found

    def changed_jobs(self, after: int) -> dict[str, int]:
        return {record.job: record.version for record in self.records(after, limit=len(self._log)) if record.job}

    def last_seq(self) -> int:
        return self._seq

    def newest_seq(self, count: int, *, of_jobs: bool) -> int:
        some = (record.seq for record in reversed(self._log) if bool(record.job) is of_jobs)
        return next(itertools.islice(some, count - 1, None), 0)

    def nodes(self) -> list[Node]:
        return [self._nodes[name] for name in sorted(self._nodes)]

    def pools(self) -> list[Pool]:
        return [self._pools[name] for name in sorted(self._pools)]

    def checkpoints(self, job: str) -> list[Checkpoint]:
        found = [checkpoint for checkpoint in self._checkpoints.values() if checkpoint.job == job]
        return sorted(found, key=lambda one: (one.attempt, one.step, one.round, one.path), reverse=True)

    def checkpoints_by_job(self, ids: Collection[str]) -> dict[str, list[Checkpoint]]:
        return {job: found for job in ids if (found := self.checkpoints(job))}

    def submitted(self, owner: str, idempotency_key: str) -> tuple[str, str] | None:
        return self._keys.get((owner, idempotency_key))

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def users(self) -> list[User]:
        return [self._users[name] for name in sorted(self._users)]

    def users_by_name(self, names: Collection[str]) -> dict[str, User]:
        return {one: self._users[one] for one in names if one in self._users}

    def token(self, sha256: str) -> Token | None:
        return self._tokens.get(sha256)

    def tokens_by_digest(self, digests: Collection[str]) -> dict[str, Token]:
        return {one: self._tokens[one] for one in digests if one in self._tokens}

    def tokens(self, user: str) -> list[Token]:
        found = [one for one in self._tokens.values() if one.user == user]
        return sorted(found, key=lambda one: (one.created_at, one.sha256))

    def session(self, sha256: str) -> Session | None:
        return self._sessions.get(sha256)

    def sessions_by_digest(self, digests: Collection[str]) -> dict[str, Session]:
        return {one: self._sessions[one] for one in digests if one in self._sessions}

    def sessions(self, user: str) -> list[Session]:
        found = [one for one in self._sessions.values() if one.user == user]
        return sorted(found, key=lambda one: (one.created_at, one.sha256))

    def usage(self, *, since: float = 0.0) -> list[stores.Usage]:
        sums: dict[tuple[str, str], stores.Usage] = {}
        for one in self._usage.values():
            if one.ended_at > since:
                key = (one.owner, one.pool)
                sums[key] = _sum(sums[key], one) if key in sums else msgspec.structs.replace(one, job="", attempt=0)
        return [sums[key] for key in sorted(sums)]

    def attempts_used(
        self, *, since: float, until: float, owner: str | None = None, limit: int | None = None
    ) -> list[stores.Usage]:
        found = [
            one
            for one in self._usage.values()
            if one.ended_at > since and one.started_at < until and owner in (None, one.owner)
        ]
        return sorted(found, key=lambda one: (-one.ended_at, one.job, one.attempt))[:limit]

    def samples(self, *, since: float, until: float, limit: int) -> list[Sample]:
        times = sorted(at for at in self._samples if since <= at < until)
        return [self._samples[at] for at in rules.spread(times, limit)]

    def snapshots_in_use(self) -> set[str]:
        return {job.snapshot for job in self._jobs.values() if job.snapshot is not None}

    def leader(self) -> stores.Leader | None:
        return self.row if self.row.holder else None

    def cursor(self, name: str) -> int | None:
        return self._cursors.get(name)

    def clock_anchor(self) -> Anchor | None:
        return self._anchors.get("")

    # -- jobs -------------------------------------------------------------------------------------------------------

    def add_job(self, job: Job, *, at: float, idempotency_key: str = "", request_sha256: str = "") -> Job:
        rules.check_new(job)
        if job.id in self._jobs:
            raise rules.id_taken(job.id)
        if idempotency_key and (job.owner, idempotency_key) in self._keys:
            raise rules.key_taken(job.owner, idempotency_key)
        job = msgspec.structs.replace(job, version=1)
        self._keep(job)
        self._first_seq.put(job.id, self._seq + 1)
        if idempotency_key:
            self._keys.put((job.owner, idempotency_key), (job.id, request_sha256))
        self._note(job, [rules.submitted(job)], at)
        return job

    def put_job(self, job: Job, happened: Iterable[AnyEvent] = (), *, at: float) -> Job:
        before = rules.check_change(self._jobs.get(job.id), job)
        job = msgspec.structs.replace(job, version=job.version + 1)
        self._keep(job)
        self._note(job, rules.of_change(before, job, happened), at)
        return job

    def remove_jobs(self, ids: Collection[str], *, at: float) -> None:
        gone = [self._jobs[job_id] for job_id in sorted(set(ids)) if job_id in self._jobs]
        for job in gone:
            rules.check_removal(job, holds=bool(self.holdings(job.id)))
        names = {job.id for job in gone}
        self._replace_log([record for record in self._log if record.job not in names])
        for job in gone:
            self._forget(job, at)
            self._note(job, [rules.removed(job)], at)

    def forget_keys(self, before: float) -> None:
        for key in [key for key, removed_at in self._removed_keys.items() if removed_at < before]:
            self._keys.drop(key)
            self._removed_keys.drop(key)

    def _keep(self, job: Job) -> None:
        """Store the job, and its place among the active ones."""
        slot = (job.owner, job.name)
        if rules.active(job):
            if self._names.get(slot, job.id) != job.id:
                raise rules.name_taken(job, self._names[slot])
            self._names.put(slot, job.id)
            self._active.put(job.id, None)
        elif job.id in self._active:
            self._names.drop(slot)
            self._active.drop(job.id)
        self._jobs.put(job.id, job)

    def _forget(self, job: Job, at: float) -> None:
        self._jobs.drop(job.id)
        self._first_seq.drop(job.id)
        for path in [key for key in self._checkpoints if key[0] == job.id]:
            self._checkpoints.drop(path)
        for key in [key for key, (made, _) in self._keys.items() if made == job.id and key not in self._removed_keys]:
            self._removed_keys.put(key, at)

    def _note(self, job: Job | None, notes: Sequence[rules.Note], at: float) -> None:
        seq, length, log = self._seq, len(self._log), self._log
        of, version = (job.id, job.version) if job is not None else ("", 0)
        for place, (kind, data) in enumerate(notes, start=seq + 1):
            log.append(Record(seq=place, at=at, job=of, kind=kind, version=version, data=data))
        self._seq += len(notes)

        def undo() -> None:
            del log[length:]
            self._seq = seq

        self._undo.append(undo)

    def _replace_log(self, kept: list[Record]) -> None:
        log = self._log
        self._log = kept
        self._undo.append(lambda: setattr(self, "_log", log))

    # -- holdings ---------------------------------------------------------------------------------------------------

    def hold(self, claims: Sequence[Holding]) -> None:
        for job in sorted({claim.job for claim in claims}):
            if job not in self._jobs:
                raise rules.unknown_job(job)
        rules.check_claims(claims, self._nodes, self._used, self._slots, self._shared)
        keys = set()
        for claim in claims:
            key = _claim_key(claim)
            if key in keys or key in self._claims:
                raise rules.claimed(claim)
            keys.add(key)
        for claim in claims:
            self._claims.put(_claim_key(claim), claim)
            self._used.put(claim.node, self._used.get(claim.node, Resources()) + claim.amount)
            for kind, number in rules.slots(claim):
                self._slots.put((claim.node, kind, number), claim.job)
            self._share(claim, 1)

    def release(self, job: str, attempt: int, tasks: Collection[str] | None = None) -> list[Holding]:
        freed = [claim for claim in self.holdings(job) if rules.is_of(claim, attempt, tasks)]
        for claim in freed:
            self._claims.drop(_claim_key(claim))
            self._used.put(claim.node, self._used[claim.node] - claim.amount)
            for kind, number in rules.slots(claim):
                self._slots.drop((claim.node, kind, number))
            self._share(claim, -1)
        return freed

    def _share(self, claim: Holding, sign: int) -> None:
        if (share := rules.share_of(claim)) is None:
            return
        device, milli = (claim.node, share[0]), share[1]
        left = self._shared.get(device, 0) + sign * milli
        self._shared.put(device, left) if left else self._shared.drop(device)

    def add_usage(self, usage: stores.Usage) -> None:
        if (usage.job, usage.attempt) not in self._usage:
            self._usage.put((usage.job, usage.attempt), usage)

    def add_sample(self, sample: Sample) -> None:
        if sample.at not in self._samples:
            self._samples.put(sample.at, sample)

    def forget_samples(self, before: float) -> None:
        for at in [at for at in self._samples if at < before]:
            self._samples.drop(at)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def tell(self, kind: str, names: Collection[str], *, at: float) -> None:
        self._note(None, [rules.of_cluster(kind, names)], at)

    def put_node(self, node: Node) -> Node:
        return _swap("node", self._nodes, node)

    def remove_node(self, name: str) -> None:
        for claim in self.holdings():
            if claim.node == name:
                raise rules.in_use(name, claim.job)
        self._nodes.drop(name)

    def put_pool(self, pool: Pool) -> Pool:
        return _swap("pool", self._pools, pool)

    def remove_pool(self, name: str) -> None:
        for job in self.jobs(stores.JobFilter(pool=name, phases=NOT_OVER, limit=1)):
            raise rules.has_jobs(name, job.id)
        self._pools.drop(name)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        if checkpoint.job not in self._jobs:
            raise rules.unknown_job(checkpoint.job)
        if (checkpoint.job, checkpoint.path) not in self._checkpoints:
            self._checkpoints.put((checkpoint.job, checkpoint.path), checkpoint)

    def remove_checkpoint(self, job: str, path: str) -> None:
        self._checkpoints.drop((job, path))

    def put_user(self, user: User) -> User:
        return _swap("user", self._users, user)

    def remove_user(self, name: str) -> None:
        for job in self.jobs(stores.JobFilter(owner=name, phases=NOT_OVER, limit=1)):
            raise rules.owns_jobs(name, job.id)
        for token in self.tokens(name):
            self.remove_token(token.sha256)
        self._users.drop(name)

    def put_token(self, token: Token) -> None:
        if token.user not in self._users:
            raise rules.unknown_user(token.user)
        self.remove_token(token.sha256)
        self._tokens.put(token.sha256, token)

    def remove_token(self, sha256: str) -> None:
        self._tokens.drop(sha256)
        for one in [one.sha256 for one in self._sessions.values() if one.token == sha256]:
            self._sessions.drop(one)

    def put_session(self, session: Session) -> None:
        rules.check_session(self._tokens.get(session.token), session)
        self._sessions.put(session.sha256, session)

    def remove_session(self, sha256: str) -> None:
        self._sessions.drop(sha256)

    def forget_sessions(self, before: float) -> None:
        for one in [one.sha256 for one in self._sessions.values() if one.expires_at < before]:
            self._sessions.drop(one)

    def put_cursor(self, name: str, seq: int) -> None:
        self._cursors.put(name, max(seq, self._cursors.get(name) or 0))

    def put_clock_anchor(self, anchor: Anchor) -> None:
        self._anchors.put("", anchor)

    def compact(self, before: int, *, cluster_before: int = 0) -> None:
        floor = self._floor
        self._floor = max(floor, min(before, self._seq + 1))
        self._undo.append(lambda: setattr(self, "_floor", floor))
        self._replace_log(
            [one for one in self._log if one.seq >= (self._floor if one.job else max(self._floor, cluster_before))]
        )


Named = TypeVar("Named", Node, Pool, User)


def _swap(kind: str, table: Table[str, Named], item: Named) -> Named:
    stored = table.get(item.name)
    rules.check_swap(kind, stored.version if stored is not None else None, item)
    item = msgspec.structs.replace(item, version=item.version + 1)
    table.put(item.name, item)
    return item


def _age(job: Job) -> tuple[float, str]:
    return job.created_at, job.id


def _place(job: Job, sort: stores.Sort) -> tuple[str, float, str]:
    by = "" if sort is stores.Sort.CREATED else str(getattr(job, sort))
    return by, job.created_at, job.id


def _seq(record: Record) -> int:
    return record.seq


def _claim_key(claim: Holding) -> tuple[str, int, str, int, str]:
    return claim.job, claim.attempt, claim.role, claim.index, claim.node


def _matches(job: Job, which: stores.JobFilter) -> bool:
    return (
        (which.phases is None or job.phase in which.phases)
        and which.owner in (None, job.owner)
        and which.pool in (None, job.pool)
        and which.name in (None, job.name)
        and (which.text is None or which.text.casefold() in rules.searched(job))
        and (which.since is None or job.created_at >= which.since)
        and (which.until is None or job.created_at < which.until)
        and (which.continues is None or (job.continues is not None and which.continues == job.continues.job))
    )


def _sum(one: stores.Usage, other: stores.Usage) -> stores.Usage:
    return stores.Usage(
        owner=one.owner,
        pool=one.pool,
        started_at=min(one.started_at, other.started_at),
        ended_at=max(one.ended_at, other.ended_at),
        device_seconds=one.device_seconds + other.device_seconds,
        cpu_seconds=one.cpu_seconds + other.cpu_seconds,
        cost=one.cost + other.cost,
    )
