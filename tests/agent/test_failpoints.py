"""The agent is killed at every listed point; whatever it leaves is found by its mark, and no record is half-written."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.agent import rig as rigs
from tests.agent.archives import packed

from oarlock.agent import failpoints

PACKAGE = Path(failpoints.__file__).parent
# The user's process leaves a child in a session of its own, as the worst ones do.
COMMAND = "echo > $OUTSIDE/started; setsid sleep 1000 & echo hello; %s; echo out > $OARLOCK_RESULTS/out"
UNTIL_STOPPED = COMMAND % "sleep 1000"
SHORT = COMMAND % "true"


def points_before(name: str) -> tuple[str, ...]:
    return failpoints.NAMES[: failpoints.NAMES.index(name)]


@pytest.mark.parametrize("name", failpoints.NAMES)
def test_killed_here_nothing_is_lost_to_the_backend(rig, name):
    blob = packed({"a": b"x"})
    digest = "sha256:" + hashlib.sha256(blob).hexdigest()
    rig.server.blobs[digest] = blob
    stopping = name == "stop.after_term"
    rig.assign(
        UNTIL_STOPPED if stopping else SHORT,
        snapshot=digest,
        helper=[sys.executable, "-c", "pass"],
        uploads={"source": "results", "to": "s3://bucket/out"},
    )
    rig.start(failpoint=name)
    if stopping:
        rig.wait_for_file("started")
        rig.server.order(stop={"grace_s": 5})
    assert rig.process.wait(rigs.CEILING_S) == -signal.SIGKILL, f"{name} was never reached"

    def marked() -> list[int]:
        return rigs.processes_with(f"OARLOCK_TASK_KEY={rig.key}")

    if name in points_before("process.started"):
        assert not (rig.outside / "started").exists()
        assert not rig.user_processes()
    # A process that ends, or executes another program just now, is seen by one of two looks alone.
    rigs.until(lambda: set(rig.user_processes()) <= set(marked()), "no user process that its mark does not find")
    for pid in marked():
        os.kill(pid, signal.SIGKILL)
    rigs.until(lambda: not rig.user_processes(), "an empty task")

    record = rig.directory / "exit.json"
    assert record.exists() == (name not in points_before("exit.after_rename"))
    if record.exists():
        assert json.loads(record.read_text())["key"] == rig.key
    for stream, stored in rig.server.logs.items():
        assert (rig.directory / stream).read_bytes().startswith(stored)
    with (rig.directory / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if anything of the dead agent still holds it


def test_the_list_agrees_with_the_code():
    used = set()
    for path in PACKAGE.rglob("*.py"):
        used |= set(re.findall(r'failpoint\("([a-z_.]+)"\)', path.read_text()))
    assert used == set(failpoints.NAMES)


def test_a_name_that_is_not_listed_is_no_silent_no_op():
    with pytest.raises(ValueError, match="NAME one of"):
        failpoints.arm("lock.takem:kill")
