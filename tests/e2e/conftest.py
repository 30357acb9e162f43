"""One server for the tests of a worker, started as a user's first command starts it.

Each file has a directory of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.e2e import shell as shells

from oarlock.client import elsewhere

EVIDENCE_S = 30.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the report of a failure show the servers of the test, as they are at that moment."""
    report = yield
    if report.failed:
        item.stash[shells.FAILED] = True
        for one in getattr(item, "funcargs", {}).values():
            if isinstance(one, shells.Shell) and report.when == "call":
                report.sections += evidence(one)
    return report


def evidence(shell: shells.Shell) -> list[tuple[str, str]]:
    """Return the evidence of the shell. A server that does not answer adds no more than `EVIDENCE_S`."""
    try:
        return elsewhere.within(EVIDENCE_S, shell.evidence)
    except Exception as error:  # noqa: BLE001  (the report says it)
        return [("no evidence of the server", repr(error))]


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
