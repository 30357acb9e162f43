"""The signals to the processes of a task: which processes, by which way, and how the record names the method."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from oarlock.agent.processes import cgroups, killing, procfs

KEY = "j-1/1/worker/0/1"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The signals that would be sent: by which call, to which pid or group, and which. None leaves this process."""
    told: list[tuple[str, int, int]] = []
    opened: dict[int, int] = {}

    def by(call: str) -> Callable[[int, int], None]:
        return lambda target, signum: told.append((call, target, signum))

    def open_pidfd(pid: int) -> int:
        fd = os.open("/dev/null", os.O_RDONLY)
        opened[fd] = pid
        return fd

    monkeypatch.setattr(os, "kill", by("kill"))
    monkeypatch.setattr(os, "killpg", by("killpg"))
    monkeypatch.setattr(os, "pidfd_open", open_pidfd, raising=False)
    monkeypatch.setattr(
        signal,
        "pidfd_send_signal",
        lambda fd, signum: told.append(("pidfd", opened[fd], signum)),
        raising=False,
    )
    monkeypatch.setattr(procfs, "start_time", lambda pid: 100)
    return told


def seen(pid: int, start: int = 100) -> procfs.Stat:
    return procfs.Stat(pid, "S", 1, pid, pid, start)


def test_a_signal_goes_to_the_process_that_was_seen(sent: list[tuple[str, int, int]]) -> None:
    killing.TaskProcesses(KEY, cgroups.Cgroup(None))._signal(seen(7), signal.SIGTERM)
    assert sent == [("pidfd", 7, signal.SIGTERM)]


def test_another_process_with_the_same_pid_gets_no_signal(sent: list[tuple[str, int, int]]) -> None:
    """The process that was seen has ended, and the kernel gave its pid away."""
    killing.TaskProcesses(KEY, cgroups.Cgroup(None))._signal(seen(7, start=99), signal.SIGKILL)
    assert sent == []


@pytest.mark.parametrize(("where", "name"), [(os, "pidfd_open"), (signal, "pidfd_send_signal")])
def test_without_a_pidfd_the_signal_goes_to_the_pid(
    sent: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    monkeypatch.delattr(where, name)
    killing.TaskProcesses(KEY, cgroups.Cgroup(None))._signal(seen(7), signal.SIGTERM)
    assert sent == [("kill", 7, signal.SIGTERM)]


@pytest.mark.parametrize(("can", "method"), [(True, "cgroup"), (False, "session")])
def test_the_record_names_the_method(
    tmp_path: Path, sent: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, can: bool, method: str
) -> None:
    """A kernel before 5.14 has cgroups, but no `cgroup.kill`."""
    (tmp_path / "cgroup.procs").touch()
    if not can:
        (tmp_path / "cgroup.kill").mkdir()
    monkeypatch.setattr(procfs, "find", lambda *asked: [])
    reach = killing.TaskProcesses(KEY, cgroups.Cgroup(str(tmp_path)))
    reach.add(41)
    assert reach.method == "cgroup"
    assert reach.kill() == []
    assert reach.method == method
    assert set(sent) == {("killpg", 41, signal.SIGKILL)}


def test_a_stop_asks_each_process_once_and_never_the_helper(
    sent: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """41 is a leader and 42 the helper. 43 is in the group of 41, and 44 in a group of its own; 45 is the helper's."""
    found = [
        procfs.Stat(43, "S", 41, 41, 41, 100),
        procfs.Stat(44, "S", 41, 44, 44, 100),
        procfs.Stat(45, "S", 42, 45, 42, 100),
    ]
    monkeypatch.setattr(procfs, "find", lambda *asked: found)
    reach = killing.TaskProcesses(KEY, cgroups.Cgroup(None))
    reach.add(41)
    reach.add(42, asked=False)
    reach.ask()
    assert sent == [("killpg", 41, signal.SIGTERM), ("pidfd", 44, signal.SIGTERM)]
