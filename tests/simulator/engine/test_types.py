"""A pretended cluster with two types of GPU: the real controllers measure each job on each, and the policy decides."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from oarlock.scheduler import planning
from oarlock.scheduler.reuse import memos
from oarlock.simulator import scenario
from oarlock.simulator.engine import simulation
from oarlock.simulator.outcomes import outcome
from oarlock.spec import errors

TWO_TYPES = """
nodes: "2x4:t4,1x4:a100"
jobs:
  - name: gains
    count: 4
    arrivals: {start: 10m, every: 30m}
    lasts: 8h
    gpus: 1
    most: 4
    types: {a100: 8}
  - name: little
    count: 4
    arrivals: {every: 30m}
    lasts: 8h
    gpus: 1
    most: 4
    types: {a100: 1.1}
run: {restart: 1m}
runs:
  goodput: {policy: goodput}
  fifo: {policy: fifo}
"""


def simulated(text: str, place: Path, run: str) -> tuple[outcome.Outcome, simulation.Simulation]:
    path = place / "scenario.yaml"
    path.write_text(text)
    case = scenario.case(scenario.load(path), place, run, run, None, scenario.Run())
    sim = simulation.Simulation(case.workload, case.machines, case.settings, planning.plan, memo=memos.Memo())
    found = asyncio.run(sim.run()).outcome
    assert {story.phase for story in found.stories} == {"COMPLETED"}
    return found, sim


def fast_part(found: outcome.Outcome, name: str) -> float:
    """Which part of their device-time these jobs had on the fast type."""
    spans = [span for span in found.spans if span.job.startswith(name)]
    held = [((span.end - span.start) * span.devices, any(node == "n3" for node, _ in span.held)) for span in spans]
    return sum(device_s for device_s, fast in held if fast) / sum(device_s for device_s, _ in held)


def mean_s(found: outcome.Outcome, name: str) -> float:
    return statistics.fmean(story.completion_s or 0.0 for story in found.stories if story.job.startswith(name))


def test_jobs_that_gain_by_it_get_the_fast_type(tmp_path: Path) -> None:
    chosen, sim = simulated(TWO_TYPES, tmp_path, "goodput")
    blind, _ = simulated(TWO_TYPES, tmp_path, "fifo")
    assert fast_part(chosen, "gains") > 0.5 > fast_part(chosen, "little")
    assert mean_s(chosen, "gains") < 0.9 * mean_s(blind, "gains")
    assert max(story.starts for story in chosen.stories) <= 10, "moves are budgeted"

    async def measured() -> list[set[str]]:
        jobs = await sim.store.read(lambda view: [view.job(story.job) for story in chosen.stories])
        return [{one.gpu_type for one in job.curve.types} for job in jobs if job is not None and job.curve is not None]

    types = asyncio.run(measured())
    assert set.union(*types) == {"t4", "a100"}
    assert any(len(seen) == 2 for seen in types), "one was measured on both"


def test_a_type_that_is_not_named_is_as_fast_as_the_job_says(tmp_path: Path) -> None:
    text = "nodes: 1x1:t4\njobs: [{name: j, lasts: 1h, gpus: 1, types: {a100: 4}}]\nrun: {restart: 0}\n"
    plain, _ = simulated(text, tmp_path, "")
    quick, _ = simulated(text.replace("1x1:t4", "1x1:a100"), tmp_path, "")
    assert plain.stories[0].completion_s == pytest.approx(3600)
    assert quick.stories[0].completion_s == pytest.approx(900)


@pytest.mark.parametrize("times", ["0", "-1", ".inf"])
def test_a_speed_that_cannot_be(tmp_path: Path, times: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        simulated(f"jobs: [{{name: j, types: {{a100: {times}}}}}]\n", tmp_path, "")
    assert caught.value.path == "jobs[0].types.a100"
