"""Faults lose no job and no device-second, and a run with faults can be repeated."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests import marks
from tests.simulator import published, smallcases

from oarlock.simulator.engine import faults, simulation
from oarlock.simulator.outcomes import outcome
from oarlock.simulator.reports import summary
from oarlock.simulator.workloads import workload
from oarlock.spec import errors

FAULTS = faults.Faults(node_mtbf_s=7200, node_mttr_s=900, node_gone_s=120, job_mtbf_s=9000, launch_failures=0.03)


def crowd(count: int = 60) -> list[workload.Arrival]:
    sizes = [1, 1, 2, 4, 8]
    return [smallcases.job(f"j{n:03}", 97.0 * n, 500.0 + 331 * (n % 7), gpus=sizes[n % 5]) for n in range(count)]


def test_a_job_on_a_lost_node_starts_again_from_its_checkpoint() -> None:
    """Lost at 1,000 s, declared gone at 1,300 s, found elsewhere 1 s (the first back-off) later; checkpoints are made
    every 400 s, the last before the loss at 800 s.
    """
    sim = smallcases.prepared(
        [smallcases.job("a", 0.0, 2000.0)], "2x1", checkpoint_s=400.0, faults=faults.Faults(node_gone_s=300.0)
    )
    schedule = sim._faults
    schedule._push(sim.now + 1000.0, "n2", "lose")
    schedule._chances["n2"].seed(0)
    found = asyncio.run(sim.run()).outcome
    first, second = found.spans
    assert first.held == (("n2", (0,)),)
    assert second.held == (("n1", (0,)),)
    assert first.useful == (0.0, 1000.0)
    assert (first.end, second.start) == (1300.0, 1301.0)
    assert found.stories[0].ended == pytest.approx(1301.0 + 2000.0 - 800.0)
    assert found.stories[0].lost_device_s == pytest.approx(200.0)


def test_a_process_that_fails_starts_again_until_its_restarts_are_spent() -> None:
    found = smallcases.run(
        [smallcases.job("a", 0.0, 5000.0, gpus=2, max_restarts=3)], "1x2", faults=faults.Faults(job_mtbf_s=300.0)
    )
    (story,) = found.stories
    assert (story.phase, story.starts) == ("FAILED", 4)
    assert found.faults["processes_failed"] == 4


def test_a_gang_of_which_one_task_cannot_be_made_is_made_anew() -> None:
    found = smallcases.run(crowd(20), "4x4", faults=faults.Faults(launch_failures=0.1))
    assert found.faults["launches_failed"] > 3
    assert {story.phase for story in found.stories} == {"COMPLETED"}


@pytest.mark.parametrize("plan", [published.first_come, published.Tiresias()], ids=["fifo", "preemptive"])
def test_nothing_is_lost(plan: object) -> None:
    """Every job ends; what was held is, to the device-second, what the store was told and what the stories say; nobody
    held what another held.
    """
    sim = smallcases.prepared(crowd(), "4x4", plan=plan, faults=FAULTS, seed=11, restart_s=30.0)
    found = asyncio.run(sim.run()).outcome
    assert min(found.faults.values()) > 2, found.faults
    assert {story.phase for story in found.stories} == {"COMPLETED"}
    assert len(found.stories) == 60
    told = sum(usage.device_seconds for usage in asyncio.run(sim.store.read(lambda view: view.usage())))
    of_spans = sum((span.end - span.start) * span.devices for span in found.spans)
    of_stories = sum(story.held_device_s for story in found.stories)
    assert told == pytest.approx(of_spans, rel=1e-9)
    assert told == pytest.approx(of_stories, rel=1e-9)
    check_devices(found)
    check_work(found)
    assert asyncio.run(sim.store.read(lambda view: (view.holdings(), view.active()))) == ([], [])
    assert sim.world.known() == []


def check_devices(found: outcome.Outcome) -> None:
    """No device twice at any instant."""
    by_device: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for span in found.spans:
        for node, indexes in span.held:
            for index in indexes:
                by_device.setdefault((node, index), []).append((span.start, span.end))
    for stays in by_device.values():
        stays.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(stays))


def check_work(found: outcome.Outcome) -> None:
    """Each job did its work once, and its lost work is counted apart."""
    lasts = {one.id: one.job_model.total * sum(role.count for role in one.spec.roles.values()) for one in crowd()}
    for story in found.stories:
        assert story.advanced_device_s - story.lost_device_s == pytest.approx(lasts[story.job], abs=1e-3)
        assert story.held_device_s >= story.advanced_device_s - 1e-6
        assert story.ended - story.arrived == pytest.approx(
            story.waited_s + sum(span.end - span.start for span in found.spans if span.job == story.job)
        )


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not() -> None:
    def encoded(seed: int) -> bytes:
        found = smallcases.run(crowd(20), "4x4", faults=FAULTS, seed=seed, restart_s=30.0)
        return msgspec.json.encode(msgspec.structs.replace(found, settings={}))  # they hold the seed itself

    assert encoded(5) == encoded(5)
    assert encoded(5) != encoded(6)


def test_deleted_records_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long simulations drop lines of the log, and jobs that have ended, as they go."""
    whole = smallcases.run(crowd(), "4x4", faults=FAULTS, seed=5)
    monkeypatch.setattr(simulation, "KEPT_RECORDS", 50)
    sim = smallcases.prepared(crowd(), "4x4", faults=FAULTS, seed=5)
    assert asyncio.run(sim.run()).outcome == whole
    with pytest.raises(errors.Gone):
        asyncio.run(sim.store.read(lambda view: view.records(0)))
    assert asyncio.run(sim.store.read(lambda view: view.job("j000"))) is None


@pytest.mark.long
def test_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    """With another order of every set and dictionary of texts."""
    root = Path(__file__).parent.parent.parent.parent
    code = (
        "import sys, msgspec; from tests.simulator import smallcases;"
        "from tests.simulator.engine import test_faults as t;"
        "sys.stdout.buffer.write(msgspec.json.encode("
        "smallcases.run(t.crowd(), '4x4', faults=t.FAULTS, seed=5, restart_s=30.0)))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            cwd=root,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(told.pop()) > 10_000


def test_the_faults_of_one_job_do_not_depend_on_others() -> None:
    """One more job changes nothing about when the processes of the others fail."""
    few = smallcases.run(crowd(5), "8x4", faults=faults.Faults(job_mtbf_s=900.0), seed=2)
    many = smallcases.run(crowd(6), "8x4", faults=faults.Faults(job_mtbf_s=900.0), seed=2)
    for one, story in zip(few.stories, many.stories, strict=False):
        assert one == msgspec.structs.replace(story, alone_s=one.alone_s)


@pytest.mark.parametrize("bad", [{"node_mtbf_s": 0.0}, {"job_mtbf_s": -1.0}, {"launch_failures": 1.0}])
def test_faults_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(errors.InvalidInput):
        faults.Faults(**bad)


def test_a_job_that_can_never_run_is_left_out_and_reported() -> None:
    found = smallcases.run([smallcases.job("small", 0.0, 60.0), smallcases.job("huge", 1.0, 60.0, gpus=99)], "1x4")
    assert [(story.job, story.phase) for story in found.stories] == [("small", "COMPLETED")]
    assert list(found.refused) == ["huge"]
    assert "they hold only 4 of its tasks" in found.refused["huge"]
    assert found.over < 600


def test_a_job_that_never_started_has_waited_to_the_end() -> None:
    """One that lasts for long holds all of it; the other one is given up with it."""
    found = smallcases.run(
        [smallcases.job("long", 0.0, 1e9), smallcases.job("starved", 0.0, 60.0)], "1x1", until_s=3600.0
    )
    told = summary.of(found)
    assert (told.started, told.unfinished, told.refused) == (1, 2, 0)
    assert told.queued_mean_s == 1800
    assert told.queued_long_share == 0.5


def test_tasks_that_are_scheduled_one_by_one_wait_for_each_other() -> None:
    """Two gangs of two, each task on its own: with one task of each on the two devices, neither ever works."""
    tasks = [("a-0", 0.0, "a"), ("b-0", 1.0, "b"), ("a-1", 2.0, "a"), ("b-1", 3.0, "b")]
    arrivals = [msgspec.structs.replace(smallcases.job(name, at, 100.0), group=group) for name, at, group in tasks]
    found = smallcases.run(arrivals, "2x1")
    assert [(story.job, story.ended, story.advanced_device_s) for story in found.stories] == [
        ("a", None, 0.0),
        ("b", None, 0.0),
    ]
    enough = smallcases.run(arrivals, "3x1")
    assert [(story.job, story.ended) for story in enough.stories] == [("a", 102.0), ("b", 202.0)]


@pytest.mark.parametrize("seed", marks.long_except([0], range(4)))
def test_gangs_that_are_calm_need_no_look(seed: int) -> None:
    """The guardian passes over gangs of which nothing has changed: what happens is the same to the last byte, with
    every kind of fault, as where it looks at all of them every time.
    """

    class Nervous(dict):
        def get(self, job_id: str, default: object = None) -> object:
            return default

    def found(*, nervous: bool) -> bytes:
        sim = smallcases.prepared(crowd(), "4x4", plan=published.Tiresias(), faults=FAULTS, seed=seed, restart_s=30.0)
        if nervous:
            tick = sim._guardian.tick

            async def always_anew() -> None:
                sim._guardian._calm = Nervous()
                await tick()

            sim._guardian.tick = always_anew
        return msgspec.json.encode(asyncio.run(sim.run()).outcome)

    assert found(nervous=False) == found(nervous=True)
