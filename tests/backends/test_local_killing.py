"""Nothing of a task outlives it (promise 6), and nothing is called gone that still runs (promise 5).

Both by control group and without.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.backends import contract, local_rig

from oarlock.backends.local import cgroups, launching, processes, tasks
from oarlock.spec import attempts

KEY = contract.key()
State = contract.State

# A child that left its session, a daemon by double fork, one that forgot its environment, the same without a parent,
# and one that ignores SIGTERM.
FAMILY = """\
python3 -I -S - "$0" <<'PY' &
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = os.environ["OARLOCK_TASK_DIR"]
def note(name):
    with open(here + "/" + name + "~", "w") as file:
        file.write(str(os.getpid()) + "\\n")
    os.rename(here + "/" + name + "~", here + "/" + name)
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    note("setsid")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note("daemon")
    os._exit(0)
def bare(name):
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + chr(10)); time.sleep(600)"
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, here + "/" + name], {})
if os.fork() == 0:
    os.setsid()
    bare("bare")
if os.fork() == 0:
    if os.fork() == 0:
        bare("orphan")
    os._exit(0)
note("deaf")
PY
wait
""".replace("python3", sys.executable)
MEMBERS = ("setsid", "daemon", "bare", "orphan", "deaf")

BY_GROUP = pytest.param("cgroup", marks=local_rig.grouped)


@pytest.fixture(params=[BY_GROUP, "session"])
async def rig(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[local_rig.LocalRig]:
    rig = local_rig.LocalRig(home, groups=None if request.param == "cgroup" else cgroups.Cgroups())
    yield rig
    await rig.close()


async def family(rig: local_rig.LocalRig) -> dict[str, int]:
    await rig.backend.launch([rig.launch_of(KEY, FAMILY)])
    return {name: int(await rig.until_file(rig.directory(KEY) / name)) for name in MEMBERS}


def agent_of(rig: local_rig.LocalRig, key: attempts.TaskKey = KEY) -> launching.Started:
    started = launching.started(rig.directory(key))
    assert started is not None
    return started


def kill_agent(rig: local_rig.LocalRig) -> None:
    os.kill(agent_of(rig).pid, signal.SIGKILL)


async def ended(pid: int) -> int:
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    return os.waitstatus_to_exitcode(status)


def alive(pid: int) -> bool:
    seen = processes.look(pid)
    return seen is not None and seen.alive


async def test_a_killed_task_takes_its_whole_family_along(rig: local_rig.LocalRig) -> None:
    pids = await family(rig)
    await contract.kill_and_see(rig, KEY)
    assert {name: alive(pid) for name, pid in pids.items()} == dict.fromkeys(MEMBERS, False)
    seen = (await contract.seen(rig))[KEY]
    assert seen.exit is not None
    assert (seen.exit.cause, seen.exit.signal) == (attempts.Cause.STOPPED, 9)
    assert seen.exit.killed_by == rig.backend.capabilities()["kill"]


async def test_a_task_is_not_gone_while_anything_outlives_its_agent(rig: local_rig.LocalRig) -> None:
    pids = await family(rig)
    kill_agent(rig)
    seen = await contract.until_state(rig, KEY, State.ENDED)
    assert seen.exit is None, "the agent left no record"
    assert "outlived" in seen.detail
    for _ in range(3):
        assert (await contract.seen(rig))[KEY].state is State.ENDED, "it stays so until it is ended"
    assert all(alive(pid) for pid in pids.values()), "looking ends nobody"
    await contract.kill_and_see(rig, KEY)
    assert not any(alive(pid) for pid in pids.values())


async def test_one_daemon_is_enough_to_keep_a_task_from_being_gone(rig: local_rig.LocalRig) -> None:
    """The session is over, the parents are dead: it is found by its mark or its group alone."""
    daemon = "setsid sh -c 'echo $$ >\"$OARLOCK_TASK_DIR/pid\"; exec sleep 600' & sleep 0.1; exit 0"
    await rig.backend.launch([rig.launch_of(KEY, daemon)])
    pid = int(await rig.until_file(rig.directory(KEY) / "pid"))
    seen = await contract.until_state(rig, KEY, State.ENDED)
    assert seen.exit is not None
    assert seen.exit.cause is attempts.Cause.SUCCEEDED
    os.kill(pid, signal.SIGKILL)
    await contract.until_state(rig, KEY, State.GONE)


async def test_one_look_that_finds_nothing_is_not_enough(
    home: Path, rigs: local_rig.Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may fork and end while /proc is being read, so that neither it nor its child is seen."""
    rig = rigs(home, groups=cgroups.Cgroups())
    await rig.backend.launch([rig.launch_of(KEY, "setsid sleep 603.5 & sleep 0.1")])
    await contract.until_state(rig, KEY, State.ENDED)
    look, looks = processes.members, []

    def blind_at_first(*given: object, **more: object) -> object:
        looks.append(1)
        return look(*given, **more) if len(looks) % 2 == 0 else {mark: [] for mark in given[0]}

    monkeypatch.setattr(processes, "members", blind_at_first)
    assert (await contract.seen(rig))[KEY].state is State.ENDED


async def test_a_new_server_knows_which_ends_the_old_one_had_confirmed(rig: local_rig.LocalRig) -> None:
    pids = await family(rig)
    kill_agent(rig)
    await rig.reopen()
    await contract.until_state(rig, KEY, State.ENDED)
    await contract.kill_and_see(rig, KEY)
    await rig.reopen()
    assert (await contract.seen(rig))[KEY].state is State.GONE
    assert not any(alive(pid) for pid in pids.values())


async def test_waiting_wakes_when_an_agent_dies_and_when_its_last_process_does(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.launch_of(KEY, 'echo $$ >"$OARLOCK_TASK_DIR/pid"; exec sleep 600')])
    pid = int(await rig.until_file(rig.directory(KEY) / "pid"))
    await contract.until_state(rig, KEY, State.RUNNING)
    waiting = asyncio.create_task(rig.backend.wait(60))
    await asyncio.sleep(0.05)
    assert not waiting.done(), "nothing has happened yet"
    kill_agent(rig)
    await asyncio.wait_for(waiting, rig.PATIENCE_S)
    await contract.until_state(rig, KEY, State.ENDED)
    waiting = asyncio.create_task(rig.backend.wait(60))
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(waiting, rig.PATIENCE_S)
    await contract.until_state(rig, KEY, State.GONE)


async def test_strangers_are_left_alone(rig: local_rig.LocalRig) -> None:
    """One with the same key in another home, one with the directory alone, and this very process."""
    directory = str(rig.directory(KEY))
    mine = {processes.KEY_MARK: str(KEY), processes.DIRECTORY_MARK: directory}
    with (
        local_rig.stranger({**mine, processes.DIRECTORY_MARK: "/another/home"}) as same_key,
        local_rig.stranger({**mine, processes.KEY_MARK: "j-other/1/worker/0/1"}) as same_directory,
        local_rig.stranger(mine) as ours,
    ):
        await rig.backend.launch([rig.sleeper(KEY)])
        await contract.kill_and_see(rig, KEY)
        await rig.until(lambda: not alive(ours), "each process with the whole mark ends with the task")
        assert alive(same_key)
        assert alive(same_directory)


def test_this_process_is_never_among_those_to_be_killed() -> None:
    mark = processes.Mark("j/1/worker/0/1", "/somewhere")
    assert processes.members({mark}, roots={mark: {os.getpid(), 1}})[mark] == []


async def test_a_pid_that_was_used_again_is_not_the_task(home: Path, rigs: local_rig.Rigs) -> None:
    """The agent is dead, and its number belongs to a stranger by now."""
    rig = rigs(home, groups=cgroups.Cgroups())
    await rig.backend.launch([rig.sleeper(KEY)])
    path = rig.directory(KEY)
    await rig.until_file(path / launching.STARTED)
    await contract.kill_and_see(rig, KEY)
    for record in (tasks.GONE, tasks.KILLED):
        (path / record).unlink()
    with local_rig.stranger({}) as pid:
        line = Path(f"/proc/{pid}/stat").read_text()
        seen = processes.parse(line)
        assert seen is not None
        (path / launching.STARTED).write_text(line.replace(f" {seen.start} ", f" {seen.start - 1} "))
        await rig.reopen()
        assert (await contract.seen(rig))[KEY].state is State.GONE
        (path / tasks.GONE).unlink()
        await rig.reopen()
        await rig.backend.kill([KEY])
        assert alive(pid)
        (path / launching.STARTED).write_text(line)
        (path / tasks.GONE).unlink(missing_ok=True)
        await rig.reopen()
        assert (await contract.seen(rig))[KEY].state is State.RUNNING, "with the right start time it is the agent"


async def test_after_a_boot_nothing_runs_any_more(home: Path, rigs: local_rig.Rigs) -> None:
    rig = rigs(home, groups=cgroups.Cgroups())
    await rig.backend.launch([rig.sleeper(KEY)])
    path = rig.directory(KEY)
    await rig.until_file(path / launching.STARTED)
    original = (path / tasks.LAUNCH).read_text()
    record = json.loads(original)
    (path / tasks.LAUNCH).write_text(json.dumps({**record, "boot": "an earlier one"}))
    await rig.reopen()
    assert (await contract.seen(rig))[KEY].state is State.GONE
    await rig.backend.launch([rig.sleeper(KEY)])
    assert await rig.starts(KEY) == 1
    (path / tasks.LAUNCH).write_text(original)
    (path / tasks.GONE).unlink()


async def test_a_second_agent_is_refused_and_the_first_one_goes_on(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.sleeper(KEY)])
    await rig.until((rig.directory(KEY) / "env.json").exists, "the first one runs")
    argv = [sys.executable, "-I", "-S", str(rig.agent), str(rig.directory(KEY))]
    second = await asyncio.to_thread(subprocess.run, argv, timeout=280, check=False)
    assert second.returncode == 75
    assert (await contract.seen(rig))[KEY].state is State.RUNNING
    await contract.kill_and_see(rig, KEY)


async def test_a_lock_that_is_held_is_a_life_whatever_the_pid_says(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.sleeper(KEY)])
    path = rig.directory(KEY) / launching.STARTED
    await rig.until((rig.directory(KEY) / "env.json").exists, "it runs")
    line = path.read_text()
    path.write_text("never\n")
    await rig.reopen()
    assert (await contract.seen(rig))[KEY].state is State.RUNNING
    path.write_text(line)
    await rig.reopen()


def test_looking_does_not_take_the_lock_of_an_agent_that_is_just_starting(home: Path) -> None:
    """It has given its name, and comes to the lock later: until then no process may have it, not for a moment."""
    directory = home / "task"
    directory.mkdir(parents=True)
    tasks.tree.write(directory / tasks.LAUNCH, b'{"boot": "%s", "node": "local"}' % processes.boot().encode())
    with local_rig.stranger({}) as pid:
        (directory / launching.STARTED).write_text(Path(f"/proc/{pid}/stat").read_text())
        (directory / tasks.LOCK).symlink_to("/nonexistent/looked-at")
        task = tasks.Task(KEY, directory, 0.0)
        assert task.agent_lives()


async def test_only_one_agent_is_started_in_a_directory(home: Path, rigs: local_rig.Rigs) -> None:
    rig = rigs(home, groups=cgroups.Cgroups())
    await rig.backend.launch([rig.sleeper(KEY)])
    directory = rig.directory(KEY)
    await rig.until_file(directory / launching.STARTED)
    argv = [sys.executable, "-I", "-S", str(rig.agent), str(directory)]
    pid = launching.start(argv, directory, {"PATH": os.environ["PATH"]}, ())
    assert await ended(pid) != 0
    assert await rig.starts(KEY) == 1


async def test_a_directory_in_which_nothing_was_started_is_started_when_asked_again(
    home: Path, rigs: local_rig.Rigs
) -> None:
    """The server was killed between making it and starting the agent."""
    rig = rigs(home, groups=cgroups.Cgroups())
    rig.backend._tasks.tree.make(KEY, prepared())
    assert (await contract.seen(rig))[KEY].state is State.RUNNING, "an agent may be about to start there"
    await rig.backend.launch([rig.sleeper(KEY)])
    assert await rig.starts(KEY) == 1


async def test_a_directory_in_which_nothing_was_started_is_given_up_for_good(home: Path, rigs: local_rig.Rigs) -> None:
    now = 0.0
    rig = rigs(home, groups=cgroups.Cgroups())
    rig.backend._tasks = tasks.Tasks(rig.backend._tree, clock=lambda: 1.0, monotonic=lambda: now)
    rig.backend._tree.make(KEY, prepared())
    assert (await contract.seen(rig))[KEY].state is State.RUNNING
    now = tasks.START_GRACE_S
    assert (await contract.seen(rig))[KEY].state is State.GONE
    assert (rig.directory(KEY) / launching.STARTED).read_text() == "never\n"
    await rig.backend.launch([rig.sleeper(KEY)])
    assert (await contract.seen(rig))[KEY].state is State.GONE
    argv = [sys.executable, "-I", "-S", str(rig.agent), str(rig.directory(KEY))]
    pid = launching.start(argv, rig.directory(KEY), {"PATH": os.environ["PATH"]}, ())
    assert await ended(pid) != 0, "a start that was under way fails"
    assert not (rig.directory(KEY) / "starts").exists()


def prepared() -> dict[str, bytes]:
    assignment = {"key": str(KEY), "command": local_rig.IMMUNE, "env": {}, "gpus": None, "cgroup": None, "freeze_s": 0}
    launch = {"boot": processes.boot(), "node": "local"}
    return {"assignment.json": json.dumps(assignment).encode(), tasks.LAUNCH: json.dumps(launch).encode()}


async def test_zombies_are_dead(rig: local_rig.LocalRig) -> None:
    """A process that is never reaped, as where process 1 of a container does not, holds nothing."""
    mine = {processes.KEY_MARK: str(KEY), processes.DIRECTORY_MARK: str(rig.directory(KEY))}
    argv = [sys.executable, "-I", "-S", "-c", ""]
    pid = await asyncio.to_thread(os.posix_spawn, sys.executable, argv, mine, setsid=True)
    await rig.until(lambda: (seen := processes.look(pid)) is not None and seen.state == "Z", "it is a zombie")
    await rig.backend.launch([rig.exiter(KEY, 0)])
    await contract.until_state(rig, KEY, State.GONE)
    assert await ended(pid) == 0


@pytest.mark.parametrize("name", ["a) R 1 1 1", "(", ") (", "a b"], ids=repr)
def test_a_name_with_brackets_does_not_confuse(name: str) -> None:
    fields = ["S", "7", "8", "9", *["0"] * 15, "4242", "0"]
    assert processes.parse(f"31 ({name}) {' '.join(fields)}\n") == processes.Stat(31, "S", 7, 9, 4242)
