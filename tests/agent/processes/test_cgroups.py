"""The cgroup of a task: the processes in it, the one write that kills them, and the memory that they had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oarlock.agent import files
from oarlock.agent.processes import cgroups


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a cgroup with another one below it."""
    for name, pids in (("", "41\n42\n0\n"), ("below", "43\nword\n")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cgroup.procs").write_text(pids)
    return tmp_path


def test_the_processes_of_a_cgroup_and_of_those_below_it(folder: Path) -> None:
    found = cgroups.Cgroup(str(folder))
    assert found.usable
    assert found.pids() == [41, 42, 43], "0 is a process that this namespace does not show"


def test_a_cgroup_with_the_agent_itself_is_not_used(folder: Path) -> None:
    """Its kill would end the agent too."""
    (folder / "below" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    found = cgroups.Cgroup(str(folder))
    assert not found.usable
    assert (found.pids(), found.entry_fd()) == ([], -1)


@pytest.mark.parametrize("path", [None, "", "/nowhere/at/all"])
def test_without_a_cgroup_there_is_nothing_to_enter(path: str | None) -> None:
    found = cgroups.Cgroup(path)
    assert (found.usable, found.pids(), found.entry_fd()) == (False, [], -1)


def test_a_process_enters_by_one_write(folder: Path) -> None:
    descriptor = cgroups.Cgroup(str(folder)).entry_fd()
    try:
        assert not os.get_inheritable(descriptor)
        os.write(descriptor, b"0\n")
    finally:
        os.close(descriptor)
    assert (folder / "cgroup.procs").read_text().startswith("0\n")


def test_all_processes_are_killed_at_once(folder: Path) -> None:
    assert cgroups.Cgroup(str(folder)).kill()
    assert (folder / "cgroup.kill").read_text() == "1"


@pytest.mark.parametrize(
    ("told", "holds"),
    [
        ("0::{path}\n", True),
        ("0::{path}/\n", True),
        ("0::/elsewhere\n", False),
        ("1:memory:/elsewhere\n0::{path}\n", True),
        ("", True),  # it has ended
        ("0::/\n", False),
    ],
)
def test_whether_a_process_is_in_it(folder: Path, monkeypatch: pytest.MonkeyPatch, told: str, holds: bool) -> None:
    monkeypatch.setattr(files, "read_text", lambda path, most=0: told.format(path=f"/{folder.name}"))
    assert cgroups.Cgroup(str(folder)).holds(7) is holds


@pytest.mark.parametrize(
    ("events", "happened"), [("oom 9\noom_kill 4\n", False), ("oom 9\noom_kill 5\n", True), ("", False)]
)
def test_a_kill_for_lack_of_memory_is_seen_once_the_count_rises(folder: Path, events: str, happened: bool) -> None:
    counter = folder / "memory.events"
    counter.write_text("oom 3\noom_kill 4\noom_group_kill 8\n")
    found = cgroups.OutOfMemory(cgroups.Cgroup(str(folder)))
    assert found.exclusive, "the counter is the task's own"
    assert not found.happened()
    counter.write_text(events)
    assert found.happened() is happened


@pytest.mark.parametrize(
    ("names", "peak"),
    [({"memory.peak": "4096\n"}, 4096), ({"memory.peak": "max\n", "memory.max_usage_in_bytes": "12\n"}, 12)],
)
def test_the_peak_of_the_memory_is_read_beside_the_counter(folder: Path, names: dict[str, str], peak: int) -> None:
    for name, text in {"counter": "oom_kill 0\n", **names}.items():
        (folder / name).write_text(text)
    found = cgroups.OutOfMemory(cgroups.Cgroup(None), str(folder / "counter"))
    assert found.exclusive
    assert found.peak_bytes() == peak


def test_a_counter_that_is_not_there_is_not_the_tasks_own(folder: Path) -> None:
    assert not cgroups.OutOfMemory(cgroups.Cgroup(None), str(folder / "nothing")).exclusive


def test_a_kernel_that_cannot_kill_a_cgroup_is_told(tmp_path: Path) -> None:
    """Then the processes are killed one by one."""
    (tmp_path / "cgroup.kill").mkdir()
    assert not cgroups.Cgroup(str(tmp_path)).kill()


V2, V1 = "0::/a/b/\n", "7:cpu:/c\n8:pids,memory:/a\n"


@pytest.mark.parametrize(
    ("told", "there", "counter"),
    [
        (V2, ["/sys/fs/cgroup/a/b/memory.events"], "/sys/fs/cgroup/a/b/memory.events"),
        (V2, ["/sys/fs/cgroup/memory.events"], "/sys/fs/cgroup/memory.events"),  # a container's own root
        (V1, ["/sys/fs/cgroup/memory/a/memory.oom_control"], "/sys/fs/cgroup/memory/a/memory.oom_control"),
        (V1, ["/sys/fs/cgroup/memory.oom_control"], "/sys/fs/cgroup/memory.oom_control"),
        (V1 + V2, ["/sys/fs/cgroup/a/b/memory.events"], "/sys/fs/cgroup/a/b/memory.events"),
        ("7:cpu:/c\n", ["/sys/fs/cgroup/c/memory.events", "/sys/fs/cgroup/memory.events"], ""),
        (V2, [], ""),
        ("", [], ""),
    ],
)
def test_the_counter_of_the_agents_own_cgroup(
    monkeypatch: pytest.MonkeyPatch, told: str, there: list[str], counter: str
) -> None:
    monkeypatch.setattr(files, "read_text", lambda path, most=0: told if path == "/proc/self/cgroup" else "")
    monkeypatch.setattr(os.path, "exists", lambda path: path in there)
    assert cgroups._counter_of_self() == counter
