"""Processes as /proc tells of them: which live, which descend from the agent, and which carry the task's marks."""

from __future__ import annotations

import os
import signal

import pytest

from oarlock.agent import files
from oarlock.agent.processes import procfs


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of /proc that a test says, in place of those of the machine."""
    told: dict[str, bytes] = {}
    monkeypatch.setattr(files, "read_bytes", lambda path, most=1 << 20: told.get(path, b"")[:most])
    monkeypatch.setattr(files, "read_text", lambda path, most=1 << 20: told.get(path, b"")[:most].decode())
    monkeypatch.setattr(procfs, "newest_pids", lambda: [9, 8, 7, 6, 5])
    return told


def line(pid: int, parent: int = 1, *, state: str = "S", session: int = 1, start: int = 100, threads: int = 1) -> bytes:
    """A line of /proc/PID/stat. The name of the program may have spaces and brackets."""
    rest = ["0"] * 40
    rest[0], rest[1], rest[2], rest[3] = state, str(parent), str(pid + 1), str(session)
    rest[17], rest[19] = str(threads), str(start)
    return f"{pid} (a) (b c)) {' '.join(rest)}\n".encode()


def test_the_fields_of_a_process(proc: dict[str, bytes]) -> None:
    proc["/proc/7/stat"] = line(7, 3, state="D", session=5, start=4321, threads=6)
    found = procfs.stat(7)
    assert found is not None
    assert (found.pid, found.state, found.parent, found.group, found.session) == (7, "D", 3, 8, 5)
    assert (found.start, found.threads) == (4321, 6)
    assert procfs.start_time(7) == 4321
    assert procfs.stat(8) is None, "it has ended"
    assert procfs.start_time(8) is None
    proc["/proc/8/stat"] = b"8 (cut) S 1 2 3"
    assert procfs.stat(8) is None


@pytest.mark.parametrize(
    ("state", "threads", "alive"), [("S", 1, True), ("Z", 1, False), ("X", 1, False), ("x", 1, False), ("Z", 2, True)]
)
def test_a_zombie_lives_as_long_as_another_of_its_threads(state: str, threads: int, alive: bool) -> None:
    assert procfs.Stat(7, state, 1, 7, 7, 100, threads).alive is alive


def test_descendants_are_found_at_any_depth() -> None:
    seen = [procfs.Stat(pid, "S", parent, pid, pid, 100) for pid, parent in ((5, 1), (6, 5), (7, 6), (8, 2), (9, 5))]
    assert procfs._descendants(1, seen) == {5, 6, 7, 9}
    assert procfs._descendants(3, seen) == set()


@pytest.mark.parametrize(
    ("sessions", "limit", "adopts", "pids"),
    [
        ((), None, False, [9]),
        ((70,), None, False, [9, 7]),
        ((), 123, False, [9, 8]),
        ((), None, True, [9, 6]),
        ((70,), 123, True, [9, 8, 7, 6]),
    ],
)
def test_the_processes_of_a_task(
    proc: dict[str, bytes], sessions: tuple[int, ...], limit: int | None, adopts: bool, pids: list[int]
) -> None:
    """9 has the mark, 8 the limit mark, 7 the session, and 6 descends from this process. 5 is older than this one."""
    own = os.getpid()
    proc[f"/proc/{own}/stat"] = line(own, start=100)
    for pid, parent, session, start in (
        (9, 1, 1, 100),
        (8, 1, 1, 101),
        (7, 1, 70, 102),
        (6, own, 1, 103),
        (5, own, 70, 99),
    ):
        proc[f"/proc/{pid}/stat"] = line(pid, parent, session=session, start=start)
    proc["/proc/9/environ"] = b"A=1\0KEY=j/1\0"
    proc["/proc/8/environ"] = b"KEY=j/11\0OTHER=KEY=j/1\0"
    proc["/proc/8/limits"] = b"Max realtime timeout      123    unlimited    us\n"
    found = procfs.find(b"KEY=j/1", frozenset(sessions), limit, adopts)
    assert [one.pid for one in found] == pids


@pytest.mark.parametrize(
    ("limits", "mark"),
    [
        (b"Max cpu time  5 5 seconds\nMax realtime timeout      123    unlimited    us\n", 123),
        (b"Max realtime timeout      unlimited    unlimited    us\n", None),
        (b"Max realtime timeout", None),
        (b"Max cpu time  5 5 seconds\n", None),
        (b"", None),
    ],
)
def test_the_limit_mark(proc: dict[str, bytes], limits: bytes, mark: int | None) -> None:
    proc["/proc/7/limits"] = limits
    assert procfs.limit_mark(7) == mark


@pytest.mark.parametrize(
    ("mask", "catches"), [("0000000000004000", True), ("0000000000002000", False), ("ffffffffffffbfff", False)]
)
def test_whether_a_process_handles_a_signal(proc: dict[str, bytes], mask: str, catches: bool) -> None:
    proc["/proc/7/status"] = f"Name: x\nSigIgn: ffffffffffffffff\nSigCgt:\t{mask}\n".encode()
    assert procfs.catches(7, signal.SIGTERM) is catches
    assert not procfs.catches(8, signal.SIGTERM)


@pytest.mark.parametrize(
    ("told", "first", "count"),
    [
        (b"0.1 0.2 0.3 1/200 5000\n", 5000, procfs.RECENT_PIDS),
        (b"0.1 0.2 0.3 1/200 3\n", 3, 3),
        (b"", 0, 0),
        (b"a b c d e", 0, 0),
    ],
)
def test_the_pids_that_were_given_out_last(proc: dict[str, bytes], told: bytes, first: int, count: int) -> None:
    proc["/proc/loadavg"] = told
    assert list(procfs.recent_pids()) == [first - place for place in range(count)]


def test_this_process_is_found_as_it_is() -> None:
    found = procfs.stat(os.getpid())
    assert found is not None
    assert (found.pid, found.parent, found.group, found.session, found.alive) == (
        os.getpid(),
        os.getppid(),
        os.getpgid(0),
        os.getsid(0),
        True,
    )
    pids = procfs.newest_pids()
    assert os.getpid() in pids
    assert pids == sorted(pids, reverse=True)
