"""A workload on a simulated cluster, with the real controllers and the real scheduler.

They run over the memory store and the fake backend.

The clock jumps from one event to the next: a job arrives, a process ends, a fault occurs, a controller is due. At each
such instant agents and controllers run in turn until none has work left, which takes no simulated time; then the clock
goes on. This module decides nothing about jobs, and the controllers do not know about it.

A controller is not ticked while nothing has changed and it is not due: a tick derives everything anew, so it would do
nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from oarlock.backends import fake
from oarlock.controllers import inventory, leadership, measuring, running
from oarlock.controllers.guarding import assigning, guardian, leftovers
from oarlock.controllers.scheduling import planningrounds, scheduling
from oarlock.scheduler import gangs
from oarlock.scheduler.explaining import impossible
from oarlock.simulator.engine import agents, faults, stories, work
from oarlock.simulator.outcomes import fairness, ledger, outcome
from oarlock.simulator.workloads import workload
from oarlock.spec import attempts, errors, jobs, plans
from oarlock.spec.cluster import nodes
from oarlock.store import memory, stores

ORIGIN_S = 1_000_000.0
"""The beginning on the simulated clock, in Unix seconds of some day in 1970."""

MOST_TURNS = 1000
"""Turns after which everything at one instant is done. More are a defect: two controllers undo each other's work."""

PATIENCE_S = 6 * 3600.0
"""The simulation ends if no job arrives or can end for so long."""

KEPT_RECORDS = 50_000
"""Records of the event log that are kept before they are deleted, with the jobs that have ended."""

SETTINGS = assigning.Settings(server="http://127.0.0.1:1", task_secret=bytes(32))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a simulation.

    `restart_s` is the time that each start of a gang costs before it advances. `until_s` ends the simulation.
    `lockstep` makes plans in whole rounds only, as published simulators do: arrivals and freed devices wait for the
    next round.
    """

    name: str
    rules: plans.Rules = plans.Rules()
    restart_s: float = 30.0
    checkpoint_s: float | None = 600.0
    faults: faults.Faults = faults.Faults()
    ends_told: bool = True  # jobs report their remaining steps
    interference: float = 0.0  # share of speed that gangs on several nodes lose where they share a node
    lockstep: bool = False
    seed: int = 0
    until_s: float = math.inf


class Progress(Protocol):
    """A callback that takes the simulated seconds, the number of jobs that have ended, and the number of all jobs."""

    def __call__(self, now_s: float, ended: int, total: int) -> None: ...


class Silent(leftovers.Leftovers):
    """Simulated tasks leave no logs or files to read."""

    def __init__(self) -> None:
        return

    async def deliver(self, job: jobs.Job, key: attempts.TaskKey) -> None:
        return

    def missing(self, key: attempts.TaskKey) -> int:
        return 0


class Simulation:
    """One simulation of `of` on `machines`. `plan` is the scheduler, and `memo` its memory between plans."""

    def __init__(
        self,
        of: workload.Workload,
        machines: Sequence[nodes.Node],
        settings: Settings,
        plan: scheduling.Plan,
        *,
        memo: Any = None,
        progress: Progress = lambda now_s, ended, total: None,
    ) -> None:
        self.now = ORIGIN_S
        self.store = memory.MemoryStore()
        self.workload = of
        self.settings = settings
        self.decided_s: list[float] = []
        self._plan = plan
        self._progress = progress
        self._touched_at = -math.inf
        self._arrived = 0
        self._stories: dict[str, outcome.JobStory] = {}
        self._refused: dict[str, str] = {}
        self._declared = impossible.Declared(tuple(machines), of.pools)
        self._forgotten: set[str] = set()
        self._kept_from = 0
        self._last_hope_at = ORIGIN_S
        self._faults = faults.FaultSchedule(settings.faults, settings.seed, machines, ORIGIN_S)
        self.agents = agents.Agents(
            self.store,
            self.clock,
            ready_s=settings.restart_s,
            fails_after=self._faults.fails_after,
            launch_error=self._faults.launch_error,
            ends_told=settings.ends_told,
            interference=settings.interference,
            groups=workload.groups(of),
            machines=machines,
            types={one.id: one.types for one in of.arrivals if one.types},
        )
        self.world = fake.World(machines, self.agents.script, self.clock)
        self.ledger = ledger.Ledger(self.store, ORIGIN_S)
        self._machines = tuple(machines)
        self._seen: dict[str, tuple[int, int]] = {}
        self._world_changes = 0
        self._postponed = False  # with `lockstep`: something changed since the last round
        self._nodes_changed = True
        backend = fake.Fake(self.world)
        self._leading = leadership.Leading(self.store, holder="simulator", clock=self.clock, ttl_s=math.inf)
        self._inventory = inventory.Inventory(self.store, backend, self._leading, clock=self.clock)
        self._scheduling = scheduling.Scheduling(
            self.store,
            self._leading,
            self._timed_plan,
            clock=self.clock,
            report=self._report,
            rules=settings.rules,
            memo=memo,
            resync_s=max(settings.rules.round_s, planningrounds.RESYNC_S),
        )
        self._guardian = guardian.Guardian(
            self.store, backend, self._leading, Silent(), SETTINGS, clock=self.clock, report=self._report
        )
        self._measuring = measuring.Measuring(
            self.store,
            self._leading,
            clock=self.clock,
            report=self._report,
            period_s=0.0,
            read_at_most=len(of.arrivals),
            written_at_most=len(of.arrivals),
        )
        self._controllers: list[running.Controller] = [self._leading, self._inventory, self._scheduling, self._guardian]

    def clock(self) -> float:
        return self.now

    async def _open(self) -> None:
        """Store the pools, as an administrator would before the first job."""

        def pools(tx: stores.Transaction) -> None:
            for pool in self.workload.pools:
                tx.put_pool(pool)

        await self.store.write(pools)

    async def run(self) -> outcome.Result:
        """Run to the end of the last job. It suspends once at every instant, so that it can be cancelled."""
        began_cpu_s = time.process_time()
        await self._open()
        await self._settle()
        while not self._is_over():
            at = self._next_at()
            if at > ORIGIN_S + self.settings.until_s:
                self.now = ORIGIN_S + self.settings.until_s
                break
            if at == math.inf:
                break
            self.now = max(self.now, at)
            await self._apply_events()
            await self._settle()
            await self._collect_ended()
            self._progress(self.now - ORIGIN_S, len(self._stories) + len(self._refused), len(self.workload.arrivals))
            await asyncio.sleep(0)
        return await self._result(time.process_time() - began_cpu_s)

    # Events

    def _is_over(self) -> bool:
        """Return whether all jobs have ended, or no job has arrived or could end for `PATIENCE_S`."""
        if len(self._stories) + len(self._refused) == len(self.workload.arrivals):
            return True
        if self._arrived < len(self.workload.arrivals) or self.agents.next_at() < math.inf:
            self._last_hope_at = self.now
        return self.now - self._last_hope_at > PATIENCE_S

    def _next_at(self) -> float:
        """Return the next instant at which anything can change."""
        times = [self.agents.next_at(), self._faults.next_at()]
        if self._arrived < len(self.workload.arrivals):
            times.append(ORIGIN_S + self.workload.arrivals[self._arrived].at)
        woken: list[running.Controller] = [self._guardian]
        if self._nodes_changed:
            woken.append(self._inventory)
        times += [at for one in woken if (at := one.wake_at()) is not None]
        return min([*times, self._plan_at()])

    def _plan_at(self) -> float:
        """Return when the scheduler is due; with `lockstep`, the next whole round."""
        wake_at = self._scheduling.wake_at()
        if not self.settings.lockstep:
            return math.inf if wake_at is None else wake_at
        if wake_at is None and not self._postponed:
            return math.inf
        round_s = self.settings.rules.round_s
        number = math.ceil((max(self.now, wake_at or self.now) - ORIGIN_S) / round_s)
        at = ORIGIN_S + number * round_s
        return at if at > self.now else at + round_s

    async def _apply_events(self) -> None:
        """Apply the arrivals, ends and faults of this instant."""
        while (
            self._arrived < len(self.workload.arrivals)
            and ORIGIN_S + self.workload.arrivals[self._arrived].at <= self.now
        ):
            await self._submit(self.workload.arrivals[self._arrived])
            self._arrived += 1
        self.agents.end_due(self.world)
        if self._faults.apply_due(self.now, self.world, self.agents):
            self._nodes_changed = True

    async def _submit(self, arrival: workload.Arrival) -> None:
        """Add a job. A job that could never run is refused, as a server does it."""
        job = jobs.Job(
            id=arrival.id,
            name=arrival.id,
            owner=arrival.owner,
            spec=arrival.spec,
            pool=arrival.spec.pool,
            created_at=ORIGIN_S + arrival.at,
            phase_at=self.now,
        )
        never = self._declared.never(gangs.gang(job))
        if never is not None:
            self._refused[job.id] = never.message
            return
        self.agents.submit(arrival.id, work.Work(arrival.job_model, saves_every_s=self.settings.checkpoint_s))
        await self.store.write(lambda tx: tx.add_job(job, at=self.now))

    # Turns

    async def _settle(self) -> None:
        """Run agents and controllers until none has work left at this instant."""
        for _ in range(MOST_TURNS):
            await self.agents.tick(self.world)
            if not any([await self._tick(one) for one in self._controllers]):
                return
        raise errors.Conflict(
            f"everything at {self.now - ORIGIN_S:g} s is not done after {MOST_TURNS} turns",
            hint="This is a defect: report it with the workload and the seed.",
        )

    async def _tick(self, controller: running.Controller) -> bool:
        if self.world.changed.is_set():
            self.world.changed.clear()
            self._world_changes += 1
        heard = (await self.store.read(lambda view: view.last_seq()), self._world_changes)
        wake_at = controller.wake_at()
        due = wake_at is not None and wake_at <= self.now
        if controller is self._inventory:
            due, heard = due and self._nodes_changed, (0, 0)
        if not due and self._seen.get(controller.name) == heard:
            return False
        if controller is self._scheduling:
            self._postponed = self.settings.lockstep and (self.now - ORIGIN_S) % self.settings.rules.round_s != 0.0
            if self._postponed:
                return False
        self._seen[controller.name] = heard
        if controller is self._inventory:
            self._nodes_changed = False
        elif controller is self._scheduling and self.now >= self._touched_at + self.settings.rules.round_s:
            await self._measure()
        await controller.tick()
        return True

    async def _measure(self) -> None:
        """Let jobs report, and update their curves from the reports."""
        if await self.agents.report():
            await self._measuring.tick()

    def _timed_plan(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        """Return the scheduler's plan, and record its duration."""
        if snapshot.reallocate:
            self._touched_at = now
        began_s = time.perf_counter()
        made = self._plan(snapshot, now, memo)
        self.decided_s.append(time.perf_counter() - began_s)
        return made

    def _report(self, subject: str, error: Exception) -> None:
        """Raise an error.

        No other program writes here and faults take other ways, so a controller's error is a defect.
        """
        raise errors.Conflict(
            f"at {self.now - ORIGIN_S:g} s a controller failed at {subject}: {error}",
            hint="This is a defect: report it with the workload and the seed.",
        ) from error

    # Results

    async def _collect_ended(self) -> None:
        """Record the jobs that have ended. After a while the store deletes them, as retention does it."""
        seq = await self.ledger.read()
        for job_id in self.ledger.take_ended():
            job = await self.store.read(lambda view, job_id=job_id: view.job(job_id))  # type: ignore[misc]
            self._stories[job_id] = self._story(job)
        if seq - self._kept_from >= KEPT_RECORDS:
            gone = [job_id for job_id in self._stories if job_id not in self._forgotten]
            await self.store.write(lambda tx: _forget(tx, gone, seq, self.now))
            self._forgotten.update(gone)
            self._kept_from = seq

    async def _result(self, cpu_s: float) -> outcome.Result:
        await self.ledger.close(self.now)
        for job in await self.store.read(lambda view: view.active()):
            self._stories[job.id] = self._story(job)
        settings = self.settings
        found = outcome.Outcome(
            workload=self.workload.name,
            run=settings.name,
            settings=shown(settings),
            devices=sum(len(node.devices) for node in self._machines),
            over=self.now - ORIGIN_S,
            stories=self._compared(),
            spans=self._spans(),
            faults={**self._faults.counts, "processes_failed": self.agents.failed},
            refused=self._refused,
        )
        return outcome.Result(outcome=found, decisions=outcome.Decisions(times_s=tuple(self.decided_s), cpu_s=cpu_s))

    def _compared(self) -> tuple[outcome.JobStory, ...]:
        """Return the story of each job or group in the order of arrival.

        Each has the duration of its job on an equal part of the cluster.
        """
        settings, devices = self.settings, sum(len(node.devices) or 1 for node in self._machines)
        members: dict[str, list[tuple[workload.Arrival, outcome.JobStory]]] = {}
        for one in self.workload.arrivals:
            if one.id in self._stories:
                members.setdefault(one.group or one.id, []).append((one, self._stories[one.id]))
        told = [stories.merged(name, [story for _, story in found]) for name, found in members.items()]
        over = self.now - ORIGIN_S
        presence = fairness.Presence((story.arrived, over if story.ended is None else story.ended) for story in told)
        alone = fairness.Alone(max(len(node.devices) for node in self._machines), settings.restart_s)
        compared = []
        for story, found in zip(told, members.values(), strict=True):
            if story.ended is not None:
                part = devices / presence.mean(story.arrived, story.ended)
                story = msgspec.structs.replace(story, alone_s=alone.seconds(found[0][0], part / len(found)))
            compared.append(story)
        return tuple(compared)

    def _spans(self) -> tuple[outcome.Span, ...]:
        group_of = {one.id: one.group for one in self.workload.arrivals if one.group}
        return tuple(
            msgspec.structs.replace(span, job=group_of[span.job]) if group_of else span
            for _, spans in sorted(self.ledger.spans.items())
            for span in spans
        )

    def _story(self, job: jobs.Job) -> outcome.JobStory:
        did = self.agents.forget(job.id)
        spans = self.ledger.spans[job.id] = [
            msgspec.structs.replace(span, useful=stories.relative(did.active_spans.get(span.attempt), ORIGIN_S))
            for span in self.ledger.spans.get(job.id, [])
        ]
        return stories.of(job, spans, did, origin=ORIGIN_S, now=self.now)


def shown(settings: Settings) -> dict[str, str]:
    """Return every setting as text, for the record of the run."""
    told: dict[str, object] = msgspec.structs.asdict(settings)
    for part in ("rules", "faults"):
        told |= msgspec.structs.asdict(told.pop(part))  # type: ignore[arg-type]
    return {name: str(value) for name, value in sorted(told.items())}


def _forget(tx: stores.Transaction, gone: Sequence[str], seq: int, now: float) -> None:
    tx.compact(seq)
    tx.remove_jobs(gone, at=now)
