"""The schema comes to its present state from nothing and from every earlier one, and a newer one is left alone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from alembic import autogenerate, config, migration, script
from tests.store import nouns

from oarlock.spec import errors, jobfile
from oarlock.store.sql import database, engines, postgres, schema, sqlite, upgrading


def revisions() -> list[str]:
    """All of them, oldest first."""
    settings = config.Config()
    settings.set_main_option("script_location", str(upgrading.MIGRATIONS))
    return [one.revision for one in script.ScriptDirectory.from_config(settings).walk_revisions()][::-1]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a directory that is not there' / 'new?%41.db'}"
    server = request.getfixturevalue("postgres_server")
    return server.url(server.make())


def engine(url: str) -> engines.Engine:
    path = Path(url.removeprefix("sqlite:///"))
    return sqlite.SqliteEngine(path) if url.startswith("sqlite") else postgres.PostgresEngine(url)


def migrate(url: str, to: str) -> None:
    one = engine(url)
    with one.writers.connect() as connection, connection.begin():
        upgrading.upgrade(connection, to=to)
        assert upgrading.revision(connection) == to
    one.dispose()


def differences(url: str) -> list[object]:
    """Return the changes by which Alembic would bring the tables to `schema`."""
    one = engine(url)
    with one.readers.connect() as connection, connection.begin():
        context = migration.MigrationContext.configure(connection)
        found = autogenerate.compare_metadata(context, schema.metadata)
    one.dispose()
    return found


def test_the_last_migration_is_the_one_that_the_tables_name() -> None:
    assert revisions()[-1] == schema.REVISION


def reflected(url: str) -> dict[str, dict[str, object]]:
    """Return all that the database tells of its tables and their rows."""
    one = engine(url)
    with one.readers.connect() as connection, connection.begin():
        inspector = sa.inspect(connection)
        found: dict[str, dict[str, object]] = {}
        for table in inspector.get_table_names():
            columns = sorted(inspector.get_columns(table), key=lambda column: column["name"])
            order = ", ".join(column["name"] for column in columns)
            found[table] = {
                "columns": [{**column, "type": repr(column["type"])} for column in columns],
                "key": inspector.get_pk_constraint(table),
                "foreign": sorted(map(repr, inspector.get_foreign_keys(table))),
                "unique": sorted(map(repr, inspector.get_unique_constraints(table))),
                "checks": sorted(
                    (check["name"], check["sqltext"].casefold()) for check in inspector.get_check_constraints(table)
                ),
                "indexes": sorted(
                    repr({**index, "dialect_options": {name: str(of) for name, of in index["dialect_options"].items()}})
                    for index in inspector.get_indexes(table)
                ),
                "rows": [tuple(row) for row in connection.exec_driver_sql(f"SELECT {order} FROM {table}")],
            }
    one.dispose()
    return found


async def test_an_empty_database_gets_the_tables_that_all_migrations_make(empty_url: str) -> None:
    await asyncio.to_thread(migrate, empty_url, schema.REVISION)
    migrated = await asyncio.to_thread(reflected, empty_url)
    assert len(migrated) == len(schema.metadata.tables) + 1
    for table in migrated:
        assert migrated[table]["columns"], table
    await asyncio.to_thread(_empty, empty_url, list(migrated))
    await database.open_store(empty_url).close()
    assert await asyncio.to_thread(reflected, empty_url) == migrated


def test_keys_that_have_other_names_get_those_of_a_new_database(request: pytest.FixtureRequest) -> None:
    """A database that was made, and not migrated, before the names were the same."""
    server = request.getfixturevalue("postgres_server")
    url = server.url(server.make())
    one = engine(url)
    with one.writers.connect() as connection, connection.begin():
        schema.make(connection)
        connection.exec_driver_sql("ALTER TABLE alembic_version RENAME CONSTRAINT alembic_version_pkc TO another_key")
        connection.exec_driver_sql("ALTER TABLE usage DROP COLUMN gpu_type, DROP COLUMN useful_seconds")  # of 0012
        connection.exec_driver_sql("DROP TABLE samples")
        connection.exec_driver_sql("DROP TABLE cursors")  # of 0013
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0010'")
    one.dispose()
    migrate(url, schema.REVISION)
    keys = {table: found["key"] for table, found in reflected(url).items()}
    assert keys["alembic_version"]["name"] == "alembic_version_pkc"
    assert keys["submissions"]["name"] == "submissions_pkey"


def _empty(url: str, tables: list[str]) -> None:
    one = engine(url)
    with one.writers.connect() as connection, connection.begin():
        cascade = " CASCADE" if connection.dialect.name == "postgresql" else ""
        for table in tables:
            connection.exec_driver_sql(f"DROP TABLE {table}{cascade}")
    one.dispose()


@pytest.mark.parametrize("start", [None, *revisions()])
async def test_from_each_revision_to_the_present_tables(empty_url: str, start: str | None) -> None:
    if start is not None:
        await asyncio.to_thread(migrate, empty_url, start)
    store = database.open_store(empty_url)
    await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
    await store.close()
    assert await asyncio.to_thread(differences, empty_url) == []
    store = database.open_store(empty_url)
    assert (await store.read(lambda v: v.job("j-1"))).version == 1
    await store.close()


async def test_keys_outlive_the_migration_that_lets_them_outlive_jobs(empty_url: str) -> None:
    await asyncio.to_thread(migrate, empty_url, "0005")
    one = engine(empty_url)
    with one.writers.connect() as connection, connection.begin():
        job = "'j-0', 'a', 'ann', 'default', 'COMPLETED', false, 1.0, 1, 1, '{}'"
        columns = "id, name, owner, pool, phase, active, created_at, version, first_seq, body"
        connection.exec_driver_sql(f"INSERT INTO jobs ({columns}) VALUES ({job})")
        connection.exec_driver_sql("INSERT INTO submissions VALUES ('ann', 'key', 'j-0', 'abc')")
    one.dispose()
    store = database.open_store(empty_url)
    assert await store.read(lambda v: v.submitted("ann", "key")) == ("j-0", "abc")
    await store.close()


async def test_a_stored_job_follows_the_renamed_field(empty_url: str) -> None:
    """A job of an earlier version, with an environment that says the same word."""
    await asyncio.to_thread(migrate, empty_url, "0007")
    job = nouns.job("j-0")
    spec = msgspec.structs.replace(job.spec, ps_placement=jobfile.PsPlacement.APART, env={"servers": "beside"})
    body = msgspec.json.encode(msgspec.structs.replace(job, spec=spec, version=1)).decode()
    row = {"body": body.replace('"ps_placement"', '"servers"')}
    one = engine(empty_url)
    with one.writers.connect() as connection, connection.begin():
        values = "'j-0', 'a', 'ann', 'default', 'QUEUED', true, 1.0, 1, 1, :body"
        columns = "id, name, owner, pool, phase, active, created_at, version, first_seq, body"
        connection.execute(sa.text(f"INSERT INTO jobs ({columns}) VALUES ({values})"), row)
    one.dispose()
    store = database.open_store(empty_url)
    assert (await store.read(lambda v: v.job("j-0"))).spec == spec
    await store.close()


async def test_jobs_of_earlier_versions_are_found_by_their_words(empty_url: str) -> None:
    """More of them than one page of the migration holds, none of them left out and none mixed up."""
    await asyncio.to_thread(migrate, empty_url, "0009")
    known = {f"j-{number:03d}": f"Run{number:03d}" for number in range(203)}
    one = engine(empty_url)
    with one.writers.connect() as connection, connection.begin():
        columns = "id, name, owner, pool, phase, active, created_at, version, first_seq, body"
        values = ":id, :name, 'ann', 'default', 'COMPLETED', false, 1.0, 1, 1, :body"
        for job_id, name in known.items():
            command: str | list[str] = "Python t.py" if job_id < "j-100" else ["python", "My File.py"]
            row = {"id": job_id, "name": name, "body": msgspec.json.encode({"spec": {"command": command}}).decode()}
            connection.execute(sa.text(f"INSERT INTO jobs ({columns}) VALUES ({values})"), row)
    one.dispose()
    await asyncio.to_thread(migrate, empty_url, schema.REVISION)
    one = engine(empty_url)
    with one.readers.connect() as connection, connection.begin():
        rows = connection.execute(sa.select(schema.jobs.c.id, schema.jobs.c.searched)).all()
    one.dispose()
    commands = {True: "python t.py", False: "python 'my file.py'"}
    assert {row.id: row.searched for row in rows} == {
        job_id: f"{name.lower()}\n{commands[job_id < 'j-100']}" for job_id, name in known.items()
    }


async def test_a_change_completes_the_searched_text_of_a_job_of_an_earlier_server(empty_url: str) -> None:
    """That server adds jobs without the text while both run beside each other."""
    store = database.open_store(empty_url)
    job = await store.write(lambda t: t.add_job(nouns.job("j-0"), at=1.0))
    await asyncio.to_thread(_execute, empty_url, "UPDATE jobs SET searched = ''")
    await store.write(lambda t: t.put_job(job, at=2.0))
    await store.close()
    searched = await asyncio.to_thread(_execute, empty_url, "SELECT searched FROM jobs")
    assert str(searched).startswith(f"{job.name}\n")


def _execute(url: str, statement: str) -> object:
    """Return the first value of the answer, or None where the statement has no answer."""
    one = engine(url)
    with one.writers.connect() as connection, connection.begin():
        answer = connection.exec_driver_sql(statement)
        value = answer.scalar() if answer.returns_rows else None
    one.dispose()
    return value


async def test_many_that_open_an_empty_database_at_once_make_it_once(empty_url: str) -> None:
    stores = await asyncio.gather(*(asyncio.to_thread(database.open_store, empty_url) for _ in range(8)))
    for number, store in enumerate(stores):
        await store.write(lambda t, number=number: t.add_job(nouns.job(f"j-{number}"), at=1.0))
    assert await stores[0].read(lambda v: v.last_seq()) == 8
    for store in stores:
        await store.close()


async def test_a_newer_database_is_refused_with_the_next_step(url: str) -> None:
    one = engine(url)
    with one.writers.connect() as connection, connection.begin():
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    one.dispose()
    with pytest.raises(errors.Conflict, match=f"its schema is 9999, this one knows up to {schema.REVISION}") as refused:
        database.open_store(url)
    assert "pip install --upgrade" in refused.value.hint


async def test_a_database_of_another_program_is_left_alone(empty_url: str) -> None:
    one = engine(empty_url)
    with one.writers.connect() as connection, connection.begin():
        connection.exec_driver_sql("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(errors.Conflict, match="none that says that they are Oarlock's"):
        database.open_store(empty_url)
    with one.readers.connect() as connection, connection.begin():
        assert sa.inspect(connection).get_table_names() == ["recipes"]
    one.dispose()


async def test_a_migration_that_fails_changes_nothing(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start finds the database as it was, and goes on from there."""
    before = "0009"  # 0010 adds a column
    await asyncio.to_thread(migrate, empty_url, before)
    broken = tmp_path / "migrations"
    shutil.copytree(upgrading.MIGRATIONS, broken, ignore=shutil.ignore_patterns("__pycache__"))
    failing = next((broken / "versions").glob("0010_*.py"))
    failing.write_text(failing.read_text() + "    raise ZeroDivisionError\n")
    monkeypatch.setattr(upgrading, "MIGRATIONS", broken)
    with pytest.raises(ZeroDivisionError):
        database.open_store(empty_url)
    monkeypatch.undo()
    one = engine(empty_url)
    with one.readers.connect() as connection, connection.begin():
        assert upgrading.revision(connection) == before
    one.dispose()
    assert await asyncio.to_thread(differences, empty_url) != []
    await database.open_store(empty_url).close()
