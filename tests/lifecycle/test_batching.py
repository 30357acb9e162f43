"""The whole gang's batch is at least the job file's `batch.size`, under every policy and at every number of workers."""

from __future__ import annotations

import math

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import batching, orders
from oarlock.spec import attempts, curves, jobfile
from oarlock.spec.protocol import assignments

ELASTIC = "worker: {count: 3, min: 1, max: 8, nproc: %d, on_failure: restart}"


def trains(batch: str, workers: int, nproc: int = 1, admitted: str = "") -> script.Play:
    """An elastic job of so many workers, all in training."""
    play = script.Play()
    play.run(f"job {{batch: {batch}, roles: {{{ELASTIC % nproc}}}}}")
    names = [f"worker-{index}" for index in range(workers)]
    for line in (f"admit worker={workers} {admitted}", "launched", f"register {' '.join(names)}"):
        play.run(line)
    for name in names:
        play.run(f"report {name} PROCESSING rejoin")
    return play


def whole(play: script.Play) -> tuple[int, curves.Batch]:
    found = batching.told(play.job, play.live)
    assert found is not None
    members = len(play.live.members)
    nproc = next(iter(play.job.spec.roles.values())).nproc
    return found.local * found.accumulate * members * nproc, found


@pytest.mark.parametrize("batch", ["{size: 64}", "{size: 100, max: 400, local_max: 8}", "{size: 7, local_min: 4}"])
@pytest.mark.parametrize("nproc", [1, 3])
@pytest.mark.parametrize("workers", range(1, 9))
def test_without_a_decision_the_batch_is_the_least_that_keeps_the_size(workers: int, nproc: int, batch: str) -> None:
    play = trains(batch, workers, nproc)
    asked = play.job.spec.batch
    assert asked is not None
    total, found = whole(play)
    bounds = asked.on("")
    assert total >= asked.size
    assert bounds.local_min <= found.local <= (bounds.local_max or asked.size)
    least = (found.local - 1) * found.accumulate * workers * nproc
    assert least < asked.size or found.local == bounds.local_min
    assert found.accumulate == math.ceil(asked.size / (workers * nproc * (bounds.local_max or asked.size)))


def test_a_decision_holds_while_the_size_is_kept() -> None:
    """The gang shrinks and grows within the attempt. The agents hear of the batch with each round."""
    play = trains("{size: 64, max: 256}", 4, admitted="batch=32x2")
    key = attempts.TaskKey(play.job.id, 1, "worker", 0, 1)
    seen = []
    for size in (2, 1, 0, 3):
        if size:
            play.run(f"reshape worker={size}")
        else:
            play.run("batch 8")
        seen.append(orders.orders(play.job, key, play.now).batch)
    assert seen == [
        assignments.Batch(32, 2),
        assignments.Batch(32, 2),
        assignments.Batch(64, 1),
        assignments.Batch(64, 1),
    ]


def test_the_bound_of_the_only_type_of_gpu_counts() -> None:
    play = trains("{size: 64, local_max: {t4: 8, a100: 32}}", 2)
    on = {
        types: batching.told(play.job, msgspec.structs.replace(play.live, gpu_types=types))
        for types in ((), ("a100",), ("a100", "t4"))
    }
    assert on == {(): curves.Batch(8, 4), ("a100",): curves.Batch(32), ("a100", "t4"): curves.Batch(8, 4)}


def test_a_job_without_a_size_is_left_to_its_script() -> None:
    play = trains("null", 2)
    assert play.job.spec.batch is None
    assert batching.told(play.job, play.live) is None
    assert jobfile.JobSpec(command="true").batch is None


def test_a_gang_of_a_fixed_size_keeps_its_batch_while_its_workers_wait_for_a_successor() -> None:
    """They make no step without it, and then as many train as before."""
    play = script.Play()
    play.run("job {batch: {size: 64}, roles: {worker: {count: 4, on_failure: restart}}}")
    names = [f"worker-{index}" for index in range(4)]
    for line in (
        "admit",
        "launched",
        f"register {' '.join(names)}",
        *(f"report {one} PROCESSING rejoin" for one in names),
    ):
        play.run(line)
    before = batching.told(play.job, play.live)
    play.run("exit worker-3 signal=9")
    assert len(play.live.members) == 3
    assert batching.told(play.job, play.live) == before == curves.Batch(16, 1)
