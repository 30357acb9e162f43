"""Samples of the cluster: taken every few minutes by the leader, with the numbers that decide, and kept for a month."""

from __future__ import annotations

import types
from typing import Any

import msgspec
import pytest
from tests.controllers.plant import OfControllers, Phase, Plant, machine

from oarlock.backends import fake
from oarlock.controllers import sampling
from oarlock.scheduler.forecasting import forecasts
from oarlock.spec import attempts, events, holdings, plans
from oarlock.spec.cluster import pools, samples

LONG = fake.Behaviour(at_barrier=True, lingers=True)


def made(plant: Plant, *, leads: bool = True) -> sampling.Sampling:
    """The controller of a server that leads for ever, or never."""
    leading: Any = types.SimpleNamespace(epoch=plant.server.leading.epoch if leads else None)
    return sampling.Sampling(
        OfControllers(plant.store), leading, clock=plant.clock, rules=plans.Rules(), monotonic=lambda: 0.0
    )


async def stored(plant: Plant) -> list[samples.Sample]:
    return await plant.store.read(lambda view: view.samples(since=0.0, until=1e12, limit=1000))


async def test_a_sample_has_the_use_and_the_entitlements_of_the_moment() -> None:
    plant = Plant(machines=[machine("n0", devices=4), machine("n1", devices=2)])
    for one in (
        pools.Pool(name="research", share={"gpus": 1.0}),
        pools.Pool(name="vision", parent="research", share={"gpus": 1.0}),
    ):
        await plant.store.write(lambda tx, one=one: tx.put_pool(one))
    job = await plant.submit("{pool: vision, roles: {worker: {count: 3, gpus: 1}}}")
    plant.behaviours[job] = LONG
    await plant.until_phase(job, Phase.PROCESSING)
    for node in await plant.store.read(lambda view: view.nodes()):
        if node.name == "n1":
            lost = msgspec.structs.replace(node, ready=False)
            await plant.store.write(lambda tx, lost=lost: tx.put_node(lost))
    await made(plant).tick()
    (found,) = await stored(plant)
    assert found.at == plant.now
    held = [one for one in await plant.store.read(lambda view: view.holdings()) if one.node == "n0"]
    assert sum((one.amount for one in held), holdings.Resources()).gpus == 3
    assert found.devices == {"h100": samples.Devices(used=3.0, idle=1.0, not_ready=2.0, reserved=0.0)}
    assert {name: one.used["gpus"] for name, one in found.pools.items()} == {
        "default": 0.0,
        "research": 3.0,
        "vision": 3.0,
    }
    assert found.pools["vision"].entitled["gpus"] == pytest.approx(found.pools["research"].entitled["gpus"])
    assert sum(found.pools[name].entitled["gpus"] for name in ("default", "research")) == pytest.approx(4.0)


async def test_idle_devices_where_the_first_waiting_job_should_start_are_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = Plant(machines=[machine("n0", devices=4), machine("n1", devices=1)])
    job = await plant.submit("{timeout: 1h, roles: {worker: {gpus: 3}}}")
    plant.behaviours[job] = LONG
    await plant.until_phase(job, Phase.PROCESSING)
    for step in (500, 600):
        plant.now += 0.5
        progress = attempts.Progress(step=step, total_steps=1000, at=plant.now)
        await plant.tell(job, events.TaskReported(key=attempts.TaskKey(job, 1, "worker", 0, 1), progress=progress))
    await made(plant).tick()
    await plant.submit("{roles: {worker: {gpus: 4}}}")
    plant.now += 1.0
    await made(plant).tick()
    with monkeypatch.context() as large:
        large.setattr(forecasts, "MOST_LOOKED_AT", 0)
        plant.now += 1.0
        await made(plant).tick()
    before, after, unknown = [one.devices["h100"] for one in await stored(plant)]
    assert unknown == samples.Devices(used=3.0, idle=2.0, reserved=None), "nothing was forecast"
    assert before == samples.Devices(used=3.0, idle=2.0, reserved=0.0)
    assert after == samples.Devices(used=3.0, idle=1.0, reserved=1.0), "the job needs all four devices of n0"


async def test_samples_are_taken_every_few_minutes_and_forgotten_after_a_month() -> None:
    plant = Plant(machines=[machine("n0", devices=1)])
    await plant.run_for(1)
    one = made(plant)
    taken = []
    for wait in (0.0, 60.0, 240.0, 0.0, sampling.KEPT_S - 100.0):
        plant.now += wait
        await one.tick()
        taken.append([each.at for each in await stored(plant)])
    first = taken[0][0]
    assert taken == [
        [first],
        [first],
        [first, first + 300.0],
        [first, first + 300.0],
        [first + 300.0, first + 200.0 + sampling.KEPT_S],
    ]
    assert one.wake_at() == plant.now + sampling.PERIOD_S


async def test_a_server_that_does_not_lead_takes_none() -> None:
    plant = Plant(machines=[machine("n0", devices=1)])
    await plant.run_for(1)
    one = made(plant, leads=False)
    await one.tick()
    assert (await stored(plant), one.wake_at()) == ([], None)
