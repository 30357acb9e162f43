"""A job whose data, checkpoints and results lie in an object store: all of it comes and goes with its credentials."""

from __future__ import annotations

import re
import shutil

import pytest
from tests import objectstores
from tests.e2e import shell as shells


@pytest.mark.long
@pytest.mark.timeout(300)  # three starts of a training, each of which imports torch
def test_a_job_lives_in_an_object_store(shell: shells.Shell, bucket: objectstores.Bucket) -> None:
    """Halted, its local checkpoints deleted, resumed: it goes on at the step at which it stopped."""
    bucket.put("digits/rows.txt", b"1 2 3")
    shell.write(
        "trains.py",
        """
        import os, time, torch
        from oarlock import train
        train.init()
        rows = open("data/rows.txt").read()
        first = None
        with train.Session(model=torch.nn.Linear(1, 1), total_steps=300, every_steps=10) as session:
            for step in session.steps():
                first = step if first is None else first
                first_time = os.environ["OARLOCK_ATTEMPT"] == "1"
                time.sleep(0 if not first_time else 0.05 if step < 100 else 1)  # halted before its end
        print("began at step", first, "with", rows, flush=True)
        open(os.environ["OARLOCK_RESULTS"] + "/done.txt", "w").write(f"{first}")
        """,
    )
    env = ", ".join(f'{name}: "{value}"' for name, value in bucket.env.items())
    shell.write(
        "job.yaml",
        f"""
        name: far
        command: python trains.py
        data: [{{source: "{bucket.url}/digits", mount: data}}]
        checkpoint: {{to: "{bucket.url}/ckpt", keep: 2}}
        results: {bucket.url}/out
        env: {{{env}}}
        """,
    )
    shell.do("submit", "job.yaml")
    job = shell.wait_phase("far", "PROCESSING")
    place = f"{bucket.url}/ckpt/{job['id']}/attempt-1-round-1-step-"
    shell.wait_for("far", lambda job: len(_checkpoints(shell)) > 2)
    assert all(path.startswith(place) for path in _checkpoints(shell))
    shell.do("halt", "far")
    shell.wait_phase("far", "HALTED")
    stopped = int(_checkpoints(shell)[0].removeprefix(place))

    def manifests() -> list[str]:
        return [key for key in bucket.keys(f"ckpt/{job['id']}/") if key.endswith("/manifest.json")]

    shell.wait_for("far", lambda job: len(manifests()) == 2)  # the newest `keep`
    assert f"ckpt/{job['id']}/attempt-1-round-1-step-{stopped}/manifest.json" in manifests()

    shutil.rmtree(shell.home / "checkpoints" / job["id"])
    shell.do("resume", "far")
    done = shell.wait_phase("far", "COMPLETED", "FAILED")
    assert done["phase"] == "COMPLETED", done
    assert done["attempts"][-1]["restore_step"] == stopped
    began = re.search(r"began at step (\d+) with 1 2 3", shell.do("logs", "far").stdout)
    assert began is not None
    assert int(began[1]) == stopped + 1, "the first step that it had not done"
    assert bucket.get("out/done.txt").decode() == began[1]
    last = _checkpoints(shell)[0]
    assert last == f"{bucket.url}/ckpt/{job['id']}/attempt-2-round-1-step-300", "a good end waits for its last copy"


@pytest.mark.long
def test_a_job_goes_on_from_the_copy_of_another_one(shell: shells.Shell, bucket: objectstores.Bucket) -> None:
    """Its machine has no checkpoint any more."""
    shell.write(
        "steps.py",
        """
        import os, torch
        from oarlock import train
        train.init()
        first = None
        with train.Session(model=torch.nn.Linear(1, 1), total_steps=int(os.environ["STEPS"])) as session:
            for step in session.steps():
                first = step if first is None else first
        print("began at step", first, flush=True)
        """,
    )
    env = [f"--env={name}={value}" for name, value in {**bucket.env, "STEPS": "10"}.items()]
    shell.do("run", "--name", "near", "--checkpoint-to", f"{bucket.url}/ckpt", *env, "--", "python", "steps.py")
    near = shell.job("near")
    shutil.rmtree(shell.home / "checkpoints" / near["id"])
    done = shell.do("run", "--continue", "near", "--name", "next", "--env", "STEPS=12")
    assert "began at step 11" in done.stdout
    after = shell.job("next")
    assert after["continues"]["path"] == f"{bucket.url}/ckpt/{near['id']}/attempt-1-round-1-step-10"
    assert after["attempts"][0]["restore_step"] == 10
    assert shell.job("near") == near, "the other job does not change"


def _checkpoints(shell: shells.Shell) -> list[str]:
    """Where the visible ones lie, best first."""
    return [each["path"] for each in shell.json("show", "far")["checkpoints"]]


def test_a_place_that_cannot_be_written_is_refused_at_once(shell: shells.Shell) -> None:
    done = shell.do("run", "--checkpoint-to", "https://host/ckpt", "--", "true", code=2)
    assert "--checkpoint-to: nothing can be stored at" in done.stderr
