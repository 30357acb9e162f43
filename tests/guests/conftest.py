"""One server for all guests, and a directory with the scripts in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.guests import sides as both

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[both.Sides]:
    one = both.Sides(tmp_path_factory.mktemp("guest"))
    shutil.copytree(SCRIPTS, one.shell.work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    yield one
    one.shell.do("down", code=None)
