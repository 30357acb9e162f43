"""The life of a job on real processes: deaths, hangs, halts, time-outs, a look inside."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest
from tests.e2e import shell as shells


def test_a_dying_rank_is_named_and_its_last_lines_shown(shell: shells.Shell) -> None:
    """Rank 1 dies; rank 0 only notices that a connection broke: rank 1 is to blame."""
    shell.write(
        "dies.py",
        """
        import os, socket, sys, time
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if os.environ["RANK"] == "0":
            peer, _ = socket.create_server(place).accept()
            while peer.recv(1):
                peer.send(b".")
            raise ConnectionResetError("rank 1 is gone")
        for _ in range(2400):
            try:
                peer = socket.create_connection(place)
                break
            except OSError:
                time.sleep(0.1)
        for _ in range(20):
            peer.send(b".")
            peer.recv(1)
        print("the disk of rank 1 is on fire", file=sys.stderr, flush=True)
        os._exit(3)
        """,
    )
    done = shell.do("run", "--workers", "2", "--max-restarts", "0", "--name", "dies", "--", "python", "dies.py", code=3)
    verdict = shell.job("dies")["attempts"][-1]["verdict"]
    assert verdict["task"] == "worker-1"
    assert "on fire" in " ".join(verdict["last_lines"])
    assert "on fire" in done.stderr


@pytest.mark.long
def test_a_killed_rank_restarts_the_gang_from_its_checkpoint(shell: shells.Shell) -> None:
    shell.write(
        "resumes.py",
        """
        import os, signal, torch
        from oarlock import train
        class Killed(train.Hook):
            def after_checkpoint(self, session, path):
                if path.name.endswith("-20") and os.environ["OARLOCK_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
        train.init()
        model = torch.nn.Linear(1, 1)
        with train.Session(model=model, total_steps=30, every_steps=10, hooks=[Killed()]) as session:
            for step in session.steps():
                session.log(loss=float(step))
        print("began attempt", os.environ["OARLOCK_ATTEMPT"], "restored", os.environ["OARLOCK_RESTORE"], flush=True)
        """,
    )
    done = shell.do("run", "--workers", "2", "--name", "resumes", "--", "python", "resumes.py")
    job = shell.job("resumes")
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert job["attempts"][0]["verdict"]["task"] == "worker-1"
    assert job["restarts"] == 1
    assert "began attempt 2" in done.stdout
    assert "step-20" in done.stdout


def test_the_other_rank_of_a_killed_one_is_told_to_stop_before_the_verdict(shell: shells.Shell) -> None:
    """It saves within its grace, and its end is no failure."""
    ready = shell.folder / "ready"
    shell.write(
        "waits.sh",
        f"""
        [ "$OARLOCK_ATTEMPT" = 1 ] || exit 0
        if [ "$OARLOCK_INDEX" = 1 ]; then
            until [ -e '{ready}' ]; do sleep 0.05; done
            kill -KILL $$
        fi
        trap 'echo saved; exit 0' TERM
        touch '{ready}'
        while :; do sleep 0.05; done
        """,
    )
    done = shell.do("run", "--workers", "2", "--name", "waits", "--", "sh", "waits.sh")
    assert "saved" in done.stdout
    first, second = shell.job("waits")["attempts"]
    assert first["aborted_at"] < first["stop_at"]
    assert (first["verdict"]["task"], first["verdict"]["cause"]) == ("worker-1", "signal")
    assert [task["phase"] for task in first["tasks"]] == ["STOPPED", "FAILED"]
    assert second["verdict"]["cause"] == "succeeded"


def test_a_hanging_rank_gives_its_stacks_and_the_gang_restarts(shell: shells.Shell) -> None:
    shell.write(
        "hangs.py",
        """
        import os, time
        def waits_for_godot():
            time.sleep(1000)
        print("attempt", os.environ["OARLOCK_ATTEMPT"], flush=True)
        if os.environ["OARLOCK_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
            waits_for_godot()
        if os.environ["OARLOCK_ATTEMPT"] == "1":
            time.sleep(1000)
        """,
    )
    shell.do("run", "--workers", "2", "--hang-timeout", "3s", "--name", "hangs", "--", "python", "hangs.py")
    first = shell.job("hangs")["attempts"][0]
    assert first["verdict"]["cause"] == "hang"
    stacks = json.dumps(first["stacks"])
    assert "waits_for_godot" in stacks
    assert {taken["task"] for taken in first["stacks"]} == {"worker-0", "worker-1"}


def test_halt_keeps_the_checkpoint_and_resume_goes_on(shell: shells.Shell) -> None:
    shell.write(
        "halts.py",
        """
        import os, time, torch
        from oarlock import train
        train.init()
        first = None
        with train.Session(model=torch.nn.Linear(1, 1), total_steps=200) as session:
            for step in session.steps():
                first = step if first is None else first
                if os.environ["OARLOCK_ATTEMPT"] == "1":
                    time.sleep(0.02 if step < 60 else 1)  # long enough to be halted on any machine
        print("began at step", first, flush=True)
        """,
    )
    shell.do("run", "--detach", "--name", "halts", "--", "python", "halts.py")
    moving = lambda job: any((task.get("progress") or {}).get("step", 0) > 5 for task in job["attempts"][-1]["tasks"])  # noqa: E731
    shell.wait_for("halts", lambda job: job["phase"] == "PROCESSING" and moving(job))
    shell.do("halt", "halts")
    halted = shell.wait_phase("halts", "HALTED")
    assert halted["restarts"] == 0
    shell.do("resume", "halts")
    shell.wait_phase("halts", "COMPLETED")
    began = re.search(r"began at step (\d+)", shell.do("logs", "halts").stdout)
    assert began is not None
    assert 5 < int(began[1]) < 200


def test_cancel_ends_children_that_left_the_session(shell: shells.Shell) -> None:
    pid_file = shell.folder / "grandchild"
    shell.write(
        "leaves.py",
        f"""
        import subprocess, time
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open({str(pid_file)!r}, "w").write(str(child.pid))
        time.sleep(1000)
        """,
    )
    shell.do("run", "--detach", "--name", "leaves", "--grace", "1s", "--", "python", "leaves.py")
    pid = int(shell.wait_file(pid_file))
    shell.do("cancel", "leaves")
    shell.wait_phase("leaves", "CANCELED")
    assert not shells.runs(pid), "CANCELED is said only once nothing of the job runs"


def test_cancel_ends_a_child_that_left_everything_without_control_groups(fresh: shells.Shell) -> None:
    """Its parent ignores SIGTERM; the child has a session of its own and an empty environment."""
    fresh.env["OARLOCK_CGROUPS"] = "false"
    pid_file = fresh.home.parent / "child"
    fresh.write(
        "leaves.py",
        f"""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            open({str(pid_file)!r}, "w").write(str(os.getpid()))
            os.execve("/bin/sleep", ["sleep", "1000"], {{}})
        time.sleep(1000)
        """,
    )
    fresh.do("run", "--detach", "--name", "leaves", "--grace", "1s", "--", "python", "leaves.py")
    pid = int(fresh.wait_file(pid_file))
    fresh.do("cancel", "leaves")
    job = fresh.wait_phase("leaves", "CANCELED")
    assert not shells.runs(pid), "CANCELED is said only once nothing of the job runs"
    assert job["attempts"][0]["tasks"][0]["exit"]["killed_by"] == "session"


def test_timeout_ends_the_job(shell: shells.Shell) -> None:
    done = shell.do("run", "--timeout", "2s", "--grace", "1s", "--name", "slow", "--", "sleep", "1000", code=None)
    assert done.returncode != 0
    assert shell.job("slow")["attempts"][-1]["verdict"]["cause"] == "timeout"


def test_freeze_keeps_a_failed_job_for_a_look_inside(shell: shells.Shell) -> None:
    """In the task that failed, which is not the first."""
    shell.write(
        "fails.py",
        """
        import os, time
        if os.environ["OARLOCK_INDEX"] == "0":
            time.sleep(1000)
        open("evidence", "w").write("it was the butler")
        raise SystemExit(4)
        """,
    )
    command = ["--freeze", "5m", "--max-restarts", "0", "--name", "frozen", "--", "python", "fails.py"]
    shell.do("run", "--detach", "--workers", "2", "--cpus", "0.1", "--grace", "1s", *command)
    shell.wait_for("frozen", lambda job: bool(job["attempts"]) and job["attempts"][-1].get("frozen_until") is not None)
    inside = shell.do("exec", "frozen", "--", "cat", "evidence")
    assert inside.stdout == "it was the butler"
    assert shell.do("exec", "frozen", "--", "sh", "-c", "exit 9", code=9).returncode == 9
    shell.wait_for("frozen", lambda job: job["attempts"][-1]["tasks"][0]["phase"] == "STOPPED")
    other = shell.do("exec", "--index", "0", "frozen", "--", "true", code=1)
    assert "worker-1 failed, and is kept: oarlock exec frozen -- sh" in other.stderr
    shell.do("cancel", "frozen")
    shell.wait_phase("frozen", "FAILED", "CANCELED")


def test_a_task_restarts_in_place_where_its_role_allows(shell: shells.Shell) -> None:
    shell.write(
        "job.yaml",
        """
        name: in-place
        framework: plain
        command: sh -c 'if [ $OARLOCK_ROLE = ps ] && [ $OARLOCK_INCARNATION = 1 ]; then exit 5; fi; sleep 4'
        roles:
          worker: {count: 1}
          ps: {count: 1, on_failure: restart, on_success: none, cpus: 0.1}
        """,
    )
    shell.do("submit", "job.yaml", "--follow")
    (attempt,) = shell.job("in-place")["attempts"]
    assert [task["incarnation"] for task in attempt["tasks"] if task["role"] == "ps"] == [2]


def test_a_job_that_does_not_fit_now_waits_and_says_why(shell: shells.Shell) -> None:
    cpus = os.cpu_count() or 1
    shell.do("run", "--detach", "--name", "holder", "--cpus", str(cpus), "--", "sleep", "1000")
    shell.wait_phase("holder", "PROCESSING")
    shell.do("run", "--detach", "--name", "waiter", "--cpus", "1", "--", "true")
    waits = shell.wait_for("waiter", lambda job: job.get("refusal") is not None)
    assert [holder["name"] for holder in waits["refusal"]["holders"]] == ["holder"]
    assert "holder" in shell.do("why", "waiter").stdout
    shell.do("cancel", "holder")
    shell.wait_phase("waiter", "COMPLETED")
    never = shell.do("run", "--cpus", str(cpus + 1), "--", "true", code=1)
    assert f"{cpus + 1} CPUs" in never.stderr


def test_ctrl_c_without_a_terminal_stops_the_job(shell: shells.Shell) -> None:
    process = shell.start("run", "--name", "stopped", "--grace", "1s", "--", "sleep", "1000")
    try:
        deadline = time.monotonic() + 240
        while shell.do("show", "stopped", code=None).returncode != 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        shell.wait_phase("stopped", "PROCESSING")
        process.send_signal(signal.SIGINT)
        assert process.wait(240) != 0
    finally:
        process.kill()
        process.communicate()
    shell.wait_phase("stopped", "CANCELED")
