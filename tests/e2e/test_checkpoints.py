"""Checkpoints as a user meets them: what the record says of them is so, on the disk and in the processes."""

from __future__ import annotations

from pathlib import Path

from tests.e2e import shell as shells

TRAINS = """
    import os, sys, time, torch
    from oarlock import train
    train.init()
    first = None
    with train.Session(model=torch.nn.Linear(1, 1), total_steps=60, every_steps=10) as session:
        for step in session.steps():
            first = step if first is None else first
            while step == 35 and os.path.exists(sys.argv[1]) and not session._wish:  # until it is asked to stop
                time.sleep(0.05)
    print("began at step", first, flush=True)
"""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_record_says_what_was_restored_and_what_is_there(shell: shells.Shell) -> None:
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
    lines = [line for line in told.splitlines() if "checkpoint_" in line]
    assert lines
    assert not any(str(shell.home) in line for line in lines), "events name a checkpoint by its last part"
    assert any("checkpoint_restored" in line and "attempt-1-round-1-step-30" in line for line in lines)


def checkpoints(shell: shells.Shell) -> list[dict]:
    found: list[dict] = shell.json("show", "truth")["checkpoints"]
    return found
