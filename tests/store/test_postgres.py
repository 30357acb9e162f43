"""PostgreSQL keeps the contract; and what is peculiar to a server."""

from __future__ import annotations

import pytest
from tests.store import contract

from oarlock.store import port
from oarlock.store.sql import database


class TestPostgres(contract.StoreContract):
    @pytest.fixture
    def store(self, postgres_store: database.SqlStore) -> port.Store:
        return postgres_store
