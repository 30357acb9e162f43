"""The three stores, each empty: PostgreSQL's from one server for all tests, SQLite's in a file of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.store import postgresql

from oarlock.store import memory
from oarlock.store.sql import database

pytest.register_assert_rewrite("tests.store.contract", "tests.store.machine")


@pytest.fixture
def seed() -> int:
    """The seed of this soak run: SEED repeats one, and it is printed when a test fails."""
    seed = int(os.environ.get("SEED") or time.time())
    print(f"SEED={seed}")
    return seed


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgresql.Server]:
    with postgresql.running() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: postgresql.Server) -> str:
    """A database with its tables: to be copied, not used."""
    name = postgres_server.make()
    asyncio.run(database.open_store(postgres_server.url(name)).close())
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    asyncio.run(database.open_store(f"sqlite:///{path}").close())
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "store.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: postgresql.Server, postgres_template: str) -> str:
    return postgres_server.url(postgres_server.make(postgres_template))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind, for what is promised of databases only."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")


@pytest.fixture
async def memory_store() -> memory.MemoryStore:
    return memory.MemoryStore()


@pytest.fixture
async def sqlite_store(sqlite_url: str) -> AsyncIterator[database.SqlStore]:
    store = database.open_store(sqlite_url)
    yield store
    await store.close()


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[database.SqlStore]:
    store = database.open_store(postgres_url)
    yield store
    await store.close()
