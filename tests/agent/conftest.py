"""The zipapp as a server would hand it out, and one rig per test; on the oldest Python that is here, where asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent import rig as rigs

from oarlock.agent import zipapp


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zipapp.build(tmp_path_factory.mktemp("agent") / "agent.pyz")


@pytest.fixture
def make_rig(tmp_path: Path, agent: Path) -> Iterator[Callable[..., rigs.Rig]]:
    made: list[rigs.Rig] = []

    def make(python: str = sys.executable) -> rigs.Rig:
        folder = tmp_path / f"task-{len(made)}"
        folder.mkdir()
        made.append(rigs.Rig(folder / "task", agent, python))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def rig(make_rig: Callable[..., rigs.Rig]) -> rigs.Rig:
    return make_rig()
