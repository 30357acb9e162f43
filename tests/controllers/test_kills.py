"""The server is killed at every named point, again and again, and another one takes over; two believe that they lead.

Killing is an exception that no handler catches, thrown at a failpoint; a new server over the same store follows
and the same tasks, which has to wait for the dead one's lease. Whatever happens, the record and the tasks must come to
agree within 60 s, with every job at its end and no invariant of the plant broken on the way.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Iterator

import msgspec
import pytest
from tests.controllers.plant import Killed, Phase, Plant, Server, machine

from oarlock.backends import fake
from oarlock.controllers import leadership
from oarlock.spec import errors, phases
from oarlock.spec.process import failpoints
from oarlock.spec.reconciling import observations
from oarlock.store import stores

POINTS = [name for name in failpoints.NAMES if name.split(".")[0] in {"leading", "scheduling", "guardian"}]
RUNS = fake.Behaviour(at_barrier=True, lingers=True)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    for name in failpoints.NAMES:
        failpoints.disarm(name)


def kill_at(name: str, hit: int) -> list[int]:
    """Arm the point to kill at its `hit`-th time. The list tells how often it was reached."""
    count = [0]

    def reached() -> None:
        count[0] += 1
        if count[0] == hit:
            raise Killed(name)

    failpoints.arm(name, reached)
    return count


async def workload(plant: Plant) -> None:
    """One of each: succeeds, fails for good, restarts in place, cannot be made at first, is cancelled while deaf."""
    plant.behaviours |= {
        "j-fails": fake.Behaviour(runs_s=2.0, signal=9, at_barrier=True, lingers=True),
        "j-inplace/1/worker/0": fake.Behaviour(runs_s=3.0, code=4, at_barrier=True, lingers=True),
        "j-unmade/1/worker/1": fake.Behaviour(unlaunchable="no such image"),
        "j-dies/1/worker/0": fake.Behaviour(at_barrier=True, lingers=True, abandons_s=6.0),
        "j-deaf": fake.Behaviour(at_barrier=True, lingers=True, stops_s=math.inf),
        "j-halted": RUNS,
    }
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-good")
    await plant.submit("{max_restarts: 1, grace: 1s}", name="j-fails")
    await plant.submit(
        "{framework: plain, max_restarts: 1, roles: {worker: {count: 2, on_failure: restart}}}", name="j-inplace"
    )
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-unmade")
    await plant.submit("{roles: {worker: {count: 2}}, grace: 1s}", name="j-dies")
    await plant.submit("{grace: 1s}", name="j-deaf")
    await plant.submit("{grace: 1s}", name="j-halted")


EXPECTED = {
    "j-good": Phase.COMPLETED,
    "j-fails": Phase.FAILED,
    "j-inplace": Phase.FAILED,  # its second incarnation fails as well
    "j-unmade": Phase.COMPLETED,
    "j-dies": Phase.COMPLETED,
    "j-deaf": Phase.CANCELED,
    "j-halted": Phase.HALTED,
}


async def live_through(plant: Plant, *, seconds: float) -> int:
    """Run for so long, with a new server after each kill. Returns the number of kills."""
    kills, until = 0, plant.now + seconds
    asked = False
    while plant.now < until:
        try:
            await plant.step()
        except Killed:
            kills += 1
            plant.restart(f"server-{kills + 1}")
        if not asked and plant.now > until - seconds / 2:
            asked = True
            await plant.intend("j-deaf", "cancel")
            await plant.intend("j-halted", "halt")
    return kills


async def until_rest_despite_kills(plant: Plant, *, within_s: float) -> None:
    until = plant.now + within_s
    while True:
        try:
            await plant.until_rest(within_s=until - plant.now)
            return
        except Killed:
            plant.restart(f"server-{plant.now}")


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("point", POINTS)
async def test_a_server_killed_anywhere_is_followed_by_one_that_finishes(point: str, hit: int) -> None:
    plant = Plant()
    await workload(plant)
    count = kill_at(point, hit)
    kills = await live_through(plant, seconds=60.0)
    assert kills == 1, f"{point} was reached {count[0]} times"
    await plant.until_rest(within_s=60.0)
    assert await plant.phases() == EXPECTED
    assert {one.restarts for one in [await plant.job("j-fails"), await plant.job("j-inplace")]} == {1}


async def test_a_server_killed_at_every_third_point_gets_there_in_the_end() -> None:
    plant = Plant()
    await workload(plant)
    dice = random.Random(7)

    def maybe() -> None:
        if dice.random() < 0.33:
            raise Killed("anywhere")

    for point in POINTS:
        failpoints.arm(point, maybe)
    kills = await live_through(plant, seconds=400.0)
    assert kills > 20
    for point in POINTS:
        failpoints.disarm(point)
    await plant.until_rest(within_s=60.0)
    assert await plant.phases() == EXPECTED


async def test_one_of_two_servers_writes() -> None:
    """The first is stopped (as by SIGSTOP) past its expiry, a second leads, the first goes on as if nothing were."""
    plant = Plant()
    await workload(plant)
    old = plant.server
    await plant.run_for(3)
    epoch = old.leading.epoch
    assert epoch is not None
    new = Server(plant, "server-2")
    plant.server = new
    await plant.run_for(leadership.TTL_S + 5)
    assert new.leading.epoch is not None
    assert new.leading.epoch > epoch

    # The old one has no idea of the time: it believes itself within its lease. There is something for each to write.
    old.leading._until = math.inf
    old.leading._ask_at = plant.now + 5
    await plant.submit(name="j-late")
    plant.world.add(machine("n2"))
    plant.now += old.inventory._period_s
    running = [key for key in plant.world.running() if key.job == "j-halted"]
    plant.world.kill(running[0])
    before = await plant.store.read(lambda view: view.last_seq())
    nodes = await plant.store.read(lambda view: view.nodes())
    for controller in (old.inventory, old.scheduling, old.guardian):
        with pytest.raises(errors.StaleEpoch):
            await controller.tick()
    assert await plant.store.read(lambda view: view.last_seq()) == before, "nothing that it wrote was accepted"
    assert await plant.store.read(lambda view: view.nodes()) == nodes

    # Both go on, side by side.
    until, asked = plant.now + 90, False
    while plant.now < until:
        await plant.step()
        await old.tick()
        if not asked:
            asked = True
            await plant.intend("j-deaf", "cancel")
            await plant.intend("j-halted", "halt")
    await plant.until_rest(within_s=60.0)
    assert await plant.phases() == EXPECTED | {"j-late": Phase.COMPLETED}


@pytest.mark.parametrize("point", [name for name in POINTS if not name.startswith("leading")])
async def test_a_leader_that_is_passed_over_at_any_point_writes_nothing_after_it(point: str) -> None:
    """Another server leads from that moment on: this server changes neither the record nor the holdings."""
    plant = Plant()
    await workload(plant)
    seen: list[object] = []

    async def everything() -> object:
        return await plant.store.read(
            lambda view: (view.last_seq(), view.holdings(), view.usage(), view.nodes(), view.active())
        )

    def passed_over() -> None:
        """Nothing of the memory store suspends: each of these is over with its first step."""
        failpoints.disarm(point)
        for asked in (plant.store.lead("another", now=plant.now + leadership.TTL_S + 1, ttl_s=60.0), everything()):
            with pytest.raises(StopIteration) as over:
                asked.send(None)
            seen.append(over.value.value)

    failpoints.arm(point, passed_over)
    for moment in range(400):
        await plant.step()
        if moment == 40:
            await plant.intend("j-deaf", "cancel")
            await plant.intend("j-halted", "halt")
        if seen:
            break
    assert len(seen) == 2, f"{point} was never reached"
    assert await everything() == seen[1]


async def test_nothing_is_freed_while_the_stored_record_knows_of_a_task_that_runs() -> None:
    """A release is decided again from the store: the guardian's own picture may be a moment old."""
    plant = Plant()
    job_id = await plant.submit("{roles: {worker: {count: 2}}}")
    held: list[object] = []

    def runs_again(tx: stores.Transaction) -> None:
        job = tx.job(job_id)
        assert job is not None
        assert job.live is not None
        first, *others = job.live.tasks
        live = msgspec.structs.replace(job.live, tasks=(msgspec.structs.replace(first, gone=False), *others))
        tx.put_job(msgspec.structs.replace(job, attempts=(live,)), at=plant.now)
        held.extend(tx.holdings(job_id))

    def before_release() -> None:
        failpoints.disarm("guardian.before_release")
        with pytest.raises(StopIteration):
            plant.store.write(runs_again).send(None)

    failpoints.arm("guardian.before_release", before_release)
    while not held:
        await plant.step()
    assert await plant.store.read(lambda view: view.holdings(job_id)) == held
    assert await plant.store.read(lambda view: view.usage()) == []
    await plant.until_rest(within_s=60.0)
    assert await plant.phases() == {job_id: Phase.COMPLETED}


async def test_a_server_that_does_not_lead_rests_until_it_leads() -> None:
    """It would else look again at once, and at once again."""
    plant = Plant()
    await plant.run_for(1)
    second = Server(plant, "server-2")
    await second.tick()
    assert second.leading.epoch is None
    for controller in (second.inventory, second.scheduling, second.guardian):
        assert controller.wake_at() is None, controller.name


async def test_a_stale_leader_does_not_kill_gangs_of_its_successor() -> None:
    """Its picture of the job is an attempt behind: the tasks it does not know are not its to end."""
    plant = Plant(machines=[machine("n0")])
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit("{grace: 1s}")
    await plant.until_phase(job_id, Phase.PROCESSING)
    old = plant.server
    plant.server = Server(plant, "server-2")
    await plant.run_for(leadership.TTL_S + 5)
    await plant.intend(job_id, "preempt")
    job = await plant.until_phase(job_id, Phase.QUEUED, Phase.DEPLOYING)
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    assert job.live.number == 2

    async def nothing_new() -> frozenset[str]:
        return frozenset()

    old.leading._until = math.inf
    old.guardian._roster.refresh = nothing_new  # type: ignore[method-assign]
    for _ in range(3):
        with contextlib.suppress(errors.StaleEpoch):
            await old.guardian.tick()
    assert [key.attempt for key in plant.world.running()] == [2]
    await plant.intend(job_id, "cancel")
    await plant.until_rest()


class Behind(fake.Fake):
    """A server's view of the world from a time before it led, until it looks anew."""

    renewed = False

    async def renew(self) -> None:
        self.renewed = True

    async def observe(self) -> list[observations.Observed]:
        return await super().observe() if self.renewed else []


async def test_a_new_leader_whose_view_is_old_loses_no_task() -> None:
    """A server that stood still, or has a watch that hangs, knows nothing of the tasks that the last leader made."""
    plant = Plant()
    plant.behaviours["j-0001"] = RUNS
    job_id = await plant.submit()
    await plant.until_phase(job_id, Phase.PROCESSING)
    plant.server = Server(plant, "server-2")
    plant.server.guardian._backend = Behind(plant.world)
    await plant.run_for(leadership.TTL_S + 5)
    assert plant.server.leading.epoch is not None
    job = await plant.job(job_id)
    assert (job.phase, len(job.attempts), job.live.stop) == (Phase.PROCESSING, 1, None)
    await plant.intend(job_id, "cancel")
    await plant.until_rest()


# Random faults


async def random_jobs(seed: int, count: int, *, fault_s: float) -> Plant:
    """`count` random jobs among random faults for a while; then the faults stop."""
    dice = random.Random(seed)
    plant = Plant(machines=[machine(f"n{index}", cpus=8) for index in range(4)])
    for index in range(count):
        plant.behaviours[f"j-{index + 1:04}"] = fake.Behaviour(
            runs_s=dice.choice((0.5, 2.0, 8.0, 20.0)),
            code=dice.choice((0, 0, 0, 0, 1)),
            signal=dice.choice((None, None, None, None, 9)),
            stops_s=dice.choice((0.0, 0.5, math.inf)),
            at_barrier=True,
            lingers=dice.random() < 0.7,
        )
    kill_rate = dice.choice((0.0, 0.002, 0.02))

    def maybe() -> None:
        if dice.random() < kill_rate:
            raise Killed("anywhere")

    for point in POINTS:
        failpoints.arm(point, maybe)
    submitted, until = 0, plant.now + fault_s
    while plant.now < until:
        while submitted < count and dice.random() < 0.6:
            submitted += 1
            await plant.submit(
                dice.choice(
                    (
                        "{grace: 1s, max_restarts: 1}",
                        "{grace: 0s, max_restarts: 2, roles: {worker: {count: 3}}}",
                        "{grace: 1s, framework: plain, roles: {worker: {count: 2, on_failure: restart}}}",
                        "{grace: 2s, framework: tensorflow, roles: {chief: {}, worker: {}, ps: {}, evaluator: {}}}",
                        "{grace: 1s, timeout: 10s, roles: {worker: {cpus: 4}}}",
                        "{grace: 1s, freeze: 20s, max_restarts: 0}",
                    )
                )
            )
        await a_fault(plant, dice, submitted)
        try:
            await plant.step(dice.choice((0.1, 0.25, 0.25, 1.0)))
        except Killed:
            plant.restart(f"server-{plant.now}")
    for point in POINTS:
        failpoints.disarm(point)
    for node in list(plant.world.nodes()):
        plant.world.find(node.name)
    plant.mute.clear()
    while submitted < count:
        submitted += 1
        await plant.submit("{grace: 1s}")
    return plant


async def a_fault(plant: Plant, dice: random.Random, submitted: int) -> None:
    running = sorted(plant.world.running())
    chance = dice.random()
    if running and chance < 0.03:
        plant.world.kill(dice.choice(running))
    elif running and chance < 0.05:
        plant.world.abandon(dice.choice(running))
    elif running and chance < 0.06:
        plant.mute.add(dice.choice(running))
    elif chance < 0.07:
        plant.mute.clear()
    elif chance < 0.08:
        name = f"n{dice.randrange(4)}"
        plant.world.find(name) if dice.random() < 0.7 else plant.world.lose(name)
    elif submitted and chance < 0.12:
        job_id = f"j-{dice.randrange(submitted) + 1:04}"
        await plant.intend(job_id, dice.choice(("halt", "run", "run", "preempt", "cancel")))


async def judge(plant: Plant, count: int) -> None:
    """Every job that was accepted is there, at rest, and so is everything else."""
    # Those that are not resumed stay halted; work that is still queued is done; then nothing is left.
    await plant.until_rest(within_s=60.0 + 40.0 * count)
    found = await plant.phases()
    assert len(found) == count
    assert set(found.values()) <= phases.TERMINAL | {Phase.HALTED}


@pytest.mark.parametrize("seed", range(4))
async def test_random_jobs_among_random_faults_come_to_rest(seed: int) -> None:
    plant = await random_jobs(seed, 50, fault_s=60.0)
    await judge(plant, 50)


@pytest.mark.soak
async def test_two_hundred_random_jobs_with_many_seeds() -> None:
    """SEED=... repeats one; SEEDS=... how many."""
    first = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9))
    for seed in range(first, first + int(os.environ.get("SEEDS") or 20)):
        print(f"seed {seed}")
        plant = await random_jobs(seed, 200, fault_s=200.0)
        await judge(plant, 200)
