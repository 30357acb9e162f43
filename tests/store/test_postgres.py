"""PostgreSQL keeps the contract; and the dangers of a server: connections are cut, other processes notify us."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
import sqlalchemy as sa
from tests.store import nouns, postgresql
from tests.store.contract.stores import StoreContract

from oarlock.spec import errors
from oarlock.store import stores
from oarlock.store.sql import database, postgres, upgrading


class TestPostgres(StoreContract):
    @pytest.fixture
    def store(self, postgres_store: database.SqlStore) -> stores.Store:
        return postgres_store


def cut(url: str) -> int:
    """End every other session of this database, as a restart does."""
    with psycopg.connect(url, autocommit=True) as connection:
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        found = connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}").fetchall()
    return len(found)


async def test_cut_connections_are_made_again(postgres_url: str, postgres_store: database.SqlStore) -> None:
    for number in range(3):
        await postgres_store.write(lambda t, number=number: t.add_job(nouns.job(f"j-{number}"), at=1.0))
        assert await postgres_store.read(lambda v: v.last_seq()) == number + 1
        assert await asyncio.to_thread(cut, postgres_url) >= 2


async def test_a_change_whose_connection_is_cut_under_it_runs_again_once(
    postgres_url: str, postgres_store: database.SqlStore
) -> None:
    runs = []

    def change(t: stores.Transaction) -> int:
        runs.append(len(runs))
        t.add_job(nouns.job(), at=1.0)
        if len(runs) == 1:
            cut(postgres_url)
        t.job("j-2")
        return t.last_seq()

    assert await postgres_store.write(change) == 1
    assert runs == [0, 1]
    assert await postgres_store.read(lambda v: len(v.records(0))) == 1


async def test_a_group_whose_connection_is_cut_runs_again_as_one(
    postgres_url: str, postgres_store: database.SqlStore
) -> None:
    runs = []

    def change(number: int):
        def inner(t: stores.Transaction) -> None:
            runs.append(number)
            t.add_job(nouns.job(f"j-{number}"), at=1.0)
            if number == 7 and runs.count(7) == 1:
                cut(postgres_url)

        return inner

    def hold_up(t: stores.Transaction) -> None:
        t.leader()
        time.sleep(0.05)  # the others queue up behind

    await asyncio.gather(postgres_store.write(hold_up), *(postgres_store.write(change(number)) for number in range(10)))
    assert len(runs) > 10, "nothing ran again"
    records = await postgres_store.read(lambda v: v.records(0))
    assert [(record.seq, record.job) for record in records] == [(number + 1, f"j-{number}") for number in range(10)]


async def test_other_processes_wake_a_waiter(postgres_url: str, postgres_store: database.SqlStore) -> None:
    other = database.open_store(postgres_url)
    postgres_store._engine.poll_s = 30.0  # so that looking is not what finds it
    waiting = asyncio.ensure_future(postgres_store.wait(0, 60.0))
    await asyncio.to_thread(listening, postgres_url)
    await other.write(lambda t: t.add_job(nouns.job(), at=1.0))
    assert await asyncio.wait_for(waiting, 240) == 1
    await other.close()


async def test_a_busy_machine_may_take_long_to_make_the_tables(
    postgres_server: postgresql.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing Alembic takes longer there than a change may be idle."""
    known = upgrading.revision

    def busy(connection: sa.Connection) -> str | None:
        time.sleep(2 * postgres.IDLE_LIMIT_S)
        return known(connection)

    monkeypatch.setattr(postgres, "IDLE_LIMIT_S", 1)
    monkeypatch.setattr(upgrading, "revision", busy)
    store = await asyncio.to_thread(database.open_store, postgres_server.url(postgres_server.make()))
    await store.close()


async def test_commits_are_flushed(postgres_store: database.SqlStore) -> None:
    """Whatever the server's own setting is, what is acknowledged survives a loss of power."""

    def look(t: stores.Transaction) -> object:
        return t._connection.exec_driver_sql("SHOW synchronous_commit").scalar()

    assert await postgres_store.write(look) == "on"


async def test_a_commit_whose_answer_is_lost_is_not_made_again(
    postgres_url: str, postgres_store: database.SqlStore
) -> None:
    """It may be stored: only the caller's own key tells whether a second time would be once too often."""
    runs = []

    def cut_once(_connection: sa.Connection) -> None:
        if len(runs) == 1:
            cut(postgres_url)

    def change(t: stores.Transaction) -> None:
        runs.append(t.last_seq())
        t.add_job(nouns.job(), at=1.0)

    sa.event.listen(postgres_store._engine.writers, "commit", cut_once)
    with pytest.raises(errors.Unavailable, match="may or may not be stored"):
        await postgres_store.write(change)
    assert runs == [0]


def listening(url: str) -> None:
    """Return when a server listens."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(500):
            if connection.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'").fetchone():
                return
            connection.execute("SELECT pg_sleep(0.02)")
    raise AssertionError("nobody listens")


async def test_no_server_is_unavailable_and_the_password_is_not_said() -> None:
    with pytest.raises(errors.Unavailable, match="cannot be used") as refused:
        database.open_store("postgresql://ann:sesame@127.0.0.1:1/oarlock")
    assert "sesame" not in str(refused.value)
    assert "pg_isready" in refused.value.hint
