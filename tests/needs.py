"""The needs of tests: one table of the things that a machine may lack, and why a test cannot do without each.

A test is skipped for a need of this table alone. The table's lines that left tests out are printed at the end of a run.
`-m "needs(need='Kubernetes API server')"` takes the tests that are marked with a need: so `make test-kube` leaves out
what `make test` has run, and a test is in one of the two.
Where CI is set (`.ci/run` sets it) a test that was skipped for any other reason fails the run. So does, with or
without CI, one that was skipped for a need that the run itself has promised to meet (TEST_NEEDS_MET, `make test-kube`):
then the cluster, not the machine, is at fault.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

RECORDED = os.environ.get("OARLOCK_DATA", "")
"""The folder of the recorded workloads. Read on import: a fixture takes our settings away from every test."""

MET = "TEST_NEEDS_MET"
"""The variable with the needs that a run has promised to meet, with commas between them."""

TABLE: Mapping[str, str] = {
    "control groups": "a cgroup v2 hierarchy that this user may write: tasks are held and limited by it",
    "mounts": "the right to mount a small tmpfs: the disk that is full",
    "tracing": "the right to trace a process: strace makes a flush fail",
    "process namespaces": "the right to make a process namespace: the agent as process 1 of a container",
    "network namespaces": "the right to make network namespaces, with `ip` and `tc`: a link that can be cut",
    "ending connections": "the right to take descriptors of other processes (pidfd_getfd): connections are reset",
    "descriptors": "a hard limit of file descriptors that is high enough for thousands of connections",
    "no GPU": "a machine without a GPU: the error for a missing one",
    "Kubernetes API server": (
        "kube-apiserver and etcd in the folder that KUBEBUILDER_ASSETS names. `setup-envtest use -p path` (from"
        " sigs.k8s.io/controller-runtime/tools/setup-envtest) gets them and prints the folder; any from 1.20 does"
    ),
    "kube-scheduler": (
        "the stock kube-scheduler beside kube-apiserver, which setup-envtest does not get: it binds pods in mode steer"
    ),
    "custom objects": (
        "an API server that stores custom objects: Kubernetes 1.20 that was built with Go 1.18 or newer ends at the"
        " first one, and the tests keep them in memory"
    ),
    "garbage collector": (
        "kube-controller-manager beside kube-apiserver, which setup-envtest does not get: it removes what a deleted"
        " object owns"
    ),
    "a node of the cluster": "a machine that is itself a node of the cluster of KUBECONFIG: pods reach a server on it",
    "IPv6": "an address of IPv6 of the machine itself (::1): a pod of a cluster that uses IPv6",
    **{
        version: f"an interpreter by pyenv or uv, or on the PATH as `{version.lower().replace(' ', '')}`: {why}"
        for version, why in {
            "Python 3.6": "the oldest for the hook that writes stacks",
            "Python 3.8": "the oldest for the agent",
            "Python 3.9": "the oldest for `oarlock.train`. PyPy will do: as root on Debian 12, `apt-get install pypy3`",
        }.items()
    },
    "mpirun": "Open MPI: as root on Debian, `apt-get install openmpi-bin`",
    "mpiexec.hydra": "MPICH, which lives beside Open MPI: as root on Debian, `apt-get install mpich`",
    "DejaVu fonts": "the fonts of the stored pictures of pages: as root on Debian, `apt-get install fonts-dejavu-core`",
    "Chromium of the pictures": (
        "the version of Chromium that drew the stored pictures of pages, where another one draws them otherwise:"
        ' `OARLOCK_GOLDEN=write make test-web ARGS="-k pictures"` takes them anew'
    ),
    "recorded workloads": (
        "the published workloads and traces. To get them:"
        " git clone --depth 1 --branch osdi21-artifact https://github.com/petuum/adaptdl &&"
        " mkdir recorded && mv adaptdl/simulator recorded/adaptdl && export OARLOCK_DATA=$PWD/recorded"
    ),
}


def _reason(need: str, detail: str = "") -> str:
    """Return what pytest says of a test that was skipped for this need."""
    assert need in TABLE, f"name {need!r} in tests/needs.py, and why a test cannot do without it"
    return f"needs {need} (tests/needs.py){': ' if detail else ''}{detail}"


def skip(need: str, detail: str = "") -> NoReturn:
    """Skip the running test for a need of the table; `detail` says what was tried."""
    pytest.skip(_reason(need, detail))


def mark(need: str, *, there: bool) -> pytest.MarkDecorator:
    """Return the mark that skips a test unless the need of the table is `there`."""
    assert need in TABLE, f"name {need!r} in tests/needs.py, and why a test cannot do without it"
    return pytest.mark.needs(need=need, there=there)


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marked in item.iter_markers("needs"):
        if not marked.kwargs["there"]:
            skip(marked.kwargs["need"])


recorded = mark("recorded workloads", there=bool(RECORDED))


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Make a file system of `size` (as mount takes it: 2m) at the directory `place`; it ends with the block."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        skip("mounts", mounted.stderr.strip())
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def told(reasons: Iterable[str], met: Collection[str] = ()) -> tuple[list[str], list[str], list[str]]:
    """Return the lines to print for the reasons of skipped tests, for reasons that are not of the table, and for needs
    that should have been `met`.
    """
    counts = Counter(next((need for need in TABLE if _reason(need) in reason), reason) for reason in reasons)
    lines = {
        need: f"{count} skipped, no {need} here. Needed: {TABLE[need]}"
        for need, count in counts.items()
        if need in TABLE
    }
    other = [f"skipped for a reason that is not in the table: {reason}" for reason in counts if reason not in TABLE]
    broken = [f"{MET} names what is not in the table: {need}" for need in met if need not in TABLE]
    broken += [
        f"{line} {MET} promises it: the cluster is not what it should be" for need, line in lines.items() if need in met
    ]
    return sorted(line for need, line in lines.items() if need not in met), sorted(other), sorted(broken)


def pytest_sessionfinish(session: pytest.Session) -> None:
    _, other, broken = _skipped(session.config)
    unexcused = [*other, *broken] if os.environ.get("CI") else broken
    if not unexcused:
        return
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    cache = session.config.cache
    if cache is not None:  # `.ci/run` repeats failed tests, and none where another one was skipped
        cache.set("oarlock/skipped", unexcused)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines, *unexcused = _skipped(config)
    if lines or any(unexcused):
        terminalreporter.section("needs that this machine does not meet (tests/needs.py)")
    for line in lines:
        terminalreporter.write_line(line)
    for reason in itertools.chain(*unexcused):
        terminalreporter.write_line(reason, red=True)


def _skipped(config: pytest.Config) -> tuple[list[str], list[str], list[str]]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = [] if reporter is None else reporter.getreports("skipped")  # None in a worker of xdist
    met = [need.strip() for need in os.environ.get(MET, "").split(",") if need.strip()]
    return told((str(report.longrepr[2]) for report in reports), met)
