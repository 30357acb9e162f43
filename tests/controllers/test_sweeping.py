"""Objects that no job's record names, in a cluster in memory, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers import plant as plants

from oarlock.backends import fake, remains
from oarlock.controllers import sweeping
from oarlock.spec import errors, events
from oarlock.spec.cluster import provisioning
from oarlock.spec.phases import Phase


class Swept:
    def __init__(self) -> None:
        self.plant = plants.Plant(machines=[plants.machine("n0")])
        self.way = remains.Memory()
        self.begin("server-1")

    def begin(self, name: str) -> None:
        server = self.plant.server = plants.Server(self.plant, name)
        store: Any = plants.OfControllers(self.plant.store)
        self.controller = sweeping.Sweeping(store, self.way, server.leading, clock=self.plant.clock)

    async def run_for(self, seconds: float) -> None:
        end = self.plant.now + seconds
        while self.plant.now < end:
            await self.plant.step()
            await self.controller.tick()

    async def running(self) -> str:
        """Begin a job that runs on."""
        job = await self.plant.submit("{roles: {worker: {count: 1, cpus: 1}}}")
        self.plant.behaviours[job] = fake.Behaviour(runs_s=1e5, at_barrier=True, lingers=True)
        await self.plant.until_phase(job, Phase.PROCESSING)
        return job


async def test_objects_of_the_living_attempt_stay_and_all_others_go() -> None:
    one = Swept()
    job = await one.running()
    kept = one.way.put(job, 1)
    one.way.put(job, 2)
    one.way.put("j-removed", 1)
    await one.run_for(sweeping.PERIOD_S + 2.0)
    assert list(one.way.items) == [kept.uid]
    await one.plant.intend(job, "cancel")
    await one.plant.until_phase(job, Phase.CANCELED)
    await one.run_for(sweeping.PERIOD_S + 2.0)
    assert one.way.items == {}


async def test_requests_that_the_record_does_not_name_go() -> None:
    one = Swept()
    job = await one.plant.submit("{roles: {worker: {count: 1, cpus: 1000}}}")
    need = provisioning.Need(nodes={"big": 1}, tasks=())
    asked = provisioning.NodeRequest(number=2, need=need, at=one.plant.now)
    await one.plant.tell(job, events.NodesRequested(request=asked))
    one.way.put(job, 1, of_attempt=False)
    kept = one.way.put(job, 2, of_attempt=False)
    one.way.put(job, 2)  # an attempt with the number of the request
    await one.run_for(sweeping.PERIOD_S + 2.0)
    assert list(one.way.items) == [kept.uid]


async def test_an_attempt_that_begins_between_list_and_records_keeps_its_objects() -> None:
    """The list is older than the records, never newer."""
    one = Swept()
    await one.plant.step()
    job = await one.plant.submit("{roles: {worker: {count: 1, cpus: 1}}}")
    one.plant.behaviours[job] = fake.Behaviour(runs_s=1e5, at_barrier=True, lingers=True)
    there = one.way.there

    async def slow() -> list[remains.Remain]:
        found = await there()
        await one.plant.until_phase(job, Phase.PROCESSING)
        return found

    one.way.there = slow  # type: ignore[method-assign]
    one.way.put(job, 1)
    await one.controller.tick()
    assert len(one.way.items) == 1


async def test_one_that_cannot_be_removed_holds_up_no_other() -> None:
    one = Swept()
    stays = one.way.put("j-a", 1)
    one.way.put("j-b", 1)
    one.way.fails.add(stays.name)
    await one.run_for(4.0)
    assert list(one.way.items) == [stays.uid]
    one.way.fails.clear()
    await one.run_for(sweeping.PERIOD_S + 2.0)
    assert one.way.items == {}


async def test_a_server_that_stops_leading_during_the_look_removes_nothing() -> None:
    one = Swept()
    await one.run_for(2.0)
    one.way.put("j-a", 1)
    leading, there = one.plant.server.leading, one.way.there

    async def late() -> list[remains.Remain]:
        assert leading.epoch is not None
        leading.lost(leading.epoch)
        return await there()

    one.way.there = late  # type: ignore[method-assign]
    end = one.plant.now + sweeping.PERIOD_S
    while one.plant.now < end:
        await one.plant.step()
    with pytest.raises(errors.StaleEpoch):
        await one.controller.tick()
    assert len(one.way.items) == 1
