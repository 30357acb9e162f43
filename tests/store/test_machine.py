"""Each database against the store in memory: a short look in the normal suite, a long one in the soak."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import stateful
from tests import marks
from tests.store import machine

from oarlock.store import stores
from oarlock.store.sql import database


@pytest.fixture(params=["sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], stores.Store]:
    """An empty database at each call."""
    if request.param == "sqlite":
        template = request.getfixturevalue("sqlite_template")
        paths = (tmp_path / f"{number}.db" for number in itertools.count())

        def make() -> stores.Store:
            path = shutil.copy(template, next(paths))
            return database.open_store(f"sqlite:///{path}")

    else:
        server = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template")

        def make() -> stores.Store:
            return database.open_store(server.url(server.make(template)))

    return make


def compare(make: Callable[[], stores.Store], settings: hypothesis.settings) -> None:
    class Machine(machine.StoreMachine):
        pass

    Machine.make = staticmethod(make)
    stateful.run_state_machine_as_test(Machine, settings=settings)


@pytest.mark.parametrize("examples", marks.long_except([2], [2, 12]))
def test_it_agrees_with_memory(make: Callable[[], stores.Store], examples: int) -> None:
    compare(make, hypothesis.settings(max_examples=examples, stateful_step_count=20, deadline=None))


@pytest.mark.soak
def test_it_agrees_with_memory_for_long(make: Callable[[], stores.Store], seed: int) -> None:
    class Machine(machine.StoreMachine):
        pass

    Machine.make = staticmethod(make)
    settings = hypothesis.settings(max_examples=500, stateful_step_count=50, deadline=None, derandomize=False)
    stateful.run_state_machine_as_test(hypothesis.seed(seed)(Machine), settings=settings)
