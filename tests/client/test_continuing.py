"""Both clients continue a job: from its checkpoint, with the present code of its directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.client import driven, live
from tests.data.checkpoints.test_checkpoints import save

from oarlock.client import verbs
from oarlock.spec import errors, jobfile, jobs, phases
from oarlock.spec.input import sizes


def failed(server: live.LiveServer, client: Any, place: Path) -> jobs.Job:
    """A job with the checkpoints 10 and 50 that has failed."""
    job = client.run("python train.py", name="digits", env={"RATE": "1"}, max_restarts=0, directory=place)
    for step in (10, 50):
        path = save(Path(server.rig.checkpoints.own) / job.id, step)
        one = jobs.Checkpoint(
            job=job.id, step=step, attempt=1, round=1, path=str(path), manifest_sha256="", bytes=1, at=1.0
        )
        server.do(server.rig.store.write(lambda tx, one=one: tx.add_checkpoint(one)))
    server.launch(job.id)
    server.end(job.id, code=1)
    return client.job(job.id)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "code"
    place.mkdir()
    (place / "train.py").write_text("print(1)\n")
    return place


def test_a_job_is_continued_with_the_code_as_it_is_now(
    server: live.LiveServer, place: Path, new_client: driven.NewClient
) -> None:
    with new_client() as client:
        old = failed(server, client, place)
        assert old.sent_from == str(place)
        (place / "train.py").write_text("print(2)\n")
        found = [client.continue_job("digits", name=None, env={"RATE": "2"}) for _ in range(2)]
        for new in found:
            assert (new.continues.job, new.continues.step) == (old.id, 50)
            assert (new.spec.command, new.spec.env, new.sent_from) == (old.spec.command, {"RATE": "2"}, str(place))
            assert new.spec.roles == old.spec.roles
            assert new.snapshot != old.snapshot
        assert found[0].snapshot == found[1].snapshot
        assert {job.id for job in client.jobs(continues="digits")} == {new.id for new in found}


def test_a_step_a_command_and_a_directory_may_be_said(
    server: live.LiveServer, place: Path, tmp_path: Path, new_client: driven.NewClient
) -> None:
    with new_client() as client:
        old = failed(server, client, place)
        other = tmp_path / "other"
        shutil.move(place, other)
        new = client.continue_job(old.id, step=10, command=["python", "train.py"], directory=other)
        assert (new.continues.step, new.spec.env, new.sent_from) == (10, {}, str(other))
        with pytest.raises(errors.InvalidInput, match="code came, is not here"):
            client.continue_job(old.id)
        with pytest.raises(errors.Conflict, match="no checkpoint of step 11"):
            client.continue_job(old.id, step=11, directory=other)
        new = client.submit({"command": "true"}, directory=None, continues=f"{old.id}@10")
        assert new.continues is not None
        assert new.continues.step == 10


def test_a_size_can_be_another_one() -> None:
    """The tasks no longer have the amounts of the first size."""
    worker = jobfile.Role(count=2, cpus=3)
    spec = sizes.filled(jobfile.JobSpec(command="true", size="1-v100", roles={"worker": worker}))
    earlier = jobs.Job(id="j-1", name="n", owner="o", spec=spec, created_at=1.0, phase=phases.Phase.FAILED)
    again = sizes.filled(verbs.spec_of({**verbs.fields_of(earlier), "size": "2-k80"}))
    found = again.roles["worker"]
    assert (found.count, found.cpus, found.gpus, found.gpu_type) == (2, 3, 2, ("k80",))
    assert sizes.filled(verbs.spec_of(verbs.fields_of(earlier))) == spec


def test_the_fields_of_a_running_job_without_a_name_are_told() -> None:
    spec = jobfile.JobSpec(command="true", size="2-k80")
    earlier = jobs.Job(id="j", name="true", owner="ann", spec=spec, created_at=0.0, pool="default", phase_at=0.0)
    assert verbs.spec_of(verbs.fields_of(earlier)) == spec, "fields with their defaults are left out"


@pytest.mark.parametrize("text", ["", "@5", "train@", "train@x", "train@-1", "train@1@2", "train@" + "9" * 19])
def test_words_that_name_no_job_and_step(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="not a job with a step"):
        verbs.continued_of(text)


def test_a_job_and_a_step() -> None:
    assert [verbs.continued_of(text) for text in ("train", "train@0", "j-1@50")] == [
        ("train", None),
        ("train", 0),
        ("j-1", 50),
    ]
