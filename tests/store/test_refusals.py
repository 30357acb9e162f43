"""The words of each error of the store: the event, the next step, and the numbers for a program.

Each error is provoked, and `refusals/*.txt` holds its text. A client shows these words as they are, so a lost hint or a
detail under another key is a defect.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from tests.store import nouns

from oarlock.spec import errors, holdings, phases
from oarlock.spec.access import users
from oarlock.spec.cluster import pools
from oarlock.store import stores
from oarlock.store.sql import database, failing

replace = msgspec.structs.replace

Change = Callable[[stores.Transaction], object]


def told(name: str, error: BaseException) -> str:
    """Return an error as the golden files have it."""
    assert isinstance(error, errors.OarlockError), error
    where = f"{error.path}: " if error.path else ""
    lines = [name, f"    {type(error).__name__}: {where}{error.message}", f"    -> {error.hint}"]
    return "\n".join([*lines, f"    {error.detail}"] if error.detail is not None else lines)


def expect(file: str, found: list[str]) -> None:
    golden = Path(__file__).parent / "refusals" / file
    assert "\n\n".join(found).split("\n") == golden.read_text().rstrip("\n").split("\n")


def prepared(t: stores.Transaction) -> None:
    """A node with two jobs on it: j-1 runs, j-over has ended and is not released, j-old has ended and was compacted."""
    t.add_job(nouns.job("j-old", phase=phases.Phase.FAILED), at=1.0)
    t.add_job(nouns.job("j-1", name="digits", pool="research"), at=1.0, idempotency_key="key")
    t.add_job(nouns.job("j-2"), at=1.0)
    t.add_job(nouns.job("j-over", phase=phases.Phase.COMPLETED), at=1.0)
    t.compact(3)
    t.put_node(nouns.node())
    t.put_node(nouns.node("n2", cpus=1, ports=None))
    t.put_pool(pools.Pool(name="research"))
    t.put_user(users.User(name="ann"))
    t.hold([nouns.claim("j-1", devices=(0,), ports=(20000,)), nouns.share("j-1", index=1, device=1, milli=600)])
    t.hold([nouns.claim("j-over")])


def put(job_id: str, **change: object) -> Change:
    return lambda t: t.put_job(replace(t.job(job_id), **change), at=2.0)


def hold(*claims: holdings.Holding) -> Change:
    return lambda t: t.hold(list(claims))


RULES: dict[str, Change] = {
    "a job without a name": lambda t: t.add_job(replace(nouns.job("j-9"), name=""), at=2.0),
    "a job whose owner holds a NUL": lambda t: t.add_job(nouns.job("j-9", owner="a\0b"), at=2.0),
    "an id that is taken": lambda t: t.add_job(nouns.job("j-1", name="other"), at=2.0),
    "a name that is taken": lambda t: t.add_job(nouns.job("j-9", name="digits"), at=2.0),
    "a key that was used": lambda t: t.add_job(nouns.job("j-9"), at=2.0, idempotency_key="key"),
    "a change of a job that is not there": lambda t: t.put_job(nouns.job("j-9"), at=2.0),
    "a change of a job that has ended": put("j-over", reason="x"),
    "a change from an old version": put("j-1", version=7),
    "a change of the owner": put("j-1", owner="bob"),
    "the removal of a job that waits": lambda t: t.remove_jobs(["j-1"], at=2.0),
    "the removal of a job that is not released": lambda t: t.remove_jobs(["j-over"], at=2.0),
    "the removal of a node in use": lambda t: t.remove_node("n1"),
    "the removal of a pool in use": lambda t: t.remove_pool("research"),
    "the removal of a user with jobs": lambda t: t.remove_user("ann"),
    "a node from an old version": lambda t: t.put_node(nouns.node()),
    "a pool from an old version": lambda t: t.put_pool(pools.Pool(name="research", version=2)),
    "a user from a later version": lambda t: t.put_user(users.User(name="bob", version=1)),
    "a token of nobody": lambda t: t.put_token(users.Token(sha256="t", user="eve", created_at=1.0)),
    "a session of a token that is not there": lambda t: t.put_session(
        users.Session(sha256="s", user="ann", token="t", created_at=1.0, used_at=1.0)
    ),
    "a checkpoint of a job that is not there": lambda t: t.add_checkpoint(nouns.checkpoint("j-9")),
    "holdings of a job that is not there": hold(nouns.claim("j-9")),
    "a node that is not there": hold(nouns.claim("j-2", node="n9")),
    "a device that is not there": hold(nouns.claim("j-2", devices=(4,))),
    "a port that is not there": hold(nouns.claim("j-2", ports=(19999,))),
    "a device that is held": hold(nouns.claim("j-2", devices=(0,))),
    "a port that is held": hold(nouns.claim("j-2", ports=(20000,))),
    "a device of which a part is held": hold(nouns.claim("j-2", devices=(1,))),
    "more of a device than is left": hold(nouns.share("j-2", device=1, milli=401)),
    "more of a device than is left beside an own share": hold(
        nouns.share("j-2", device=1, milli=300), nouns.share("j-2", index=1, device=1, milli=101)
    ),
    "a part of a device that is held": hold(nouns.share("j-2", device=0)),
    "a part of a device that is not there": hold(nouns.share("j-2", device=4)),
    "a part of two devices": hold(replace(nouns.share("j-2"), devices=(0, 1))),
    "a part that is the whole device": hold(nouns.share("j-2", device=2, milli=1000)),
    "more CPUs than are left": hold(nouns.claim("j-2", cpus=6)),
    "more memory than is left, in sum": hold(
        nouns.claim("j-2", memory=31 << 30), nouns.claim("j-2", index=1, memory=31 << 30)
    ),
    "more of the second of two nodes": hold(nouns.claim("j-2"), nouns.claim("j-2", index=1, node="n2", cpus=2)),
    "the same task on a node twice": hold(nouns.claim("j-1")),
    "the same task twice in one request": hold(nouns.claim("j-2"), nouns.claim("j-2")),
    "lines of the log that were compacted": lambda t: t.records(1),
    "a page after a job that is not there": lambda t: t.jobs(stores.JobFilter(after="j-9")),
}


async def refused(store: stores.Store, name: str, change: Change, epoch: int | None = None) -> str:
    with pytest.raises(errors.OarlockError) as error:
        await store.write(change, epoch=epoch)
    return told(name, error.value)


@pytest.fixture(params=["memory_store", "sqlite_store"])
def store(request: pytest.FixtureRequest) -> stores.Store:
    return request.getfixturevalue(request.param)


async def test_each_rule_names_the_fault_and_the_next_step(store: stores.Store) -> None:
    await store.write(prepared)
    found = [await refused(store, name, change) for name, change in RULES.items()]
    found.append(await refused(store, "a leader before the first", lambda t: None, epoch=0))
    await store.lead("a", now=0.0, ttl_s=1.0)
    await store.lead("b", now=1.0, ttl_s=1.0)
    found.append(await refused(store, "a leader of an earlier epoch", lambda t: None, epoch=1))
    await store.close()
    found.append(await refused(store, "a store that was closed", lambda t: None))
    expect("rules.txt", found)


def _made(t: stores.Transaction, change: Change) -> None:
    change(t)
    t.nodes()  # writes the rows that were still pending


def beside(table: str, what: str, change: Change, otherwise: str = "ABORT, 'x'") -> Change:
    """Return a change whose write to `table` meets another writer's row, which the look before it has not seen."""

    def both(t: stores.Transaction) -> None:
        trigger = f"CREATE TEMP TRIGGER another BEFORE {what} ON {table} BEGIN SELECT RAISE({otherwise}); END"
        t._connection.exec_driver_sql(trigger)
        with pytest.raises(errors.OarlockError):
            _made(t, change)  # code that catches the refusal does not save the transaction

    return both


TABLES: dict[str, Change] = {
    "a name": beside("jobs", "INSERT", lambda t: t.add_job(nouns.job("j-9"), at=2.0)),
    "a key": beside("submissions", "INSERT", lambda t: t.add_job(nouns.job("j-9"), at=2.0, idempotency_key="k")),
    "a job": beside("jobs", "UPDATE", put("j-1", reason="x"), "IGNORE"),
    "a task's place": beside("holdings", "INSERT", hold(nouns.claim("j-2"))),
    "a device": beside("slots", "INSERT", hold(nouns.claim("j-2", devices=(2,)))),
    "a new node": beside("nodes", "INSERT", lambda t: t.put_node(nouns.node("n9"))),
    "a pool": beside("pools", "UPDATE", lambda t: t.put_pool(pools.Pool(name="research", version=1)), "IGNORE"),
}


async def test_the_tables_refuse_faults_that_the_look_before_has_missed(sqlite_store: database.SqlStore) -> None:
    await sqlite_store.write(prepared)
    seq = await sqlite_store.read(lambda v: v.last_seq())
    expect("tables.txt", [await refused(sqlite_store, name, change) for name, change in TABLES.items()])
    assert await sqlite_store.read(lambda v: v.last_seq()) == seq


def by_sqlite(name: str, text: str = "odd") -> sa.exc.DBAPIError:
    cause = sqlite3.OperationalError(text)
    cause.sqlite_errorname = name
    return sa.exc.OperationalError("SELECT", {}, cause)


def by_postgres(state: str | None) -> sa.exc.DBAPIError:
    cause = psycopg.errors.lookup(state)("odd") if state else psycopg.OperationalError(" no route\nto host")
    return sa.exc.OperationalError("SELECT", {}, cause)


DRIVERS: dict[str, sa.exc.SQLAlchemyError] = {
    "no connection left": sa.exc.TimeoutError(),
    "a constraint": sa.exc.IntegrityError("INSERT", {}, sqlite3.IntegrityError("UNIQUE")),
    "a text that cannot be kept": sa.exc.DataError("INSERT", {}, psycopg.DataError("\nNUL in it\nLINE 1")),
    **{
        name: by_sqlite(name) for name in ("SQLITE_FULL", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED", "SQLITE_IOERR_FSYNC")
    },
    **{name: by_sqlite(name) for name in ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")},
    **{name: by_sqlite(name) for name in ("SQLITE_CORRUPT_VTAB", "SQLITE_NOTADB", "SQLITE_ERROR")},
    "SQLite without a name": by_sqlite("", text=""),
    **{state: by_postgres(state) for state in ("53100", "53200", "53400", "55P03", "40001", "40P01", "57P01")},
    "PostgreSQL out of reach": by_postgres(None),
    "a driver that says nothing": sa.exc.OperationalError("SELECT", {}, None),
}


def test_each_failure_of_a_driver_has_words() -> None:
    found = [told(name, failing.translated(failure, "/x/store.db")) for name, failure in DRIVERS.items()]
    expect("drivers.txt", found)


def test_the_cause_is_kept_and_other_errors_stay() -> None:
    failure, other = DRIVERS["SQLITE_FULL"], ValueError("x")
    assert failing.translated(failure, "/x").__cause__ is failure
    assert failing.translated(other, "/x") is other
    assert failing.translated(unbound := sa.exc.InvalidRequestError("x"), "/x") is unbound


def test_which_failures_are_tried_again_and_which_lose_the_transaction() -> None:
    """Two transactions that met, and a connection that was lost before, are worth another try."""
    lost = sa.exc.OperationalError("SELECT", {}, psycopg.OperationalError("gone"), connection_invalidated=True)
    again = {name for name, failure in DRIVERS.items() if failing.again(failure)}
    assert again == {"40001", "40P01"}
    assert failing.again(lost)
    assert not failing.again(ValueError("x"))
    alone = {name for name, failure in DRIVERS.items() if not failing.fatal(failure)}
    assert alone == {"no connection left", "a constraint", "a text that cannot be kept"}
    assert failing.fatal(sa.exc.InternalError("SELECT", {}, None))
    assert failing.fatal(sa.exc.InterfaceError("SELECT", {}, None))
    assert not failing.fatal(sa.exc.ProgrammingError("SELECT", {}, None))
    assert not failing.fatal(ValueError("x"))


async def test_a_commit_whose_answer_was_lost_says_how_to_go_on(sqlite_store: database.SqlStore) -> None:
    class Lost:
        def commit(self) -> None:
            cause = psycopg.OperationalError("gone")
            raise sa.exc.OperationalError("COMMIT", {}, cause, connection_invalidated=True)

    with pytest.raises(errors.Unavailable, match="it may or may not be stored") as lost:
        sqlite_store._writer._finish(Lost())  # type: ignore[arg-type]  # it commits, and fails
    assert lost.value.hint == "Repeat the request under the same idempotency key."
