"""Gangs that are bound one task after the other, in virtual time: none is bound in part for longer than 30 s, whichever
servers launch it. The plant looks for that at each step.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from tests.controllers.guarding import test_launching
from tests.controllers.plant import STEP_S, Phase

from oarlock.backends import backends, fake
from oarlock.lifecycle import deadlines
from oarlock.spec import attempts, errors
from oarlock.spec.reconciling import observations

GANG = "{roles: {worker: {count: 2}}}"
REASON_S = 5.0
"""The backend gives a launch up so long before its end, to tell the reason."""


class Bound(fake.Fake):
    """Makes the tasks of a gang at once, and waits for a scheduler: `bound` says when that bound each task.

    With `deaf` it waits for ever. `launching` are the jobs in the order of their launches.
    """

    tasks_at_once = 4

    def __init__(self, world: fake.World, bound: dict[attempts.TaskKey, float]) -> None:
        super().__init__(world)
        self.bound = bound
        self.deaf = False
        self.launching: list[str] = []

    async def launch(
        self,
        tasks: Sequence[backends.TaskLaunch],
        *,
        still: backends.Still = backends.always,
        within_s: float = math.inf,
    ) -> None:
        self.launching.append(tasks[0].key.job)
        end = self.world.clock() + within_s - REASON_S
        await super().launch(tasks, still=still)
        while self.deaf or not all(one.key in self.bound for one in tasks):
            if not self.deaf and self.world.clock() >= end:
                raise errors.Unavailable("the scheduler was too slow", hint="It is tried again.")
            await asyncio.sleep(0)

    async def observe(self) -> list[observations.Observed]:
        seen = await super().observe()
        return [msgspec.structs.replace(one, bound_at=self.bound.get(one.key)) for one in seen]


class BoundPlant(test_launching.SlowPlant):
    """The scheduler binds each task at once, but for those that are `held`, by `JOB/INDEX`."""

    backend: Bound  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.bound: dict[attempts.TaskKey, float] = {}
        self.held: set[str] = set()
        self.backend = Bound(self.world, self.bound)
        self.equip()

    async def step(self, seconds: float = STEP_S) -> None:
        for key in self.world.running():
            if f"{key.job}/{key.index}" not in self.held:
                self.bound.setdefault(key, self.now)
        await super().step(seconds)

    async def agent(self, key: attempts.TaskKey) -> None:
        if self.is_bound(key):
            await super().agent(key)

    def is_bound(self, key: attempts.TaskKey) -> bool:
        return key in self.bound

    async def bind_in_part(self, job: str) -> float:
        """Submit a gang of two, and hold its second task. Return when the first one was bound."""
        self.held.add(f"{job}/1")
        await self.submit(GANG, name=job)
        first = attempts.TaskKey(job, 1, "worker", 0, 1)
        await self.steps(lambda: first in self.bound)
        return self.bound[first]

    def kill_server(self) -> None:
        """Kill the server; another one starts, and leads once the lease of the dead one has run out."""
        self.server.guardian._launching.cancel_all()
        self.restart()
        self.backend = Bound(self.world, self.bound)
        self.equip()

    async def until_led(self) -> None:
        await self.steps(lambda: bool(self.backend.launching))


@pytest.fixture
async def plant() -> AsyncIterator[BoundPlant]:
    made = BoundPlant()
    yield made
    made.server.guardian._launching.cancel_all()
    while made.server.guardian._launching.underway:  # noqa: ASYNC110  (they end within some turns)
        await asyncio.sleep(0)


@pytest.mark.parametrize("deaths", range(3))
async def test_a_gang_that_stays_bound_in_part_is_removed_and_starts_anew(plant: BoundPlant, deaths: int) -> None:
    """The second server leads 10 s after the first binding, the third one some 20 s after it."""
    began = await plant.bind_in_part("j-part")
    for _ in range(deaths):
        plant.kill_server()
        await plant.until_led()
    await plant.steps(lambda: not plant.world.running())
    assert plant.now - began <= 30.0
    plant.held.clear()
    job = await plant.until_phase("j-part", Phase.COMPLETED)
    assert [one.number for one in job.attempts] == [1, 2]
    assert "the scheduler was too slow" in job.attempts[0].stop_message
    await plant.until_rest()


async def test_a_gang_becomes_whole_under_the_next_server(plant: BoundPlant) -> None:
    began = await plant.bind_in_part("j-whole")
    plant.kill_server()
    await plant.until_led()
    await plant.steps(lambda: plant.now > began + deadlines.PART_BOUND_S - REASON_S - 1)
    plant.held.clear()
    job = await plant.until_phase("j-whole", Phase.COMPLETED)
    assert len(job.attempts) == 1
    assert set(plant.world.starts.values()) == {1}
    await plant.until_rest()


async def test_a_gang_is_removed_also_where_the_next_server_comes_too_late(plant: BoundPlant) -> None:
    """Nothing removes it while no server leads; then nothing more is made for it."""
    began = await plant.bind_in_part("j-late")
    plant.kill_server()
    plant.now = began + deadlines.PART_BOUND_S + 1
    await plant.steps(lambda: not plant.world.running())
    assert plant.backend.launching == []
    job = await plant.job("j-late")
    assert job.attempts[0].stop_message == "the launch failed: only 1 of 2 tasks were bound within 25 s of the first"


async def test_a_launch_that_does_not_end_by_itself_is_broken_off_in_time(
    plant: BoundPlant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of an event loop, which counts for requests without an answer, is not virtual."""
    monkeypatch.setattr(deadlines, "LAUNCH_BOUND_S", 600.0)
    began = await plant.bind_in_part("j-deaf")
    plant.kill_server()
    plant.backend.deaf = True
    plant.now = began + deadlines.PART_BOUND_S - 0.1
    while (job := await plant.job("j-deaf")).attempts[0].stop is None:
        await plant.server.tick()
        await asyncio.sleep(0.01)
    assert job.attempts[0].stop_message == "the launch failed: the backend did not answer in time"


async def test_gangs_that_are_bound_in_part_come_first(plant: BoundPlant) -> None:
    """After a takeover all launches begin anew. Those that wait for their turn lose no time that runs."""
    plant.held |= {"j-first/0", "j-first/1"}
    await plant.submit(GANG, name="j-first")
    await plant.bind_in_part("j-part")
    plant.kill_server()
    plant.backend.tasks_at_once = 2
    await plant.until_led()
    assert plant.backend.launching == ["j-part"]
    plant.held.clear()
    await plant.until_rest()
    assert plant.backend.launching == ["j-part", "j-first"]
