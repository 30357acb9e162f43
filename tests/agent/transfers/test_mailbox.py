"""An agent and its helper in two containers, which share folders alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.agent import rig as rigs

PROGRAM = """
import sys
from oarlock.data.transfers import mailboxes
mailboxes.run(sys.argv[1], sys.argv[2], (sys.executable, sys.argv[3]))
"""
FAKE = """
import json, os, sys, time
out = os.environ["OUT"]
with open(out + "/asked", "a") as file:
    file.write(json.dumps([os.getpid(), os.environ.get("TOKEN"), sys.argv[1:]]) + chr(10))
for _ in range(30000):
    if os.path.exists(out + "/go"):
        break
    time.sleep(0.01)
print(3)
sys.exit(int(os.environ.get("CODE", "0")))
"""


@contextlib.contextmanager
def helper(rig, **env):
    """The other container."""
    fake = rig.outside / "fake.py"
    fake.write_text(FAKE)
    mailbox = rig.outside / "mailbox"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(mailbox), str(rig.directory), str(fake)],
        env={**os.environ, "OUT": str(rig.outside), **env},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def asked(rig):
    """Return what the helper was asked for. A file that has just been made may be empty."""
    if not (rig.outside / "asked").exists():
        return []
    return [json.loads(line) for line in (rig.outside / "asked").read_text().splitlines()]


def fields(rig):
    return {"mailbox": str(rig.outside / "mailbox"), "uploads": {"source": "results", "to": "s3://b/out"}}


WRITES = "echo 1 > $OARLOCK_RESULTS/score"


def test_results_go_through_the_helper_which_ends_with_the_agent(rig):
    (rig.outside / "go").touch()
    with helper(rig) as process:
        record = rig.run(WRITES, env={"TOKEN": "t"}, **fields(rig))
        assert record["code"] == 0
        ((_, token, arguments),) = asked(rig)
        assert token == "t"
        assert arguments == ["--task", str(rig.directory), "store", f"{rig.directory}/results", "s3://b/out"]
        assert process.wait(rigs.CEILING_S) == 0
    assert not list((rig.outside / "mailbox" / "requests").iterdir()), "requests hold secrets"


def test_a_failure_of_the_helper_is_the_task_s(rig):
    (rig.outside / "go").touch()
    with helper(rig, CODE="1"):
        record = rig.run(WRITES, **fields(rig))
    assert (record["code"], record["reason"]) == (1, "store_failed")
    assert record["detail"] == "results failed with code 1: 3"


def test_a_helper_that_dies_is_noticed(rig):
    with helper(rig) as process:
        rig.begin(WRITES, **fields(rig))
        rigs.until(lambda: asked(rig), "the helper is asked")
        process.kill()
        record = rig.finish()
    assert (record["code"], record["reason"]) == (1, "store_failed")
    assert "the helper container has ended" in record["detail"]
    (rig.outside / "go").touch()


def test_a_stop_ends_the_work_of_the_helper(rig):
    with helper(rig):
        rig.begin(WRITES, grace_s=0.1, **fields(rig))
        rigs.until(lambda: asked(rig), "the helper is asked")
        ((pid, _, _),) = asked(rig)
        rig.server.order(stop={"grace_s": 0.1, "reason": "canceled"})
        record = rig.finish()
        rigs.until(lambda: not rigs.alive(pid), "the store is ended")
    assert record["reason"] == "stopped"


def pending(pid):
    """Return whether SIGTERM has not reached the process yet."""
    (mask,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ShdPnd" in line]
    return bool(int(mask, 16) & 1 << (signal.SIGTERM - 1))


def test_a_pod_that_is_ended_stores_what_it_has_within_the_grace(rig):
    """A kubelet sends SIGTERM to all containers of the pod at once."""
    with helper(rig) as process:
        rig.begin(WRITES, grace_s=rigs.CEILING_S, **fields(rig))
        rigs.until(lambda: asked(rig), "the helper is asked")
        for one in (process, rig.process):
            one.terminate()
            rigs.until(lambda one=one: not pending(one.pid), "it has its SIGTERM")
        (rig.outside / "go").touch()
        record = rig.finish()
        assert process.wait(rigs.CEILING_S) == 0
    assert (record["code"], record["reason"]) == (0, "exited"), record


def test_an_agent_without_requests_lets_the_helper_end(rig):
    with helper(rig) as process:
        assert rig.run("true", **fields(rig))["code"] == 0
        assert process.wait(rigs.CEILING_S) == 0


def test_a_killed_agent_lets_the_helper_end(rig):
    with helper(rig) as process:
        rig.begin("sleep 600", **fields(rig))
        rigs.until(lambda: rig.server.phases() == ["PROCESSING"], "it runs")
        rig.process.kill()
        assert process.wait(rigs.CEILING_S) == 0
