"""The output that a dead agent left reaches the logs before its task is declared gone: whole, once, blanked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.controllers.plant import MemoryLogs, MemoryMetrics, NoBlanks, Phase, Plant, leftover

from oarlock.backends import fake
from oarlock.controllers.guarding import leftovers
from oarlock.spec import attempts, jobs

KEY = attempts.TaskKey("j-0001", 1, "worker", 0, 1)
SECRET = b"hunter2!"


class Blanks:
    reach = len(SECRET) - 1

    def cover(self, data: bytes) -> bytes:
        return data.replace(SECRET, b"*" * len(SECRET))


class World:
    """Only the leftovers of a backend."""

    def __init__(self, left) -> None:
        self.left = left

    async def leftovers(self, key: attempts.TaskKey):
        return self.left


def deliverer(left, blanks=NoBlanks) -> tuple[leftovers.Leftovers, MemoryLogs, MemoryMetrics]:
    logs, metrics = MemoryLogs(), MemoryMetrics()
    made = leftovers.Leftovers(World(left), logs, metrics, blanker=lambda job: blanks(), clock=lambda: 1.0)
    return made, logs, metrics


@pytest.fixture
def job() -> jobs.Job:
    from tests.lifecycle import script

    return script.new_job()


async def test_only_missing_bytes_are_appended_and_only_once(tmp_path: Path, job: jobs.Job) -> None:
    made, logs, metrics = deliverer(
        [
            leftover(tmp_path / "out", "stdout.0", b"one\ntwo\nthree\n"),
            leftover(tmp_path / "err", "stderr.0", b""),
            leftover(tmp_path / "metrics", "metrics-1", b"\x01\x02\x03"),
        ]
    )
    await logs.append(KEY, "stdout.0", 0, b"one\n")
    await metrics.append(KEY, 1, 0, b"\x01")
    for _ in range(2):
        await made.deliver(job, KEY)
    assert logs.bytes == {(str(KEY), "stdout.0"): b"one\ntwo\nthree\n"}
    assert metrics.bytes == {(str(KEY), "metrics-1"): b"\x01\x02\x03"}


@pytest.mark.parametrize("piece", [1, 3, 7, 8, 100])
@pytest.mark.parametrize("stored", [0, 2, 5, 9])
async def test_a_secret_is_blanked_wherever_it_is_cut(
    tmp_path: Path, job: jobs.Job, monkeypatch: pytest.MonkeyPatch, piece: int, stored: int
) -> None:
    monkeypatch.setattr(leftovers, "PIECE_BYTES", piece)
    content = b"a " + SECRET + b" b " + SECRET
    blanked = content.replace(SECRET, b"*" * len(SECRET))
    made, logs, _ = deliverer([leftover(tmp_path / "out", "stdout.0", content)], Blanks)
    await logs.append(KEY, "stdout.0", 0, blanked[:stored])
    await made.deliver(job, KEY)
    assert logs.bytes[str(KEY), "stdout.0"] == blanked


async def test_a_file_that_has_vanished_or_shrunk_is_no_error(tmp_path: Path, job: jobs.Job) -> None:
    short = leftover(tmp_path / "out", "stdout.0", b"one")
    gone = leftover(tmp_path / "err", "stderr.0", b"x")
    gone.path.unlink()
    made, logs, _ = deliverer([short, gone])
    await logs.append(KEY, "stdout.0", 0, b"one\ntwo\n")
    await made.deliver(job, KEY)
    assert logs.bytes[str(KEY), "stdout.0"] == b"one\ntwo\n"


async def test_the_last_words_of_a_dead_agent_are_there_before_its_end_is_told(tmp_path: Path) -> None:
    plant = Plant()
    plant.behaviours["j-0001/1/worker/0"] = fake.Behaviour(at_barrier=True, abandons_s=3.0)
    job_id = await plant.submit("{max_restarts: 0}")
    plant.world.leftovers[KEY] = [leftover(tmp_path / "out", "stdout.0", b"last words\n")]

    def in_order() -> None:
        job = plant.store._state.job(job_id)
        if job.attempts and job.attempts[0].tasks[0].gone:
            assert plant.logs.bytes.get((str(KEY), "stdout.0")) == b"last words\n"

    plant.checks.append(in_order)
    job = await plant.until_phase(job_id, Phase.COMPLETED)
    assert job.attempts[0].tasks[0].gone


async def test_a_full_disk_holds_up_the_end_for_a_while_and_not_for_ever(tmp_path: Path) -> None:
    plant = Plant()
    plant.behaviours["j-0001/1/worker/0"] = fake.Behaviour(at_barrier=True, abandons_s=3.0)
    job_id = await plant.submit("{max_restarts: 0}")
    plant.world.leftovers[KEY] = [leftover(tmp_path / "out", "stdout.0", b"last words\n")]
    plant.logs.full = True
    await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.run_for(5)
    assert not (await plant.job(job_id)).attempts[0].tasks[0].gone, "it is tried again"
    await plant.until_phase(job_id, Phase.COMPLETED, within_s=60.0)
    assert any("disk is full" in error for _, error in plant.server.reports)


async def test_one_task_whose_words_are_delivered_does_not_end_those_of_another(tmp_path: Path) -> None:
    plant = Plant()
    for worker in (0, 1):
        plant.behaviours[f"j-0001/1/worker/{worker}"] = fake.Behaviour(at_barrier=True, abandons_s=3.0)
    job_id = await plant.submit("{max_restarts: 0, roles: {worker: {count: 2}}}")
    plant.world.leftovers[KEY] = [leftover(tmp_path / "out", "stdout.0", b"last words\n")]  # worker-1 left nothing
    plant.logs.full = True
    await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.run_for(5)
    assert not any(task.gone for task in (await plant.job(job_id)).attempts[0].tasks)
    plant.logs.full = False
    await plant.until_phase(job_id, Phase.COMPLETED)
    assert plant.logs.bytes[str(KEY), "stdout.0"] == b"last words\n"
