"""The speed curve of a job, as it is told: measurements, and the expected speed of its other sizes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.lifecycle import script

from oarlock.api.jobs import speed
from oarlock.scheduler.speed import rates
from oarlock.spec import curves, events, holdings
from oarlock.spec.cluster import nodes

MODEL = curves.Allreduce(
    compute_s=0.1, compute_per_example_s=0.001, near_s=0.1, near_per_device_s=0.01, far_s=0.5, noise=700.0, seen=2
)
MEASURED = (
    curves.Sample(nodes=1, devices=1, local=32, step_s=0.13, sync_s=0.0, count=3),
    curves.Sample(nodes=1, devices=2, local=32, step_s=0.23, sync_s=0.1, count=7),
)
GROUND = [
    nodes.Node(
        name="n0",
        capacity=holdings.Resources(8000, 1 << 36, 4),
        devices=tuple(nodes.Device(index=index, type="h100") for index in range(4)),
    )
]


def told(text: str, curve: curves.Curve) -> speed.Speed:
    return speed.of(msgspec.structs.replace(script.new_job(text), curve=curve), curve, GROUND)


def test_sizes_that_were_measured_stand_beside_those_that_are_expected() -> None:
    found = told("{roles: {worker: {count: 2, min: 1, max: 8, gpus: 1}}}", curves.Curve(model=MODEL, samples=MEASURED))
    assert [(one.devices, one.nodes, one.measured) for one in found.items] == [
        (1, 1, 3),
        (2, 1, 7),
        (3, 1, 0),
        (4, 1, 0),
    ]
    assert found.items[1].per_s == pytest.approx(64 / 0.23)
    assert found.items[3].per_s == pytest.approx(4 * 32 / rates.step_s(MODEL, 1, 4, 32))
    assert (found.unit, found.noise, found.per_s) == ("examples", 700.0, None)


def test_a_gang_that_does_not_fit_a_node_is_expected_on_several() -> None:
    sample = msgspec.structs.replace(MEASURED[1], devices=4)
    found = told("{roles: {worker: {count: 2, min: 1, max: 2, gpus: 4}}}", curves.Curve(model=MODEL, samples=(sample,)))
    assert [(one.devices, one.nodes, one.measured) for one in found.items] == [(4, 1, 7), (8, 2, 0)]


def test_without_a_number_of_examples_steps_are_counted() -> None:
    sample = msgspec.structs.replace(MEASURED[1], local=0)
    found = told("{roles: {worker: {count: 2, gpus: 1}}}", curves.Curve(model=MODEL, samples=(sample,)))
    (point,) = found.items
    assert (found.unit, point.per_s, point.local) == ("steps", pytest.approx(1 / 0.23), 0)
    served = curves.Curve(
        model=curves.Servers(times=(1.0, 0.1, 0.1, 0.1)),
        samples=(msgspec.structs.replace(MEASURED[1], servers=2),),
    )
    found = told("{framework: tensorflow, roles: {worker: {count: 2, min: 1}, ps: {count: 2}}}", served)
    assert [(one.devices, one.servers, one.measured > 0) for one in found.items] == [(1, 2, False), (2, 2, True)]


async def test_it_is_read_by_users_who_may_see_the_job(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/jobs/digits/speed")).json()["items"] == []
        await rig.happen(job.id, events.Measured(curve=curves.Curve(model=MODEL, samples=MEASURED)))
        found: dict[str, Any] = (await http.get("/api/v1/jobs/digits/speed")).json()
    assert [one["measured"] for one in found["items"]] == [3, 7]


def test_each_type_of_gpu_is_told_apart() -> None:
    samples = tuple(
        msgspec.structs.replace(sample, gpu_type=name, step_s=sample.step_s * factor)
        for name, factor in (("h100", 1.0), ("t4", 4.0))
        for sample in MEASURED
    )
    slow = msgspec.structs.replace(MODEL, compute_s=4 * MODEL.compute_s, compute_per_example_s=0.004, near_s=0.4)
    curve = curves.Curve(
        model=MODEL,
        samples=samples,
        types=(curves.OnType(gpu_type="h100", model=MODEL), curves.OnType(gpu_type="t4", model=slow)),
    )
    found = told("{roles: {worker: {count: 2, min: 1, max: 3, gpus: 1}}}", curve)
    assert [(one.gpu_type, one.devices, one.measured) for one in found.items] == [
        *(("h100", devices, measured) for devices, measured in ((1, 3), (2, 7), (3, 0))),
        *(("t4", devices, measured) for devices, measured in ((1, 3), (2, 7), (3, 0))),
    ]
    quick, slower = (one.per_s for one in found.items if one.devices == 3)
    assert quick == pytest.approx(4 * slower, rel=0.25)
