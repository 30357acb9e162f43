"""The agents and the training library of the simulated gangs: they register, start, report, stop and end.

A real agent's message comes through the API, which steps the job in a transaction; so it is done here. A gang has one
agent for all tasks: it registers in one transaction, and only its first task reports progress. The guardian reads the
ends of processes from the simulated world, as after the death of an agent that has written its exit record.

The work of a gang between two instants is derived: its `Work` computes its end ahead, and is informed of changes.
"""

from __future__ import annotations

import collections
import heapq
import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

from oarlock.backends import backends, fake
from oarlock.lifecycle import stepping
from oarlock.simulator.engine import work
from oarlock.simulator.models import jobmodels
from oarlock.spec import attempts, curves, events, holdings, jobs
from oarlock.spec.cluster import nodes
from oarlock.store import stores

RUNS = fake.Behaviour(at_barrier=True)
ADDRESS = "127.0.0.1"
_PAGE = 1000


class Crew:
    """The agents of one attempt. `lost` has its nodes that cannot be reached."""

    def __init__(self, job: str, attempt: int) -> None:
        self.job = job
        self.attempt = attempt
        self.tasks: dict[attempts.TaskKey, holdings.Holding] = {}
        self.lost: set[str] = set()
        self.batch: curves.Batch | None = None
        self.begun = False  # its processes run
        self.working = False  # and they advance
        self.stopping = False
        self.gpu_type = ""

    @property
    def held(self) -> list[tuple[str, int]]:
        """Its devices, each by node and index."""
        return [(claim.node, device) for claim in self.tasks.values() for device in claim.devices]

    @property
    def shape(self) -> jobmodels.Shape:
        """The number of its devices on each node, ascending; the number of tasks if it has no devices."""
        without = 0 if self.devices else 1
        of_node: dict[str, int] = {}
        for claim in self.tasks.values():
            of_node[claim.node] = of_node.get(claim.node, 0) + (len(claim.devices) or without)
        return tuple(sorted(count for count in of_node.values() if count))

    @property
    def devices(self) -> float:
        """The number of devices that it holds, with shares of devices."""
        return sum(claim.amount.devices for claim in self.tasks.values())

    @property
    def nodes(self) -> set[str]:
        """The nodes of its devices; of its tasks if it has no devices."""
        found = {claim.node for claim in self.tasks.values() if claim.devices}
        return found or {claim.node for claim in self.tasks.values()}

    @property
    def chief(self) -> attempts.TaskKey:
        return min(self.tasks, key=lambda key: (key.role, key.index))


class Agents:
    """All agents of a simulation.

    `ready_s` is the time that a gang starts up before it advances. `fails_after` returns the time until an attempt's
    process fails (infinity: never). `launch_error` returns why a task cannot be made, or an empty text. `ends_told`:
    whether jobs report their remaining steps. `interference` is the share of speed that gangs on several nodes lose
    where they share a node. A job in `groups` works only while all jobs of its group run. `types` has, by job, its
    relative speed on each type of the GPUs of `machines`.
    """

    def __init__(
        self,
        store: stores.Store,
        clock: Callable[[], float],
        *,
        ready_s: float,
        fails_after: Callable[[str, int], float] = lambda job, attempt: math.inf,
        launch_error: Callable[[backends.TaskLaunch], str] = lambda launch: "",
        ends_told: bool = True,
        interference: float = 0.0,
        groups: Mapping[str, Sequence[str]] = {},
        machines: Iterable[nodes.Node] = (),
        types: Mapping[str, Mapping[str, float]] = {},
    ) -> None:
        self.works: dict[str, work.Work] = {}
        self.failed = 0  # processes
        self._store = store
        self._clock = clock
        self._ready_s = ready_s
        self._fails_after = fails_after
        self._launch_error = launch_error
        self._crews: dict[str, Crew] = {}
        self._groups = groups
        self._types = types
        self._type_of = {(node.name, device.index): device.type for node in machines for device in node.devices}
        self._ends_told = ends_told
        self._interference = interference
        self._fails_at: dict[str, float] = {}
        self._due: list[tuple[float, str, int]] = []  # ends of crews' processes; stale entries are skipped
        self._made: dict[str, None] = {}
        self._seq = 0

    # Called by the simulated world

    def script(self, launch: backends.TaskLaunch) -> fake.Behaviour:
        """Make a task: it waits at the barrier until `tick` lets it pass."""
        if reason := self._launch_error(launch):
            return fake.Behaviour(unlaunchable=reason)
        crew = self._crews.get(launch.key.job)
        if crew is None or crew.attempt != launch.key.attempt:
            if crew is not None:
                self._end_attempt(crew, gracefully=False)
            crew = self._crews[launch.key.job] = Crew(launch.key.job, launch.key.attempt)
        crew.tasks[launch.key] = launch.holding
        self._made[launch.key.job] = None
        return RUNS

    # Called by the simulation

    def submit(self, job_id: str, of: work.Work) -> None:
        """Add a job and its work."""
        self.works[job_id] = of

    def forget(self, job_id: str) -> work.Work:
        """Remove a job that has ended, or is still running at the end of the simulation. Return its work up to now."""
        self._crews.pop(job_id, None)
        self._fails_at.pop(job_id, None)
        did = self.works.pop(job_id)
        did.stop(self._clock(), gracefully=True)
        return did

    def next_at(self) -> float:
        """Return when the next process will end by itself."""
        while self._due:
            at, job_id, attempt = self._due[0]
            crew = self._crews.get(job_id)
            if crew is not None and crew.attempt == attempt and crew.working and self._end_of(crew) == at:
                return at
            heapq.heappop(self._due)
        return math.inf

    def end_due(self, world: fake.World) -> None:
        """End the processes that are due: their work is done, or they fail as drawn."""
        now = self._clock()
        while self.next_at() <= now:
            _, job_id, _ = heapq.heappop(self._due)
            crew, job_work = self._crews[job_id], self.works[job_id]
            crew.working = crew.begun = False
            done = job_work.ends_at <= now
            if not done:
                self.failed += 1
                self._pause_group(job_id)
            job_work.stop(now, gracefully=done)
            for key in crew.tasks if done else [crew.chief]:
                world.end(key, signal=None if done else signal.SIGKILL)  # a fault comes from outside

    def lose(self, node: str) -> None:
        """Stop the progress of gangs with tasks on a node that cannot be reached any more."""
        for crew in self._crews.values():
            if any(claim.node == node for claim in crew.tasks.values()):
                crew.lost.add(node)
                crew.working = False
                self.works[crew.job].stall(self._clock())
                self._pause_group(crew.job)

    async def tick(self, world: fake.World) -> None:
        """Let the agents of new gangs and of changed jobs read their orders and follow them."""
        told = await self._store.read(self._changed_jobs)
        made, self._made = self._made, {}
        for job_id in {**made, **told}:
            if (crew := self._crews.get(job_id)) is not None:
                await self._follow_orders(crew, world)
        if self._interference and (made or told):
            self._apply_interference()

    async def report(self) -> int:
        """Report step and speed from the first task of each advancing gang. Return the number of reports."""
        now = self._clock()
        told = [(crew, self._progress(crew, now)) for crew in self._crews.values() if crew.working]
        said = [(crew, progress) for crew, progress in told if progress is not None]
        if said:
            await self._store.write(lambda tx: [self._record(tx, crew, [_reported(crew, one)]) for crew, one in said])
        return len(said)

    def _changed_jobs(self, view: stores.View) -> dict[str, None]:
        seq, ids = view.last_seq(), dict[str, None]()
        while self._seq < seq:
            records = view.records(self._seq, limit=_PAGE)
            ids.update(dict.fromkeys(record.job for record in records if record.job))
            self._seq = records[-1].seq if records else seq
        return ids

    async def _follow_orders(self, crew: Crew, world: fake.World) -> None:
        job = await self._store.read(lambda view: view.job(crew.job))
        live = job.live if job is not None else None
        if live is None or live.number != crew.attempt:
            self._end_attempt(crew, gracefully=False)  # it ended within one tick of the guardian
            del self._crews[crew.job]
        elif live.stop is not None:
            self._stop(crew, live, world)
        elif crew.working:
            self.works[crew.job].set_batch(self._clock(), live.batch)
            self._schedule_end(crew)
        elif live.launched_at is not None and live.round == 0:
            await self._pass_barrier(crew, live.batch, world)

    def _stop(self, crew: Crew, live: attempts.Attempt, world: fake.World) -> None:
        if crew.stopping:
            return
        self._end_attempt(crew, gracefully=live.stop is attempts.Cause.STOPPED and not crew.lost)
        for key, claim in crew.tasks.items():
            if claim.node not in crew.lost:
                world.stop(key)

    def _end_attempt(self, crew: Crew, *, gracefully: bool) -> None:
        if not crew.stopping:
            self.works[crew.job].stop(self._clock(), gracefully=gracefully)
            crew.begun, crew.working, crew.stopping = False, False, True
            self._pause_group(crew.job)

    def _apply_interference(self) -> None:
        """Slow down each gang on several nodes that shares a node with another such gang."""
        spread = [(crew, crew.nodes) for crew in self._crews.values() if crew.working]
        spread = [(crew, nodes) for crew, nodes in spread if len(nodes) > 1]
        on_node = collections.Counter(node for _, nodes in spread for node in nodes)
        disturbed = {crew.job for crew, nodes in spread if any(on_node[node] > 1 for node in nodes)}
        for crew in self._crews.values():
            if crew.working:
                slowed = self._interference if crew.job in disturbed else 0.0
                self.works[crew.job].set_slowdown(self._clock(), slowed)
                self._schedule_end(crew)

    def _pause_group(self, job_id: str) -> None:
        """Pause the jobs that work only together with this one."""
        for one in self._group(job_id):
            if one is not None and one.working:
                self.works[one.job].stop(self._clock(), gracefully=True)
                one.working = False

    async def _pass_barrier(self, crew: Crew, batch: curves.Batch | None, world: fake.World) -> None:
        """Register the gang at the barrier and start its processes."""
        keys = sorted(crew.tasks)
        happened: list[events.AnyEvent] = [events.TaskRegistered(key=key, address=ADDRESS) for key in keys]
        happened.append(events.TaskReported(key=crew.chief, phase="PROCESSING"))
        job = await self._store.write(lambda tx: self._record(tx, crew, happened))
        if job is None or job.live is None or job.live.barrier_at is None:
            return
        for key in keys:
            world.begin(key)
        crew.begun, crew.batch = True, batch
        self._fails_at[crew.job] = self._clock() + self._fails_after(crew.job, crew.attempt)
        group = self._group(crew.job)
        ready = [one for one in group if one is not None and one.begun]
        if len(ready) == len(group):
            for one in ready:
                self._start_work(one)

    def _start_work(self, crew: Crew) -> None:
        crew.working = True
        held = [self._type_of.get(device, "") for device in crew.held]
        crew.gpu_type = "+".join(sorted({name for name in held if name}))
        known = self._types.get(crew.job, {})
        self.works[crew.job].start(
            self._clock(),
            crew.attempt,
            crew.shape,
            crew.batch,
            devices=crew.devices,
            ready_s=self._ready_s,
            speed_factor=min((known.get(name, 1.0) for name in held), default=1.0),  # the slowest of them sets the pace
        )
        self._schedule_end(crew)

    def _group(self, job_id: str) -> list[Crew | None]:
        """Return the crews of the jobs that work only together, including its own; None for a job that does not run."""
        return [self._crews.get(one) for one in self._groups.get(job_id, (job_id,))]

    def _record(self, tx: stores.Transaction, crew: Crew, happened: Iterable[events.AnyEvent]) -> jobs.Job | None:
        stored = job = tx.job(crew.job)
        if job is None or stored is None:
            return None
        now, done = self._clock(), []
        for event in happened:
            after = stepping.step(job, event, now)
            done += [event] if after is not job else []
            job = after
        return tx.put_job(job, done, at=now) if job is not stored else job

    def _end_of(self, crew: Crew) -> float:
        return min(self.works[crew.job].ends_at, self._fails_at.get(crew.job, math.inf))

    def _schedule_end(self, crew: Crew) -> None:
        at = self._end_of(crew)
        if at < math.inf:
            heapq.heappush(self._due, (at, crew.job, crew.attempt))

    def _progress(self, crew: Crew, now: float) -> attempts.Progress | None:
        of = self.works[crew.job]
        pace = of.pace(now)
        if pace is None:
            return None
        batch, step = of.batch, int(of.steps)
        left = math.ceil((of.model.total - of.progress) / pace.gain)
        return attempts.Progress(
            step=step,
            at=now,
            total_steps=step + left if self._ends_told else None,
            ranks=len(crew.tasks),
            step_s=pace.step_s,
            sync_s=pace.sync_s,
            local=batch.local if batch is not None else None,
            accumulate=batch.accumulate if batch is not None else None,
            noise=pace.noise,
            gpu_type=crew.gpu_type,
        )


def _reported(crew: Crew, progress: attempts.Progress) -> events.AnyEvent:
    return events.TaskReported(key=crew.chief, progress=progress)
