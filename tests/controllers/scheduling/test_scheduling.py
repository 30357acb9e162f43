"""Plans carried out: preemptions, resizes, moves and batch sizes; and the snapshot that the scheduler gets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from tests.controllers import test_kills
from tests.controllers.plant import Killed, Phase, Plant, Server, machine
from tests.lifecycle import script

from oarlock.backends import fake
from oarlock.controllers.scheduling import candidates
from oarlock.scheduler import planning
from oarlock.scheduler.reuse import memos
from oarlock.spec import attempts, curves, events, holdings, intents, jobs, plans, refusals
from oarlock.spec.cluster import pools
from oarlock.spec.process import failpoints

LONG = fake.Behaviour(at_barrier=True, lingers=True)
RULES = plans.Rules(policy="priority", round_s=10.0, min_runtime_s=20.0)
STOPS = ("scheduling.after_launches", "scheduling.after_stops", "guardian.before_release", "guardian.after_release")

Decide = Callable[[plans.Snapshot], plans.Plan | None]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    for name in failpoints.NAMES:
        failpoints.disarm(name)


class Planner:
    """The real one, until `decide` has something else to say. Keeps the snapshots that it was shown."""

    def __init__(self, decide: Decide = lambda snapshot: None) -> None:
        self.decide = decide
        self.shown: list[tuple[float, plans.Snapshot]] = []
        self.memos: list[object] = []

    def __call__(self, snapshot: plans.Snapshot, now: float, memo: memos.Memo) -> plans.Plan:
        self.shown.append((now, snapshot))
        self.memos.append(memo)
        return self.decide(snapshot) or planning.plan(snapshot, now, memo)

    @property
    def touching(self) -> list[float]:
        return [now for now, snapshot in self.shown if snapshot.reallocate]


def planted(planner: Planner, *, machines: Sequence[str] = ("n0",), devices: int = 2) -> Plant:
    plant = Plant(machines=[machine(name, devices=devices) for name in machines])
    plant.server = Server(plant, "server-1", plan=planner, rules=RULES)
    return plant


def once(decide: Decide) -> Decide:
    """Return the first answer of `decide`, and nothing after it."""
    said: list[plans.Plan] = []

    def first(snapshot: plans.Snapshot) -> plans.Plan | None:
        if said or (plan := decide(snapshot)) is None:
            return None
        said.append(plan)
        return plan

    return first


def claims(gang: plans.Gang, node: str, *indexes: int) -> tuple[holdings.Holding, ...]:
    """A place for each worker, with one device of `node`."""
    return tuple(
        holdings.Holding(
            job=gang.job,
            attempt=0,
            role="worker",
            index=place,
            node=node,
            amount=gang.asks[0].amount,
            devices=(index,),
            ports=tuple(range(20_100 + 10 * place, 20_104 + 10 * place)),
        )
        for place, index in enumerate(indexes)
    )


async def kinds(plant: Plant, job_id: str, *wanted: str) -> list[dict[str, object]]:
    records = await plant.store.read(lambda view: view.records(0, job=job_id))
    return [record.data for record in records if record.kind in wanted]


async def checkpoint(plant: Plant, job_id: str, step: int) -> None:
    number = (await plant.job(job_id)).live.number
    await plant.tell(job_id, events.CheckpointVisible(checkpoint_step=step, attempt=number, path=f"step-{step}"))


# For others


async def test_a_job_of_higher_priority_takes_the_place_and_the_first_goes_on_later() -> None:
    planner = Planner()
    plant = planted(planner)
    plant.behaviours |= {"j-low": LONG, "j-high": fake.Behaviour(runs_s=30.0, at_barrier=True, lingers=True)}
    await plant.submit("{priority: 10, grace: 1s, max_restarts: 0, roles: {worker: {count: 2, gpus: 1}}}", name="j-low")
    await plant.until_phase("j-low", Phase.PROCESSING)
    await plant.run_for(5)
    await checkpoint(plant, "j-low", 7)
    await plant.submit("{priority: 90, roles: {worker: {count: 2, gpus: 1}}}", name="j-high")
    await plant.run_for(10)
    assert (await plant.job("j-low")).phase is Phase.PROCESSING, "it has not run for the least time yet"
    assert (await plant.job("j-high")).refusal is not None

    low = await plant.until_phase("j-low", Phase.QUEUED, within_s=30.0)
    assert low.reason.startswith("preempted by j-high"), low.reason
    assert (low.intent, low.restarts, low.stopped_at) == (intents.Intent.RUN, 0, plant.now)
    ran_s = plant.now - low.attempts[0].started_at
    assert low.served_s == pytest.approx(2 * ran_s), "device-seconds"
    high = await plant.until_phase("j-high", Phase.PROCESSING, within_s=5.0)
    assert high.live.started_at - low.stopped_at <= 2.0

    await plant.until_phase("j-high", Phase.COMPLETED)
    low = await plant.until_phase("j-low", Phase.PROCESSING)
    assert (low.live.number, low.live.offered_step, low.restarts) == (2, 7, 0)
    assert [data["intent"] for data in await kinds(plant, "j-low", "intended")] == ["preempt"]


async def test_a_gang_that_must_not_be_preempted_is_not() -> None:
    plant = planted(Planner())
    plant.behaviours |= {"j-low": fake.Behaviour(runs_s=90.0, at_barrier=True, lingers=True)}
    await plant.submit("{priority: 10, preemptible: false, roles: {worker: {count: 2, gpus: 1}}}", name="j-low")
    await plant.until_phase("j-low", Phase.PROCESSING)
    await plant.submit("{priority: 90, roles: {worker: {count: 2, gpus: 1}}}", name="j-high")
    low = await plant.until_phase("j-low", Phase.COMPLETED, within_s=150.0)
    assert low.attempt.number == 1
    await plant.until_phase("j-high", Phase.COMPLETED)


async def test_a_preemption_that_its_owner_overtakes_is_a_halt() -> None:
    plant = planted(Planner(once(lambda snapshot: _preempt(snapshot, "j-low"))))
    plant.behaviours |= {"j-low": fake.Behaviour(at_barrier=True, lingers=True, stops_s=3.0)}
    await plant.submit("{grace: 5s}", name="j-low")
    await plant.until(lambda now: plant.store._state.job("j-low").intent is intents.Intent.PREEMPT)
    await plant.intend("j-low", "halt")
    low = await plant.until_phase("j-low", Phase.HALTED)
    assert low.reason == "halted by alice"
    await plant.until_rest()


def _preempt(snapshot: plans.Snapshot, job_id: str) -> plans.Plan | None:
    if not any(one.job == job_id for one in snapshot.running):
        return None
    return plans.Plan(preemptions=(plans.Preemption(job=job_id, reason="240 s are lost", by="j-nobody"),))


# Shares


async def test_two_share_a_device_and_the_third_waits_for_its_share() -> None:
    plant = planted(Planner(), devices=1)
    quick = fake.Behaviour(runs_s=20.0, at_barrier=True, lingers=True)
    plant.behaviours |= dict.fromkeys(("j-a", "j-b", "j-c", "j-whole"), quick)
    for name in ("j-a", "j-b", "j-c"):
        await plant.submit("{roles: {worker: {gpus: 0.4}}}", name=name)
    await plant.submit("{roles: {worker: {gpus: 1}}}", name="j-whole")
    await plant.until(lambda now: [now["j-a"], now["j-b"]] == [Phase.PROCESSING] * 2)
    held = await plant.store.read(lambda view: view.holdings())
    assert [(claim.devices, claim.amount.gpu_milli) for claim in held] == [((0,), 400)] * 2
    await plant.run_for(5)
    assert {(await plant.job(name)).phase for name in ("j-c", "j-whole")} == {Phase.QUEUED}
    await plant.until_phase("j-c", Phase.PROCESSING)
    ended = await plant.until_phase("j-a", Phase.COMPLETED)
    ran_s = ended.ended_at - ended.attempt.started_at
    assert ended.served_s == pytest.approx(0.4 * ran_s)
    await plant.until_rest()
    used = await plant.store.read(lambda view: view.usage())
    assert sum(one.device_seconds for one in used) == pytest.approx(
        sum([(await plant.job(name)).served_s for name in ("j-a", "j-b", "j-c", "j-whole")])
    )
    attempts = await plant.store.read(lambda view: view.attempts_used(since=0.0, until=1e12))
    assert {one.gpu_type for one in attempts} == {"h100"}
    assert all(0.0 < one.useful_seconds < one.device_seconds for one in attempts), "all but launch and storing"


# Another size, another place


async def test_a_resize_is_a_restart_at_the_new_size_and_place() -> None:
    def grow(snapshot: plans.Snapshot) -> plans.Plan | None:
        if [one.job for one in snapshot.running] != ["j-0001"] or not snapshot.reallocate:
            return None
        (job,) = snapshot.running
        to = claims(job.gang, "n0", 1, 0)
        return plans.Plan(resizes=(plans.Resize(job=job.job, size=(2,), to=to, reason="2 GPUs are idle"),))

    planner = Planner(once(grow))
    plant = planted(planner)
    plant.behaviours |= {"j-0001": LONG, "j-first": fake.Behaviour(runs_s=15.0, at_barrier=True, lingers=True)}
    await plant.submit("{roles: {worker: {gpus: 1}}, priority: 99}", name="j-first")
    await plant.until_phase("j-first", Phase.PROCESSING)
    job_id = await plant.submit(
        "{grace: 1s, max_restarts: 0, roles: {worker: {count: 2, min: 1, gpus: 1}}}", name="j-0001"
    )
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    assert len(job.live.tasks) == 1
    await plant.until_phase("j-first", Phase.COMPLETED)
    job = await plant.until_phase(job_id, Phase.QUEUED)
    assert job.reason == "resized from 1 to 2 workers: 2 GPUs are idle"
    assert [one.devices for one in job.destined] == [(1,), (0,)]
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    assert [task.devices for task in job.live.tasks] == [(1,), (0,)], "it went where it was to go"
    assert (job.live.number, job.restarts, job.destined) == (2, 0, ())
    seen = next(snapshot for now, snapshot in planner.shown if any(gang.destined for gang in snapshot.waiting))
    assert seen.waiting[0].stopped_at is not None


ELASTIC = "{{grace: 5s, roles: {{worker: {{count: {count}, min: 1, max: 4, gpus: 1, on_failure: restart}}}}}}"


def sizes(*plans_of: tuple[str, int]) -> Decide:
    """Give each job the next size, in turn, once it has that before, as the scheduler does: all of it placed anew."""
    left = list(plans_of)

    def decide(snapshot: plans.Snapshot) -> plans.Plan | None:
        if not left or not snapshot.reallocate:
            return None
        job_id, count = left[0]
        job = next((one for one in snapshot.running if one.job == job_id and not one.starting), None)
        if job is None or len(job.holdings) == count:
            return None
        left.pop(0)
        to = claims(job.gang, "n0", *range(count))
        return plans.Plan(resizes=(plans.Resize(job=job_id, size=(count,), to=to, reason="it is better so"),))

    return decide


async def test_an_elastic_gang_grows_and_shrinks_within_its_attempt() -> None:
    plant = planted(Planner(sizes(("j-0001", 3), ("j-0001", 1), ("j-0001", 2))), devices=4)
    plant.behaviours["j-0001"] = LONG
    await plant.submit(ELASTIC.format(count=2), name="j-0001")
    for count in (2, 3, 1, 2):
        await plant.until(lambda now, count=count: members(plant, "j-0001") == count)
        await plant.until(lambda now, count=count: len(plant.store._state.holdings("j-0001")) == count, within_s=5.0)
        held = await plant.store.read(lambda view: view.holdings("j-0001"))
        job = await plant.job("j-0001")
        assert job.live.held == sum((claim.amount for claim in held), holdings.Resources())
        assert {claim.task for claim in held} == {task.name for task in job.live.tasks if task.holds}
        assert len({claim.devices for claim in held}) == count
    assert (job.live.number, job.restarts, job.live.stop) == (1, 0, None)
    told = await kinds(plant, "j-0001", "reshaped")
    assert [one["reason"] for one in told] == [
        "resized from 2 to 3 workers: it is better so",
        "resized from 3 to 1 worker: it is better so",
        "resized from 1 to 2 workers: it is better so",
    ]
    assert plant.world.starts[attempts.TaskKey("j-0001", 1, "worker", 0, 1)] == 1
    assert attempts.TaskKey("j-0001", 1, "worker", 1, 2) in plant.world.starts, "the index is used again"


async def test_devices_that_a_gang_gives_back_are_free_for_others_and_both_are_counted() -> None:
    plant = planted(Planner(sizes(("j-0001", 1))), devices=2)
    plant.behaviours |= {"j-0001": LONG, "j-next": fake.Behaviour(runs_s=30.0, at_barrier=True, lingers=True)}
    await plant.submit(ELASTIC.format(count=2), name="j-0001")
    await plant.until_phase("j-0001", Phase.PROCESSING)
    await plant.submit("{roles: {worker: {gpus: 1}}}", name="j-next")
    await plant.until_phase("j-next", Phase.PROCESSING)
    assert (await plant.job("j-0001")).live.number == 1
    shrunk_at = (await plant.job("j-0001")).live.held_at
    assert shrunk_at is not None
    await plant.run_for(10)
    await plant.intend("j-0001", "cancel")
    await plant.until_rest()
    job = await plant.job("j-0001")
    (used,) = await plant.store.read(lambda view: view.usage())
    began, ended = job.attempt.started_at, job.attempt.ended_at
    assert job.served_s == pytest.approx(2 * (shrunk_at - began) + (ended - shrunk_at))
    assert used.device_seconds == pytest.approx(job.served_s + (await plant.job("j-next")).served_s)


async def test_a_gang_that_finds_its_place_taken_goes_on_as_it_is() -> None:
    plant = planted(Planner(sizes(("j-0001", 2))), devices=2)
    plant.behaviours |= {"j-0001": LONG, "j-other": LONG}
    await plant.submit(ELASTIC.format(count=1), name="j-0001")
    await plant.submit("{priority: 99, roles: {worker: {gpus: 1}}}", name="j-other")
    await plant.until(lambda now: now["j-0001"] is now["j-other"] is Phase.PROCESSING)
    await plant.run_for(40)
    job = await plant.job("j-0001")
    assert (job.live.number, job.intent, members(plant, "j-0001")) == (1, intents.Intent.RUN, 1)
    assert await kinds(plant, "j-0001", "reshaped", "intended") == []


def members(plant: Plant, job_id: str) -> int:
    job = plant.store._state.job(job_id)
    live = job.live if job is not None else None
    return sum(task.round > 0 for task in live.members) if live is not None else 0


async def test_a_move_is_a_restart_elsewhere() -> None:
    def move(snapshot: plans.Snapshot) -> plans.Plan | None:
        job = next((one for one in snapshot.running if snapshot.reallocate), None)
        if job is None:
            return None
        there = "n1" if job.holdings[0].node == "n0" else "n0"
        return plans.Plan(moves=(plans.Move(job=job.job, to=claims(job.gang, there, 0), reason="it fits one node"),))

    plant = planted(Planner(once(move)), machines=("n0", "n1"))
    plant.behaviours["j-0001"] = LONG
    job_id = await plant.submit("{grace: 1s, roles: {worker: {gpus: 1}}}")
    first = await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.until(lambda now: (plant.store._state.job(job_id).attempt.number) == 2)
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    was, now = first.live.tasks[0].node, job.live.tasks[0].node
    assert was != now
    assert job.attempts[0].verdict.message == f"moved from {was} to {now}: it fits one node"


async def test_a_plan_that_is_no_gang_launches_nothing_and_is_reported() -> None:
    def broken(snapshot: plans.Snapshot) -> plans.Plan | None:
        gang = next(iter(snapshot.waiting), None)
        return plans.Plan(launches=(plans.Launch(job=gang.job, holdings=claims(gang, "n0", 0)),)) if gang else None

    plant = planted(Planner(once(broken)))
    job_id = await plant.submit("{roles: {worker: {count: 2, gpus: 1}}}")
    await plant.until_phase(job_id, Phase.COMPLETED)
    assert any("no gang" in message for _, message in plant.server.reports)


async def test_batch_sizes_are_told_at_the_start_and_while_it_runs() -> None:
    def decide(snapshot: plans.Snapshot) -> plans.Plan | None:
        for gang in snapshot.waiting:
            launch = plans.Launch(
                job=gang.job, holdings=claims(gang, "n0", 0), reason="it is first", batch=curves.Batch(32, 2)
            )
            return plans.Plan(launches=(launch,))
        if snapshot.running and snapshot.running[0].batch == curves.Batch(32, 2) and snapshot.reallocate:
            return plans.Plan(batches={snapshot.running[0].job: curves.Batch(64)})
        return None

    plant = planted(Planner(decide))
    plant.behaviours["j-0001"] = LONG
    job_id = await plant.submit("{batch: {size: 64, max: 256}, roles: {worker: {gpus: 1}}}")
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    assert job.live.batch == curves.Batch(32, 2)
    (admitted,) = await kinds(plant, job_id, "admitted")
    assert (admitted["reason"], admitted["batch"]) == ("it is first", {"local": 32, "accumulate": 2})
    await plant.until(lambda now: plant.store._state.job(job_id).live.batch == curves.Batch(64))
    assert len(await kinds(plant, job_id, "batch_decided")) == 1
    assert (await plant.job(job_id)).attempt.number == 1


# The snapshot of a plan


async def test_the_same_objects_come_again_for_as_long_as_nothing_has_changed() -> None:
    planner = Planner()
    plant = planted(planner)
    plant.behaviours |= dict.fromkeys(("j-0001", "j-0002"), LONG)
    running = await plant.submit("{roles: {worker: {count: 2, gpus: 1}}}")
    await plant.until_phase(running, Phase.PROCESSING)
    waiting = await plant.submit("{roles: {worker: {count: 2, gpus: 1}}}")
    await plant.run_for(30)
    await plant.submit("{roles: {worker: {count: 2, gpus: 1}}}")  # changes nothing for the others
    await plant.run_for(5)
    last = [snapshot for now, snapshot in planner.shown if now > plant.now - 20]
    assert len(last) > 3
    assert len({id(snapshot.running[0]) for snapshot in last}) == 1
    gangs = [{gang.job: gang for gang in snapshot.waiting} for snapshot in last]
    assert len({id(seen[waiting]) for seen in gangs}) == 1
    assert len({id(snapshot.nodes[0]) for snapshot in last}) == 1
    assert len({id(memo) for memo in planner.memos}) == 1

    before = last[-1].running[0]
    await checkpoint(plant, running, 3)
    await plant.run_for(11)
    after = planner.shown[-1][1].running[0]
    assert after is not before
    assert after.gang is before.gang
    assert after.checkpoint_at is not None


async def test_progress_that_no_log_tells_is_read_for_plans_that_may_touch() -> None:
    planner = Planner()
    plant = planted(planner)
    plant.behaviours["j-0001"] = LONG
    job_id = await plant.submit("{roles: {worker: {min: 1, max: 2, gpus: 1}}}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    await plant.run_for(11)
    assert planner.shown[-1][1].running[0].expected_end is None
    for step in (1, 11):
        await report(plant, job_id, attempts.Progress(step=step, at=plant.now, total_steps=101))
        await plant.run_for(5)
    await plant.run_for(10)
    assert planner.shown[-1][1].running[0].expected_end == pytest.approx(plant.now + 30, abs=10)


async def report(plant: Plant, job_id: str, progress: attempts.Progress) -> None:
    """As the API does it: not logged."""
    key = attempts.TaskKey(job_id, (await plant.job(job_id)).live.number, "worker", 0, 1)
    told = events.TaskReported(key=key, progress=progress)
    before = await plant.store.read(lambda view: view.last_seq())
    await plant.tell(job_id, told)
    assert await plant.store.read(lambda view: view.last_seq()) == before


async def test_running_gangs_may_be_touched_once_a_round_and_at_once_after_a_start() -> None:
    planner = Planner()
    plant = planted(planner)
    plant.behaviours["j-0001"] = LONG
    await plant.submit("{roles: {worker: {count: 2, gpus: 1}}}")
    await plant.run_for(3)
    await plant.submit("{roles: {worker: {count: 2, gpus: 1}}}")
    await plant.run_for(57)
    gaps = [later - earlier for earlier, later in zip(planner.touching, planner.touching[1:], strict=False)]
    assert len(gaps) >= 4
    assert all(10.0 <= gap <= 11.0 for gap in gaps)
    planner.shown.clear()
    await plant.server.leading.resign()
    plant.server = Server(plant, "server-2", plan=planner, rules=RULES)
    await plant.run_for(1)
    assert planner.shown[0][1].reallocate


async def test_a_quiet_cluster_is_left_alone_until_a_job_comes() -> None:
    planner = Planner()
    plant = planted(planner)
    plant.behaviours["j-0001"] = LONG
    await plant.submit("{roles: {worker: {count: 2, gpus: 1}}}")
    await plant.run_for(60)
    planner.shown.clear()
    await plant.run_for(300)
    assert planner.shown == []
    await plant.submit("{priority: 99, roles: {worker: {gpus: 1}}}")
    await plant.step()
    assert planner.shown[0][1].reallocate, "it need not wait for a round"


# Killed on the way


@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("point", STOPS)
async def test_a_server_that_dies_while_it_makes_room_is_followed_by_one_that_does(point: str, hit: int) -> None:
    plant = planted(Planner(), machines=("n0", "n1"))
    low = fake.Behaviour(runs_s=60.0, at_barrier=True, lingers=True, stops_s=0.5)
    plant.behaviours |= {"j-low": low, "j-lower": low}
    for name in ("j-low", "j-lower"):
        await plant.submit(
            "{priority: 10, grace: 2s, max_restarts: 0, roles: {worker: {count: 2, gpus: 1}}}", name=name
        )
    await plant.until(lambda now: set(now.values()) == {Phase.PROCESSING})
    await plant.run_for(25)
    await plant.submit("{priority: 90, roles: {worker: {count: 4, gpus: 1}}}", name="j-high")
    test_kills.kill_at(point, hit)
    kills = 0
    until = plant.now + 200
    while plant.now < until:
        try:
            await plant.step()
        except Killed:
            kills += 1
            plant.server = Server(plant, f"server-{kills + 1}", plan=Planner(), rules=RULES)
    assert kills == 1
    await plant.until_rest()
    assert set((await plant.phases()).values()) == {Phase.COMPLETED}
    for name in ("j-low", "j-lower"):
        job = await plant.job(name)
        assert (job.attempt.number, job.restarts) == (2, 0)
        assert len(await kinds(plant, name, "intended")) == 1, "one is asked once"


@pytest.mark.parametrize("seed", [12, 14])
async def test_hundreds_of_rounds_lose_no_job(seed: int) -> None:
    """Random priorities, sizes and elastic gangs over few devices: all come to their end, none has spent a restart."""
    dice = random.Random(seed)
    plant = planted(Planner(), machines=("n0", "n1"), devices=4)
    for number in range(40):
        count = dice.choice((1, 1, 2, 4, 8))
        least = dice.choice((1, count))
        text = (
            f"{{priority: {dice.choice((10, 50, 90))}, grace: 1s, max_restarts: 0, "
            f"preemptible: {dice.choice(('true', 'true', 'false'))}, "
            f"roles: {{worker: {{count: {count}, min: {least}, gpus: 1}}}}}}"
        )
        plant.behaviours[f"j-{number:04}"] = fake.Behaviour(runs_s=dice.uniform(5, 60), at_barrier=True, lingers=True)
        await plant.submit(text, name=f"j-{number:04}")
        await plant.run_for(dice.uniform(0, 10))
    await plant.until_rest(within_s=3000.0)
    listed: list[jobs.Job] = [await plant.job(f"j-{number:04}") for number in range(40)]
    assert {job.phase for job in listed} == {Phase.COMPLETED}
    assert {job.restarts for job in listed} == {0}
    assert any(job.attempt.number > 1 for job in listed), "somebody was stopped for another"
    assert plant.server.reports == []


def test_a_job_that_is_written_anew_with_nothing_to_see_in_it_stays_the_object_that_it_was() -> None:
    seen = candidates.Candidates()
    job = msgspec.structs.replace(script.new_job(), version=1)
    first = seen.gang(job)
    again = msgspec.structs.replace(job, version=2, reason="another word")
    assert seen.gang(again) is first
    other = msgspec.structs.replace(job, version=3, served_s=5.0)
    assert seen.gang(other) is not first


async def test_a_changed_priority_changes_the_order_of_the_next_plan() -> None:
    """The fast planner keeps the order of the waiting gangs from plan to plan."""
    plant = Plant(machines=[machine("n0", devices=2)])
    plant.behaviours["first"] = fake.Behaviour(runs_s=20.0, at_barrier=True, lingers=True)
    for name in ("first", "second", "third"):
        await plant.submit("{roles: {worker: {gpus: 2}}}", name=name)
        plant.behaviours.setdefault(name, LONG)
    await plant.until_phase("first", Phase.PROCESSING)
    await plant.step()
    assert (await plant.job("third")).refusal is not None, "the plan has an order by now"
    await plant.tell("third", events.Edited(priority=90, by="alice"))
    assert (await plant.job("third")).refusal is None
    await plant.until_phase("third", Phase.PROCESSING)
    assert (await plant.job("second")).phase is Phase.QUEUED


async def test_a_gang_that_is_made_smaller_starts_where_there_is_room() -> None:
    plant = Plant(machines=[machine("n0", devices=2)])
    await plant.submit("{roles: {worker: {count: 4, gpus: 1}}}", name="large")
    plant.behaviours["large"] = LONG
    for _ in range(8):
        await plant.step()
    assert (await plant.job("large")).refusal is not None
    await plant.tell("large", events.Edited(min=2, by="alice"))
    job = await plant.until_phase("large", Phase.PROCESSING)
    assert len(job.live.tasks) == 2


async def test_a_running_job_that_changes_its_pool_counts_for_the_new_one() -> None:
    plant = Plant(machines=[machine("n0", devices=4)])
    await plant.store.write(lambda tx: tx.put_pool(pools.Pool(name="lab", limit={"gpus": 2})))
    plant.behaviours |= {"runs": LONG, "waits": LONG}
    await plant.submit("{pool: lab, roles: {worker: {gpus: 2}}}", name="runs")
    await plant.until_phase("runs", Phase.PROCESSING)
    await plant.submit("{pool: lab, roles: {worker: {gpus: 2}}}", name="waits")
    for _ in range(8):
        await plant.step()
    refusal = (await plant.job("waits")).refusal
    assert refusal is not None
    assert refusal.code is refusals.Code.POOL_LIMIT
    await plant.tell("runs", events.Edited(pool="default", by="alice"))
    await plant.until_phase("waits", Phase.PROCESSING)
    assert (await plant.job("runs")).phase is Phase.PROCESSING
