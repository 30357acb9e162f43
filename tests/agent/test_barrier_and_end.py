"""No process starts before the barrier, and none is left after the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import needs
from tests.agent import rig as rigs

SETSID_GRANDCHILD = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork(): os._exit(0)\n"
    "    signal = __import__('signal'); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "    open(os.environ['OUTSIDE'] + '/draft', 'w').write('%d\\n' % os.getpid())\n"
    "    os.rename(os.environ['OUTSIDE'] + '/draft', os.environ['OUTSIDE'] + '/grandchild')\n"
    "    time.sleep(1000)\n"
    "for _ in range(6000): os.path.exists(os.environ['OUTSIDE'] + '/grandchild') and sys.exit(); time.sleep(0.01)\n"
)


def unified() -> Path | None:
    """A cgroup v2 directory in which we may make our own, if this machine has one."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(where, os.W_OK):
            return Path(where)
    return None


@pytest.fixture
def cgroup(rig):
    root = unified()
    if root is None:
        needs.skip("control groups", "no cgroup v2 directory may be written")
    path = root / f"oarlock-test-{rig.token[:12]}"
    try:
        path.mkdir()
    except OSError as error:
        needs.skip("control groups", str(error))
    yield path
    rig.close()
    rigs.until(lambda: not (path / "cgroup.procs").read_text(), "an empty cgroup")
    path.rmdir()


def test_no_process_starts_before_the_rendezvous(rig):
    rig.server.inline_rendezvous = False
    rig.server.rendezvous = None
    rig.begin("echo > $OUTSIDE/started")
    rig.server.wait_for(lambda: any(path == "/rendezvous" for _, path, _ in rig.server.heard))
    time.sleep(0.5)
    assert not (rig.outside / "started").exists()
    assert not rig.user_processes()
    rig.server.open_barrier()
    assert rig.finish()["code"] == 0
    assert (rig.outside / "started").exists()


def test_no_process_starts_while_registration_is_put_off_or_refused(rig):
    rig.server.not_yet = 1000
    rig.begin("echo > $OUTSIDE/started")
    rig.server.wait_for(lambda: len([1 for _, path, _ in rig.server.heard if path == "/register"]) > 1)
    assert not (rig.outside / "started").exists()
    rig.server.answer_with = 410
    record = rig.finish()
    assert (record["reason"], record["killed_by_us"], record["processes"]) == ("stale", True, [])
    assert not (rig.outside / "started").exists()


@pytest.mark.parametrize("status", [410, 401, 403])
def test_a_stale_task_is_killed_at_once_and_says_so(rig, status):
    rig.begin("trap '' TERM; echo > $OUTSIDE/started; for _ in $(seq 600); do sleep 0.1; done", grace_s=1000)
    rig.wait_for_file("started")
    with rig.server.changed:
        rig.server.answer_with = status
        rig.server.changed.notify_all()
    record = rig.finish()
    assert (record["reason"], record["signal"]) == ("stale", 9)
    assert not rig.user_processes()


def test_a_second_agent_for_the_same_directory_is_refused(rig):
    rig.begin("exec sleep 1000")
    rig.server.wait_for(lambda: rig.server.phases() == ["PROCESSING"])
    argv = [rig.python, "-I", str(rig.agent), str(rig.directory)]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=280, check=False)
    assert (second.returncode, "another agent" in second.stderr) == (75, True)
    assert len(rig.server.registered) == 1
    assert len(rig.user_processes()) == 1
    assert Path("/proc/locks").read_text().count(f":{(rig.directory / 'lock').stat().st_ino} ") == 1
    rig.process.send_signal(signal.SIGTERM)
    rig.finish()


def test_the_lock_is_not_inherited(rig):
    rig.begin("exec sleep 1000")
    rig.server.wait_for(lambda: rig.server.phases() == ["PROCESSING"])
    (user,) = rigs.until(rig.user_processes, "the user's process, which shows no environment during its exec")
    opened = {os.readlink(path) for path in Path(f"/proc/{user}/fd").iterdir()}
    assert opened == {"/dev/null", f"{rig.directory}/stdout.0", f"{rig.directory}/stderr.0"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("exit 7", ("exited", 7, None)),
        ("kill -SEGV $$", ("signal", 139, 11)),
        ("sh -c 'kill -9 $$'; exit $?", ("signal", 137, 9)),
        (["/no/such/program"], ("command_not_found", 127, None)),
        ("no-such-program", ("command_not_found", 127, None)),
        ([sys.executable, "-c", "import sys; sys.exit(127)"], ("exited", 127, None)),
        ([sys.executable, "-c", "import sys; sys.exit(139)"], ("exited", 139, None)),
    ],
    ids=str,
)
def test_how_it_ended(rig, command, expected):
    record = rig.run(command)
    assert (record["reason"], record["code"], record["signal"]) == expected
    assert record["killed_by_us"] is False
    assert rig.process.returncode == expected[1]


def test_a_program_that_is_not_there_is_said_in_words(rig):
    record = rig.run(["/no/such/program"])
    assert record["detail"] == "the command cannot be started: /no/such/program: No such file or directory"


def test_a_workdir_that_is_not_there_is_said(rig):
    record = rig.run("true", workdir="/no/such/place")
    assert record["reason"] == "command_not_found"
    assert "/no/such/place" in record["detail"]


def test_a_stop_gives_the_grace_to_the_whole_task(rig):
    """The shell dies of SIGTERM at once; the training behind it must have its grace all the same, to save."""
    trainer = (
        "import signal, sys, time, os\n"
        "def stop(*_):\n"
        "    time.sleep(0.5); open(os.environ['OUTSIDE'] + '/saved', 'w').write('yes\\n'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "open(os.environ['OUTSIDE'] + '/ready', 'w').write('yes\\n')\n"
        "for _ in range(1200): time.sleep(0.05)\n"
    )
    (rig.outside / "trainer.py").write_text(trainer)
    rig.begin('"$PYTHON" $OUTSIDE/trainer.py; echo never')
    rig.wait_for_file("ready")
    rig.server.order(stop={"grace_s": 20, "reason": "halt"})
    record = rig.finish()
    assert (rig.outside / "saved").exists()
    assert (record["reason"], record["killed_by_us"]) == ("stopped", True)
    assert not rig.user_processes()


def test_after_the_grace_comes_sigkill(rig):
    rig.begin("trap '' TERM; echo > $OUTSIDE/ready; for _ in $(seq 600); do sleep 0.1; done")
    rig.wait_for_file("ready")
    rig.server.order(stop={"grace_s": 0.3})
    record = rig.finish()
    assert (record["reason"], record["signal"], record["code"]) == ("stopped", 9, 137)


def test_a_signal_to_the_agent_is_a_stop(rig):
    rig.begin(
        "trap 'echo saved; exit 0' TERM; echo > $OUTSIDE/ready; i=0; while [ $((i += 1)) -lt 50000000 ]; do :; done"
    )
    rig.wait_for_file("ready")
    rig.process.send_signal(signal.SIGTERM)
    record = rig.finish()
    assert (record["reason"], record["code"]) == ("stopped", 0)
    assert rig.server.logs["stdout.0"] == b"saved\n"
    assert rig.server.exits() == [record]


def test_a_stop_before_the_barrier_starts_nothing(rig):
    rig.server.inline_rendezvous = False
    rig.server.rendezvous = None
    rig.begin("echo > $OUTSIDE/started")
    rig.server.wait_for(lambda: any(path == "/orders" for _, path, _ in rig.server.heard))
    rig.server.order(stop={"grace_s": 5})
    record = rig.finish()
    assert (record["reason"], record["code"], record["started_at"]) == ("stopped", 143, None)
    assert rig.server.exits() == [record]
    assert not (rig.outside / "started").exists()


def test_a_setsid_grandchild_that_ignores_sigterm_is_found_by_its_mark(rig):
    record = rig.run([sys.executable, "-c", SETSID_GRANDCHILD])
    grandchild = int((rig.outside / "grandchild").read_text())
    assert not rigs.alive(grandchild)
    assert (record["kill"], record["code"], record["left"]) == ("session", 0, [])


def test_with_a_cgroup_nothing_escapes_not_even_without_the_mark(rig, cgroup):
    (rig.outside / "washed.py").write_text(
        "import os, sys, time, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'w').write('%d\\n' % os.getpid())\n"
        "time.sleep(1000)\n"
    )
    path = rig.outside / "grandchild"
    command = f"env -i {sys.executable} {rig.outside}/washed.py {path} & setsid -f env -i sleep 1001 & "
    record = rig.run(command + f"for _ in $(seq 1200); do [ -s {path} ] && break; sleep 0.05; done", cgroup=str(cgroup))
    assert not rigs.alive(int(path.read_text()))
    assert (record["kill"], record["code"], record["left"]) == ("cgroup", 0, [])
    assert not (cgroup / "cgroup.procs").read_text()


def test_a_cgroup_that_cannot_be_entered_is_recorded(rig):
    record = rig.run("exit 0", cgroup="/no/such/cgroup")
    assert (record["kill"], record["code"]) == ("session", 0)
    assert "cannot be entered" in (rig.directory / "agent.log").read_text()


def test_one_failing_process_ends_the_others_and_is_blamed(rig):
    command = (
        "if [ $OARLOCK_PROCESS = 1 ]; then for _ in $(seq 3000); do [ -e $OUTSIDE/ready ] && break; sleep 0.02; done;"
        "exit 5; fi; trap '' TERM; echo > $OUTSIDE/ready; for _ in $(seq 600); do sleep 0.1; done"
    )
    record = rig.run(command, nproc=2, grace_s=0.5)
    assert (record["reason"], record["code"], record["killed_by_us"]) == ("exited", 5, False)
    assert [(p["code"], p["signal"]) for p in record["processes"]] == [(137, 9), (5, None)]
    assert not rig.user_processes()


def test_an_agent_that_lost_its_server_for_too_long_ends_its_task(rig):
    rig.begin("echo > $OUTSIDE/ready; sleep 1000", orphan_timeout_s=1.5)
    rig.wait_for_file("ready")
    rig.server.stop()
    record = rig.finish()
    assert (record["reason"], record["signal"], record["killed_by_us"]) == ("orphaned", 15, False)
    assert not rig.user_processes()


def test_without_an_orphan_timeout_the_end_waits_for_the_server(rig):
    rig.begin(
        "echo > $OUTSIDE/ready; for _ in $(seq 1200); do [ -e $OUTSIDE/go ] && break; sleep 0.05; done;echo bye; exit 4"
    )
    rig.wait_for_file("ready")
    rig.server.stop()
    (rig.outside / "go").touch()
    rigs.until((rig.directory / "exit.json").exists, "the exit record")
    time.sleep(0.5)
    assert rig.process.poll() is None
    rig.server.start()
    record = rig.finish()
    assert rig.server.exits() == [record]
    assert rig.server.logs["stdout.0"] == b"bye\n"


def remove(directory):
    """As `rm -r` in a loop: the agent may write a file there meanwhile."""
    for _ in range(100):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
    raise AssertionError(f"{directory} is still there")


@pytest.mark.long
def test_a_task_ends_with_its_directory(rig):
    """Once a home is deleted, no server can ever end the processes below it."""
    rig.begin("echo $$ > $OUTSIDE/draft; mv $OUTSIDE/draft $OUTSIDE/ready; sleep 1000")
    rig.wait_for_file("ready")
    user = int((rig.outside / "ready").read_text())
    rig.server.stop()
    remove(rig.directory)
    rig.process.wait(30)
    with pytest.raises(ProcessLookupError):
        os.kill(user, 0)


def test_a_report_that_cannot_be_delivered_any_more_is_not_waited_for(rig):
    rig.begin("exit 4")
    rigs.until((rig.directory / "exit.json").exists, "the exit record")
    rig.server.stop()
    remove(rig.directory)
    rig.process.wait(30)


def test_a_failure_freezes_the_task_until_it_is_released(rig):
    rig.begin("exit 1", freeze_s=1000)
    rig.server.wait_for(lambda: rig.server.exits())
    time.sleep(0.5)
    assert rig.process.poll() is None
    rig.server.order(release=True)
    assert rig.finish()["code"] == 1


def test_taken_ports_are_told_and_none_free_is_an_end(make_rig):
    import socket

    with socket.socket() as taken, socket.socket() as other:
        taken.bind(("", 0))
        taken.listen()
        other.bind(("", 0))
        ports = [taken.getsockname()[1], other.getsockname()[1]]
        other.close()
        rig = make_rig()
        rig.run("true", ports=ports)
        assert rig.server.registered[0]["ports"] == ports[1:]
        rig = make_rig()
        assert rig.run("true", ports=ports[:1])["reason"] == "port_taken"
        assert not rig.server.registered


def test_the_record_is_whole_json_with_its_times(rig):
    record = rig.run("for i in $(seq 30); do echo line $i; done; exit 2")
    assert record["processes"][0]["last_lines"] == [f"line {number}" for number in range(11, 31)]
    assert record["started_at"] <= record["processes"][0]["ended_at"] <= record["ended_at"]
    told = json.loads((rig.directory / "agent.json").read_text())
    assert told["pid"] == rig.process.pid
    assert not list(rig.directory.glob("*.partial"))
