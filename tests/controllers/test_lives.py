"""Whole lives of jobs under the real controllers, in virtual time."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from tests.controllers.plant import Phase, Plant, Server, machine

from oarlock.backends import fake
from oarlock.controllers.scheduling import planningrounds
from oarlock.scheduler import planning
from oarlock.spec import attempts, events, holdings, phases, plans, refusals, roles

RUNS = fake.Behaviour(at_barrier=True, lingers=True)
SUCCEEDS = fake.Behaviour(runs_s=5.0, at_barrier=True, lingers=True)
KILLED = fake.Behaviour(runs_s=5.0, signal=9, at_barrier=True, lingers=True, last_lines=("ValueError: no", "exit"))
FAILS = fake.Behaviour(runs_s=5.0, code=3, at_barrier=True, lingers=True, last_lines=("ValueError: no", "exit"))
DEAF = fake.Behaviour(at_barrier=True, lingers=True, stops_s=math.inf)


@pytest.fixture
def plant() -> Plant:
    return Plant()


async def kinds(plant: Plant, job_id: str) -> list[str]:
    records = await plant.store.read(lambda view: view.records(0, job=job_id))
    return [record.kind for record in records]


async def test_a_job_from_the_queue_to_its_end(plant: Plant) -> None:
    job_id = await plant.submit("{roles: {worker: {count: 2, cpus: 2}}}")
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    held = await plant.store.read(lambda view: view.holdings(job_id))
    assert [claim.amount.cpus_milli for claim in held] == [2000, 2000]
    assert len({port for claim in held for port in claim.ports}) == sum(len(claim.ports) for claim in held) > 0
    assert [task.ports for task in job.live.tasks] == [claim.ports for claim in held]

    job = await plant.until_phase(job_id, Phase.COMPLETED)
    await plant.until_rest()
    assert job.exit_code == 0
    usage = await plant.store.read(lambda view: view.usage())
    assert [(one.owner, one.pool) for one in usage] == [("alice", "default")]
    assert usage[0].cpu_seconds == pytest.approx(4 * (job.ended_at - job.attempts[0].started_at))
    told = await kinds(plant, job_id)
    assert told[0] == "submitted"
    assert told.count("admitted") == told.count("launched") == told.count("released") == 1


async def test_a_backend_with_containers_is_told_image_and_volumes(plant: Plant) -> None:
    text = "{image: reg/train:1, framework: jax, volumes: [{claim: data, mount: /data}]}"
    job_id = await plant.submit(text)
    await plant.until_phase(job_id, Phase.PROCESSING)
    (made,) = plant.world.launches()
    told = made.container
    assert (told.image, told.framework, told.job_name) == ("reg/train:1", roles.Framework.JAX, job_id)
    assert [(volume.claim, volume.mount) for volume in told.volumes] == [("data", "/data")]


async def test_a_job_that_is_killed_restarts_and_then_fails_and_names_the_task(plant: Plant) -> None:
    plant.behaviours["j-0001/worker/1"] = KILLED
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit("{roles: {worker: {count: 2}}, max_restarts: 2, grace: 1s}")
    job = await plant.until_phase(job_id, Phase.FAILED)
    await plant.until_rest()
    assert [attempt.verdict.task for attempt in job.attempts] == ["worker-1"] * 3
    assert job.attempt.verdict.last_lines == ("ValueError: no", "exit")
    assert (job.exit_code, job.restarts) == (137, 2)


async def test_the_survivors_of_a_killed_rank_are_told_to_stop_before_the_verdict(plant: Plant) -> None:
    """They have their grace while blame is settled. Once they have ended, the verdict waits for nothing."""
    plant.behaviours["j-0001/1/worker/1"] = KILLED
    plant.behaviours["j-0001"] = fake.Behaviour(at_barrier=True, lingers=True, stops_s=0.5)
    job_id = await plant.submit("{roles: {worker: {count: 2}}}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    job = await plant.until_phase(job_id, Phase.QUEUED)
    told = [kind for kind in await kinds(plant, job_id) if kind in {"task_exited", "stop_decided"}]
    assert told == ["task_exited", "task_exited", "stop_decided"]
    assert job.attempts[0].aborted_at == job.attempts[0].failing_since
    verdict = job.attempts[0].verdict
    assert (verdict.task, verdict.cause, job.restarts) == ("worker-1", attempts.Cause.SIGNAL, 1)


async def test_a_job_that_fails_by_itself_at_the_start_is_not_started_again(plant: Plant) -> None:
    plant.behaviours["j-0001"] = FAILS
    job_id = await plant.submit()
    job = await plant.until_phase(job_id, Phase.FAILED)
    assert (len(job.attempts), job.exit_code, job.restarts) == (1, 3, 0)
    assert job.attempt.no_restart == "it failed before it had made any progress"


async def test_halt_resume_and_cancel(plant: Plant) -> None:
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit()
    await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.intend(job_id, "halt")
    job = await plant.until_phase(job_id, Phase.HALTED)
    assert await plant.store.read(lambda view: view.holdings()) == []
    await plant.run_for(30)
    assert (await plant.job(job_id)).phase is Phase.HALTED

    await plant.intend(job_id, "run")
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    assert job.live.number == 2
    await plant.intend(job_id, "cancel")
    job = await plant.until_phase(job_id, Phase.CANCELED)
    await plant.until_rest()
    assert job.exit_code == 130


async def test_a_task_that_does_not_listen_is_killed_within_ten_seconds_after_the_grace(plant: Plant) -> None:
    plant.behaviours["j-0001"] = DEAF
    job_id = await plant.submit("{grace: 3s}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    asked_at = plant.now
    await plant.intend(job_id, "cancel")
    await plant.until_phase(job_id, Phase.CANCELED, within_s=13.0)
    assert plant.now - asked_at >= 3.0, "the grace was kept"


async def test_a_launch_that_fails_leaves_nothing_and_is_tried_again(plant: Plant) -> None:
    plant.behaviours["j-0001/1/worker/1"] = fake.Behaviour(unlaunchable="no such image")
    job_id = await plant.submit("{roles: {worker: {count: 3}}}")
    job = await plant.until_phase(job_id, Phase.COMPLETED)
    await plant.until_rest()
    first = job.attempts[0].verdict
    assert (first.cause, first.message) == (attempts.Cause.PLATFORM, "the launch failed: no such image")
    assert (len(job.attempts), job.restarts) == (2, 0)


async def test_a_task_that_is_killed_from_outside_is_noticed_within_five_seconds(plant: Plant) -> None:
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit("{roles: {worker: {count: 2}}, grace: 1s}")
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    plant.world.kill(job.live.tasks[1].key(job_id, 1))
    killed_at = plant.now
    while (await plant.job(job_id)).attempts[0].stop is None:
        await plant.step()
    assert plant.now - killed_at <= 5.0
    job = await plant.until_phase(job_id, Phase.QUEUED)
    assert (job.attempts[0].verdict.task, job.restarts) == ("worker-1", 0)


async def test_a_task_that_may_is_restarted_in_place(plant: Plant) -> None:
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit("{framework: plain, roles: {worker: {count: 2, on_failure: restart}}}")
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.run_for(1)
    plant.world.end(job.live.tasks[0].key(job_id, 1), code=3)
    await plant.until_phase(job_id, Phase.PROCESSING)
    for _ in range(20):
        await plant.step()
    job = await plant.job(job_id)
    assert [(task.incarnation, str(task.phase)) for task in job.live.tasks] == [(2, "PROCESSING"), (1, "PROCESSING")]
    assert (job.live.number, job.live.round, job.restarts) == (1, 2, 1)
    await plant.intend(job_id, "cancel")
    await plant.until_rest()


async def test_a_hang_is_noticed_and_every_rank_shows_its_stack(plant: Plant) -> None:
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit("{roles: {worker: {count: 2}}, hang_timeout: 20s, max_restarts: 0, grace: 1s}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.run_for(5)
    await plant.tell(
        job_id, events.TaskReported(key=attempts.TaskKey(job_id, 1, "worker", 1, 1), phase="PROCESSING", idle_s=20.5)
    )
    job = await plant.until_phase(job_id, Phase.FAILED, within_s=10.0)
    assert (job.attempt.verdict.cause, job.attempt.verdict.task) == (attempts.Cause.HANG, "worker-1")
    assert {taken.task for taken in job.attempt.stacks} == {"worker-0", "worker-1"}


async def test_a_failure_is_frozen_for_a_look_and_halt_ends_that(plant: Plant) -> None:
    plant.behaviours["j-0001"] = FAILS
    job_id = await plant.submit("{freeze: 10m, max_restarts: 0}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.run_for(60)
    assert (await plant.job(job_id)).phase is Phase.PROCESSING
    assert len(await plant.store.read(lambda view: view.holdings(job_id))) == 1
    await plant.intend(job_id, "halt")
    assert (await plant.until_phase(job_id, Phase.FAILED, within_s=5.0)).exit_code == 3


async def test_a_gang_that_does_not_fit_is_refused_with_numbers_once(plant: Plant) -> None:
    plant.behaviours["j-0001"] = RUNS
    first = await plant.submit("{roles: {worker: {count: 2, cpus: 8}}}")
    await plant.until_phase(first, Phase.PROCESSING)
    second = await plant.submit("{roles: {worker: {cpus: 8}}}")
    await plant.run_for(60)
    job = await plant.job(second)
    assert job.refusal.code is refusals.Code.NO_CAPACITY
    assert job.refusal.needed["cpus"] == 8
    assert (await kinds(plant, second)).count("refused") == 1
    await plant.intend(first, "cancel")
    await plant.until_phase(second, Phase.COMPLETED)


async def test_a_refusal_that_only_counts_down_is_written_now_and_then(plant: Plant) -> None:
    calls = []

    def counting(snapshot: plans.Snapshot, now: float, memo: object) -> plans.Plan:
        calls.append(now)
        refusal = refusals.Refusal(
            code=refusals.Code.NO_CAPACITY, message=f"{len(calls)}", free={"cpus": 1.0 * len(calls)}
        )
        return plans.Plan(refusals={gang.job: refusal for gang in snapshot.waiting})

    plant.server = Server(plant, "server-1", plan=counting)
    job_id = await plant.submit()
    await plant.run_for(100)
    assert len(calls) >= 20, "plans were made"
    assert (await kinds(plant, job_id)).count("refused") == 4


async def test_a_kill_that_was_lost_is_asked_again(plant: Plant) -> None:
    plant.behaviours["j-0001"] = DEAF
    job_id = await plant.submit("{grace: 0s}")
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    asked = []
    backend = plant.server.guardian._backend
    kill = backend.kill

    async def unreliable(keys):
        asked.append(plant.now)
        if len(asked) == 1:
            raise OSError("the platform does not answer")
        if len(asked) > 3:
            await kill(keys)

    backend.kill = unreliable
    plant.mute.add(job.live.tasks[0].key(job_id, 1))
    await plant.intend(job_id, "cancel")
    await plant.until_phase(job_id, Phase.CANCELED, within_s=30.0)
    assert len(asked) == 4
    assert min(later - earlier for earlier, later in itertools.pairwise(asked)) >= 0.5
    assert (job_id, "the platform does not answer") in plant.server.reports


async def test_a_long_queue_is_planned_by_its_head_and_now_and_then_as_a_whole(plant: Plant) -> None:
    sizes = []

    def watching(snapshot: plans.Snapshot, now: float, memo: object) -> plans.Plan:
        sizes.append(len(snapshot.waiting))
        return planning.plan(snapshot, now)

    plant.server = Server(plant, "server-1", plan=watching)
    for index in range(300):
        job_id = await plant.submit("{roles: {worker: {cpus: 2}}}")
        plant.behaviours[job_id] = fake.Behaviour(runs_s=0.5 + index % 7 * 0.3, at_barrier=True, lingers=True)
    await plant.until_rest(within_s=600.0)
    assert set((await plant.phases()).values()) == {Phase.COMPLETED}
    assert sizes.count(planningrounds.HEAD) > sum(size > planningrounds.HEAD for size in sizes) > 5


async def test_the_next_whole_plan_finds_a_gang_that_a_short_plan_overlooks(plant: Plant) -> None:
    """Those in front wait for something that no node has; the last one fits."""
    for _ in range(planningrounds.HEAD + 10):
        await plant.submit("{roles: {worker: {cpus: 4000}}}")
    small = await plant.submit()
    await plant.until_phase(small, Phase.COMPLETED, within_s=30.0)


async def test_the_first_job_does_not_wait_long_for_the_first_node(plant: Plant) -> None:
    """The first `oarlock run` starts the server and submits at once: it may be there before the nodes are."""
    job_id = await plant.submit()
    await plant.server.leading.tick()
    await plant.server.scheduling.tick()
    assert (await plant.job(job_id)).refusal.code is refusals.Code.NO_NODES
    await plant.until_phase(job_id, Phase.PROCESSING, within_s=2.0)


async def test_a_job_goes_where_its_volume_is() -> None:
    lacks = msgspec.structs.replace(machine("n0"), lacks=("disk",))
    plant = Plant(machines=[lacks, machine("n1")])
    job_id = await plant.submit("{volumes: [{claim: disk, mount: /d}], roles: {worker: {count: 1, cpus: 1}}}")
    await plant.until_phase(job_id, Phase.PROCESSING, within_s=20.0)
    held = await plant.store.read(lambda view: view.holdings(job_id))
    assert [one.node for one in held] == ["n1"]


async def test_a_lost_node_keeps_its_holdings_until_it_is_declared_gone() -> None:
    plant = Plant(machines=[machine("n0", devices=1)])
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit("{roles: {worker: {gpus: 1}}}")
    waiting = await plant.submit("{roles: {worker: {gpus: 1}}}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    plant.world.lose("n0")
    await plant.intend(job_id, "cancel")
    await plant.run_for(120)
    assert (await plant.job(job_id)).phase is Phase.PROCESSING
    assert len(await plant.store.read(lambda view: view.holdings(job_id))) == 1
    assert [node.ready for node in await plant.store.read(lambda view: view.nodes())] == [False]

    plant.world.remove("n0")
    plant.world.add(machine("n1", devices=1))
    await plant.until_phase(job_id, Phase.CANCELED, within_s=60.0)
    await plant.until_phase(waiting, Phase.COMPLETED)
    assert [node.name for node in await plant.store.read(lambda view: view.nodes())] == ["n1"]


async def test_a_hundred_jobs_share_the_cluster(plant: Plant) -> None:
    ids = [await plant.submit("{roles: {worker: {cpus: 2}}}") for _ in range(100)]
    await plant.until_rest(within_s=300.0)
    assert set((await plant.phases()).values()) == {Phase.COMPLETED}
    assert len(ids) == len(plant.world.starts) == 100


async def test_jobs_that_are_nobodys_are_ended(plant: Plant) -> None:
    """A backend may know tasks of a job that was removed."""
    plant.behaviours["j-gone"] = RUNS
    job_id = await plant.submit(name="j-gone")
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.intend(job_id, "cancel")
    plant.checks.clear()
    key = job.live.tasks[0].key(job_id, 1)
    plant.mute.add(key)

    def remove(tx):
        held = tx.release(job_id, 1)
        assert held
        tx._jobs.drop(job_id)
        tx._active.drop(job_id)

    await plant.store.write(remove)
    await plant.until(lambda now: not plant.world.known(), within_s=10.0)


async def test_preemption_is_recorded_and_the_job_waits_again() -> None:

    plant = Plant()
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit("{grace: 1s}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    asked = []

    def preempting(snapshot: plans.Snapshot, now: float, memo: object) -> plans.Plan:
        if snapshot.running and not asked:
            asked.append(now)
            return plans.Plan(preemptions=(plans.Preemption(job=job_id, reason="room for digits"),))
        return planning.plan(snapshot, now)

    await plant.server.leading.resign()
    plant.server = Server(plant, "server-2", plan=preempting)
    job = await plant.until_phase(job_id, Phase.QUEUED, Phase.DEPLOYING)
    assert job.attempts[0].verdict.message == "preempted by scheduler: room for digits"
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    assert (job.live.number, job.restarts) == (2, 0)


async def test_a_claim_that_another_gang_made_meanwhile_stops_one_launch_alone(plant: Plant) -> None:

    def greedy(snapshot: plans.Snapshot, now: float, memo: object) -> plans.Plan:
        """Forgets the holdings: both gangs get the first place."""
        bare = [planning.plan(plans.Snapshot(nodes=snapshot.nodes, waiting=(gang,)), now) for gang in snapshot.waiting]
        return plans.Plan(launches=tuple(launch for one in bare for launch in one.launches))

    plant.server = Server(plant, "server-1", plan=greedy)
    first, second = await plant.submit(), await plant.submit()
    await plant.until_phase(first, Phase.PROCESSING)
    assert (await plant.job(second)).phase is Phase.QUEUED
    assert any(what == second for what, _ in plant.server.reports)
    await plant.until_rest()
    assert {(await plant.job(one)).phase for one in (first, second)} == {Phase.COMPLETED}


async def test_nodes_are_written_once_and_again_when_they_change(plant: Plant) -> None:
    await plant.run_for(30)
    versions = {node.name: node.version for node in await plant.store.read(lambda view: view.nodes())}
    assert set(versions.values()) == {1}
    plant.world.add(machine("n0", cpus=16))
    await plant.run_for(15)
    listed = {node.name: node for node in await plant.store.read(lambda view: view.nodes())}
    assert (listed["n0"].capacity, listed["n0"].version) == (holdings.Resources(16_000, 1 << 36, 0), 2)
    assert listed["n1"].version == 1


async def test_phases_only_go_where_they_may(plant: Plant) -> None:
    plant.behaviours["j-0001"] = KILLED
    job_id = await plant.submit("{max_restarts: 1}")
    await plant.until_rest()
    records = await plant.store.read(lambda view: view.records(0, job=job_id))
    moves = [(record.data["from"], record.data["to"]) for record in records if record.kind == "phase"]
    assert len(moves) >= 5
    for before, after in moves:
        assert phases.Phase(after) in phases.ALLOWED[phases.Phase(before)]
    assert [record.version for record in records] == sorted(record.version for record in records)
