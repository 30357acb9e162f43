"""How far a job is: against one that goes on in small steps, as one would without foreseeing anything."""

from __future__ import annotations

import math
import random

import pytest

from oarlock.simulator.engine import work
from oarlock.simulator.models import jobmodels
from oarlock.spec import curves

MODEL = curves.Allreduce(
    compute_s=0.02, compute_per_example_s=0.001, near_s=0.01, far_s=0.08, far_per_device_s=0.004, noise=500.0
)


class Epochs:
    """Progress in three stretches, each twice as fast as the one before."""

    total = 300.0

    def batch(self, devices: int) -> curves.Batch | None:
        return None

    def pace(self, shape: jobmodels.Shape, batch: curves.Batch | None, progress: float) -> jobmodels.Pace:
        epoch = int(progress // 100)
        return jobmodels.Pace(rate=sum(shape) * 2.0**epoch, until=100.0 * (epoch + 1), gain=2.0, step_s=1.0, sync_s=0.0)


def test_the_end_is_foreseen_over_all_paces() -> None:
    did = work.Work(Epochs())
    did.start(1000.0, 1, (1, 1), None, ready_s=30.0)
    assert did.ends_at == pytest.approx(1030 + 50 + 25 + 12.5)
    did.advance(1030 + 50 + 10)
    assert did.progress == pytest.approx(140.0)


def test_it_continues_from_the_checkpoint_of_its_stop() -> None:
    did = work.Work(Epochs())
    did.start(0.0, 1, (1,), None, ready_s=30.0)
    did.stop(90.0, gracefully=True)
    assert did.ends_at == math.inf
    did.start(500.0, 2, (2, 2), None, ready_s=30.0)
    assert did.ends_at == pytest.approx(530 + 40 / 4 + 100 / 8 + 100 / 16)
    assert did.active_spans == {1: (30.0, 90.0)}
    assert (did.device_s, did.lost_device_s) == (60.0, 0.0)


def test_a_failure_loses_the_work_since_the_last_checkpoint() -> None:
    did = work.Work(Epochs(), saves_every_s=20.0)
    did.start(0.0, 1, (1,), None, ready_s=0.0)
    did.stop(75.0, gracefully=False)
    assert did.progress == pytest.approx(60.0)
    assert did.lost_device_s == pytest.approx(15.0)
    assert did.device_s == pytest.approx(75.0)


def test_a_stalled_job_loses_its_unsaved_work() -> None:
    did = work.Work(Epochs())
    did.start(0.0, 1, (4,), None, ready_s=0.0)
    did.stall(10.0)
    assert (did.ends_at, did.progress) == (math.inf, 40.0)
    did.stop(300.0, gracefully=False)
    assert (did.progress, did.lost_device_s) == (0.0, 40.0)


def test_nothing_is_made_while_it_starts_up() -> None:
    did = work.Work(Epochs())
    did.start(0.0, 1, (4,), None, ready_s=30.0)
    assert did.pace(29.0) is None
    did.stop(20.0, gracefully=True)
    assert (did.progress, did.device_s, did.active_spans) == (0.0, 0.0, {})


@pytest.mark.parametrize("seed", range(20))
def test_it_is_where_small_steps_lead(seed: int) -> None:
    """Starts, stops, failures, other shapes and batches at random times; beside it the same in steps of 20 ms."""
    chance = random.Random(seed)
    job_model = jobmodels.Modelled(MODEL, 400_000.0, asked=64, local_most=48)
    did, dt = work.Work(job_model, saves_every_s=50.0), 0.02
    at, progress, saved, device_s, shape, batch, ready_at, save_at = 0.0, 0.0, 0.0, 0.0, None, None, 0.0, math.inf
    for attempt in range(1, 8):
        shape, batch = chance.choice([(1,), (2,), (4,), (1, 3), (4, 4)]), None
        did.start(at, attempt, shape, batch, ready_s=5.0)
        ready_at, save_at = at + 5.0, at + 55.0
        stop_at = at + chance.randrange(1, 200)
        rebatch_at = at + chance.randrange(1, 200)
        while at < stop_at and progress < job_model.total:
            at = round(at + dt, 6)
            if at > ready_at:
                progress += dt * job_model.pace(shape, batch, progress).rate
                device_s += dt * sum(shape)
            if at >= save_at:
                saved, save_at = progress, save_at + 50.0
            if at >= rebatch_at:
                batch, rebatch_at = curves.Batch(chance.choice([16, 32, 48]), chance.choice([1, 2])), math.inf
                did.set_batch(at, batch)
        if progress >= job_model.total:
            assert did.ends_at == pytest.approx(at, abs=2 * dt)
            return
        gracefully = chance.random() < 0.5
        did.stop(at, gracefully=gracefully)
        progress = progress if gracefully else saved
        saved = progress
        assert did.progress == pytest.approx(progress, rel=0.005, abs=20)
        assert did.device_s == pytest.approx(device_s, rel=0.005, abs=1)
        progress = saved = did.progress  # the error of small steps does not add up


@pytest.mark.parametrize(
    ("shape", "batch", "expected"),
    [
        ((1,), curves.Batch(64), 64 / 0.084),
        ((2,), curves.Batch(32), 64 / (0.052 + 0.01)),
        ((4,), curves.Batch(32, 2), 256 * (564 / 756) / (0.052 + 0.052 + 0.01)),
        ((2, 4), curves.Batch(10), 60 * (564 / 560) / (0.03 + 0.08 + 4 * 0.004)),
    ],
)
def test_the_model_of_a_step_by_hand(shape: jobmodels.Shape, batch: curves.Batch, expected: float) -> None:
    job_model = jobmodels.Modelled(MODEL, 1.0, asked=64)
    assert job_model.pace(shape, batch, 0.0).rate == pytest.approx(expected)


@pytest.mark.parametrize(
    ("speedup", "far", "shape", "expected"),
    [
        (jobmodels.linear, 1.0, (1,), 400.0),
        (jobmodels.linear, 1.0, (4, 4), 50.0),
        (jobmodels.linear, 1.5, (2, 2), 150.0),
        (jobmodels.amdahl(0.2), 1.0, (8,), 100 * (0.2 + 0.8 / 8) / (0.2 + 0.8 / 4)),
        (jobmodels.from_speedups((1.0, 1.9, 2.7, 3.2)), 1.0, (2,), 100 * 3.2 / 1.9),
        (jobmodels.from_speedups((1.0, 1.9, 2.7, 3.2)), 1.0, (4, 4), 100.0),
    ],
)
def test_the_duration_on_other_devices_of_a_job_of_100_s_on_4(speedup, far: float, shape, expected: float) -> None:
    did = work.Work(jobmodels.Scaled(100.0, 4, speedup, far=far))
    did.start(0.0, 1, shape, None, ready_s=0.0)
    assert did.ends_at == pytest.approx(expected)
