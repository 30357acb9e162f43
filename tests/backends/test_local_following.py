"""No descendant of a task is lost without control groups, however it tries (promise 6), and none is called gone.

The real agent and the real backend, which is told to use no control groups.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.agent import fakeserver
from tests.backends import contract, local_rig, test_local_agent

from oarlock.backends.local import cgroups, processes

KEY = contract.key()
State = contract.State

# A parent that ignores SIGTERM, and a child without its environment, its session and (as it is asked) its parents. The
# racing one forks and ends again and again; the headless one's first thread has ended: it is shown as a zombie.
ESCAPE = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here, how = os.environ["OARLOCK_TASK_DIR"], sys.argv[1]
bare = "import os, sys, time; open(sys.argv[1] + '~', 'w').write(str(os.getpid()) + chr(10));"
bare += "os.rename(sys.argv[1] + '~', sys.argv[1]);"
bare += "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
beat = " with open(sys.argv[1] + '.beats', 'a') as file: file.write('.')"
again = {
    "racing": ("", "until = time.monotonic() + 60", "while time.monotonic() < until:",
               " if os.fork(): os._exit(0)", " os.setsid()", beat),
    "headless": ("", "import ctypes, threading", "def beat():", beat, " time.sleep(0.05)",
                 "threading.Thread(target=lambda: [beat() for _ in range(1200)]).start()",
                 "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"),
}
bare += chr(10).join(again.get(how, ("time.sleep(600)",)))
if os.fork() == 0:
    os.setsid()
    if how != "child" and os.fork():
        os._exit(0)
    os.setsid() if how != "child" else None
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", bare, here + "/escaped"], {})
time.sleep(600)
"""
BEAT_S = 0.3
WAYS = ("child", "orphan", "racing", "headless")


@pytest.fixture
def server() -> Iterator[fakeserver.FakeServer]:
    server = fakeserver.FakeServer().start()
    server.order(release=True)
    yield server
    server.stop()


class Rig(test_local_agent.AgentRig):
    def __init__(self, home: Path, server: fakeserver.FakeServer) -> None:
        super().__init__(home, server, groups=cgroups.Cgroups())

    async def escape(self, how: str) -> None:
        """Start the task and wait until its child is on its own."""
        await self.backend.launch([self.launch_of(KEY, [sys.executable, "-I", "-S", "-c", ESCAPE, how])])
        pid = int(await self.until_file(self.directory(KEY) / "escaped"))
        if how == "headless":
            await self.until(lambda: "State:\tZ" in Path(f"/proc/{pid}/status").read_text(), "its first thread ended")

    async def left(self) -> list[int]:
        """Return the living processes of the task, found without the backend: by the command line, which forks keep.

        A process that forks and ends again and again is hard to see so: its file grows as long as it lives.
        """
        beats = self.directory(KEY) / "escaped.beats"
        size = beats.stat().st_size if beats.exists() else 0
        await asyncio.sleep(BEAT_S if size else 0)
        grows = beats.exists() and beats.stat().st_size > size
        return local_rig.living(f"{self.directory(KEY)}/escaped") or [0] * grows

    def agent_pid(self) -> int:
        return int((self.directory(KEY) / "agent.pid").read_text().split()[0])


@pytest.fixture
async def rig(home: Path, server: fakeserver.FakeServer) -> AsyncIterator[Rig]:
    rig = Rig(home, server)
    yield rig
    await rig.close()


@pytest.mark.parametrize("how", WAYS)
async def test_a_stop_reaches_a_child_that_left_everything_behind(
    rig: Rig, server: fakeserver.FakeServer, how: str
) -> None:
    await rig.escape(how)
    server.order(release=True, stop={"grace_s": 0.2, "reason": "cancel"})
    seen = await contract.until_state(rig, KEY, State.GONE)
    assert await rig.left() == []
    assert seen.exit is not None
    assert seen.exit.killed_by == "session"
    assert server.exits()[0]["left"] == []


@pytest.mark.parametrize("how", WAYS)
async def test_a_task_whose_agent_was_killed_is_not_gone_before_its_last_process(rig: Rig, how: str) -> None:
    await rig.escape(how)
    parents = [pid for pid in local_rig.living(ESCAPE[:40]) if pid not in await rig.left()]
    os.kill(rig.agent_pid(), signal.SIGKILL)
    for pid in parents:
        os.kill(pid, signal.SIGKILL)
    await contract.until_state(rig, KEY, State.ENDED)
    await rig.reopen()
    assert (await contract.seen(rig))[KEY].state is State.ENDED, "a new server knows it as well"
    await contract.kill_and_see(rig, KEY)
    assert await rig.left() == []


async def test_a_command_run_inside_takes_along_processes_that_it_has_let_go(rig: Rig) -> None:
    await rig.backend.launch([rig.launch_of(KEY, local_rig.IMMUNE)])
    await rig.until((rig.directory(KEY) / "env.json").exists, "it runs")
    await rig.backend.exec(KEY, [sys.executable, "-I", "-S", "-c", ESCAPE, "orphan"])
    await rig.until_file(rig.directory(KEY) / "escaped")
    await contract.kill_and_see(rig, KEY)
    assert await rig.left() == []


async def test_orphans_that_ended_are_reaped_while_the_task_runs(rig: Rig) -> None:
    """Else a long task would fill the machine's table of processes with zombies."""
    orphans = "for i in 1 2 3; do sh -c 'sleep 0.05 & exit 0'; done; echo $$ >\"$OARLOCK_TASK_DIR/pid\"; exec sleep 600"
    await rig.backend.launch([rig.launch_of(KEY, orphans)])
    pid = int(await rig.until_file(rig.directory(KEY) / "pid"))
    await rig.until(lambda: children_of(rig.agent_pid()) == [pid], "nothing but the task's own process is left")


def children_of(parent: int) -> list[int]:
    found = [processes.look(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    return [seen.pid for seen in found if seen is not None and seen.parent == parent]


async def test_the_limit_mark_hinders_no_process(rig: Rig) -> None:
    """It is a soft limit: a program may set its own, and the hard one is as it was."""
    say = "import resource, os; print(*resource.getrlimit(resource.RLIMIT_RTTIME))"
    await rig.backend.launch([rig.launch_of(KEY, [sys.executable, "-I", "-S", "-c", say])])
    await contract.until_state(rig, KEY, State.GONE)
    soft, hard = (rig.directory(KEY) / "stdout.0").read_text().split()
    assert int(soft) == processes.Mark(str(KEY), str(rig.directory(KEY))).limit
    assert int(hard) == resource.getrlimit(resource.RLIMIT_RTTIME)[1]


async def test_another_tasks_processes_are_left_alone(rig: Rig) -> None:
    other = contract.key(job="j-other")
    await rig.escape("orphan")
    await rig.backend.launch([rig.launch_of(other, [sys.executable, "-I", "-S", "-c", ESCAPE, "orphan"])])
    await rig.until_file(rig.directory(other) / "escaped")
    await contract.kill_and_see(rig, KEY)
    assert len(local_rig.living(f"{rig.directory(other)}/escaped")) == 1
    assert (await contract.seen(rig))[other].state is State.RUNNING
