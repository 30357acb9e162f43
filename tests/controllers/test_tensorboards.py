"""TensorBoards beside jobs, with a cluster in memory, in virtual time."""

from __future__ import annotations

from typing import Any

from tests.controllers import plant as plants

from oarlock.backends import fake, tensorboards
from oarlock.controllers import tensorboards as controllers
from oarlock.spec import errors, intents


class Watched:
    def __init__(self) -> None:
        self.plant = plants.Plant(machines=[plants.machine("n0")])
        self.way = tensorboards.Memory()
        self.begin("server-1")

    def begin(self, name: str) -> None:
        server = self.plant.server = plants.Server(self.plant, name)
        store: Any = plants.OfControllers(self.plant.store)
        self.controller = controllers.TensorBoards(store, self.way, server.leading, clock=self.plant.clock)

    async def run_for(self, seconds: float) -> None:
        end = self.plant.now + seconds
        while self.plant.now < end:
            await self.plant.step()
            await self.controller.tick()


async def test_a_job_that_asks_has_one_while_it_runs() -> None:
    one = Watched()
    await one.run_for(2.0)
    asks = await one.plant.submit("{tensorboard: true, roles: {worker: {count: 1, cpus: 1}}}")
    other = await one.plant.submit("{roles: {worker: {count: 1, cpus: 1}}}")
    await one.run_for(2.0)
    assert set(one.way.items) == {asks}
    await one.plant.intend(asks, intents.Intent.CANCEL)
    await one.run_for(10.0)
    assert one.way.items == {}
    assert (await one.plant.job(other)).live is not None or (await one.plant.job(other)).terminal


async def test_a_server_after_another_removes_boards_without_a_job() -> None:
    one = Watched()
    one.way.items["j-of-before"] = ""
    await one.run_for(8.0)
    assert one.way.items == {}


async def test_a_cluster_that_refuses_is_asked_again() -> None:
    one = Watched()
    asks = await one.plant.submit("{tensorboard: true, roles: {worker: {count: 1, cpus: 1}}}")
    one.plant.behaviours[asks] = fake.Behaviour(runs_s=1e5, at_barrier=True, lingers=True)
    await one.plant.step()
    made = one.way.make

    async def refused(job: Any) -> None:
        one.way.make = made  # type: ignore[method-assign]  # once
        raise errors.Forbidden("no", hint="")

    one.way.make = refused  # type: ignore[method-assign]  # once
    await one.run_for(controllers.PERIOD_S + 2.0)
    assert set(one.way.items) == {asks}


async def test_changes_of_other_jobs_ask_the_cluster_nothing() -> None:
    one = Watched()
    asks = await one.plant.submit("{tensorboard: true, roles: {worker: {count: 1, cpus: 1}}}")
    await one.run_for(2.0)
    assert set(one.way.items) == {asks}
    looks, there = 0, one.way.there

    async def counted() -> Any:
        nonlocal looks
        looks += 1
        return await there()

    one.way.there = counted  # type: ignore[method-assign]
    for _ in range(20):  # at one time
        await one.plant.submit("{roles: {worker: {count: 1, cpus: 1}}}")
        await one.controller.tick()
    assert looks <= 1
