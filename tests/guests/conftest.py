"""One server for all guests, and a directory with the scripts in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.guests import sides as both

PROGRAMS = (Path(__file__).parent / "scripts", Path(__file__).parents[2] / "examples" / "03-guests")


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[both.Sides]:
    one = both.Sides(tmp_path_factory.mktemp("guest"))
    for folder in PROGRAMS:
        shutil.copytree(folder, one.shell.work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    yield one
    one.shell.do("down", code=None)
