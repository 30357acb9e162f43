"""A change of the database: `stores.Transaction` on the connection of the one writer.

The writer holds the lock that orders all commits, so a row read in a transaction is unchanged when it is written. The
tables' constraints and the versions in each UPDATE repeat the check for writers that come by another way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

# Names, not modules: the methods below bear the modules' names.
from oarlock.spec import errors
from oarlock.spec.access.users import Session, Token, User
from oarlock.spec.cluster.nodes import Node
from oarlock.spec.cluster.pools import Pool
from oarlock.spec.cluster.samples import Sample
from oarlock.spec.events import AnyEvent, Record
from oarlock.spec.holdings import Holding, Resources
from oarlock.spec.jobs import Checkpoint, Job
from oarlock.spec.phases import NOT_OVER
from oarlock.spec.process.clocks import Anchor
from oarlock.store import rules, stores
from oarlock.store.sql import reading, schema

T = TypeVar("T")
Named = TypeVar("Named", Node, Pool, User)

_INSERT_JOB = sa.insert(schema.jobs)
_CHANGED = ("pool", "phase", "active", "version", "snapshot", "searched", "body")
_UPDATE_JOB = (
    sa.update(schema.jobs)
    .where(schema.jobs.c.id == sa.bindparam("key"), schema.jobs.c.version == sa.bindparam("was"))
    .values({name: sa.bindparam(name) for name in _CHANGED})
)
_ACTIVE_OF_NAME = sa.select(schema.jobs.c.id).where(
    schema.jobs.c.owner == sa.bindparam("owner"), schema.jobs.c.name == sa.bindparam("name"), sa.text("active")
)
_INSERT_RECORDS = sa.insert(schema.records)
_INSERT_HOLDINGS = sa.insert(schema.holdings)
_INSERT_SLOTS = sa.insert(schema.slots)
_NAMES: sa.BindParameter[Any] = sa.bindparam("names", expanding=True)
_LOCK_NODES = (
    sa.select(schema.nodes.c.body)
    .where(schema.nodes.c.name.in_(_NAMES))
    .order_by(schema.nodes.c.name)
    .with_for_update()
)
_USED = (
    sa.select(
        schema.holdings.c.node,
        sa.func.sum(schema.holdings.c.cpus_milli),
        sa.func.sum(schema.holdings.c.memory_bytes),
    )
    .where(schema.holdings.c.node.in_(_NAMES))
    .group_by(schema.holdings.c.node)
)
_SHARED = (
    sa.select(schema.holdings.c.node, schema.holdings.c.device, sa.func.sum(schema.holdings.c.gpu_milli))
    .where(schema.holdings.c.node.in_(_NAMES), schema.holdings.c.gpu_milli > 0)
    .group_by(schema.holdings.c.node, schema.holdings.c.device)
)
_LOCK_LEADER = sa.select(schema.leader.c.holder, schema.leader.c.epoch, schema.leader.c.expires_at).with_for_update()
_SET_LEADER = sa.update(schema.leader).values(
    holder=sa.bindparam("holder"), epoch=sa.bindparam("epoch"), expires_at=sa.bindparam("expires_at")
)
_SET_HEARTBEAT = sa.update(schema.heartbeat).values(beat_at=sa.bindparam("beat_at"), padding=sa.bindparam("text"))

PROBED_REPEATS = 800
"""Times the 20 digits of the clock are written by a probe: 16 kB, as a job of some size."""


class _Locked:
    """The nodes that a transaction has read under its lock, and what is held on them, with its own holdings.

    A transaction that launches two hundred jobs reads a node once. One that frees holdings or changes nodes reads anew.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.used: dict[str, Resources] = {}
        self.shared: dict[tuple[str, int], int] = {}  # thousandths of each device that are held as shares

    def add(self, claims: Sequence[Holding]) -> None:
        for claim in claims:
            amount = Resources(cpus_milli=claim.amount.cpus_milli, memory_bytes=claim.amount.memory_bytes)
            self.used[claim.node] = self.used.get(claim.node, Resources()) + amount
            if (share := rules.share_of(claim)) is not None:
                device, milli = share
                self.shared[claim.node, device] = self.shared.get((claim.node, device), 0) + milli


class _Unsaved:
    """Rows that are written before the next statement, or at the end of the transaction."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}  # by id
        self.holdings: list[dict[str, Any]] = []
        self.slots: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self.jobs or self.holdings)


class SqlTransaction(reading.SqlView):
    """`stores.Transaction`. `seq` is the last one given; `floor` the first not compacted: the writer owns their row."""

    def __init__(self, connection: sa.Connection, seq: int, floor: int) -> None:
        self._unsaved = _Unsaved()
        super().__init__(connection)
        self.seq = seq
        self.floor = floor
        self.doomed: Exception | None = None  # a constraint broke in the middle: nothing of this may be kept
        self._unwritten: list[dict[str, Any]] = []
        self._known: dict[str, Job] = {}  # as they are in this transaction
        self._held: dict[str, list[Holding]] = {}  # of jobs whose holdings were read together
        self._locked = _Locked()

    @property
    def _connection(self) -> sa.Connection:
        """The connection, which sees everything that this transaction has changed."""
        if self._unsaved:
            self._save()
        return self._raw

    @_connection.setter
    def _connection(self, connection: sa.Connection) -> None:
        self._raw = connection

    def finish(self) -> None:
        """Write the pending rows. Raises the error that doomed the transaction."""
        if self.doomed is not None:
            raise self.doomed
        self._write_records()
        if self._unsaved:
            self._save()

    def _save(self) -> None:
        """Write jobs and holdings: one statement for many rows takes a tenth of the time of one for each."""
        unsaved, self._unsaved = self._unsaved, _Unsaved()
        if unsaved.jobs:
            done = self._raw.execute(_UPDATE_JOB, list(unsaved.jobs.values()))
            if done.rowcount != len(unsaved.jobs):
                job_id, row = next(iter(unsaved.jobs.items()))
                raise self._doom(rules.changed("job", job_id, row["version"], row["was"]))
        twice = errors.AlreadyHeld("one of these places has a holder", hint="Look at the holdings and plan anew.")
        self._insert(_INSERT_HOLDINGS, unsaved.holdings, twice)
        self._insert(_INSERT_SLOTS, unsaved.slots, twice)

    # -- reading ----------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job | None:
        if (known := self._known.get(job_id)) is not None:
            return known
        if (found := super().job(job_id)) is not None:
            self._known[job_id] = found
        return found

    def jobs_by_id(self, ids: Collection[str]) -> dict[str, Job]:
        self._known |= super().jobs_by_id([job_id for job_id in ids if job_id not in self._known])
        return {job_id: self._known[job_id] for job_id in ids if job_id in self._known}

    def holdings(self, job: str | None = None) -> list[Holding]:
        return list(self._held[job]) if job in self._held else super().holdings(job)

    def holdings_by_job(self, ids: Collection[str]) -> dict[str, list[Holding]]:
        found = super().holdings_by_job(ids)
        self._held |= {job_id: found.get(job_id, []) for job_id in ids}
        return found

    def records(
        self, after: int, *, job: str | None = None, kinds: Collection[str] = (), limit: int = 1000
    ) -> list[Record]:
        self._write_records()
        return super().records(after, job=job, kinds=kinds, limit=limit)

    def changed_jobs(self, after: int) -> dict[str, int]:
        self._write_records()
        return super().changed_jobs(after)

    def newest_seq(self, count: int, *, of_jobs: bool) -> int:
        self._write_records()
        return super().newest_seq(count, of_jobs=of_jobs)

    def last_seq(self) -> int:
        return self.seq

    def _floor(self) -> int:
        return self.floor

    # -- health -----------------------------------------------------------------------------------------------------

    def probe(self, at: float) -> None:
        """Try the writes of a submission, undo them, and write the heartbeat.

        The trial walks down the trees that a submission walks down, and asks for the pages that it would need. The
        heartbeat's text is another one each time: SQLite writes no page that stays as it is.
        """
        text = f"{at:020.6f}" * PROBED_REPEATS
        job: dict[str, Any] = dict.fromkeys(("id", "name", "owner", "pool", "phase"), "")
        job |= {
            "body": text,
            "created_at": at,
            "first_seq": self.seq + 1,
            "active": True,
            "version": 0,
        }
        line = dict.fromkeys(("job", "kind"), "") | {"seq": self.seq + 1, "at": at, "version": 0, "data": text}
        made = dict.fromkeys(("owner", "key", "job", "request_sha256"), "")
        self._connection.exec_driver_sql("SAVEPOINT probe")
        self._connection.execute(_INSERT_JOB, job)
        self._connection.execute(sa.insert(schema.submissions), made)
        self._connection.execute(_INSERT_RECORDS, [line])
        self._connection.exec_driver_sql("ROLLBACK TO SAVEPOINT probe")
        self._connection.exec_driver_sql("RELEASE SAVEPOINT probe")
        self._connection.execute(_SET_HEARTBEAT, {"beat_at": at, "text": text})

    # -- leadership -------------------------------------------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        rules.check_epoch(self._leader_row(), epoch)

    def lead(self, holder: str, now: float, ttl_s: float) -> int | None:
        row = rules.lead(self._leader_row(), holder, now, ttl_s)
        if row is None:
            return None
        self._connection.execute(_SET_LEADER, msgspec.structs.asdict(row))
        return row.epoch

    def resign(self, holder: str, epoch: int) -> None:
        row = rules.resign(self._leader_row(), holder, epoch)
        self._connection.execute(_SET_LEADER, msgspec.structs.asdict(row))

    def _leader_row(self) -> stores.Leader:
        return stores.Leader(*self._connection.execute(_LOCK_LEADER).one())

    # -- jobs -------------------------------------------------------------------------------------------------------

    def add_job(self, job: Job, *, at: float, idempotency_key: str = "", request_sha256: str = "") -> Job:
        rules.check_new(job)
        if self.job(job.id) is not None:
            raise rules.id_taken(job.id)
        if idempotency_key and self.submitted(job.owner, idempotency_key) is not None:
            raise rules.key_taken(job.owner, idempotency_key)
        job = msgspec.structs.replace(job, version=1)
        self._check_name(job)
        row = _row(job) | {"id": job.id, "name": job.name, "owner": job.owner}
        row |= {"created_at": job.created_at, "first_seq": self.seq + 1}
        row |= {"continues": job.continues.job if job.continues is not None else None}
        self._insert(_INSERT_JOB, row, rules.name_taken(job, "another one"))
        if idempotency_key:
            made = {"owner": job.owner, "key": idempotency_key, "job": job.id, "request_sha256": request_sha256}
            self._insert(sa.insert(schema.submissions), made, rules.key_taken(job.owner, idempotency_key))
        self._known[job.id] = job
        self._note(job, [rules.submitted(job)], at)
        return job

    def put_job(self, job: Job, happened: Iterable[AnyEvent] = (), *, at: float) -> Job:
        before = rules.check_change(self.job(job.id), job)
        job = msgspec.structs.replace(job, version=job.version + 1)
        if not rules.active(before):
            self._check_name(job)
        known = self._unsaved.jobs.get(job.id)
        was = before.version if known is None else known["was"]
        self._unsaved.jobs[job.id] = _row(job) | {"key": job.id, "was": was}
        self._known[job.id] = job
        self._note(job, rules.of_change(before, job, happened), at)
        return job

    def remove_jobs(self, ids: Collection[str], *, at: float) -> None:
        gone = [job for job_id in sorted(set(ids)) if (job := self.job(job_id)) is not None]
        for job in gone:
            rules.check_removal(job, holds=bool(self.holdings(job.id)))
        self._write_records()
        for some in _by_many([job.id for job in gone]):
            self._connection.execute(sa.delete(schema.records).where(schema.records.c.job.in_(some)))
            made = schema.submissions.c
            keys = sa.update(schema.submissions).where(made.job.in_(some), made.removed_at.is_(None))
            self._connection.execute(keys.values(removed_at=at))
            self._connection.execute(sa.delete(schema.jobs).where(schema.jobs.c.id.in_(some)))
        for job in gone:
            del self._known[job.id]
            self._note(job, [rules.removed(job)], at)

    def forget_keys(self, before: float) -> None:
        self._connection.execute(sa.delete(schema.submissions).where(schema.submissions.c.removed_at < before))

    def _check_name(self, job: Job) -> None:
        if rules.active(job):
            named = self._connection.execute(_ACTIVE_OF_NAME, {"owner": job.owner, "name": job.name})
            if (holder := named.scalar_one_or_none()) not in (None, job.id):
                raise rules.name_taken(job, str(holder))

    def _note(self, job: Job | None, notes: Sequence[rules.Note], at: float) -> None:
        of, version = (job.id, job.version) if job is not None else ("", 0)
        for kind, data in notes:
            self.seq += 1
            line = {"seq": self.seq, "at": at, "job": of, "kind": kind, "version": version}
            self._unwritten.append(line | {"data": _encode(data)})

    def _write_records(self) -> None:
        if self._unwritten:
            self._connection.execute(_INSERT_RECORDS, self._unwritten)
            self._unwritten = []

    # -- holdings ---------------------------------------------------------------------------------------------------

    def hold(self, claims: Sequence[Holding]) -> None:
        for job_id in sorted({claim.job for claim in claims}):
            if self.job(job_id) is None:
                raise rules.unknown_job(job_id)
        locked = self._lock_nodes({claim.node for claim in claims})
        rules.check_claims(claims, locked.nodes, locked.used, self._taken(claims), locked.shared)
        keys = {_key(claim) for job_id in {claim.job for claim in claims} for claim in self.holdings(job_id)}
        for claim in claims:
            if _key(claim) in keys:
                raise rules.claimed(claim)
            keys.add(_key(claim))
        self._unsaved.holdings += [_claim(claim) for claim in claims]
        self._unsaved.slots += [slot for claim in claims for slot in _slots(claim)]
        locked.add(claims)
        for claim in claims:
            self._held.pop(claim.job, None)

    def release(self, job: str, attempt: int, tasks: Collection[str] | None = None) -> list[Holding]:
        freed = [claim for claim in self.holdings(job) if rules.is_of(claim, attempt, tasks)]
        self._locked = _Locked()
        self._held.pop(job, None)
        if tasks is not None:
            for claim in freed:
                self._free(claim)
        elif freed:
            for table in (schema.slots, schema.holdings):
                gone = sa.delete(table).where(table.c.job == job, table.c.attempt == attempt)
                self._connection.execute(gone)
        return freed

    def _free(self, claim: Holding) -> None:
        held, slots = schema.holdings.c, schema.slots.c
        same = (held.job == claim.job, held.attempt == claim.attempt, held.role == claim.role)
        gone = sa.delete(schema.holdings).where(*same, held.place == claim.index, held.node == claim.node)
        self._connection.execute(gone)
        for kind, number in rules.slots(claim):
            taken = (slots.node == claim.node, slots.kind == kind, slots.number == number)
            self._connection.execute(sa.delete(schema.slots).where(*taken))

    def add_usage(self, usage: stores.Usage) -> None:
        there = sa.select(schema.usage.c.job).where(
            schema.usage.c.job == usage.job, schema.usage.c.attempt == usage.attempt
        )
        if self._connection.execute(there).first() is None:
            self._connection.execute(sa.insert(schema.usage), msgspec.structs.asdict(usage))

    def add_sample(self, sample: Sample) -> None:
        there = sa.select(schema.samples.c.at).where(schema.samples.c.at == sample.at)
        if self._connection.execute(there).first() is None:
            self._connection.execute(sa.insert(schema.samples), {"at": sample.at, "body": _encode(sample)})

    def forget_samples(self, before: float) -> None:
        self._connection.execute(sa.delete(schema.samples).where(schema.samples.c.at < before))

    def _lock_nodes(self, names: Collection[str]) -> _Locked:
        """Read the nodes that this transaction has not read yet, and what is held on them."""
        locked = self._locked
        for some in _by_many(sorted(name for name in names if name not in locked.nodes)):
            wanted = {"names": list(some)}
            for body in self._connection.execute(_LOCK_NODES, wanted).scalars():
                node = reading.decode(body, Node)
                locked.nodes[node.name] = node
            for name, cpus, memory in self._connection.execute(_USED, wanted):
                locked.used[name] = Resources(cpus_milli=int(cpus), memory_bytes=int(memory))
            for name, device, milli in self._connection.execute(_SHARED, wanted):
                locked.shared[name, device] = int(milli)
        return locked

    def _taken(self, claims: Sequence[Holding]) -> dict[tuple[str, str, int], str]:
        """Return the holders between the least and the greatest number that is asked for of each kind."""
        ranges: dict[tuple[str, str], tuple[int, int]] = {}
        for claim in claims:
            wanted = [("device", number) for number in claim.devices] + [("port", number) for number in claim.ports]
            for kind, number in wanted:
                low, high = ranges.get((claim.node, kind), (number, number))
                ranges[claim.node, kind] = (min(low, number), max(high, number))
        slots = schema.slots.c
        taken = {}
        for some in _by_many(sorted(ranges.items())):
            asked = [
                sa.and_(slots.node == node, slots.kind == kind, slots.number.between(*bounds))
                for (node, kind), bounds in some
            ]
            for row in self._connection.execute(sa.select(schema.slots).where(sa.or_(*asked))):
                taken[row.node, row.kind, row.number] = row.job
        return taken

    # -- the rest ---------------------------------------------------------------------------------------------------

    def tell(self, kind: str, names: Collection[str], *, at: float) -> None:
        self._note(None, [rules.of_cluster(kind, names)], at)

    def put_node(self, node: Node) -> Node:
        self._locked = _Locked()
        return self._swap("node", schema.nodes, node)

    def remove_node(self, name: str) -> None:
        self._locked = _Locked()
        held = sa.select(schema.holdings.c.job).where(schema.holdings.c.node == name)
        if (
            holder := self._connection.execute(held.order_by(*schema.holdings.primary_key).limit(1)).scalar()
        ) is not None:
            raise rules.in_use(name, holder)
        self._connection.execute(sa.delete(schema.nodes).where(schema.nodes.c.name == name))

    def put_pool(self, pool: Pool) -> Pool:
        return self._swap("pool", schema.pools, pool)

    def remove_pool(self, name: str) -> None:
        for job in self.jobs(stores.JobFilter(pool=name, phases=NOT_OVER, limit=1)):
            raise rules.has_jobs(name, job.id)
        if rules.storable(name):
            self._connection.execute(sa.delete(schema.pools).where(schema.pools.c.name == name))

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        if self.job(checkpoint.job) is None:
            raise rules.unknown_job(checkpoint.job)
        table = schema.checkpoints
        same = sa.select(table.c.path).where(table.c.job == checkpoint.job, table.c.path == checkpoint.path)
        if self._connection.execute(same).first() is None:
            row = {"job": checkpoint.job, "path": checkpoint.path, "attempt": checkpoint.attempt}
            row |= {"step": checkpoint.step, "round": checkpoint.round, "body": _encode(checkpoint)}
            self._connection.execute(sa.insert(table), row)

    def remove_checkpoint(self, job: str, path: str) -> None:
        table = schema.checkpoints
        self._connection.execute(sa.delete(table).where(table.c.job == job, table.c.path == path))

    def put_user(self, user: User) -> User:
        return self._swap("user", schema.users, user)

    def remove_user(self, name: str) -> None:
        for job in self.jobs(stores.JobFilter(owner=name, phases=NOT_OVER, limit=1)):
            raise rules.owns_jobs(name, job.id)
        if rules.storable(name):
            self._connection.execute(sa.delete(schema.tokens).where(schema.tokens.c.owner == name))
            self._connection.execute(sa.delete(schema.users).where(schema.users.c.name == name))

    def put_token(self, token: Token) -> None:
        if self.user(token.user) is None:
            raise rules.unknown_user(token.user)
        self.remove_token(token.sha256)
        row = {"sha256": token.sha256, "owner": token.user, "body": _encode(token)}
        self._connection.execute(sa.insert(schema.tokens), row)

    def remove_token(self, sha256: str) -> None:
        self._connection.execute(sa.delete(schema.tokens).where(schema.tokens.c.sha256 == sha256))

    def put_session(self, session: Session) -> None:
        rules.check_session(self.token(session.token), session)
        self.remove_session(session.sha256)
        row: dict[str, Any] = {"sha256": session.sha256, "owner": session.user, "token": session.token}
        row |= {"created_at": session.created_at, "expires_at": session.expires_at, "body": _encode(session)}
        self._connection.execute(sa.insert(schema.sessions), row)

    def remove_session(self, sha256: str) -> None:
        self._connection.execute(sa.delete(schema.sessions).where(schema.sessions.c.sha256 == sha256))

    def forget_sessions(self, before: float) -> None:
        self._connection.execute(sa.delete(schema.sessions).where(schema.sessions.c.expires_at < before))

    def put_cursor(self, name: str, seq: int) -> None:
        seq = max(seq, self.cursor(name) or 0)
        self._connection.execute(sa.delete(schema.cursors).where(schema.cursors.c.name == name))
        self._connection.execute(sa.insert(schema.cursors), {"name": name, "seq": seq})

    def put_clock_anchor(self, anchor: Anchor) -> None:
        self._connection.execute(sa.delete(schema.clock))
        self._connection.execute(sa.insert(schema.clock), {"id": 1, "body": _encode(anchor)})

    def compact(self, before: int, *, cluster_before: int = 0) -> None:
        self._write_records()
        self.floor = max(self.floor, min(before, self.seq + 1))
        old = schema.records.c.seq < self.floor
        if cluster_before > self.floor:
            old |= (schema.records.c.job == "") & (schema.records.c.seq < min(cluster_before, self.seq + 1))
        self._connection.execute(sa.delete(schema.records).where(old))

    def _swap(self, kind: str, table: sa.Table, item: Named) -> Named:
        stored = self._connection.execute(sa.select(table.c.version).where(table.c.name == item.name)).scalar()
        rules.check_swap(kind, stored, item)
        item = msgspec.structs.replace(item, version=item.version + 1)
        row = {"version": item.version, "body": _encode(item)}
        if stored is None:
            refused = rules.changed(kind, item.name, 1, 0)
            self._insert(sa.insert(table), row | {"name": item.name}, refused)
            return item
        swap = sa.update(table).where(table.c.name == item.name, table.c.version == stored).values(row)
        if self._connection.execute(swap).rowcount != 1:
            raise self._doom(rules.changed(kind, item.name, item.version, stored))
        return item

    def _insert(self, statement: sa.Insert, rows: Any, refused: errors.OarlockError) -> None:
        """Insert these rows; `refused` when one of them is there already, although it was looked for."""
        if not rows:
            return
        try:
            self._connection.execute(statement, rows)
        except sa.exc.IntegrityError as broken:
            raise self._doom(refused) from broken

    def _doom(self, why: errors.OarlockError) -> errors.OarlockError:
        self.doomed = why
        return why


def _key(claim: Holding) -> tuple[str, int, str, int, str]:
    return claim.job, claim.attempt, claim.role, claim.index, claim.node


def _encode(noun: object) -> str:
    return msgspec.json.encode(noun).decode()


def _row(job: Job) -> dict[str, Any]:
    """Return the columns that a change of the job may change."""
    return {
        "pool": job.pool,
        "phase": str(job.phase),
        "active": rules.active(job),
        "version": job.version,
        "snapshot": job.snapshot,
        "searched": rules.searched(job),  # an earlier server beside this one adds jobs without it
        "body": _encode(job),
    }


def _claim(claim: Holding) -> dict[str, Any]:
    return {
        "job": claim.job,
        "attempt": claim.attempt,
        "role": str(claim.role),
        "place": claim.index,
        "node": claim.node,
        "cpus_milli": claim.amount.cpus_milli,
        "memory_bytes": claim.amount.memory_bytes,
        "device": share[0] if (share := rules.share_of(claim)) is not None else None,
        "gpu_milli": claim.amount.gpu_milli,
        "body": _encode(claim),
    }


def _slots(claim: Holding) -> Iterator[dict[str, Any]]:
    for kind, number in rules.slots(claim):
        yield {"node": claim.node, "kind": kind, "number": number, "job": claim.job, "attempt": claim.attempt}


def _by_many(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), reading.MANY):
        yield items[start : start + reading.MANY]
