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
    assert set(one.way.items) == {(asks, 1)}
    await one.plant.intend(asks, intents.Intent.CANCEL)
    await one.run_for(10.0)
    assert one.way.items == {}
    assert (await one.plant.job(other)).live is not None or (await one.plant.job(other)).terminal


async def test_a_server_after_another_removes_boards_without_a_job() -> None:
    one = Watched()
    one.way.put("j-of-before")
    await one.run_for(8.0)
    assert one.way.items == {}


async def test_a_cluster_that_refuses_is_asked_again() -> None:
    one = Watched()
    asks = await one.plant.submit("{tensorboard: true, roles: {worker: {count: 1, cpus: 1}}}")
    one.plant.behaviours[asks] = fake.Behaviour(runs_s=1e5, at_barrier=True, lingers=True)
    await one.plant.step()
    made = one.way.make

    async def refused(job: Any, still: Any) -> str:
        one.way.make = made  # type: ignore[method-assign]  # once
        raise errors.Forbidden("no", hint="")

    one.way.make = refused  # type: ignore[method-assign]  # once
    await one.run_for(controllers.PERIOD_S + 2.0)
    assert set(one.way.items) == {(asks, 1)}


async def test_changes_of_other_jobs_ask_the_cluster_nothing() -> None:
    one = Watched()
    asks = await one.plant.submit("{tensorboard: true, roles: {worker: {count: 1, cpus: 1}}}")
    await one.run_for(2.0)
    assert set(one.way.items) == {(asks, 1)}
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


async def lingering(one: Watched) -> str:
    """Begin a job that asks for one, and runs on."""
    asks = await one.plant.submit("{tensorboard: true, roles: {worker: {count: 1, cpus: 1}}}")
    one.plant.behaviours[asks] = fake.Behaviour(runs_s=1e5, at_barrier=True, lingers=True)
    return asks


async def test_one_that_has_ended_is_replaced_and_goes_with_the_job() -> None:
    """An evicted one counted as none: it was made again, but stayed for good where the job ended before that."""
    one = Watched()
    asks = await lingering(one)
    await one.run_for(2.0)
    evicted = one.way.put(asks, reason="evicted", good=False)
    await one.run_for(controllers.PERIOD_S + 2.0)
    assert one.way.items[asks, 1].uid != evicted.uid
    assert one.way.items[asks, 1].good
    one.way.put(asks, reason="evicted", good=False)
    await one.plant.intend(asks, intents.Intent.CANCEL)
    await one.run_for(controllers.PERIOD_S + 2.0)
    assert one.way.items == {}


async def test_each_attempt_has_its_own() -> None:
    """One that is kept goes on with the token of the attempt before."""
    one = Watched()
    asks = await lingering(one)
    await one.run_for(2.0)
    one.way.items.clear()
    before = one.way.put(asks, attempt=0)
    await one.run_for(controllers.PERIOD_S + 2.0)
    assert before.key not in one.way.items
    assert set(one.way.items) == {(asks, 1)}


async def test_one_that_was_made_in_part_is_completed_by_the_next_server() -> None:
    """A server was killed between the pod and its Secret. One that was seen whole is not asked for again."""
    one = Watched()
    asks = await lingering(one)
    await one.run_for(2.0)
    made: list[str] = []
    make = one.way.make

    async def counted(job: Any, still: Any) -> str:
        made.append(job.id)
        return await make(job, still)

    one.way.make = counted  # type: ignore[method-assign]
    await one.run_for(3 * controllers.PERIOD_S)
    assert made == []
    await one.plant.server.leading.resign()
    one.begin("server-2")
    await one.run_for(3 * controllers.PERIOD_S)
    assert made == [asks]


async def test_a_server_that_does_not_lead_any_more_changes_nothing() -> None:
    """The cluster answers late: meanwhile another server leads, has made what is there, and has called it whole."""
    one = Watched()
    await one.run_for(2.0)
    there = one.way.there

    async def late() -> Any:
        found = await there()
        await one.plant.server.leading.resign()
        return found

    one.way.there = late  # type: ignore[method-assign]
    of_the_next = one.way.put("j-of-the-next-server")
    asks = await lingering(one)
    for _ in range(20):
        await one.plant.step()
        await one.controller.tick()
    assert (await one.plant.job(asks)).live is not None
    assert set(one.way.items) == {of_the_next.key}


async def test_one_that_another_server_made_late_is_found() -> None:
    one = Watched()
    await one.run_for(2.0)
    one.way.put("j-late")
    await one.run_for(controllers.EMPTY_S + 2.0)
    assert one.way.items == {}
