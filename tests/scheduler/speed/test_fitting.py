"""Curves fitted to measurements: against a known truth, and against the recorded traces."""

from __future__ import annotations

import csv
import math
import pathlib
import random

import pytest
from tests import needs

from oarlock.scheduler.speed import fitting, rates
from oarlock.spec import curves

TRUTH = curves.Allreduce(
    compute_s=0.02,
    compute_per_example_s=0.002,
    near_s=0.05,
    near_per_device_s=0.004,
    far_s=0.15,
    far_per_device_s=0.006,
    overlap=1.9,
)

SHAPES = [(1, 1), (1, 2), (1, 4), (2, 8), (4, 16)]


def measured(
    truth: curves.Allreduce, nodes: int, devices: int, local: int, *, off: float = 1.0, count: int = 1
) -> curves.Sample:
    """A report as the training library makes one: a step, and how long of it the exchange was waited for."""
    step_s = rates.step_s(truth, nodes, devices, local) * off
    grad_s = (truth.compute_s + truth.compute_per_example_s * local) * off
    return curves.Sample(nodes=nodes, devices=devices, local=local, step_s=step_s, sync_s=step_s - grad_s, count=count)


def worst(model: curves.Allreduce, taken: list[curves.Sample]) -> float:
    """The largest error, as a logarithm."""
    return max(abs(math.log(rates.step_s(model, one.nodes, one.devices, one.local) / one.step_s)) for one in taken)


def test_the_truth_is_found_again_from_exact_samples() -> None:
    taken = [measured(TRUTH, *shape, local) for shape in SHAPES for local in (8, 32, 128)]
    model = fitting.allreduce(taken)
    assert model is not None
    assert model.overlap == TRUTH.overlap
    assert model.seen == 16
    unseen = [measured(TRUTH, nodes, devices, local) for nodes, devices in [(1, 3), (8, 32)] for local in (16, 64)]
    assert worst(model, [*taken, *unseen]) < 0.02


def test_noisy_samples_bend_it_by_no_more_than_their_noise() -> None:
    draw = random.Random(3)
    taken = [
        measured(TRUTH, *shape, local, off=math.exp(draw.gauss(0, 0.05))) for shape in SHAPES for local in (8, 32, 128)
    ]
    model = fitting.allreduce(taken)
    assert model is not None
    assert worst(model, [measured(TRUTH, *shape, local) for shape in SHAPES for local in (16, 64)]) < 0.12


def test_the_order_of_samples_changes_nothing() -> None:
    taken = [measured(TRUTH, *shape, local) for shape in SHAPES for local in (8, 32)]
    assert fitting.allreduce(taken) == fitting.allreduce(reversed(taken))


def test_unmeasured_shapes_are_assumed_to_be_good() -> None:
    """One device, one batch size: half of the time is constant, and an exchange costs nothing."""
    model = fitting.allreduce([measured(TRUTH, 1, 1, 32)])
    assert model is not None
    seconds = TRUTH.compute_s + TRUTH.compute_per_example_s * 32
    assert model.compute_s == pytest.approx(seconds / 2)
    assert model.compute_per_example_s == pytest.approx(seconds / 2 / 32)
    assert (model.near_s, model.far_s, model.seen) == (0, 0, 1)


def waiting(devices: int, local: int, data_s: float, computing_s: float = 0.02) -> curves.Sample:
    """A sample whose step is computing, and waiting for data."""
    step_s = computing_s + data_s
    return curves.Sample(nodes=1, devices=devices, local=local, step_s=step_s, sync_s=0.0, data_s=data_s)


def test_devices_that_read_from_one_source_are_no_faster_than_it() -> None:
    """It gives 320 examples a second, to one device or to two."""
    taken = [waiting(devices, 32, devices * 32 / 320 - 0.02) for devices in (1, 2)]
    model = fitting.allreduce(taken)
    assert model is not None
    for devices in (1, 2, 4, 8, 16):
        found = rates.rate(curves.Curve(model=model, samples=tuple(taken)), None, rates.Shape(1, devices))
        assert found == pytest.approx(320, rel=0.05), f"{devices} devices"


def test_devices_with_sources_of_their_own_are_as_fast_together() -> None:
    taken = [waiting(devices, 32, 0.08) for devices in (1, 2, 4)]
    model = fitting.allreduce(taken)
    assert model is not None
    assert model.data_per_device_s == pytest.approx(0.0, abs=1e-9)
    found = rates.rate(curves.Curve(model=model, samples=tuple(taken)), None, rates.Shape(1, 8))
    assert found == pytest.approx(8 * 32 / 0.1, rel=0.01)


def test_a_larger_batch_is_not_read_faster() -> None:
    """One size was measured. Its source gives 400 examples a second, and 32 of them take 80 ms."""
    model = fitting.allreduce([waiting(1, 32, 0.08, computing_s=0.0001)])
    assert model is not None
    for local in (8, 32, 128, 512):
        assert local / rates.step_s(model, 1, 1, local) <= 401
    free = fitting.allreduce([waiting(1, 32, 0.0, computing_s=0.08)])
    assert free is not None
    assert 128 / rates.step_s(free, 1, 1, 128) > 500, "a part of the computing may be constant"


def test_between_nodes_is_never_hoped_to_be_better_than_within_one() -> None:
    model = fitting.allreduce([measured(TRUTH, 1, 1, 32), measured(TRUTH, 1, 4, 32)])
    assert model is not None
    assert model.near_s > 0
    assert model.near_per_device_s == pytest.approx(0, abs=1e-6)  # one number of devices does not tell growth
    assert model.far_s == pytest.approx(fitting.FAR * model.near_s)


def test_senseless_samples_are_left_out() -> None:
    assert fitting.allreduce([]) is None
    good = measured(TRUTH, 1, 1, 32)
    broken = [
        curves.Sample(nodes=1, devices=1, local=32, step_s=0.0, sync_s=0.0),
        curves.Sample(nodes=1, devices=1, local=32, step_s=math.inf, sync_s=0.0),
        curves.Sample(nodes=1, devices=1, local=32, step_s=math.nan, sync_s=0.0),
        curves.Sample(nodes=0, devices=0, local=32, step_s=1.0, sync_s=0.0),
    ]
    assert fitting.allreduce(broken) is None
    assert fitting.allreduce([*broken, good]) == fitting.allreduce([good])
    longer_than_the_step = curves.Sample(nodes=1, devices=2, local=32, step_s=1.0, sync_s=3.0)
    model = fitting.allreduce([longer_than_the_step])
    assert model is not None
    assert math.isfinite(rates.step_s(model, 1, 2, 32))


def test_parameter_servers_are_found_again() -> None:
    truth = curves.Servers(times=(0.5, 0.3, 0.02, 0.01))
    taken = [
        curves.Sample(nodes=1, devices=w, servers=p, local=8, step_s=w / rates.steps_per_s(truth, w, p), sync_s=0)
        for w in (1, 2, 4, 8)
        for p in (1, 2, 4)
    ]
    model = fitting.servers(taken)
    assert model is not None
    for w, p in [(3, 1), (6, 3), (16, 8)]:
        assert rates.steps_per_s(model, w, p) == pytest.approx(rates.steps_per_s(truth, w, p), rel=0.01)
    assert fitting.servers([measured(TRUTH, 1, 2, 8)]) is None


def test_synchronous_servers_are_found_again() -> None:
    truth = curves.Servers(times=(0.01, 0.1, 0.3, 0.02, 0.01), synchronous=True, batch=256)
    taken = [
        curves.Sample(nodes=1, devices=w, servers=p, local=8, step_s=1 / rates.steps_per_s(truth, w, p), sync_s=0)
        for w in (1, 2, 4, 8)
        for p in (1, 2, 4)
    ]
    model = fitting.servers(taken, batch=256, synchronous=True)
    assert model is not None
    for w, p in [(3, 1), (6, 3), (16, 8)]:
        assert rates.steps_per_s(model, w, p) == pytest.approx(rates.steps_per_s(truth, w, p), rel=0.01)


def test_samples_of_one_shape_become_their_mean_and_old_ones_give_way() -> None:
    known = fitting.merged((), measured(TRUTH, 1, 1, 32, count=3))
    known = fitting.merged(known, measured(TRUTH, 1, 1, 32, off=2.0))
    assert [one.count for one in known] == [4]
    assert known[0].step_s == pytest.approx(measured(TRUTH, 1, 1, 32).step_s * 1.25)
    for local in range(1, 2 * fitting.MAX_SAMPLES):
        known = fitting.merged(known, measured(TRUTH, 1, 2, local))
    assert len(known) == fitting.MAX_SAMPLES
    assert known[-1].local == 2 * fitting.MAX_SAMPLES - 1
    assert any(one.devices == 1 for one in known)  # it was measured most often


def test_least_squares_that_may_not_be_negative() -> None:
    assert fitting.nonnegative([[1, 0], [0, 1]], [2, -3], [1, 1]) == pytest.approx([2, 0], abs=1e-6)
    assert fitting.nonnegative([[1, 1], [1, 2], [1, 3]], [3, 5, 7], [1, 1, 1]) == pytest.approx([1, 2], rel=1e-6)
    assert fitting.nonnegative([[1, 1], [1, 2], [1, 3]], [7, 5, 3], [1, 1, 1]) == pytest.approx([5, 0], rel=1e-6)
    assert fitting.nonnegative([[0, 0]], [1], [1]) == [0, 0]
    draw = random.Random(5)
    for _ in range(100):
        rows = [[draw.gauss(0, 1) for _ in range(4)] for _ in range(9)]
        targets = [draw.gauss(0, 1) for _ in range(9)]
        x = fitting.nonnegative(rows, targets, [1.0] * 9)
        left = [t - sum(a * b for a, b in zip(row, x, strict=True)) for row, t in zip(rows, targets, strict=True)]
        for j in range(4):  # where it stands no direction that is allowed leads down
            slope = sum(row[j] * rest for row, rest in zip(rows, left, strict=True))
            assert slope == pytest.approx(0, abs=1e-6) if x[j] > 0 else slope <= 1e-6


def traces() -> dict[str, list[curves.Sample]]:
    """Return all measured placements of each recorded model: seconds per step and per exchange."""
    found = {}
    for path in sorted(pathlib.Path(needs.RECORDED, "adaptdl", "traces").glob("*/placements.csv")):
        with path.open() as lines:
            found[path.parent.name] = [
                curves.Sample(
                    nodes=len(row["placement"]),
                    devices=sum(map(int, row["placement"])),
                    local=int(float(row["local_bsz"])),
                    step_s=float(row["step_time"]),
                    sync_s=float(row["sync_time"]),
                )
                for row in csv.DictReader(lines)
            ]
    return found


@needs.recorded
def test_recorded_steps_are_foretold_at_shapes_that_were_held_out() -> None:
    """Fitted to every second shape of a trace, the others are foretold to 12 % on average, and each model to 15 %."""
    means = {}
    for name, taken in traces().items():
        shapes = sorted({(one.nodes, one.devices) for one in taken})
        known = [one for one in taken if shapes.index((one.nodes, one.devices)) % 2 == 0]
        others = [one for one in taken if shapes.index((one.nodes, one.devices)) % 2 == 1]
        model = fitting.allreduce(known)
        assert model is not None
        errors = [abs(math.log(rates.step_s(model, one.nodes, one.devices, one.local) / one.step_s)) for one in others]
        means[name] = sum(errors) / len(errors)
    assert len(means) == 6
    assert max(means.values()) < 0.15, means
    assert sum(means.values()) / len(means) < 0.12, means
