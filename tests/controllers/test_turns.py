"""Turns, under all the controllers: two jobs alternate on one device, or share it as long as that is measured to pay.

Every job tells of its steps once a second; the time of a step depends on the other jobs of the device.
"""

from __future__ import annotations

import pytest
from tests.controllers.plant import Phase, Plant, Server, machine

from oarlock.backends import fake
from oarlock.controllers import measuring
from oarlock.scheduler.speed import rates
from oarlock.spec import attempts, events, plans

RULES = plans.Rules(
    policy="gandiva", round_s=5, min_runtime_s=5, restart_s=0.5, policies={"gandiva": {"slice_s": 30.0, "pays": 1.1}}
)
TRAINS = fake.Behaviour(at_barrier=True, lingers=True)
SHARES = "{grace: 1s, roles: {worker: {gpus: 1, gpu_memory: 8Gi}}}"


class Yard:
    """One device. `beside_s`: of a step while the other one trains, too; alone it takes 0.1 s. `silent_s`: from the
    start of a job's processes to its first step, of the first job and of the second.
    """

    def __init__(self, beside_s: float = 0.1, devices: int = 1, silent_s: float = 0.0) -> None:
        self.plant = Plant(machines=[machine("n0", devices=devices)])
        self.plant.server = Server(self.plant, "server-1", rules=RULES)
        self.measuring = measuring.Measuring(
            self.plant.store,
            self.plant.server.leading,
            clock=self.plant.clock,
            report=self.plant.server.report,
        )
        self.beside_s = beside_s
        self.silent_s = [silent_s, silent_s]
        self.jobs: list[str] = []
        self.steps: dict[str, int] = {}
        self.told: list[str] = []  # the job that trained, second by second: `one two`

    async def submit(self, text: str = "{grace: 1s, roles: {worker: {gpus: 1}}}") -> str:
        job_id = await self.plant.submit(text)
        self.plant.behaviours[job_id] = TRAINS
        self.jobs.append(job_id)
        return job_id

    async def run_for(self, seconds: int) -> list[str]:
        """Return the jobs that trained in each of these seconds."""
        for _ in range(seconds):
            await self.plant.step(1.0)
            trains = [job_id for job_id in self.jobs if await self._trains(job_id)]
            for job_id in trains:
                await self._reports(job_id, self.beside_s if len(trains) > 1 else 0.1)
            await self.measuring.tick()
            self.told.append(" ".join(trains))
        return self.told[-seconds:]

    async def _trains(self, job_id: str) -> bool:
        job = await self.plant.job(job_id)
        if job.phase is not Phase.PROCESSING or job.live is None or job.live.stop is not None:
            return False
        silent_s = self.silent_s[self.jobs.index(job_id) % 2]
        return job.live.processing_at is not None and job.live.processing_at + silent_s <= self.plant.now

    async def _reports(self, job_id: str, step_s: float) -> None:
        live = (await self.plant.job(job_id)).live
        assert live is not None
        self.steps[job_id] = self.steps.get(job_id, 0) + round(1 / step_s)
        told = attempts.Progress(
            step=self.steps[job_id], at=self.plant.now, step_s=step_s, sync_s=0.0, ranks=1, local=8, accumulate=1
        )
        reported = events.TaskReported(key=attempts.TaskKey(job_id, live.number, "worker", 0, 1), progress=told)
        await self.plant.tell(job_id, reported)

    async def beside(self, job_id: str) -> dict[str, int]:
        """How often it was looked at, by the job beside it."""
        curve = (await self.plant.job(job_id)).curve
        return {sample.beside: sample.count for sample in curve.samples} if curve is not None else {}


def turns(told: list[str]) -> list[str]:
    """Without jobs that follow themselves, and the time in which no job trained."""
    found: list[str] = []
    for who in told:
        if who and (not found or found[-1] != who):
            found.append(who)
    return found


async def test_two_jobs_alternate_and_each_has_its_slice() -> None:
    yard = Yard()
    one, two = await yard.submit(), await yard.submit()
    told = await yard.run_for(300)
    assert turns(told)[:6] == [one, two] * 3
    for job_id in (one, two):
        assert told.count(job_id) > 0.35 * len(told), "most of the time is spent on steps"
    longest = max(len(run) for run in "".join("x" if who == one else " " for who in told).split())
    assert 30 <= longest <= 45, "a slice, and the time until the next round"


async def test_a_turn_begins_with_the_first_step() -> None:
    """The way to it takes longer than a slice does: the first time that is not known yet."""
    yard = Yard(silent_s=50)
    jobs = {await yard.submit(), await yard.submit()}
    await yard.run_for(400)
    told = await yard.run_for(400)
    assert set(told) == {*jobs, ""}
    for job_id in jobs:
        runs = "".join("x" if who == job_id else " " for who in told).split()
        assert all(30 <= len(run) <= 45 for run in runs[1:-1]), runs


async def test_gangs_train_on_a_machine_that_became_so_slow_that_a_start_takes_many_slices() -> None:
    yard = Yard()
    jobs = {await yard.submit(), await yard.submit()}
    await yard.run_for(100)
    yard.silent_s = [200, 200]
    await yard.run_for(900)
    assert {*jobs, ""} == set(await yard.run_for(1500))


async def test_where_both_fit_no_gang_is_stopped() -> None:
    yard = Yard(devices=2)
    both = f"{await yard.submit(SHARES)} {await yard.submit(SHARES)}"
    assert turns(await yard.run_for(200)) == [both]


async def test_they_share_the_device_as_long_as_that_pays() -> None:
    yard = Yard(beside_s=0.12)
    yard.silent_s = [0, 20]  # for so long the first one has the device to itself, each time
    one, two = await yard.submit(SHARES), await yard.submit(SHARES)
    both = f"{one} {two}"
    told = await yard.run_for(200)
    assert turns(told)[:2] == [one, two], "each was measured alone first"
    assert turns(told)[-1] == both
    told = await yard.run_for(150)
    assert set(told) == {both}, "no slice ends: no job waits"
    looks = await yard.beside(one)
    assert looks[""] >= 1
    assert looks[two] >= 10
    curve = (await yard.plant.job(one)).curve
    assert curve is not None
    steps = {sample.beside: sample.step_s for sample in curve.samples}
    assert steps == {"": pytest.approx(0.1), two: pytest.approx(0.12)}, "its speed alone is not mixed with that"
    assert rates.step_s(curve.model, 1, 1, 8) == pytest.approx(0.1), "nor does it change the expectations of others"

    yard.beside_s = 0.4
    told = await yard.run_for(600)
    assert turns(told)[0] == both
    assert turns(told)[1:5] == [one, two, one, two], "by turns again"
    assert both not in turns(told)[1:], "and never together a second time"
    verdicts = [attempt.verdict.message for attempt in (await yard.plant.job(two)).attempts if attempt.verdict]
    assert any(told.startswith("preempted by scheduler: beside") for told in verdicts), verdicts


async def test_where_it_does_not_pay_it_is_undone_and_remembered_by_the_next_server() -> None:
    yard = Yard(beside_s=0.25)
    one, two = await yard.submit(SHARES), await yard.submit(SHARES)
    both = f"{one} {two}"
    while both not in yard.told:
        await yard.run_for(1)
        assert len(yard.told) < 200
    began = len(yard.told)
    while yard.told[-1] == both:
        await yard.run_for(1)
    assert 10 <= len(yard.told) - began <= 30, "three looks at each, and the next round"
    yard.plant.restart("server-2")
    yard.plant.server = Server(yard.plant, "server-2", rules=RULES)
    yard.plant.now += 20  # the lease of the other runs out
    told = await yard.run_for(300)
    assert both not in told
    assert {one, two} <= set(told)


async def test_a_third_one_that_waits_ends_their_sharing_for_its_turn() -> None:
    yard = Yard(beside_s=0.12)
    one, two = await yard.submit(SHARES), await yard.submit(SHARES)
    await yard.run_for(150)
    third = await yard.submit()
    told = await yard.run_for(300)
    assert told.count(third) > 60
    assert f"{one} {two}" in turns(told)[1:], "and they go on together afterwards"
