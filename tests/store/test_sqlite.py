"""SQLite keeps the contract; and what is peculiar to a file."""

from __future__ import annotations

import pytest
from tests.store import contract

from oarlock.store import port
from oarlock.store.sql import database


class TestSqlite(contract.StoreContract):
    @pytest.fixture
    def store(self, sqlite_store: database.SqlStore) -> port.Store:
        return sqlite_store
