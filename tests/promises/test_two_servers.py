"""Two servers over one database: the leader is stopped past its expiry, the second one leads, and the first goes on
as if nothing had been. Nothing that it then writes is accepted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.promises import crews
from tests.promises import house as houses
from tests.store import postgresql

from oarlock.spec import phases
from oarlock.store.sql import database

PASSED_OVER_S = 240.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[postgresql.Server]:
    with postgresql.running() as server:
        yield server


@pytest.fixture
def second(tmp_path: Path) -> Iterator[houses.House]:
    one = houses.House(tmp_path / "second")
    yield one
    one.close()


def stopped(house: houses.House) -> bool:
    assert house.server is not None
    return Path(f"/proc/{house.server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def said(house: houses.House, event: str) -> list[dict[str, object]]:
    lines = map(json.loads, (house.home / "server.log").read_text().splitlines())
    return [line for line in lines if line["event"] == event]


AUDIT = """
CREATE TABLE audit (seq bigint, writer text);
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO audit VALUES (NEW.seq, session_user); RETURN NULL; END $$;
CREATE TRIGGER audits AFTER INSERT ON records FOR EACH ROW EXECUTE FUNCTION audited();
"""
"""The database itself notes which server wrote each record: each has a role of its own."""


LATE = {"command": "true", "name": "late", "framework": "plain"}


def role(url: str, name: str) -> str:
    """The URL under which this server connects."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN")
    return url.replace("//oarlock@", f"//{name}@")


def audit(url: str) -> None:
    asyncio.run(database.open_store(url).close())  # which makes the tables
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(AUDIT)


def written_by(url: str, writer: str, after: int) -> set[str]:
    """The kinds of the records that a server wrote since."""
    asked = "SELECT DISTINCT kind FROM records JOIN audit USING (seq) WHERE writer = %s AND seq > %s"
    with psycopg.connect(url, autocommit=True) as connection:
        return {kind for (kind,) in connection.execute(asked, (writer, after))}


@pytest.mark.long
async def test_a_leader_that_was_stopped_writes_nothing_more(
    house: houses.House, second: houses.House, postgres: postgresql.Server
) -> None:
    """It is stopped with a plan in its hands: its successor launches the gangs of that plan, once."""
    url = postgres.url(postgres.make())
    await asyncio.to_thread(audit, url)
    first = house
    first.start("scheduling.before_commit:1:stop", database=role(url, "first"))
    first.until_ready()
    store = database.open_store(url)
    leader = lambda: store.read(lambda view: view.leader())  # noqa: E731
    try:
        crew = crews.Crew(second, [crews.Wish(key="wanted", kind="lines")])
        second.start(database=role(url, "second"), standby="true")
        second.until_ready()
        before = await leader()
        assert before is not None
        crew.start()
        houses.until(lambda: stopped(first), PASSED_OVER_S, "the first server never had a plan")
        crew.join(crews.CONVERGENCE_S)
        crews.judge(crew)
        after = await leader()
        assert after is not None
        assert after.holder != before.holder
        assert after.epoch == before.epoch + 1
        written = await store.read(lambda view: view.records(0))

        assert first.server is not None
        os.kill(first.server.pid, signal.SIGCONT)
        houses.until(
            lambda: said(first, "controller.leadership_lost"), PASSED_OVER_S, "it did not try to write, or was heard"
        )
        now = await leader()
        assert now is not None
        assert (now.holder, now.epoch) == (after.holder, after.epoch)
        assert await store.read(lambda view: view.records(0)) == written, "something that it wrote was accepted"
        assert await store.read(lambda view: view.holdings()) == []
        crews.judge(crew)
        assert written_by(url, "second", 0) >= {"submitted", "admitted", "released"}

        # Its users may still submit through it: another server's leader gives the job its place.
        seq = written[-1].seq
        await asyncio.to_thread(lambda: first.persist(lambda client: client.submit(LATE, directory=None)))
        houses.until(lambda: "phase" in written_by(url, "second", seq), PASSED_OVER_S, "it was not looked at")
        assert written_by(url, "first", seq) == {"submitted"}
        assert not first.record.exists(), "a process of its own ran"
        assert not first.task_directories()
        job = await store.read(lambda view: view.find("wanted"))
        assert job is not None
        assert job.phase is phases.Phase.COMPLETED
    finally:
        await store.close()


def test_another_homes_database_is_not_taken_over_by_accident(
    house: houses.House, second: houses.House, postgres: postgresql.Server
) -> None:
    """Its tasks cannot be seen from here: they would be taken for lost, and started twice."""
    url = postgres.url(postgres.make())
    house.start(database=url)
    house.until_ready()
    houses.until(lambda: _led(url), PASSED_OVER_S, "nobody led")
    second.start(database=url)
    assert second.server is not None
    assert second.server.wait(PASSED_OVER_S) != 0
    assert "another home" in (second.home / "said").read_text()


def _led(url: str) -> bool:
    store = database.open_store(url)

    async def look() -> bool:
        try:
            return await store.read(lambda view: view.leader()) is not None
        finally:
            await store.close()

    return asyncio.run(look())
