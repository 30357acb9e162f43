"""From reports of single steps to the curve that is kept with the job."""

from __future__ import annotations

import msgspec
import pytest
from tests.controllers.plant import OfControllers, Phase, Plant, Server, machine

from oarlock.backends import fake
from oarlock.controllers import measuring
from oarlock.scheduler.speed import rates, samples
from oarlock.spec import attempts, curves, events

LONG = fake.Behaviour(at_barrier=True, lingers=True)
TWO = "{grace: 1s, roles: {worker: {count: 2, min: 1, gpus: 1}}}"


def truth(devices: int, nodes: int, local: int) -> tuple[float, float]:
    """Seconds of a step, and of waiting: 10 ms and 1 ms for each example, 40 ms to exchange among two."""
    model = curves.Allreduce(compute_s=0.010, compute_per_example_s=0.001, near_s=0.040, near_per_device_s=0.01)
    return rates.step_s(model, nodes, devices, local), rates.sync_s(model, nodes, devices)


class Rig:
    def __init__(self) -> None:
        self.plant = Plant(machines=[machine("n0", devices=4)])
        self.measuring = self.of(self.plant.server)
        self.step = 0

    def of(self, server: Server) -> measuring.Measuring:
        return measuring.Measuring(
            OfControllers(self.plant.store), server.leading, clock=self.plant.clock, report=server.report
        )

    async def started(self, text: str, count: int) -> str:
        job_id = await self.plant.submit(text)
        self.plant.behaviours[job_id] = LONG
        job = await self.plant.until_phase(job_id, Phase.PROCESSING)
        assert len(job.live.tasks) == count
        return job_id

    async def reports(self, job_id: str, *, local: int = 32, seconds: float = 5.0, **more: object) -> None:
        """Every worker reports once; the clock moves on, and the controller looks."""
        live = (await self.plant.job(job_id)).live
        self.step += 10
        step_s, sync_s = truth(len(live.tasks), 1, local)
        told = attempts.Progress(
            step=self.step,
            at=self.plant.now,
            total_steps=1000,
            loss=1 / (0.01 * self.step + 1),
            step_s=step_s,
            sync_s=sync_s,
            ranks=len(live.tasks),
            local=local,
            accumulate=1,
        )
        for task in live.tasks:
            await self.plant.tell(
                job_id,
                events.TaskReported(
                    key=task.key(job_id, live.number),
                    progress=msgspec.structs.replace(told, **more),
                ),
            )
        self.plant.now += seconds
        await self.plant.server.leading.tick()
        await self.measuring.tick()

    async def curve(self, job_id: str) -> curves.Curve | None:
        return (await self.plant.job(job_id)).curve


async def test_a_measurement_at_a_shape_is_there_within_a_look() -> None:
    rig = Rig()
    job_id = await rig.started(TWO, 2)
    await rig.reports(job_id, noise=700.0)
    found = await rig.curve(job_id)
    assert found is not None
    (sample,) = found.samples
    assert (sample.nodes, sample.devices, sample.local, sample.count) == (1, 2, 32, 1)
    assert (sample.step_s, sample.sync_s) == pytest.approx(truth(2, 1, 32))
    assert found.model.noise == 700.0
    assert found.left == (1000 - 10) * 64
    assert rates.rate(found, None, rates.Shape(1, 2)) == pytest.approx(64 / truth(2, 1, 32)[0], rel=0.02)


async def test_a_curve_is_written_once_a_minute_and_not_logged() -> None:
    rig = Rig()
    job_id = await rig.started(TWO, 2)
    before = await rig.plant.store.read(lambda view: view.last_seq())
    versions = []
    for _ in range(30):
        await rig.reports(job_id)
        job = await rig.plant.job(job_id)
        versions.append((job.version, job.curve.samples[0].count))
    counts = [count for _, count in versions]
    assert sorted(set(counts)) == [1, 13, 25], "one sample for each look, written with the minute's last"
    assert await rig.plant.store.read(lambda view: view.last_seq()) == before
    versions_before = versions[-1][0]
    rig.plant.now += 600
    await rig.plant.server.leading.tick()
    await rig.measuring.tick()
    assert (await rig.plant.job(job_id)).version == versions_before + 1, "what was gathered since, and then nothing new"
    rig.plant.now += 600
    await rig.plant.server.leading.tick()
    await rig.measuring.tick()
    assert (await rig.plant.job(job_id)).version == versions_before + 1


async def test_shapes_that_were_seen_make_one_curve_across_attempts_and_servers() -> None:
    """At two batch sizes on two devices: the truth is found, and a new server goes on from what is kept."""
    rig = Rig()
    job_id = await rig.started(TWO, 2)
    for local in (32, 32, 64, 64):
        await rig.reports(job_id, local=local, seconds=61.0)
    rig.plant.restart("server-2")
    rig.measuring = rig.of(rig.plant.server)
    rig.plant.now += 20
    await rig.plant.run_for(1)
    await rig.reports(job_id, local=64, seconds=61.0)
    found = await rig.curve(job_id)
    assert found is not None
    assert {(one.devices, one.local): one.count for one in found.samples} == {(2, 32): 2, (2, 64): 3}
    for local in (32, 64, 128):
        expected = truth(2, 1, local)[0]
        assert rates.step_s(found.model, 1, 2, local) == pytest.approx(expected, rel=0.05)
    assert found.convergence is not None


async def test_reports_that_do_not_agree_or_do_not_tell_all_are_passed_over() -> None:
    rig = Rig()
    job_id = await rig.started(TWO, 2)
    await rig.reports(job_id, sync_s=None)
    assert await rig.curve(job_id) is None, "another library's exchange"
    live = (await rig.plant.job(job_id)).live
    told = attempts.Progress(step=99, at=rig.plant.now, step_s=1.0, sync_s=0.5, ranks=2, local=16, accumulate=1)
    await rig.plant.tell(
        job_id,
        events.TaskReported(key=attempts.TaskKey(job_id, live.number, "worker", 0, 1), progress=told),
    )
    assert samples.seen(await rig.plant.job(job_id)) is None, "one has taken up another batch size already"
    await rig.reports(job_id, step_s=None)
    assert await rig.curve(job_id) is None


async def test_some_of_many_jobs_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "READ_AT_MOST", 2)
    rig = Rig()
    ids = [await rig.started("{}", 1) for _ in range(5)]
    for _ in range(6):
        for job_id in ids:
            await rig.reports(job_id, seconds=0.0)
        rig.plant.now += 5
        await rig.measuring.tick()
    assert all([await rig.curve(job_id) is not None for job_id in ids])


async def test_each_type_of_gpu_has_a_curve_of_its_own() -> None:
    """A job that goes from one type to another keeps its measurements on the first, with its newest noise."""
    rig = Rig()
    job_id = await rig.started(TWO, 2)
    for local in (32, 64):
        await rig.reports(job_id, local=local, seconds=61.0, gpu_type="t4", noise=500.0)
    step_s, sync_s = truth(2, 1, 32)
    for _ in range(2):
        await rig.reports(
            job_id, seconds=61.0, gpu_type="a100", step_s=step_s / 4, sync_s=sync_s / 4, noise=900.0, local=32
        )
    found = await rig.curve(job_id)
    assert found is not None
    assert {(one.gpu_type, one.local) for one in found.samples} == {("t4", 32), ("t4", 64), ("a100", 32)}
    assert [one.gpu_type for one in found.types] == ["a100", "t4"], "where it was measured last comes first"
    assert {one.model.noise for one in found.types} == {900.0}
    slow, quick = (rates.rate(found, None, rates.Shape(1, 2, gpu_type=name)) for name in ("t4", "a100"))
    assert quick / slow == pytest.approx(4, rel=0.1)
    assert rates.rate(found, None, rates.Shape(1, 2)) == pytest.approx(quick), "no type named: the last one"
