"""Checkpoints as a user meets them: what the record says of them is so, on the disk and in the processes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import shell as shells

TRAINS = """
    import os, sys, time, torch
    from oarlock import train
    train.init()
    first = None
    with train.Session(model=torch.nn.Linear(1, 1), total_steps=60, every_steps=10) as session:
        for step in session.steps():
            first = step if first is None else first
            for _ in range(6000):  # until it is asked to stop
                step == 35 and os.path.exists(sys.argv[1]) and not session._wish.strongest and time.sleep(0.05)
    print("began at step", first, flush=True)
"""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.long
def test_the_record_names_the_restored_and_the_present_checkpoints(shell: shells.Shell) -> None:
    """The newest checkpoint of a halted job has a flipped byte: it goes on from the one before."""
    shell.write("trains.py", TRAINS)
    hold = shell.write("hold", "x")
    shell.do("run", "--detach", "--name", "truth", "--keep", "4", "--", "python", "trains.py", str(hold))
    job = shell.wait_for("truth", lambda job: [one["step"] for one in checkpoints(shell)] == [30, 20, 10])
    shell.do("halt", "truth")
    shell.wait_phase("truth", "HALTED")
    (newest, *_) = checkpoints(shell)
    assert newest["step"] == 35, "a stop saves"
    flip(Path(newest["path"]) / "rank-0.pt")
    hold.unlink()
    shell.do("resume", "truth")
    job = shell.wait_phase("truth", "COMPLETED", "FAILED")
    assert (job["phase"], job["attempts"][-1]["offered_step"], job["attempts"][-1]["restore_step"]) == (
        "COMPLETED",
        35,
        30,
    )
    assert "began at step 31" in shell.do("logs", "truth").stdout
    told = shell.do("show", "truth", "--events").stdout
    assert "from step 30" in told
    found = checkpoints(shell)
    assert found[0]["step"] == 60
    assert all((Path(one["path"]) / "manifest.json").exists() for one in found), "what is listed is there"
    restored = re.search(r"checkpoint_restored\s.*?(?=\n  \d)", told, re.DOTALL)  # lines are broken at 80 columns
    assert restored, told
    assert "attempt-1-round-1-step-30" in restored[0]
    events = told.partition("\nEvents\n")[2]
    assert "checkpoint_visible" in events
    assert str(shell.home) not in events, "events name a checkpoint by its last part"


def checkpoints(shell: shells.Shell, name: str = "truth") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.json("show", name)["checkpoints"]
    return found


BREAKS = """
    import os, torch
    from oarlock import train
    train.init()
    first = None
    with train.Session(model=torch.nn.Linear(1, 1), total_steps=60, every_steps=10) as session:
        for step in session.steps():
            first = step if first is None else first
            if step == 38:
                raise ValueError("a bug in the script")
    print("began at step", first, "with", os.environ.get("RATE"), flush=True)
"""


@pytest.mark.long
def test_mend_the_bug_and_go_on_training(shell: shells.Shell) -> None:
    """It failed at step 38 with a checkpoint at 30. The mended script goes on from there, in a new job."""
    shell.write("breaks/breaks.py", BREAKS)
    where = ("--dir", "breaks", "--name", "broken", "--env", "RATE=0.5", "--max-restarts", "0")
    failed = shell.do("run", *where, "--", "python", "breaks.py", code=1)
    assert "go on        oarlock run --continue broken" in failed.stderr
    resumed = shell.do("resume", "broken", code=1)
    assert "oarlock run --continue broken" in resumed.stderr
    old = shell.job("broken")

    shell.write("breaks/breaks.py", BREAKS.replace("step == 38", "False"))
    done = shell.do("run", "--continue", "broken", "--name", "mended")
    assert f"mended continues from step 30 of broken ({old['id']})" in done.stderr
    assert "began at step 31 with 0.5" in done.stdout, "the fields and the directory are those of the other job"
    new = shell.job("mended")
    assert (new["continues"]["job"], new["continues"]["step"]) == (old["id"], 30)
    assert (new["attempts"][0]["offered_step"], new["attempts"][0]["restore_step"]) == (30, 30)
    assert f"continues {old['id']} (broken) from step 30" in shell.do("show", "mended").stdout
    assert f"continued by {new['id']} (mended) from step 30" in shell.do("show", "broken").stdout
    assert shell.json("show", "broken")["continued_by"] == [new["id"]]
    assert shell.job("broken") == old, "an ended job does not change"

    alike = json.loads(shell.do("run", "--continue", "mended", "--env", "RATE=2", "--dry-run").stdout)
    assert (alike["continues"], alike["spec"]["env"]) == (new["id"], {"RATE": "2"})
    assert alike["spec"]["command"] == ["python", "breaks.py"]
    named = json.loads(shell.do("run", "--continue", "broken@20", "--dry-run", "--", "true").stdout)
    assert (named["continues"], named["spec"].get("env")) == (f"{old['id']}@20", None), (
        "with a command only the checkpoint"
    )


def test_a_job_that_cannot_be_continued_is_refused_with_the_reason(shell: shells.Shell) -> None:
    shell.do("run", "--name", "bare", "--", "true")
    shell.write("job.yaml", "command: 'true'")
    for arguments, why in (
        (("run", "--continue", "bare"), "--continue: bare has no checkpoint to continue from"),
        (("submit", "job.yaml", "--continue", "bare@5"), "--continue: bare has no checkpoint to continue from"),
        (("run", "--continue", "nothing", "--", "true"), "--continue: There is no job `nothing`"),
        (("run", "--continue", "bare@", "--", "true"), "--continue: 'bare@' is not a job with a step"),
        (("run", "--checkpoint-to", "/proc/foo", "--", "true"), "--checkpoint-to: Nothing can be stored at /proc/foo"),
    ):
        done = shell.do(*arguments, code=None)
        assert done.returncode in (1, 2)
        assert why in done.stderr, done.stderr


def test_resuming_without_a_checkpoint_says_first_that_it_begins_anew(shell: shells.Shell) -> None:
    shell.do("run", "--detach", "--name", "anew", "--", "sleep", "1000")
    shell.wait_phase("anew", "PROCESSING")
    shell.do("halt", "anew", "--wait")
    said = shell.do("resume", "anew").stderr.splitlines()
    assert said[0] == "anew has no checkpoint: it starts again from its first step."
    assert said[1].startswith("anew goes on")
    shell.do("cancel", "anew", "--wait")
