"""Slow launches, several at the same time: some are awaited, some are broken off, and nothing is left behind."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
from tests.controllers.plant import STEP_S, Phase, Plant, Server, machine

from oarlock.backends import backends, fake
from oarlock.controllers import leadership
from oarlock.controllers.guarding import launching
from oarlock.lifecycle import deadlines, wanting
from oarlock.spec import attempts, jobs
from oarlock.spec.cluster import nodes
from oarlock.spec.reconciling import actions

TURNS = 100
"""Turns of the event loop in which a task of it comes to its next wait, and the guardian hears of that."""


class Slow(fake.Fake):
    """Makes a task of a gang each time that it is allowed to. `launching` are the jobs whose launch is under way."""

    tasks_at_once = 4

    def __init__(self, world: fake.World) -> None:
        super().__init__(world)
        self.allowed = asyncio.Event()
        self.launching: list[str] = []
        self.most = 0

    async def launch(
        self,
        tasks: Sequence[backends.TaskLaunch],
        *,
        still: backends.Still = backends.always,
        within_s: float = math.inf,
    ) -> None:
        job = tasks[0].key.job
        self.launching.append(job)
        self.most = max(self.most, len(self.launching))
        try:
            for task in tasks:
                await self.allowed.wait()
                await super().launch([task], still=still)
                await asyncio.sleep(0)
        finally:
            self.launching.remove(job)


class SlowPlant(Plant):
    def __init__(self) -> None:
        super().__init__(machines=[machine("n0", cpus=32), machine("n1", cpus=32)])
        self.backend = Slow(self.world)
        self.equip()

    def equip(self) -> None:
        """Give the backend to the server, whose own is too quick."""
        self.server.guardian._backend = self.server.guardian._launching._backend = self.backend

    async def step(self, seconds: float = STEP_S) -> None:
        await super().step(seconds)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def steps(self, holds: Callable[[], bool], most: int = 200) -> None:
        for _ in range(most):
            if holds():
                return
            await self.step()
        pytest.fail(f"not in {most} steps: {await self.describe()}")

    async def is_over(self) -> None:
        """All have ended, nothing is left, and nothing is held."""
        self.backend.allowed.set()
        for _ in range(400):
            if all(phase in {Phase.COMPLETED, Phase.CANCELED} for phase in (await self.phases()).values()):
                break
            await self.step()
        await self.until_rest()
        assert not self.backend.launching


@pytest.fixture
async def plant() -> AsyncIterator[SlowPlant]:
    made = SlowPlant()
    yield made
    made.server.guardian._launching.cancel_all()
    while made.server.guardian._launching.underway:  # noqa: ASYNC110  (they end within some turns)
        await asyncio.sleep(0)


async def test_gangs_are_made_side_by_side_up_to_the_bound(plant: SlowPlant) -> None:
    for _ in range(4):
        await plant.submit("{roles: {worker: {count: 2}}}")
    await plant.steps(lambda: len(plant.backend.launching) == 2)
    await plant.steps(lambda: plant.now > 1_000_005)
    assert plant.backend.launching == ["j-0001", "j-0002"], "four tasks at once, whatever waits"
    await plant.is_over()
    assert plant.backend.most == 2


async def test_a_gang_larger_than_the_bound_is_made_alone(plant: SlowPlant) -> None:
    await plant.submit("{roles: {worker: {count: 6}}}", name="j-large")
    await plant.submit(name="j-small")
    await plant.steps(lambda: bool(plant.backend.launching))
    assert plant.backend.launching == ["j-large"]
    await plant.is_over()


async def test_while_one_is_made_the_others_are_looked_after(plant: SlowPlant) -> None:
    await plant.submit("{roles: {worker: {count: 3}}}", name="j-slow")
    await plant.steps(lambda: plant.backend.launching == ["j-slow"])
    quick = fake.Fake(plant.world)
    slow, plant.backend.launch = plant.backend.launch, quick.launch
    await plant.submit(name="j-quick")
    await plant.until_phase("j-quick", Phase.COMPLETED)
    assert plant.backend.launching == ["j-slow"]
    plant.backend.launch = slow
    await plant.is_over()


async def test_a_job_canceled_while_it_is_made_leaves_nothing(plant: SlowPlant) -> None:
    """The launch is broken off, and the holdings are free only once it has ended."""
    await plant.submit("{roles: {worker: {count: 2}}, grace: 1s}", name="j-gone")
    await plant.steps(lambda: plant.backend.launching == ["j-gone"])
    await plant.intend("j-gone", "cancel")
    await plant.is_over()
    assert (await plant.job("j-gone")).phase is Phase.CANCELED
    assert not plant.world.starts, "nothing was allowed before it was broken off"


async def test_a_launch_that_takes_too_long_is_torn_down_and_tried_again(
    plant: SlowPlant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "LAUNCH_BOUND_S", 0.05)
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-late")
    while len((await plant.job("j-late")).attempts) < 2:
        await plant.step()
        await asyncio.sleep(0.01)
    assert (await plant.job("j-late")).attempts[0].stop_message == (
        "the launch failed: the backend did not answer in time"
    )
    monkeypatch.setattr(deadlines, "LAUNCH_BOUND_S", 600.0)
    await plant.is_over()


async def test_a_failed_launch_says_why_and_the_others_go_on(plant: SlowPlant) -> None:
    plant.behaviours["j-bad/1/worker/1"] = fake.Behaviour(unlaunchable="quota exceeded")
    plant.backend.allowed.set()
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-bad")
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-good")
    await plant.is_over()
    assert "quota exceeded" in (await plant.job("j-bad")).attempts[0].stop_message


async def test_a_server_that_no_longer_leads_breaks_its_launches_off(plant: SlowPlant) -> None:
    """The next leader makes the same tasks; the outcome of the first launch is not recorded by the wrong server."""
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-moved")
    await plant.steps(lambda: plant.backend.launching == ["j-moved"])
    old = plant.server
    plant.restart("server-2")
    plant.backend = Slow(plant.world)
    plant.equip()
    plant.backend.allowed.set()
    while (await plant.job("j-moved")).phase is not Phase.COMPLETED:
        await plant.step()
    await old.tick()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert old.guardian._launching.underway == set()
    assert old.guardian._launching.take() == []
    await plant.is_over()
    assert set(plant.world.starts.values()) == {1}


async def test_an_error_that_is_no_ours_is_reported_and_recorded(
    plant: SlowPlant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(tasks: Sequence[backends.TaskLaunch], *, still: backends.Still, within_s: float) -> None:
        monkeypatch.undo()
        plant.backend.allowed.set()
        raise ValueError("a defect")

    monkeypatch.setattr(plant.backend, "launch", broken)
    await plant.submit(name="j-odd")
    await plant.is_over()
    assert plant.server.reports == [("j-odd", "a defect")]
    assert (await plant.job("j-odd")).attempts[0].stop_message == "the launch failed: ValueError: a defect"


async def test_a_launch_ends_with_the_epoch_also_while_the_guardian_waits(plant: SlowPlant) -> None:
    """The tick waits for the answer to a kill. Another server leads by then, and this one must make nothing more."""
    await plant.submit("{roles: {worker: {count: 1}}, grace: 1s}", name="j-deaf")
    plant.backend.allowed.set()
    await plant.until_phase("j-deaf", Phase.PROCESSING)
    plant.backend.allowed.clear()
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-made")
    await plant.steps(lambda: plant.backend.launching == ["j-made"])
    waits, answered = asyncio.Event(), asyncio.Event()

    async def kill(keys: Sequence[attempts.TaskKey]) -> None:
        waits.set()
        await answered.wait()

    kill_quickly, plant.backend.kill = plant.backend.kill, kill  # type: ignore[method-assign]
    plant.mute.update(plant.world.running())
    await plant.intend("j-deaf", "cancel")
    old = plant.server
    stuck = asyncio.create_task(_ticks(plant, waits))
    await waits.wait()
    plant.now += leadership.TTL_S + 1.0
    await Server(plant, "server-2").leading.tick()
    await old.leading.tick()  # in a loop of its own
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not old.guardian._launching.underway
    assert not any(key.job == "j-made" for key in plant.world.starts)
    answered.set()
    plant.backend.kill = kill_quickly  # type: ignore[method-assign]
    await stuck


async def _ticks(plant: SlowPlant, until: asyncio.Event) -> None:
    while not until.is_set():
        plant.now += STEP_S
        await plant.server.tick()


async def test_a_launch_asks_for_the_epoch_before_each_task(plant: SlowPlant) -> None:
    """The lease may end before any tick hears of it: the question about it has no answer."""
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-late")
    await plant.steps(lambda: plant.backend.launching == ["j-late"])
    plant.now += leadership.TTL_S + 1.0
    plant.backend.allowed.set()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not plant.world.starts
    assert plant.server.guardian._launching.take() == []
    await plant.is_over()


async def test_a_server_that_ends_waits_for_its_launches_and_records_them(plant: SlowPlant) -> None:
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-last")
    await plant.steps(lambda: plant.backend.launching == ["j-last"])
    plant.backend.allowed.set()
    await plant.server.guardian.close()
    live = (await plant.job("j-last")).live
    assert live is not None
    assert live.launched_at is not None
    await plant.is_over()


async def test_a_server_that_ends_breaks_off_a_launch_that_takes_too_long(
    plant: SlowPlant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "CLOSE_S", 0.0)
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-slow")
    await plant.steps(lambda: plant.backend.launching == ["j-slow"])
    await plant.server.guardian.close()
    assert not plant.backend.launching
    assert not plant.server.guardian._launching.underway
    live = (await plant.job("j-slow")).live
    assert live is not None
    assert live.launched_at is None, "the next server makes it"
    await plant.is_over()


async def test_a_launch_that_is_broken_off_before_its_first_step_is_forgotten(plant: SlowPlant) -> None:
    await plant.submit("{roles: {worker: {count: 2}}}", name="j-never")
    while not plant.server.guardian._launching.underway:
        await plant.server.tick()
        plant.now += STEP_S
    plant.server.guardian._launching.cancel_all()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not plant.server.guardian._launching.underway
    await plant.is_over()


async def test_a_launch_that_ends_makes_room_for_the_next_one_at_once(plant: SlowPlant) -> None:
    """The guardian's next tick may be far away: in a burst it has thousands of jobs to look at."""
    for _ in range(4):
        await plant.submit("{roles: {worker: {count: 2}}}")
    await plant.steps(lambda: len(plant.backend.launching) == 2)
    await plant.step()
    assert len(plant.world.starts) == 0
    plant.backend.allowed.set()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert len(plant.world.starts) == 8, "all four gangs, without a tick"
    assert plant.backend.most == 2
    await plant.is_over()


async def test_a_job_canceled_while_its_launch_waits_for_its_turn_is_never_made(plant: SlowPlant) -> None:
    for name in ("j-a", "j-b", "j-gone"):
        await plant.submit("{roles: {worker: {count: 2}}, grace: 1s}", name=name)
    await plant.steps(lambda: len(plant.backend.launching) == 2)
    await plant.step()
    await plant.intend("j-gone", "cancel")
    await plant.until_phase("j-gone", Phase.CANCELED)
    await plant.is_over()
    assert not [key for key in plant.world.starts if "j-gone" in str(key)]


async def test_launches_that_wait_for_their_turn_end_with_the_server(plant: SlowPlant) -> None:
    for _ in range(3):
        await plant.submit("{roles: {worker: {count: 2}}}")
    await plant.steps(lambda: len(plant.backend.launching) == 2)
    await plant.step()
    plant.backend.allowed.set()
    await plant.server.guardian.close()
    assert len(plant.world.starts) == 4


async def test_a_job_that_waits_for_its_turn_is_not_looked_at_again(
    plant: SlowPlant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may wait, and each tick would find the same for each."""
    for _ in range(40):
        await plant.submit("{roles: {worker: {count: 1}}}")
    await plant.steps(lambda: len(plant.backend.launching) == 4)
    for _ in range(5):
        await plant.step()
    looked: list[str] = []
    wants = wanting.wants

    def counted(job: jobs.Job, *rest: Any) -> tuple[actions.Action, ...]:
        looked.append(job.id)
        return wants(job, *rest)

    monkeypatch.setattr(wanting, "wants", counted)
    await plant.step()
    assert looked == []
    await plant.is_over()


@pytest.mark.parametrize("closed", [False, True])
async def test_a_lost_server_starts_again_in_its_place_unless_its_node_was_closed(closed: bool) -> None:
    """The drain of a node stops its tasks from outside. The gang then looks for places on open nodes."""
    machines = [machine(name, cpus=2) for name in ("n0", "n1", "n2", "n3")]
    plant = Plant(lambda _: fake.Behaviour(at_barrier=True), machines=machines)
    asked = "{strategy: {kind: ps}, roles: {worker: {count: 2, cpus: 2}, ps: {count: 1, cpus: 2}}}"
    job_id = await plant.submit(asked)
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    lost = job.live.task("ps", 0) if job.live is not None else None
    assert lost is not None
    if closed:
        cordon = nodes.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
        node = next(one for one in machines if one.name == lost.node)
        plant.world.add(msgspec.structs.replace(node, taints=(cordon,)))
        await plant.run_for(30)
    plant.world.kill(lost.key(job_id, 1))
    await plant.run_for(10)
    job = await plant.until_phase(job_id, Phase.PROCESSING)
    assert job.live is not None
    server = job.live.task("ps", 0)
    assert server is not None
    assert job.restarts == 0
    if closed:
        assert (job.live.number, server.incarnation) == (2, 1)
        assert lost.node not in {task.node for task in job.live.tasks}
        assert "takes no new tasks" in job.attempts[0].stop_message
    else:
        assert (job.live.number, server.incarnation, server.node) == (1, 2, lost.node)
