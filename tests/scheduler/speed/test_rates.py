"""A job's speed, from its curve: against the formulas written out, and the best batch against trying every one."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from oarlock.scheduler.speed import rates
from oarlock.spec import curves, jobfile

Shape = rates.Shape

MODEL = curves.Allreduce(
    compute_s=0.02,
    compute_per_example_s=0.001,
    near_s=0.03,
    near_per_device_s=0.002,
    far_s=0.08,
    far_per_device_s=0.004,
    overlap=2.0,
    noise=1000.0,
    seen=4,
)


@pytest.mark.parametrize(
    ("nodes", "devices", "local", "parts", "seconds"),
    [
        (1, 1, 10, 1, 0.03),  # no other device to exchange with
        (1, 1, 10, 3, 0.09),
        (1, 2, 10, 1, math.hypot(0.03, 0.03)),
        (1, 4, 10, 1, math.hypot(0.03, 0.034)),
        (2, 4, 10, 1, math.hypot(0.03, 0.088)),  # the same devices on two nodes
        (2, 4, 10, 2, 0.03 + math.hypot(0.03, 0.088)),  # exchanged once for two parts
    ],
)
def test_a_step_takes_as_long_as_the_model_says(nodes, devices, local, parts, seconds) -> None:
    assert rates.step_s(MODEL, nodes, devices, local, parts) == pytest.approx(seconds)


def test_no_exponent_overflows() -> None:
    extreme = curves.Allreduce(compute_s=1e-6, compute_per_example_s=0, near_s=1e6, overlap=10.0)
    assert rates.step_s(extreme, 1, 2, 1) == pytest.approx(1e6)
    extreme = curves.Allreduce(compute_s=1e6, compute_per_example_s=0, near_s=1e-6, overlap=10.0)
    assert rates.step_s(extreme, 1, 2, 1) == pytest.approx(1e6)
    assert rates.step_s(curves.Allreduce(compute_s=0, compute_per_example_s=0, near_s=1), 1, 2, 1) == 1


def test_a_larger_batch_brings_less_for_each_example() -> None:
    assert rates.efficiency(1000.0, 100, 100) == 1
    assert rates.efficiency(1000.0, 100, 1200) == pytest.approx(1100 / 2200)
    assert rates.efficiency(None, 100, 1200) == pytest.approx(1 / 12)  # not known: hoped for nothing


def _tried(model: curves.Allreduce, batch: jobfile.Batch, nodes: int, devices: int) -> float:
    """The best goodput of every batch that is allowed, one by one."""
    most = max(batch.size, batch.max or batch.size)
    best = 0.0
    for local in range(batch.local_min, (batch.local_max or most) + 1):
        for parts in range(1, most // (devices * local) + 1):
            total = devices * local * parts
            if total < batch.size or total > most:
                continue
            if devices == 1 and parts == 1 and total > batch.size:
                continue
            seconds = (parts - 1) * (model.compute_s + model.compute_per_example_s * local)
            grad_s = model.compute_s + model.compute_per_example_s * local
            sync_s = rates.sync_s(model, nodes, devices)
            seconds += (grad_s**model.overlap + sync_s**model.overlap) ** (1 / model.overlap)
            noise = model.noise or 0.0
            efficiency = (noise + batch.size) / (noise + total)
            best = max(best, total / seconds * efficiency)
    return best


def test_the_best_batch_is_the_best_of_all_within_two_per_cent() -> None:
    """Over many models, limits and shapes, against trying every batch."""
    draw = random.Random(7)
    compared = 0
    for _ in range(300):
        model = curves.Allreduce(
            compute_s=10 ** draw.uniform(-3, 0),
            compute_per_example_s=10 ** draw.uniform(-4, -1),
            near_s=10 ** draw.uniform(-3, 0),
            near_per_device_s=10 ** draw.uniform(-4, -2),
            far_s=10 ** draw.uniform(-3, 0.5),
            far_per_device_s=10 ** draw.uniform(-4, -1),
            overlap=draw.choice([1, 1.5, 3, 8.0]),
            noise=draw.choice([None, rates.NOISE_STEP ** draw.randint(0, 120)]),
        )
        size = draw.choice([8, 32, 96])
        batch = jobfile.Batch(
            size=size,
            max=size * draw.choice([1, 4, 20]),
            local_min=draw.choice([1, size // 8]),
            local_max=draw.choice([None, size // 4, size]),
        )
        devices = draw.choice([1, 2, 4, 8, 16])
        shape = Shape(max(1, devices // 4), devices)
        curve = curves.Curve(model=model)
        found, tried = rates.rate(curve, batch, shape), _tried(model, batch, *shape[:2])
        if batch.local_min * devices > (batch.max or batch.size):
            assert found == 0
            continue
        compared += tried > 0  # else no batch is just within the limits, and the nearest below them is taken
        assert found > 0.98 * tried, (model, batch, shape)
        chosen = rates.best_batch(curve, batch, shape)
        assert chosen is not None
        total = chosen.local * chosen.accumulate * devices
        assert total <= (batch.max or batch.size)
        assert batch.size <= total or total + devices * chosen.accumulate > (batch.max or batch.size)
        assert batch.local_min <= chosen.local <= max(batch.local_max or total, batch.local_min)
    assert compared > 200


def test_without_noise_the_batch_keeps_its_initial_size() -> None:
    curve = curves.Curve(model=curves.Allreduce(compute_s=0.1, compute_per_example_s=0.001))
    batch = jobfile.Batch(size=64, max=4096, local_max=16)
    assert rates.best_batch(curve, batch, Shape(1, 1)) == curves.Batch(16, 4)
    assert rates.best_batch(curve, batch, Shape(1, 4)) == curves.Batch(16, 1)
    assert rates.best_batch(curve, batch, Shape(2, 8)) == curves.Batch(8, 1)


def test_one_device_does_not_enlarge_a_batch_that_it_takes_at_once() -> None:
    """Its noise could not be told any more."""
    curve = curves.Curve(model=curves.Allreduce(compute_s=1.0, compute_per_example_s=0.001, noise=1e6))
    chosen = rates.best_batch(curve, jobfile.Batch(size=64, max=640), Shape(1, 1))
    assert chosen is not None
    assert chosen.accumulate >= 2 or chosen.local == 64


def test_more_devices_than_the_largest_batch_has_parts_for_is_no_way_to_run() -> None:
    curve = curves.Curve(model=MODEL)
    batch = jobfile.Batch(size=64, max=128, local_min=32)
    assert rates.rate(curve, batch, Shape(1, 4)) > 0
    assert rates.rate(curve, batch, Shape(2, 8)) == 0
    assert rates.best_batch(curve, batch, Shape(2, 8)) is None


def test_a_job_that_says_nothing_of_batches_goes_on_as_it_is() -> None:
    sample = curves.Sample(nodes=1, devices=4, local=10, step_s=1, sync_s=0)
    curve = curves.Curve(model=MODEL, samples=(sample,))
    assert rates.rate(curve, None, Shape(1, 4)) == pytest.approx(40 / math.hypot(0.03, 0.034))
    assert rates.best_batch(curve, None, Shape(1, 4)) is None


def test_of_an_unknown_job_more_is_hoped_for_from_more() -> None:
    assert [rates.rate(None, None, Shape(1, devices)) for devices in (0, 1, 4)] == [0, 1, 4]
    assert rates.speedup(None, None, Shape(1, 4)) == 4


def test_a_table_is_constant_beyond_its_end() -> None:
    curve = curves.Curve(model=curves.Table(rates=(1.0, 1.9, 2.7)))
    assert [rates.rate(curve, None, Shape(1, devices)) for devices in (0, 1, 3, 9)] == [0, 1.0, 2.7, 2.7]
    assert rates.rate(curves.Curve(model=curves.Table(rates=())), None, Shape(1, 1)) == 0


def test_parameter_servers_as_optimus_has_them() -> None:
    asynchronous = curves.Servers(times=(1.0, 2.0, 0.1, 0.2))
    assert rates.steps_per_s(asynchronous, 4, 2) == pytest.approx(4 / (1 + 2 * 4 / 2 + 0.1 * 4 + 0.2 * 2))
    synchronous = curves.Servers(times=(0.01, 1.0, 2.0, 0.1, 0.2), synchronous=True, batch=128)
    seconds = 0.01 * 128 / 4 + 1 + 2 * 4 / 2 + 0.1 * 4 + 0.2 * 2
    assert rates.steps_per_s(synchronous, 4, 2) == pytest.approx(1 / seconds)
    assert rates.steps_per_s(synchronous, 4, 0) == 0
    assert rates.rate(curves.Curve(model=asynchronous), None, Shape(1, 4, 2)) == pytest.approx(
        rates.steps_per_s(asynchronous, 4, 2)
    )


def test_a_curve_from_the_numbers_of_another_simulator() -> None:
    curve = rates.of_params((0.02, 0.001, 0.08, 0.004, 0.03, 0.002, 2.0), (0.5, 4.0), 125, 4)
    assert curve.model == MODEL
    assert rates.noise(0.0, 1.0, 10) is None


def test_a_type_of_gpu_has_its_own_speed_and_its_own_bounds() -> None:
    """Where memory is small, the batch is cut into more parts; a type without a model goes by the last one."""
    slow = curves.Allreduce(compute_s=0.1, compute_per_example_s=0.01, noise=1e5)
    quick = msgspec.structs.replace(slow, compute_s=0.01, compute_per_example_s=0.001)
    named = (curves.OnType(gpu_type="t4", model=slow), curves.OnType(gpu_type="a100", model=quick))
    curve = curves.Curve(model=slow, types=named)
    batch = jobfile.Batch(size=256, max=1024, local_max={"t4": 32, "a100": 512})

    def chosen(gpu_type: str) -> tuple[float, curves.Batch | None]:
        shape = rates.Shape(1, 2, gpu_type=gpu_type)
        return rates.rate(curve, batch, shape), rates.best_batch(curve, batch, shape)

    (few, small), (many, large) = chosen("t4"), chosen("a100")
    assert small is not None
    assert large is not None
    assert small.local <= 32 < large.local <= 512
    assert many > 9 * few
    assert chosen("v100")[1] == small, "a type that is not named gets the smallest bound"
    assert rates.seen(curve) == 1
