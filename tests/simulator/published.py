"""Schedulers as they were published, written anew for measuring the simulator: a plan that is none of ours, so that the
simulator is compared with others' figures without our policies in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oarlock.simulator.workloads import workload
from oarlock.spec import holdings, plans

TIRESIAS_THRESHOLD_GPU_S = 16 * 3600.0


class Placing:
    """Free devices by node. Whole gangs, one device a task, from the node with the most free ones."""

    def __init__(self, snapshot: plans.Snapshot) -> None:
        self.free = {node.name: [device.index for device in node.devices] for node in snapshot.nodes if node.ready}
        for running in snapshot.running:
            for claim in running.holdings:
                for device in claim.devices if claim.node in self.free else ():
                    self.free[claim.node].remove(device)

    @property
    def count(self) -> int:
        return sum(map(len, self.free.values()))

    def take(self, gang: plans.Gang, size: int) -> tuple[holdings.Holding, ...]:
        (ask,) = gang.asks
        claims: list[holdings.Holding] = []
        while len(claims) < size:
            name = max(self.free, key=lambda name: (len(self.free[name]), name))
            for device in self.free[name][: size - len(claims)]:
                claims.append(
                    holdings.Holding(
                        job=gang.job,
                        attempt=0,
                        role=ask.role,
                        index=len(claims),
                        node=name,
                        amount=ask.amount,
                        devices=(device,),
                    )
                )
            self._drop(name, claims)
        return tuple(claims)

    def _drop(self, name: str, claims: list[holdings.Holding]) -> None:
        taken = {device for claim in claims if claim.node == name for device in claim.devices}
        self.free[name] = [device for device in self.free[name] if device not in taken]


def first_come(snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
    """In the order of submission; a job that does not fit holds back those behind it."""
    placing, launches = Placing(snapshot), []
    for gang in sorted(snapshot.waiting, key=lambda gang: (gang.submitted_at, gang.job)):
        size = gang.wanted[0]
        if size > placing.count or (gang.not_before or 0.0) > now:
            break
        launches.append(plans.Launch(job=gang.job, holdings=placing.take(gang, size)))
    return plans.Plan(launches=tuple(launches))


class Tiresias:
    """Discretised least attained service as the simulator released with Pollux has it: two queues, one threshold, no
    promotion; first come first served within, for jobs that fit; decided once a round, for all.

    Between rounds it only starts jobs that it had decided on, once their places are free.
    """

    def __init__(self) -> None:
        self._demoted: dict[str, None] = {}
        self._chosen: list[str] = []

    def __call__(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        running = {one.job: one for one in snapshot.running}
        gangs = {gang.job: gang for gang in snapshot.waiting} | {job: one.gang for job, one in running.items()}
        stopped: list[plans.Preemption] = []
        if snapshot.reallocate:
            self._choose(snapshot, gangs, running, now)
            stopped = [
                plans.Preemption(job=job, reason="demoted")
                for job, one in running.items()
                if job not in self._chosen and not one.stopping
            ]
        placing, launches = Placing(snapshot), []
        for job in self._chosen:
            if job in gangs and job not in running and gangs[job].wanted[0] <= placing.count:
                launches.append(plans.Launch(job=job, holdings=placing.take(gangs[job], gangs[job].wanted[0])))
        return plans.Plan(launches=tuple(launches), preemptions=tuple(stopped))

    def _choose(
        self,
        snapshot: plans.Snapshot,
        gangs: dict[str, plans.Gang],
        running: dict[str, plans.Running],
        now: float,
    ) -> None:
        came = sorted(gangs, key=lambda job: (gangs[job].submitted_at, job))
        for job in came:
            served = gangs[job].served_s
            if job in running:
                served += (now - running[job].started_at) * len(running[job].holdings)
            if served >= TIRESIAS_THRESHOLD_GPU_S:
                self._demoted.setdefault(job, None)
        free = sum(len(node.devices) for node in snapshot.nodes if node.ready)
        self._chosen = []
        order = [job for job in came if job not in self._demoted] + [job for job in self._demoted if job in gangs]
        for job in order:
            if gangs[job].wanted[0] <= free:
                free -= gangs[job].wanted[0]
                self._chosen.append(job)


class Optimus:
    """Marginal gains with an oracle, as the simulator released with Pollux has it: a device for each job, then one more
    to the job that saves most remaining time, step times and remaining steps being known exactly.

    `progress` gives how far a job is, `iterations` the steps that a model makes up to the end of each epoch by batch
    size (the column `iteration` of its validation files).
    """

    def __init__(
        self,
        arrivals: Iterable[workload.Arrival],
        progress: Callable[[str], float],
        iterations: Callable[[str], dict[int, list[float]]],
    ) -> None:
        self._does = {one.id: one.job_model for one in arrivals}
        self._progress = progress
        self._iterations = {name: iterations(name) for name in {one.model.name for one in self._does.values()}}
        self._sizes: dict[str, int] = {}
        self._step_s: dict[tuple[str, int], float] = {}

    def __call__(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        running = {one.job: one for one in snapshot.running}
        gangs = {gang.job: gang for gang in snapshot.waiting} | {job: one.gang for job, one in running.items()}
        stopped: list[plans.Preemption] = []
        if snapshot.reallocate:
            self._sizes = self._divide(gangs, sum(len(node.devices) for node in snapshot.nodes if node.ready))
            stopped = [
                plans.Preemption(job=job, reason="another size")
                for job, one in running.items()
                if self._sizes[job] != len(one.holdings) and not one.stopping
            ]
        placing, launches = Placing(snapshot), []
        for job in sorted(
            self._sizes, key=lambda job: (self._sizes[job], gangs[job].submitted_at if job in gangs else 0)
        ):
            size = self._sizes[job]
            if job in gangs and job not in running and 0 < size <= placing.count:
                launches.append(plans.Launch(job=job, holdings=placing.take(gangs[job], size)))
        return plans.Plan(launches=tuple(launches), preemptions=tuple(stopped))

    def _divide(self, gangs: dict[str, plans.Gang], free: int) -> dict[str, int]:
        came = sorted(gangs, key=lambda job: (gangs[job].submitted_at, job))
        sizes, gains = dict.fromkeys(came, 0), dict.fromkeys(came, 0.0)
        left = {job: self._steps_left(job) for job in came}

        def gain(job: str) -> float:
            if sizes[job] + 1 > self._most(job) or free < 1:
                return 0.0
            return (self._seconds(job, sizes[job]) - self._seconds(job, sizes[job] + 1)) * left[job]

        for job in came:
            if free >= 1:
                sizes[job], free = 1, free - 1
                gains[job] = gain(job)
        while free > 0 and max(gains.values(), default=0.0) > 0:
            job = max(gains, key=gains.__getitem__)
            sizes[job] += 1
            gains[job] = gain(job)  # before this device is counted, as released
            free -= 1
        return sizes

    def _most(self, job: str) -> int:
        job_model = self._does[job]
        return 1 if job_model.model.name == "ncf" else job_model.asked // job_model.model.local_least

    def _steps_left(self, job: str) -> float:
        job_model = self._does[job]
        known = self._iterations[job_model.model.name]
        size = min(known, key=lambda size: abs(size - job_model.asked))
        epoch, last = job_model.model.epoch(self._progress(job)), job_model.model.limits.epochs - 1
        return 1.0 if last <= epoch else known[size][last] - known[size][epoch]

    def _seconds(self, job: str, devices: int) -> float:
        if (job, devices) not in self._step_s:
            job_model = self._does[job]
            batch = job_model.batch(devices)
            shape = tuple(sorted([4] * (devices // 4) + [devices % 4] * (devices % 4 > 0)))
            step_s, sync_s = job_model.model.times(shape, batch.local)
            self._step_s[job, devices] = step_s + (step_s - sync_s) * (batch.accumulate - 1)
        return self._step_s[job, devices]
