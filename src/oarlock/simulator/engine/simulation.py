"""A workload on a pretended cluster: the real controllers and the real scheduler over the memory store and the fake
backend, on a clock that jumps from one thing that happens to the next.

What happens: a job arrives, a process ends, a fault strikes, a controller wants to be woken. At each such instant
agents and controllers take turns until none of them has anything left to do, which takes no simulated time; then the
clock goes on to the next. Nothing here decides anything about jobs, and nothing in the controllers knows of it.

A controller whose world has not changed, and who does not want to be woken, is not ticked: a tick derives everything
anew, so one that finds what it found before would do nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from oarlock.backends import fake
from oarlock.controllers import (
    assigning,
    guardian,
    inventory,
    leadership,
    leftovers,
    measuring,
    planningrounds,
    scheduling,
)
from oarlock.scheduler import gangs
from oarlock.scheduler.explaining import impossible
from oarlock.simulator.engine import agents, faults, stories, work
from oarlock.simulator.outcomes import fairness, ledger, outcome
from oarlock.simulator.workloads import workload
from oarlock.spec import attempts, errors, jobs, nodes, plans
from oarlock.store import memory, stores

ORIGIN_S = 1_000_000.0
"""The beginning, on the simulated clock: Unix seconds of some day in 1970."""

MOST_TURNS = 1000
"""In which everything at one instant is done. More is a defect: somebody undoes what another does."""

PATIENCE_S = 6 * 3600.0
"""When nobody is on the way to an end and nobody arrives for so long, the simulation is given up."""

KEPT_RECORDS = 50_000
"""Lines of the event log that are kept before they, and the jobs that have ended, are forgotten."""

SETTINGS = assigning.Settings(server="http://127.0.0.1:1", task_secret=bytes(32))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`restart_s` is what each start of a gang costs before it advances. `until_s` ends the simulation, done or not.
    `lockstep` plans on whole rounds alone, as the simulators that others have published do: who comes, and whatever is
    freed, waits for the next one.
    """

    name: str
    rules: plans.Rules = plans.Rules()
    restart_s: float = 30.0
    checkpoint_s: float | None = 600.0
    faults: faults.Faults = faults.Faults()
    ends_told: bool = True  # jobs say how many steps they still have to do
    interference: float = 0.0  # share of speed that gangs on several nodes lose where they share one
    lockstep: bool = False
    seed: int = 0
    until_s: float = math.inf


class Controller(Protocol):
    name: str

    async def tick(self) -> None: ...

    def wake_at(self) -> float | None: ...


class Progress(Protocol):
    """Hears how far the simulation is: simulated seconds, jobs that have ended, and all."""

    def __call__(self, now_s: float, ended: int, total: int) -> None: ...


class Silent(leftovers.Leftovers):
    """Pretended tasks leave nothing to be read."""

    def __init__(self) -> None:
        return

    async def deliver(self, job: jobs.Job, key: attempts.TaskKey) -> None:
        return

    def missing(self, key: attempts.TaskKey) -> int:
        return 0


class Simulation:
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
        self._hopeful_at = ORIGIN_S
        self._strikes = faults.Strikes(settings.faults, settings.seed, machines, ORIGIN_S)
        self.agents = agents.Agents(
            self.store,
            self.clock,
            ready_s=settings.restart_s,
            fails_after=self._strikes.fails_after,
            spoiled=self._strikes.spoiled,
            ends_told=settings.ends_told,
            interference=settings.interference,
            groups=workload.groups(of),
            machines=machines,
            types={one.id: one.types for one in of.arrivals if one.types},
        )
        self.world = fake.World(machines, self.agents.script, self.clock)
        self.ledger = ledger.Ledger(self.store, ORIGIN_S)
        self._machines = tuple(machines)
        self._heard: dict[str, tuple[int, int]] = {}
        self._world_changes = 0
        self._overheard = False  # something happened since the last round, where plans are made on rounds alone
        self._nodes_changed = True
        backend = fake.Fake(self.world)
        self._leading = leadership.Leading(self.store, holder="simulator", clock=self.clock, ttl_s=math.inf)
        self._inventory = inventory.Inventory(self.store, backend, self._leading, clock=self.clock)
        self._scheduling = scheduling.Scheduling(
            self.store,
            self._leading,
            self._decide,
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
        self._controllers: list[Controller] = [self._leading, self._inventory, self._scheduling, self._guardian]

    def clock(self) -> float:
        return self.now

    async def _open(self) -> None:
        """What an administrator has set up before anybody came."""

        def pools(tx: stores.Transaction) -> None:
            for pool in self.workload.pools:
                tx.put_pool(pool)

        await self.store.write(pools)

    async def run(self) -> outcome.Result:
        """To the end of the last job. Suspends once at every instant, so that it can be cancelled."""
        began_cpu_s = time.process_time()
        await self._open()
        await self._turns()
        while not self._is_over():
            at = self._next_at()
            if at > ORIGIN_S + self.settings.until_s:
                self.now = ORIGIN_S + self.settings.until_s
                break
            if at == math.inf:
                break
            self.now = max(self.now, at)
            await self._happen()
            await self._turns()
            await self._tidy()
            self._progress(self.now - ORIGIN_S, len(self._stories) + len(self._refused), len(self.workload.arrivals))
            await asyncio.sleep(0)
        return await self._result(time.process_time() - began_cpu_s)

    # What happens

    def _is_over(self) -> bool:
        """Everybody has ended; or nobody has, and nobody will, for longer than patience lasts."""
        if len(self._stories) + len(self._refused) == len(self.workload.arrivals):
            return True
        if self._arrived < len(self.workload.arrivals) or self.agents.next_at() < math.inf:
            self._hopeful_at = self.now
        return self.now - self._hopeful_at > PATIENCE_S

    def _next_at(self) -> float:
        """The next instant at which anything may be another than it is."""
        times = [self.agents.next_at(), self._strikes.next_at()]
        if self._arrived < len(self.workload.arrivals):
            times.append(ORIGIN_S + self.workload.arrivals[self._arrived].at)
        woken: list[Controller] = [self._guardian]
        if self._nodes_changed:
            woken.append(self._inventory)
        times += [at for one in woken if (at := one.wake_at()) is not None]
        return min([*times, self._plan_at()])

    def _plan_at(self) -> float:
        """When the scheduler wants to be woken; on the next round where it plans on rounds alone."""
        wake_at = self._scheduling.wake_at()
        if not self.settings.lockstep:
            return math.inf if wake_at is None else wake_at
        if wake_at is None and not self._overheard:
            return math.inf
        round_s = self.settings.rules.round_s
        number = math.ceil((max(self.now, wake_at or self.now) - ORIGIN_S) / round_s)
        at = ORIGIN_S + number * round_s
        return at if at > self.now else at + round_s

    async def _happen(self) -> None:
        """Arrivals, ends and faults of this instant."""
        while (
            self._arrived < len(self.workload.arrivals)
            and ORIGIN_S + self.workload.arrivals[self._arrived].at <= self.now
        ):
            await self._submit(self.workload.arrivals[self._arrived])
            self._arrived += 1
        self.agents.end_due(self.world)
        if self._strikes.strike(self.now, self.world, self.agents):
            self._nodes_changed = True

    async def _submit(self, arrival: workload.Arrival) -> None:
        """What could never run is refused, as a server does it."""
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
        self.agents.submit(arrival.id, work.Work(arrival.does, saves_every_s=self.settings.checkpoint_s))
        await self.store.write(lambda tx: tx.add_job(job, at=self.now))

    # Turns

    async def _turns(self) -> None:
        """Agents and controllers, until none has anything left to do at this instant."""
        for _ in range(MOST_TURNS):
            await self.agents.tick(self.world)
            if not any([await self._turn(one) for one in self._controllers]):
                return
        raise errors.Conflict(
            f"everything at {self.now - ORIGIN_S:g} s is not done after {MOST_TURNS} turns",
            hint="This is a defect: report it with the workload and the seed.",
        )

    async def _turn(self, controller: Controller) -> bool:
        if self.world.changed.is_set():
            self.world.changed.clear()
            self._world_changes += 1
        heard = (await self.store.read(lambda view: view.last_seq()), self._world_changes)
        wake_at = controller.wake_at()
        due = wake_at is not None and wake_at <= self.now
        if controller is self._inventory:
            due, heard = due and self._nodes_changed, (0, 0)
        if not due and self._heard.get(controller.name) == heard:
            return False
        if controller is self._scheduling:
            self._overheard = self.settings.lockstep and (self.now - ORIGIN_S) % self.settings.rules.round_s != 0.0
            if self._overheard:
                return False
        self._heard[controller.name] = heard
        if controller is self._inventory:
            self._nodes_changed = False
        elif controller is self._scheduling and self.now >= self._touched_at + self.settings.rules.round_s:
            await self._measure()
        await controller.tick()
        return True

    async def _measure(self) -> None:
        """Jobs report, and what they report becomes their curves."""
        if await self.agents.report():
            await self._measuring.tick()

    def _decide(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
        """The scheduler's plan, and how long it took."""
        if snapshot.reallocate:
            self._touched_at = now
        began_s = time.perf_counter()
        made = self._plan(snapshot, now, memo)
        self.decided_s.append(time.perf_counter() - began_s)
        return made

    def _report(self, what: str, error: Exception) -> None:
        """Nobody else writes here, and faults are told in another way: what a controller stumbles over is a defect."""
        raise errors.Conflict(
            f"at {self.now - ORIGIN_S:g} s a controller stumbled over {what}: {error}",
            hint="This is a defect: report it with the workload and the seed.",
        ) from error

    # What is found

    async def _tidy(self) -> None:
        """Note who has ended. What has ended is forgotten by the store after a while, as retention does it."""
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
            faults={**self._strikes.counts, "processes_failed": self.agents.failed},
            refused=self._refused,
        )
        return outcome.Result(outcome=found, decisions=outcome.Decisions(times_s=tuple(self.decided_s), cpu_s=cpu_s))

    def _compared(self) -> tuple[outcome.JobStory, ...]:
        """Every story in the order of arrival, beside what an equal part would have given it; a group has one."""
        settings, devices = self.settings, sum(len(node.devices) or 1 for node in self._machines)
        members: dict[str, list[tuple[workload.Arrival, outcome.JobStory]]] = {}
        for one in self.workload.arrivals:
            if one.id in self._stories:
                members.setdefault(one.group or one.id, []).append((one, self._stories[one.id]))
        told = [stories.joined(name, [story for _, story in found]) for name, found in members.items()]
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
            msgspec.structs.replace(span, useful=stories.since(did.stretches.get(span.attempt), ORIGIN_S))
            for span in self.ledger.spans.get(job.id, [])
        ]
        return stories.of(job, spans, did, origin=ORIGIN_S, now=self.now)


def shown(settings: Settings) -> dict[str, str]:
    """Every setting in words, for the record of the run."""
    told: dict[str, object] = msgspec.structs.asdict(settings)
    for part in ("rules", "faults"):
        told |= msgspec.structs.asdict(told.pop(part))  # type: ignore[arg-type]
    return {name: str(value) for name, value in sorted(told.items())}


def _forget(tx: stores.Transaction, gone: Sequence[str], seq: int, now: float) -> None:
    tx.compact(seq)
    tx.remove_jobs(gone, at=now)
