"""The rules of every test: a home of its own, no settings from the developer's shell, reproducible examples."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from tests import dealing, needs

if TYPE_CHECKING:
    from tests import objectstores
    from tests.backends.kubernetes.testcluster import apiserver

# Examples are the same on every run, so that a red build can be repeated; the soak tests draw new ones.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=25)
hypothesis.settings.register_profile("full", deadline=None, derandomize=True, database=None, max_examples=100)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# Threads of torch that wait for each other spin, and take the cores of the other workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the suite in the background has it ignore Ctrl-C, and so would whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


WORKERS_PER_CORE = 2
MEMORY_PER_WORKER_BYTES = 2 << 30


@pytest.hookimpl(optionalhook=True)  # the runs of planted bugs go without xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return more workers than cores, since many tests wait, and one that computes meanwhile (`dealing`).

    There are no more than the memory has space for.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return max(1, min(WORKERS_PER_CORE * cores + 1, memory_bytes // MEMORY_PER_WORKER_BYTES))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(needs)
    for name in ("COLUMNS", "LINES"):  # a worker of xdist has 80 columns: commands would break their lines in pipes too
        os.environ.pop(name, None)


def pytest_sessionstart(session: pytest.Session) -> None:
    gc.disable()  # collection makes hundreds of thousands of objects, and all of them stay


@pytest.hookimpl(trylast=True)  # after the tests that do not run have been left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one worker begin each costly room. A run without workers, or of few files, keeps the order."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers and config.args == config.getini("testpaths"):
        items[:] = dealing.dealt(items, lambda item: item.nodeid.split("/")[1], workers)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # no later collection walks over them again
    gc.enable()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`OARLOCK_HOME` of this test: nothing a test does reaches the developer's own server or settings."""
    for name in [name for name in os.environ if name.startswith("OARLOCK_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "oarlock-home"
    monkeypatch.setenv("OARLOCK_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def _object_store() -> Iterator[objectstores.Server]:
    from tests import objectstores  # its imports take a second that most test processes can save

    server = objectstores.Server()
    yield server
    server.stop()


@pytest.fixture
def bucket(_object_store: objectstores.Server) -> objectstores.Bucket:
    """Return an empty bucket of this test's own. A client finds it with the environment `bucket.env`."""
    return _object_store.bucket()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """One for all tests of a process that do not stop it. Each test, or each file, has a namespace of its own.

    A fixture that files import would start once in each of them, and stay until the process ends.
    """
    from tests.backends.kubernetes.testcluster import apiserver  # as above

    with apiserver.running(tmp_path_factory.mktemp("kubernetes") / "server") as server:
        yield server
