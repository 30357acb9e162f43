"""A look that says that nothing lives has missed nothing: a process that started while it looked was looked at too."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends import contract

from oarlock.agent.processes import procfs
from oarlock.backends.local import forks, processes, tasks, tree

KEY = contract.key()
MARK = processes.Mark("j-forks/1/worker/0/1", f"/nowhere/{os.getpid()}")

HEADLESS = """\
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # the thread's exit, not the process's
"""


@pytest.fixture
def spawned() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def spawn(code: str) -> int:
    """Start a process with nothing of the task but its limit mark."""
    old = resource.getrlimit(resource.RLIMIT_RTTIME)
    resource.setrlimit(resource.RLIMIT_RTTIME, (MARK.limit, old[1]))
    try:
        return os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", code], {}, setsid=True)
    finally:
        resource.setrlimit(resource.RLIMIT_RTTIME, old)


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [(7, 7, []), (7, 9, [8, 9]), (97, 2, [98, 99, 1, 2]), (99, 1, [1]), (98, 1, [99, 1])],
)
def test_pids_are_given_out_in_a_circle(last: int, now: int, expected: list[int]) -> None:
    assert [pid for pids in forks.between(last, now, 100) for pid in pids] == expected


def test_a_series_has_the_started_processes_and_ends_when_none_is_left() -> None:
    assert forks.usable()
    series = forks.Series()
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
    assert thread.native_id in list(series.new() or ())
    assert any(series.new() is None for _ in range(100_000)), "a moment in which the machine starts nothing"


@pytest.mark.parametrize(("forked", "last"), [(5, 0), (0, 7)], ids=["no pids", "no count"])
def test_a_system_that_does_not_tell_proves_nothing(monkeypatch: pytest.MonkeyPatch, forked: int, last: int) -> None:
    monkeypatch.setattr(forks, "count", lambda: forked)
    monkeypatch.setattr(forks, "last_pid", lambda: last)
    monkeypatch.setattr(forks, "usable", forks.usable.__wrapped__)
    assert not forks.usable()
    assert not processes.remains({MARK}).proven


def test_a_lap_of_the_circle_within_one_look_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    series = forks.Series()
    monkeypatch.setattr(forks, "pid_limit", lambda: 1)
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
    series.new()
    assert series.lost


def test_nothing_is_proven_to_be_nothing() -> None:
    assert any(processes.remains({MARK}) == processes.Remains({MARK: []}, proven=True) for _ in range(20))


def test_a_process_that_is_started_behind_a_pass_is_seen(
    home: Path, monkeypatch: pytest.MonkeyPatch, spawned: list[int]
) -> None:
    """It changed its number when the pass was over, and others were started after it: it is not among the newest."""
    members, passes = processes.members, []

    def late(*given: object, **more: object) -> object:
        found = members(*given, **more)
        passes.append(1)
        if len(passes) == 2:
            spawned.append(spawn("import time; time.sleep(60)"))
            for _ in range(2 * processes.RECENT_PIDS):
                thread = threading.Thread(target=time.sleep, args=(0,))
                thread.start()
                thread.join()
        return found

    monkeypatch.setattr(processes, "members", late)
    where = tree.Tree(home / "tasks")
    task = tasks.Task(KEY, where.path(KEY), 0.0)
    task.mark = MARK
    found = tasks.Tasks(where, clock=time.time).remains([task])[KEY]
    assert [one.pid for one in found] == spawned


def test_a_process_whose_first_thread_has_ended_lives(spawned: list[int]) -> None:
    """Linux shows it as a zombie."""
    pid = spawn(HEADLESS)
    spawned.append(pid)
    for _ in range(1000):
        seen = processes.look(pid)
        assert seen is not None
        if seen.state == "Z":
            break
        time.sleep(0.02)
    assert (seen.state, seen.alive) == ("Z", True)
    told = procfs.stat(pid)
    assert told is not None
    assert told.alive
    assert [one.pid for one in processes.remains({MARK}).found[MARK]] == [pid]
