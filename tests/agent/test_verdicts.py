"""The blame for each kind of end, as a table; and the ends that no test program can cause."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid

import pytest
from tests import needs
from tests.agent import rig as rigs

from oarlock.agent import exitrecord
from oarlock.agent.processes import cgroups, killing, process, procfs, tracking


def ended(code=None, signum=None, at=1.0, by_us=False):
    one = process.Process(0, None)
    one.signalled = by_us
    one.end(code, signum)
    one.ended_at = at
    return one


def hung():
    """Killed, and still there when the time was over."""
    one = process.Process(0, None)
    one.signalled = True
    return one


OK, FAILED, KILLED, OURS = ended(0), ended(3, at=2.0), ended(None, 9, at=1.5), ended(None, 15, by_us=True)

# processes, why we ended them, through sh, memory kills seen, the counter is ours alone -> reason, code, signal, by us
VERDICTS = {
    "all good": ([OK, OK], None, False, False, False, ("exited", 0, None, False)),
    "one failed": ([OK, FAILED], None, False, False, False, ("exited", 3, None, False)),
    "the first failure counts": ([FAILED, KILLED], None, False, False, False, ("signal", 137, 9, False)),
    "a process that we ended is not blamed": ([OURS, FAILED], None, False, False, False, ("exited", 3, None, False)),
    "stopped": ([OURS, OK], "stopped", False, False, False, ("stopped", 143, 15, True)),
    "stopped, and it left in order": (
        [ended(0, by_us=True)],
        "stopped",
        False,
        False,
        False,
        ("stopped", 0, None, True),
    ),
    "it failed before the stop": ([FAILED, OURS], "stopped", False, False, False, ("exited", 3, None, False)),
    "stale wins over failures": ([FAILED, OURS], "stale", False, False, False, ("stale", 3, None, True)),
    "orphaned is the platform's": ([OURS], "orphaned", False, False, False, ("orphaned", 143, 15, False)),
    "orphaned, after it failed": ([FAILED, OURS], "orphaned", False, False, False, ("orphaned", 3, None, False)),
    "hung in the kernel": ([hung()], "stopped", False, False, False, ("stopped", 137, None, True)),
    "the shell's child was killed": ([ended(137)], None, True, False, False, ("signal", 137, 9, False)),
    "137 without a shell is a code": ([ended(137)], None, False, False, False, ("exited", 137, None, False)),
    "255 is no signal": ([ended(255)], None, True, False, False, ("exited", 255, None, False)),
    "out of memory": ([KILLED], None, False, True, False, ("oom", 137, 9, False)),
    "out of memory, below a shell": ([ended(137)], None, True, True, False, ("oom", 137, 9, False)),
    "a child out of memory": ([FAILED], None, False, True, True, ("oom", 3, None, False)),
    "a stranger out of memory": ([FAILED], None, False, True, False, ("exited", 3, None, False)),
    "a child out of memory, survived": ([OK], None, False, True, True, ("exited", 0, None, False)),
    "no command": ([ended(127)], None, True, False, False, ("command_not_found", 127, None, False)),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict(name):
    *given, expected = VERDICTS[name]
    found = exitrecord.outcome_of(*given)
    assert (found.reason, found.code, found.signal, found.killed_by_us) == expected


def test_a_kill_for_want_of_memory_is_named(rig):
    counter = rig.outside / "counter"
    counter.write_text("low 0\noom_kill 4\n")
    told = rig.run("echo 'oom_kill 5' > $OUTSIDE/counter; exit 1", oom_counter=str(counter))
    assert (told["reason"], told["code"], told["oom"]) == ("oom", 1, True)


class Unkillable(killing.TaskProcesses):
    """A process in the kernel's hands: every signal is accepted, and nothing happens."""

    def _found(self):
        return [procfs.Stat(424242, "D", 1, 424242, 424242, 0)]

    def _signal(self, seen, signum):
        self.signals = [*getattr(self, "signals", []), signum]


def test_a_process_that_does_not_die_is_named_within_a_bound(monkeypatch):
    monkeypatch.setattr(killing, "GONE_WITHIN_S", 0.3)
    reach = Unkillable("j/1/worker/0/1", cgroups.Cgroup(None))
    assert reach.kill() == [424242]
    assert 2 <= len(reach.signals) < 100


def test_a_mark_is_the_whole_key(tmp_path):
    """Incarnation 1 must not take the processes of incarnation 11 with it."""
    key = f"j-{tmp_path.name}/1/worker/0/1"
    names = {"same": key, "longer": key + "1", "elsewhere": ""}
    children = {
        name: subprocess.Popen(["sleep", "1000"], env={"OARLOCK_TASK_KEY": mark, "OTHER": f"OARLOCK_TASK_KEY={key}"})
        for name, mark in names.items()
    }
    try:
        rigs.until(lambda: all(b"OTHER" in rigs.environ_of(child.pid) for child in children.values()), "three sleepers")
        assert killing.TaskProcesses(key, cgroups.Cgroup(None)).alive() == [children["same"].pid]
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def can_unshare() -> bool:
    if not shutil.which("unshare"):
        return False
    return not subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False).returncode


@needs.mark("process namespaces", there=can_unshare())
def test_as_process_1_of_a_container_it_reaps_orphans(rig):
    """A pod's first process inherits every orphan: zombies would fill the process table."""
    orphan = "sh -c 'sleep 0.2 & exit 0'; "
    rig.assign(orphan * 3 + "sleep 0.7; cat /proc/[0-9]*/stat > $OUTSIDE/stat; setsid sleep 1000 & exit 6")
    wrapper = rig.outside / "python"
    wrapper.write_text(f'#!/bin/sh\nexec unshare -pf --kill-child --mount-proc {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    rig.python = str(wrapper)
    rig.start()
    told = rig.finish()
    assert (told["reason"], told["code"]) == ("exited", 6)
    stats = (rig.outside / "stat").read_text().splitlines()
    assert stats[0].startswith("1 (python")
    assert not [line for line in stats if line.rpartition(")")[2].split()[0] == "Z"]
    assert not rig.user_processes()


def test_an_assignment_that_cannot_be_read_is_said(rig):
    rig.directory.mkdir()
    (rig.directory / "assignment.json").write_text("{}")
    rig.start()
    assert rig.process.wait(rigs.CEILING_S) == 78
    assert "assignment.json cannot be used" in (rig.directory.parent / "agent.stderr").read_text()


def test_a_process_that_was_never_seen_is_left_and_not_called_gone(monkeypatch):
    """A child that forks and ends again and again may be missed by every look; the kernel knows that it has one."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(killing, "GONE_WITHIN_S", 0.05)
    monkeypatch.setattr(procfs, "children", list)
    monkeypatch.setattr(killing.TaskProcesses, "_found", lambda self: [])
    reach = killing.TaskProcesses(f"j-{uuid.uuid4().hex}/1", cgroups.Cgroup(None), tracking.Tracking(adopts=True))
    try:
        assert process.child_lives()
        assert reach.kill() == [killing.UNSEEN]
    finally:
        child.kill()
        child.wait()


def test_the_kernel_knows_whether_a_child_lives():
    """In a process without other children. A zombie does not live; a process with one running thread does."""
    headless = (
        "import ctypes, os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\n"
    )
    script = (
        "import os, signal, subprocess, sys, time\n"
        "from oarlock.agent.processes import process, procfs\n"
        "said = [process.child_lives()]\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]])\n"
        "said.append(process.child_lives())\n"
        "for _ in range(3000):\n"
        "    if procfs.stat(child.pid).state == 'Z': break\n"
        "    time.sleep(0.01)\n"
        "said.append((process.child_lives(), [one.alive for one in procfs.children()]))\n"
        "child.send_signal(signal.SIGKILL)\n"
        "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        "said.append((process.child_lives(), [one.alive for one in procfs.children()]))\n"
        "child.wait()\n"
        "print(said)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, headless], capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout.strip() == "[False, True, (True, [True]), (False, [False])]"
