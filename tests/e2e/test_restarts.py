"""The server dies; what runs goes on, and nothing of it is missed."""

from __future__ import annotations

import os
import signal
import time

from tests.e2e import shell as shells


def test_a_restarted_server_adopts_what_runs(fresh: shells.Shell) -> None:
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
    fresh.write("job.sh", f"while ! [ -e {go} ]; do sleep 0.05; done; echo bye; echo $$ > {done}; exit 5")
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
    job = fresh.wait_phase("orphan", "COMPLETED", timeout_s=90)
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert job["restarts"] == 0
    assert job["attempts"][0]["verdict"]["cause"] == "platform"
    assert not shells.runs(process)
