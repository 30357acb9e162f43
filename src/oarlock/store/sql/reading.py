"""A consistent state of the database, read: rows in, nouns out.

Statements are built once, so that SQLAlchemy compiles each once. A text that no database could keep (with a NUL in
it) is found nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

# Names, not modules: the methods below bear the modules' names.
from oarlock.spec.access.users import Session, Token, User
from oarlock.spec.cluster.nodes import Node
from oarlock.spec.cluster.pools import Pool
from oarlock.spec.cluster.samples import Sample
from oarlock.spec.events import Record
from oarlock.spec.holdings import Holding
from oarlock.spec.jobs import Checkpoint, Job
from oarlock.spec.phases import Phase
from oarlock.spec.process.clocks import Anchor
from oarlock.store import rules, stores
from oarlock.store.sql import schema

T = TypeVar("T")
OfJob = TypeVar("OfJob", Holding, Checkpoint)

MANY = 500
"""Most values in one IN: SQLite allows 999 in old builds."""

_JOB = sa.select(schema.jobs.c.body).where(schema.jobs.c.id == sa.bindparam("id"))
_JOBS_BY_ID = sa.select(schema.jobs.c.body).where(schema.jobs.c.id.in_(sa.bindparam("ids", expanding=True)))
_NEWEST_FIRST = (schema.jobs.c.created_at.desc(), schema.jobs.c.id.desc())
_NAMED = (
    sa.select(schema.jobs.c.body)
    .where(schema.jobs.c.name == sa.bindparam("name"))
    .order_by(*_NEWEST_FIRST)
    .limit(sa.literal_column("1"))
)
_NAMED_OF_OWNER = _NAMED.where(schema.jobs.c.owner == sa.bindparam("owner"))
_ENDING = (
    sa.select(schema.jobs.c.body)
    .where(schema.jobs.c.id.like(sa.bindparam("ending")))
    .order_by(*_NEWEST_FIRST)
    .limit(sa.literal_column("1"))
)
_ENDING_OF_OWNER = _ENDING.where(schema.jobs.c.owner == sa.bindparam("owner"))
_ACTIVE = (
    sa.select(schema.jobs.c.body)
    .where(sa.text("active"))  # as the index has it: SQLite compares the words
    .order_by(schema.jobs.c.created_at, schema.jobs.c.id)
)
_ACTIVE_NOW = (
    sa.select(schema.jobs.c.id, schema.jobs.c.first_seq, schema.jobs.c.version)
    .where(sa.text("active"))
    .order_by(schema.jobs.c.created_at, schema.jobs.c.id)
)
_COUNT = sa.select(schema.jobs.c.phase, sa.func.count()).group_by(schema.jobs.c.phase)
_PHASE: sa.ColumnElement[str] = sa.literal_column("jobs.phase || ''")
_COUNT_ALL_READ = sa.select(_PHASE, sa.func.count()).group_by(_PHASE)
"""The same where each row is read for its text: in the order of the rows, for that of an index takes thrice as long."""
_HOLDINGS = sa.select(schema.holdings.c.body).order_by(*schema.holdings.primary_key.columns)
_HOLDINGS_OF_JOB = _HOLDINGS.where(schema.holdings.c.job == sa.bindparam("job"))
_HOLDINGS_OF_JOBS = _HOLDINGS.where(schema.holdings.c.job.in_(sa.bindparam("ids", expanding=True)))
_LOG = sa.select(schema.log.c.last_seq, schema.log.c.floor)
_RECORDS = (
    sa.select(schema.records)
    .where(schema.records.c.seq > sa.bindparam("after"))
    .order_by(schema.records.c.seq)
    .limit(sa.bindparam("most"))
)
_RECORDS_OF_JOB = _RECORDS.where(schema.records.c.job == sa.bindparam("job"))
_OF_KINDS = schema.records.c.kind.in_(sa.bindparam("kinds", expanding=True))
_RECORDS_OF_KINDS, _RECORDS_OF_JOB_AND_KINDS = _RECORDS.where(_OF_KINDS), _RECORDS_OF_JOB.where(_OF_KINDS)
_CHANGED = (
    sa.select(schema.records.c.job, schema.records.c.version)
    .where(schema.records.c.seq > sa.bindparam("after"), schema.records.c.job != sa.literal_column("''"))
    .order_by(schema.records.c.seq)
)
"""Not grouped by job: SQLite would look at the whole log, by its index of jobs."""
_NEWEST = sa.select(schema.records.c.seq).order_by(schema.records.c.seq.desc()).limit(1)
_FIRST_SEQ = sa.select(schema.jobs.c.first_seq).where(schema.jobs.c.id == sa.bindparam("id"))
_BEST_FIRST = [schema.checkpoints.c[name].desc() for name in ("attempt", "step", "round", "path")]
_CHECKPOINTS = (
    sa.select(schema.checkpoints.c.body).where(schema.checkpoints.c.job == sa.bindparam("job")).order_by(*_BEST_FIRST)
)
_CHECKPOINTS_OF_JOBS = (
    sa.select(schema.checkpoints.c.body)
    .where(schema.checkpoints.c.job.in_(sa.bindparam("ids", expanding=True)))
    .order_by(*_BEST_FIRST)
)
_SUBMITTED = sa.select(schema.submissions.c.job, schema.submissions.c.request_sha256).where(
    schema.submissions.c.owner == sa.bindparam("owner"), schema.submissions.c.key == sa.bindparam("key")
)
_USER = sa.select(schema.users.c.body).where(schema.users.c.name == sa.bindparam("name"))
_TOKEN = sa.select(schema.tokens.c.body).where(schema.tokens.c.sha256 == sa.bindparam("sha256"))
_USERS_BY_NAME = sa.select(schema.users.c.body).where(schema.users.c.name.in_(sa.bindparam("names", expanding=True)))
_TOKENS_BY_DIGEST = sa.select(schema.tokens.c.body).where(
    schema.tokens.c.sha256.in_(sa.bindparam("digests", expanding=True))
)
_SESSIONS_BY_DIGEST = sa.select(schema.sessions.c.body).where(
    schema.sessions.c.sha256.in_(sa.bindparam("digests", expanding=True))
)
_TOKENS = sa.select(schema.tokens.c.body).where(schema.tokens.c.owner == sa.bindparam("user"))
_SESSION = sa.select(schema.sessions.c.body).where(schema.sessions.c.sha256 == sa.bindparam("sha256"))
_SESSIONS = (
    sa.select(schema.sessions.c.body)
    .where(schema.sessions.c.owner == sa.bindparam("user"))
    .order_by(schema.sessions.c.created_at, schema.sessions.c.sha256)
)
_USAGE = (
    sa.select(
        schema.usage.c.owner,
        schema.usage.c.pool,
        sa.func.min(schema.usage.c.started_at).label("started_at"),
        sa.func.max(schema.usage.c.ended_at).label("ended_at"),
        *(sa.func.sum(schema.usage.c[name]).label(name) for name in ("device_seconds", "cpu_seconds", "cost")),
    )
    .where(schema.usage.c.ended_at > sa.bindparam("since"))
    .group_by(schema.usage.c.owner, schema.usage.c.pool)
    .order_by(schema.usage.c.owner, schema.usage.c.pool)
)
_SNAPSHOTS = sa.select(schema.jobs.c.snapshot).where(schema.jobs.c.snapshot.is_not(None)).distinct()
_LEADER = sa.select(schema.leader.c.holder, schema.leader.c.epoch, schema.leader.c.expires_at)
_ANCHOR = sa.select(schema.clock.c.body)
_CURSOR = sa.select(schema.cursors.c.seq).where(schema.cursors.c.name == sa.bindparam("name"))

_decoders: dict[type, msgspec.json.Decoder[object]] = {
    noun: msgspec.json.Decoder(noun)
    for noun in (Anchor, Job, Holding, Checkpoint, Node, Pool, Sample, User, Token, Session)
}


def decode(body: str, noun: type[T]) -> T:
    """Return the noun as it was stored."""
    return _decoders[noun].decode(body)  # type: ignore[return-value]  # each decoder stands under what it makes


class Known:
    """The active jobs as they were last read, so that of thousands that wait only those that changed are read again.

    By id: the seq of its first record, which no other job of that id ever has, and the version. Committed states only.
    """

    def __init__(self) -> None:
        self.active: dict[str, tuple[int, int, Job]] = {}


class SqlView:
    """`stores.View` on a connection that stands in a transaction. `known` is shared by all readers."""

    def __init__(self, connection: sa.Connection, known: Known | None = None) -> None:
        self._connection = connection
        self._known_active = known

    def job(self, job_id: str) -> Job | None:
        return self._one(_JOB, Job, id=job_id)

    def jobs_by_id(self, ids: Collection[str]) -> dict[str, Job]:
        return {job.id: job for some in _parts(ids) for job in self._all(_JOBS_BY_ID, Job, ids=some)}

    def find(self, name_or_id: str, owner: str | None = None) -> Job | None:
        if (found := self.job(name_or_id)) is not None:
            return found
        if owner is None:
            found = self._one(_NAMED, Job, name=name_or_id)
        else:
            found = self._one(_NAMED_OF_OWNER, Job, name=name_or_id, owner=owner)
        if found is not None or not rules.is_short_id(name_or_id):
            return found
        if owner is None:
            return self._one(_ENDING, Job, ending=f"%{name_or_id}")
        return self._one(_ENDING_OF_OWNER, Job, ending=f"%{name_or_id}", owner=owner)

    def jobs(self, which: stores.JobFilter) -> list[Job]:
        if not _storable(which):
            return []
        columns = [schema.jobs.c.created_at, schema.jobs.c.id]
        if which.sort is not stores.Sort.CREATED:
            columns.insert(0, schema.jobs.c[which.sort])
        order = [column.asc() if which.ascending else column.desc() for column in columns]
        statement = sa.select(schema.jobs.c.id).where(*_conditions(which))
        if which.phases is not None:
            statement = statement.where(schema.jobs.c.phase.in_(sorted(which.phases)))
        if which.after is not None:
            if (last := self.job(which.after)) is None:
                raise rules.page_gone(which.after)
            last = rules.as_listed(last, which.after_phase)
            at = sa.tuple_(*(sa.literal(getattr(last, column.name)) for column in columns))
            place = sa.tuple_(*columns)
            statement = statement.where(place > at if which.ascending else place < at)
        # The keys are sorted without the bodies, which are thousands of times larger.
        page = statement.order_by(*order).limit(_within(which.limit)).subquery()
        found = sa.select(schema.jobs.c.body).join(page, page.c.id == schema.jobs.c.id).order_by(*order)
        return self._all(found, Job)

    def active(self) -> list[Job]:
        if self._known_active is None:
            return self._all(_ACTIVE, Job)
        had = self._known_active.active
        now = {job_id: (first, version) for job_id, first, version in self._connection.execute(_ACTIVE_NOW)}
        fresh = self.jobs_by_id([job_id for job_id, state in now.items() if had.get(job_id, ())[:2] != state])
        have = {job_id: (*state, fresh.get(job_id) or had[job_id][2]) for job_id, state in now.items()}
        self._known_active.active = have
        return [job for _, _, job in have.values()]

    def count(self, which: stores.JobFilter = stores.JobFilter()) -> dict[Phase, int]:  # noqa: B008  (it is frozen)
        if not _storable(which):
            return {}
        counting = _COUNT if which.text is None else _COUNT_ALL_READ
        counted = self._connection.execute(counting.where(*_conditions(which)))
        return {Phase(phase): count for phase, count in counted}

    def holdings(self, job: str | None = None) -> list[Holding]:
        if job is None:
            return self._all(_HOLDINGS, Holding)
        return self._all(_HOLDINGS_OF_JOB, Holding, job=job)

    def holdings_by_job(self, ids: Collection[str]) -> dict[str, list[Holding]]:
        return self._by_job(_HOLDINGS_OF_JOBS, Holding, ids)

    def records(
        self, after: int, *, job: str | None = None, kinds: Collection[str] = (), limit: int = 1000
    ) -> list[Record]:
        floor = self._floor()
        if after < floor - 1 and (job is None or self._first_seq(job, floor) < floor):
            raise rules.compacted(after, floor)
        wanted: dict[str, object] = {"after": _within(after), "most": _within(limit)}
        if job is not None:
            if not rules.storable(job):
                return []
            wanted["job"] = job
        statement = _RECORDS if job is None else _RECORDS_OF_JOB
        if kinds:
            wanted["kinds"] = sorted(filter(rules.storable, kinds))
            statement = _RECORDS_OF_KINDS if job is None else _RECORDS_OF_JOB_AND_KINDS
        rows = self._connection.execute(statement, wanted)
        return [
            Record(seq=seq, at=at, job=of, kind=kind, version=version, data=msgspec.json.decode(data))
            for seq, at, of, kind, version, data in rows
        ]

    def changed_jobs(self, after: int) -> dict[str, int]:
        floor = self._floor()
        if after < floor - 1:
            raise rules.compacted(after, floor)
        rows = self._connection.execute(_CHANGED, {"after": _within(after)})
        return {str(row[0]): int(row[1]) for row in rows}

    def last_seq(self) -> int:
        return int(self._connection.execute(_LOG).one()[0])

    def newest_seq(self, count: int, *, of_jobs: bool) -> int:
        some = _NEWEST.where(schema.records.c.job != "" if of_jobs else schema.records.c.job == "")
        return int(self._connection.execute(some.offset(count - 1)).scalar() or 0)

    def nodes(self) -> list[Node]:
        return self._all(sa.select(schema.nodes.c.body).order_by(schema.nodes.c.name), Node)

    def pools(self) -> list[Pool]:
        return self._all(sa.select(schema.pools.c.body).order_by(schema.pools.c.name), Pool)

    def checkpoints(self, job: str) -> list[Checkpoint]:
        return self._all(_CHECKPOINTS, Checkpoint, job=job)

    def checkpoints_by_job(self, ids: Collection[str]) -> dict[str, list[Checkpoint]]:
        return self._by_job(_CHECKPOINTS_OF_JOBS, Checkpoint, ids)

    def submitted(self, owner: str, idempotency_key: str) -> tuple[str, str] | None:
        if not (rules.storable(owner) and rules.storable(idempotency_key)):
            return None
        row = self._connection.execute(_SUBMITTED, {"owner": owner, "key": idempotency_key}).one_or_none()
        return (row[0], row[1]) if row is not None else None

    def user(self, name: str) -> User | None:
        return self._one(_USER, User, name=name)

    def users(self) -> list[User]:
        return self._all(sa.select(schema.users.c.body).order_by(schema.users.c.name), User)

    def users_by_name(self, names: Collection[str]) -> dict[str, User]:
        return {one.name: one for some in _parts(names) for one in self._all(_USERS_BY_NAME, User, names=some)}

    def token(self, sha256: str) -> Token | None:
        return self._one(_TOKEN, Token, sha256=sha256)

    def tokens_by_digest(self, digests: Collection[str]) -> dict[str, Token]:
        found = (one for some in _parts(digests) for one in self._all(_TOKENS_BY_DIGEST, Token, digests=some))
        return {one.sha256: one for one in found}

    def tokens(self, user: str) -> list[Token]:
        found = self._all(_TOKENS, Token, user=user)
        return sorted(found, key=lambda one: (one.created_at, one.sha256))

    def session(self, sha256: str) -> Session | None:
        return self._one(_SESSION, Session, sha256=sha256)

    def sessions_by_digest(self, digests: Collection[str]) -> dict[str, Session]:
        found = (one for some in _parts(digests) for one in self._all(_SESSIONS_BY_DIGEST, Session, digests=some))
        return {one.sha256: one for one in found}

    def sessions(self, user: str) -> list[Session]:
        return self._all(_SESSIONS, Session, user=user)

    def usage(self, *, since: float = 0.0) -> list[stores.Usage]:
        return [stores.Usage(**row) for row in self._connection.execute(_USAGE, {"since": since}).mappings()]

    def attempts_used(
        self, *, since: float, until: float, owner: str | None = None, limit: int | None = None
    ) -> list[stores.Usage]:
        table = schema.usage.c
        wanted = sa.select(schema.usage).where(table.ended_at > since, table.started_at < until)
        if owner is not None:
            wanted = wanted.where(table.owner == owner)
        wanted = wanted.order_by(table.ended_at.desc(), table.job, table.attempt).limit(limit)
        return [stores.Usage(**row) for row in self._connection.execute(wanted).mappings()]

    def samples(self, *, since: float, until: float, limit: int) -> list[Sample]:
        table = schema.samples.c
        within = (table.at >= since, table.at < until)
        times = self._connection.execute(sa.select(table.at).where(*within).order_by(table.at)).scalars().all()
        chosen = rules.spread(times, limit)
        wanted = sa.select(table.body).where(table.at.in_(chosen)).order_by(table.at)
        return [decode(body, Sample) for body in self._connection.execute(wanted).scalars()]

    def snapshots_in_use(self) -> set[str]:
        return set(self._connection.execute(_SNAPSHOTS).scalars())

    def leader(self) -> stores.Leader | None:
        holder, epoch, expires_at = self._connection.execute(_LEADER).one()
        return stores.Leader(holder, epoch, expires_at) if holder else None

    def cursor(self, name: str) -> int | None:
        return self._connection.execute(_CURSOR, {"name": name}).scalar_one_or_none()

    def clock_anchor(self) -> Anchor | None:
        return self._one(_ANCHOR, Anchor)

    def _floor(self) -> int:
        return int(self._connection.execute(_LOG).one()[1])

    def _first_seq(self, job_id: str, otherwise: int) -> int:
        if not rules.storable(job_id):
            return otherwise
        found = self._connection.execute(_FIRST_SEQ, {"id": job_id}).scalar_one_or_none()
        return found if found is not None else otherwise

    def _one(self, statement: sa.Select[Any], noun: type[T], **wanted: str) -> T | None:
        if not all(map(rules.storable, wanted.values())):
            return None
        body = self._connection.execute(statement, wanted).scalar_one_or_none()
        return decode(body, noun) if body is not None else None

    def _all(self, statement: sa.Select[Any], noun: type[T], **wanted: str | list[str]) -> list[T]:
        if not all(rules.storable(text) for text in wanted.values() if isinstance(text, str)):
            return []
        return [decode(body, noun) for body in self._connection.execute(statement, wanted).scalars()]

    def _by_job(self, statement: sa.Select[Any], noun: type[OfJob], ids: Collection[str]) -> dict[str, list[OfJob]]:
        found: dict[str, list[OfJob]] = {}
        for some in _parts(ids):
            for one in self._all(statement, noun, ids=some):
                found.setdefault(one.job, []).append(one)
        return found


def _parts(ids: Collection[str]) -> Iterator[list[str]]:
    """Yield the ids that a database could keep, as many at once as one statement takes."""
    wanted = list(filter(rules.storable, ids))
    return (wanted[start : start + MANY] for start in range(0, len(wanted), MANY))


def _storable(which: stores.JobFilter) -> bool:
    """Return whether a database could keep the texts of the filter: else no job has them."""
    texts = (which.owner, which.pool, which.name, which.continues, which.text)
    return all(rules.storable(text) for text in texts if text is not None)


def _conditions(which: stores.JobFilter) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions of the filter, but for its phases and its page."""
    for column, wanted in (
        (schema.jobs.c.owner, which.owner),
        (schema.jobs.c.pool, which.pool),
        (schema.jobs.c.name, which.name),
        (schema.jobs.c.continues, which.continues),
    ):
        if wanted is not None:
            yield column == wanted
    if which.text is not None:
        yield schema.jobs.c.searched.contains(which.text.casefold(), autoescape=True)
    if which.since is not None:
        yield schema.jobs.c.created_at >= which.since
    if which.until is not None:
        yield schema.jobs.c.created_at < which.until


def _within(number: int) -> int:
    """Return the number within the bounds of a database's integer."""
    return max(0, min(number, rules.MAX_NUMBER))
