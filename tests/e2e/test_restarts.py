"""The server dies; what runs goes on, and nothing of it is missed."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.e2e import shell as shells


@pytest.mark.long
def test_a_program_that_cannot_work_is_started_once(fresh: shells.Shell) -> None:
    """Its traceback is shown once, and why there is no restart."""
    fresh.write("requirements.txt", "--no-index\nno-such-package-anywhere\n")
    python = ("--", "python", "-c")
    for name, words, says in (
        ("key", (*python, "{}['lr']"), "KeyError: 'lr'"),
        ("module", (*python, "import nosuchmodule"), "No module named 'nosuchmodule'"),
        ("stdin", (*python, "input()"), "EOFError"),
        ("packages", ("--dependencies", "requirements.txt", "--", "true"), "No matching distribution found"),
    ):
        done = fresh.start("run", "--name", name, *words, together=True)
        told, _ = done.communicate(timeout=280)
        assert done.returncode == 1, told
        assert told.count(says) == 1, told
        assert "no restart   it failed before it had made any progress" in told
        assert says in fresh.do("logs", name).stdout
        job = fresh.job(name)
        assert (job["phase"], len(job["attempts"]), job["restarts"]) == ("FAILED", 1, 0)


@pytest.mark.long
def test_a_bug_behind_the_checkpoint_is_met_twice(fresh: shells.Shell) -> None:
    fresh.write(
        "bug.py",
        """
        import torch
        from oarlock import train
        train.init()
        with train.Session(model=torch.nn.Linear(1, 1), total_steps=30, every_steps=10) as session:
            for step in session.steps():
                if step == 15:
                    raise KeyError("val")
        """,
    )
    fresh.do("run", "--name", "bug", "--", "python", "bug.py", code=1)
    job = fresh.job("bug")
    assert [one.get("restore_step") for one in job["attempts"]] == [None, 10]
    assert job["attempts"][-1]["no_restart"] == "it failed twice in the same way, without progress between"


@pytest.mark.long
def test_logs_that_were_deleted_under_the_server_come_again(shell: shells.Shell) -> None:
    """The first half is deleted while the job runs, and all of it once the job has ended."""
    go = shell.folder / "go"
    shell.write(
        "says.py",
        f"""
        import os, time
        for number in range(1, 200):
            print("line", number, flush=True)
        for _ in range(6000):
            os.path.exists({str(go)!r}) or time.sleep(0.05)
        for number in range(200, 400):
            print("line", number, flush=True)
        """,
    )
    shell.do("run", "--detach", "--name", "says", "--", "python", "says.py")
    job = shell.wait_phase("says", "PROCESSING")
    while "line 199" not in shell.do("logs", "says").stdout:
        time.sleep(0.1)
    (path,) = (shell.home / "logs").rglob(f"*{job['id']}/**/stdout.0.log")
    path.unlink()
    go.touch()
    shell.wait_phase("says", "COMPLETED")
    lines = shell.do("logs", "says").stdout.splitlines()
    assert [int(line.rpartition(" ")[2]) for line in lines] == list(range(1, 400))
    assert b"\0" not in path.read_bytes()
    assert "logs_missing" in shell.do("show", "says", "--events").stdout
    path.unlink()
    assert "bytes of this log are missing here" in shell.do("logs", "says").stdout


@pytest.mark.long
def test_a_restarted_server_adopts_running_jobs(fresh: shells.Shell) -> None:
    """Killed in the middle: every line, metric and exit code arrives, once and in order."""
    fresh.write(
        "talks.py",
        """
        import time, torch
        from oarlock import train
        train.init()
        with train.Session(total_steps=100) as session:
            for step in session.steps():
                print("line", step, flush=True)
                session.log(value=float(step))
                time.sleep(0.1)
        raise SystemExit(6)
        """,
    )
    fresh.do("run", "--detach", "--name", "talks", "--max-restarts", "0", "--", "python", "talks.py")
    fresh.wait_phase("talks", "PROCESSING")
    time.sleep(2)
    os.kill(fresh.server_pid(), signal.SIGKILL)
    time.sleep(2)
    fresh.do("up", "--detach")
    job = fresh.wait_phase("talks", "FAILED")
    assert job["exit_code"] == 6
    assert len(job["attempts"]) == 1, "it was adopted, not started again"
    steps = [int(line.rpartition(" ")[2]) for line in fresh.do("logs", "talks").stdout.splitlines() if "line" in line]
    assert steps == list(range(1, 101))
    series = fresh.json("metrics", "talks")["series"]
    assert {one["name"]: one["count"] for one in series}["value"] == 100


def test_an_end_while_the_server_was_away_is_recorded(fresh: shells.Shell) -> None:
    go, done = fresh.home.parent / "go", fresh.home.parent / "done"
    await_go = f"for _ in $(seq 6000); do [ -e {go} ] && break; sleep 0.05; done"
    fresh.write("job.sh", f"{await_go}; echo bye; echo $$ > {done}; exit 5")
    fresh.do("run", "--detach", "--name", "short", "--max-restarts", "0", "--", "sh", "job.sh")
    fresh.wait_phase("short", "PROCESSING")
    os.kill(fresh.server_pid(), signal.SIGKILL)
    go.touch()
    ended = int(fresh.wait_file(done))
    while shells.runs(ended):
        time.sleep(0.05)
    fresh.do("up", "--detach")
    job = fresh.wait_phase("short", "FAILED")
    assert job["exit_code"] == 5
    assert "bye" in fresh.do("logs", "short").stdout


def test_a_killed_agent_is_the_platforms_fault(fresh: shells.Shell) -> None:
    """Its user process is ended, the gang starts again, and no restart of the user's is spent."""
    marker = fresh.home.parent / "pids"
    fresh.write(
        "job.sh",
        f"""
        echo $PPID $$ >> {marker}
        [ "$OARLOCK_ATTEMPT" = 1 ] && sleep 1000
        exit 0
        """,
    )
    fresh.do("run", "--detach", "--name", "orphan", "--max-restarts", "0", "--", "sh", "job.sh")
    agent, process = (int(pid) for pid in fresh.wait_file(marker).split()[:2])
    os.kill(agent, signal.SIGKILL)
    job = fresh.wait_phase("orphan", "COMPLETED", timeout_s=280)
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert job["restarts"] == 0
    assert job["attempts"][0]["verdict"]["cause"] == "platform"
    assert not shells.runs(process)
