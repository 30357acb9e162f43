"""The barrier of an attempt that goes on: a task that is to join passes it once it stands there."""

from __future__ import annotations

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import joining, reshaping, stepping
from oarlock.spec import attempts, events, holdings, phases

replace = msgspec.structs.replace


def attempt(part: attempts.Part, phase: phases.TaskPhase) -> attempts.Attempt:
    """Two workers: one trains, the other is in this phase and has passed no barrier."""
    play = script.Play()
    for line in ("job {roles: {worker: {count: 2}}}", "admit", "launched", "register worker-0 worker-1"):
        play.run(line)
    trains, other = play.live.tasks
    return msgspec.structs.replace(
        play.live, tasks=(trains, msgspec.structs.replace(other, part=part, phase=phase, round=0))
    )


@pytest.mark.parametrize("phase", phases.TaskPhase)
def test_a_task_that_is_to_join_passes_the_barrier_when_it_stands_there(phase: phases.TaskPhase) -> None:
    live = attempt(attempts.Part.JOINING, phase)
    admitted = joining.admit(live)
    if phase is phases.TaskPhase.REGISTERED:
        assert [task.round for task in admitted.tasks] == [live.round, live.round]
    else:
        assert admitted is live


@pytest.mark.parametrize("part", [part for part in attempts.Part if part is not attempts.Part.JOINING])
def test_no_other_task_passes_it_alone(part: attempts.Part) -> None:
    live = attempt(part, phases.TaskPhase.REGISTERED)
    assert joining.admit(live) is live


def test_nothing_joins_an_attempt_that_stops() -> None:
    live = msgspec.structs.replace(
        attempt(attempts.Part.JOINING, phases.TaskPhase.REGISTERED), stop=attempts.Cause.STOPPED
    )
    assert joining.admit(live) is live


def test_a_worker_more_has_a_place_of_its_own_beside_tasks_without_devices() -> None:
    play = script.Play()
    play.run("job {strategy: {kind: ps, sync: false}, roles: {worker: {count: 2, min: 1}, ps: {count: 1}}}")
    for line in ("admit worker=1", "launched", "register worker-0 ps-0", "report worker-0 PROCESSING rejoin"):
        play.run(line)
    gpu, cpu = holdings.Resources(1000, gpus=1), holdings.Resources(1000)
    server = holdings.Holding(job="j", attempt=1, role="ps", index=0, node="n0", amount=cpu, ports=(20001,))
    workers = [
        replace(server, role="worker", index=index, amount=gpu, devices=(index,), ports=(20000 + index,))
        for index in range(2)
    ]
    change = reshaping.change(play.job, [workers[0], server], [*workers, replace(server, ports=(20002,))])
    assert change is not None
    assert [(one.task, one.devices, one.ports) for one in change.added] == [("worker-1", (1,), (20002,))]


@pytest.mark.parametrize(
    ("amount", "devices", "added"),
    [
        (holdings.Resources(1000, gpus=1), ((0,), (1,), (2,)), (2,)),
        (holdings.Resources(1000, gpu_milli=300), ((0,), (0,), (0,)), (0,)),
    ],
    ids=["whole devices", "shares of one device"],
)
def test_a_worker_more_has_the_place_that_no_other_holds(
    amount: holdings.Resources, devices: tuple[tuple[int], ...], added: tuple[int]
) -> None:
    play = script.Play()
    play.run("job {roles: {worker: {count: 2, min: 1, max: 4, on_failure: restart}}}")
    for line in ("admit", "launched", "register worker-0 worker-1"):
        play.run(line)
    for line in ("report worker-0 PROCESSING rejoin", "report worker-1 PROCESSING rejoin"):
        play.run(line)
    to = [
        holdings.Holding(
            job="j", attempt=1, role="worker", index=index, node="n0", amount=amount, devices=of, ports=(20000 + index,)
        )
        for index, of in enumerate(devices)
    ]
    change = reshaping.change(play.job, to[:2], to)
    assert change is not None
    (claim,) = change.added
    assert (claim.node, claim.devices, claim.ports) == ("n0", added, (20002,))
    grown = events.Reshaped(attempt=1, round=play.live.round, added=change.added, held=amount)
    play.job = stepping.step(play.job, grown, play.now)
    task = play.live.tasks[2]
    assert (task.name, task.node, task.devices, task.ports) == ("worker-2", "n0", added, (20002,))
