"""One server for the tests of a worker, started as a user's first command starts it.

Each file has a directory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e import shell as shells


@pytest.fixture(scope="session")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[shells.Shell]:
    one = shells.Shell(tmp_path_factory.mktemp("user"))
    yield one
    one.do("down", code=None)


@pytest.fixture(scope="module")
def shell(user: shells.Shell, tmp_path_factory: pytest.TempPathFactory) -> shells.Shell:
    return shells.Shell(tmp_path_factory.mktemp("user"), home=user.home)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[shells.Shell]:
    """A user whose server this test may kill."""
    one = shells.Shell(tmp_path)
    yield one
    one.do("down", code=None)
