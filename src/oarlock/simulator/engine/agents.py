"""Who stands in for the agents and the training library: registers gangs, starts them, reports, stops, ends.

What a real agent says comes through the API, which steps the job in a transaction; so it is done here. A gang's agents
speak in one voice: a gang registers in one transaction, and only its first task reports progress. The ends of processes
are read from the world by the guardian, as where an agent has died after writing its exit record.

What a gang does between two instants is derived: its `Work` foresees its end, and is told when something changes.
"""

from __future__ import annotations

import collections
import heapq
import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oarlock.backends import backends, fake
from oarlock.lifecycle import stepping
from oarlock.simulator.engine import work
from oarlock.simulator.models import jobmodels
from oarlock.spec import attempts, curves, events, holdings, jobs, nodes
from oarlock.store import stores

RUNS = fake.Behaviour(at_barrier=True)
ADDRESS = "127.0.0.1"
_PAGE = 1000


class Crew:
    """The agents of one attempt. `lost` are the nodes of it that cannot be reached."""

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
        """Its devices, each by its node and its index."""
        return [(claim.node, device) for claim in self.tasks.values() for device in claim.devices]

    @property
    def shape(self) -> jobmodels.Shape:
        """How many devices it has on each node, fewest first; tasks where it has none."""
        without = 0 if self.devices else 1
        of_node: dict[str, int] = {}
        for claim in self.tasks.values():
            of_node[claim.node] = of_node.get(claim.node, 0) + (len(claim.devices) or without)
        return tuple(sorted(count for count in of_node.values() if count))

    @property
    def devices(self) -> float:
        """What it holds of devices, shares of them too."""
        return sum(claim.amount.devices for claim in self.tasks.values())

    @property
    def nodes(self) -> set[str]:
        """Where it has devices; where it has tasks, if it has none."""
        found = {claim.node for claim in self.tasks.values() if claim.devices}
        return found or {claim.node for claim in self.tasks.values()}

    @property
    def chief(self) -> attempts.TaskKey:
        return min(self.tasks, key=lambda key: (key.role, key.index))


class Agents:
    """`ready_s` is how long a gang starts up before it advances; `fails_after` how long an attempt lives before its
    process fails (infinity: it does not); `spoiled` why a task cannot be made, empty where it can; `ends_told` whether
    jobs say how many steps they still have to do; `interference` by what share gangs that lie on several nodes slow
    each other down where they share one. Of the jobs in `groups` each works only while all that are named there run.
    `types` says by job how many times as fast it is on which type of the GPUs that `machines` have.
    """

    def __init__(
        self,
        store: stores.Store,
        clock: Callable[[], float],
        *,
        ready_s: float,
        fails_after: Callable[[str, int], float] = lambda job, attempt: math.inf,
        spoiled: Callable[[backends.TaskLaunch], str] = lambda launch: "",
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
        self._spoiled = spoiled
        self._crews: dict[str, Crew] = {}
        self._groups = groups
        self._types = types
        self._type_of = {(node.name, device.index): device.type for node in machines for device in node.devices}
        self._ends_told = ends_told
        self._interference = interference
        self._fails_at: dict[str, float] = {}
        self._due: list[tuple[float, str, int]] = []  # when a crew's process is to end; stale ones are passed over
        self._made: dict[str, None] = {}
        self._seq = 0

    # What the world asks

    def script(self, launch: backends.TaskLaunch) -> fake.Behaviour:
        """The world makes a task: it waits at the barrier until `tick` has let it through."""
        if reason := self._spoiled(launch):
            return fake.Behaviour(unlaunchable=reason)
        crew = self._crews.get(launch.key.job)
        if crew is None or crew.attempt != launch.key.attempt:
            if crew is not None:
                self._quit(crew, gracefully=False)
            crew = self._crews[launch.key.job] = Crew(launch.key.job, launch.key.attempt)
        crew.tasks[launch.key] = launch.holding
        self._made[launch.key.job] = None
        return RUNS

    # What happens in time

    def submit(self, job_id: str, of: work.Work) -> None:
        """`of` is what the job will do."""
        self.works[job_id] = of

    def forget(self, job_id: str) -> work.Work:
        """The job has ended, or the simulation has, in the midst of its work: what came of it up to now."""
        self._crews.pop(job_id, None)
        self._fails_at.pop(job_id, None)
        did = self.works.pop(job_id)
        did.stop(self._clock(), gracefully=True)
        return did

    def next_at(self) -> float:
        """When the next process is to end by itself."""
        while self._due:
            at, job_id, attempt = self._due[0]
            crew = self._crews.get(job_id)
            if crew is not None and crew.attempt == attempt and crew.working and self._end_of(crew) == at:
                return at
            heapq.heappop(self._due)
        return math.inf

    def end_due(self, world: fake.World) -> None:
        """The processes whose time has come end: with their work done, or by the failure that was drawn for them."""
        now = self._clock()
        while self.next_at() <= now:
            _, job_id, _ = heapq.heappop(self._due)
            crew, does = self._crews[job_id], self.works[job_id]
            crew.working = crew.begun = False
            done = does.ends_at <= now
            if not done:
                self.failed += 1
                self._pause_others(job_id)
            does.stop(now, gracefully=done)
            for key in crew.tasks if done else [crew.chief]:
                world.end(key, signal=None if done else signal.SIGKILL)  # a fault strikes from outside

    def lose(self, node: str) -> None:
        """The node cannot be reached: whoever has a part of itself there goes no further."""
        for crew in self._crews.values():
            if any(claim.node == node for claim in crew.tasks.values()):
                crew.lost.add(node)
                crew.working = False
                self.works[crew.job].stall(self._clock())
                self._pause_others(crew.job)

    async def tick(self, world: fake.World) -> None:
        """Agents whose gang was made, or whose job is not as it was, hear what they are to do, and do it."""
        told = await self._store.read(self._news)
        made, self._made = self._made, {}
        for job_id in {**made, **told}:
            if (crew := self._crews.get(job_id)) is not None:
                await self._attend(crew, world)
        if self._interference and (made or told):
            self._disturb()

    async def report(self) -> int:
        """The first task of every gang that advances tells how far it is and how fast; how many told."""
        now = self._clock()
        told = [(crew, self._progress(crew, now)) for crew in self._crews.values() if crew.working]
        said = [(crew, progress) for crew, progress in told if progress is not None]
        if said:
            await self._store.write(lambda tx: [self._tell(tx, crew, [_reported(crew, one)]) for crew, one in said])
        return len(said)

    def _news(self, view: stores.View) -> dict[str, None]:
        seq, ids = view.last_seq(), dict[str, None]()
        while self._seq < seq:
            records = view.records(self._seq, limit=_PAGE)
            ids.update(dict.fromkeys(record.job for record in records))
            self._seq = records[-1].seq if records else seq
        return ids

    async def _attend(self, crew: Crew, world: fake.World) -> None:
        job = await self._store.read(lambda view: view.job(crew.job))
        live = job.live if job is not None else None
        if live is None or live.number != crew.attempt:
            self._quit(crew, gracefully=False)  # the end came and went in one turn of the guardian
            del self._crews[crew.job]
        elif live.stop is not None:
            self._stop(crew, live, world)
        elif crew.working:
            self.works[crew.job].rebatch(self._clock(), live.batch)
            self._foresee(crew)
        elif live.launched_at is not None and live.round == 0:
            await self._begin(crew, live.batch, world)

    def _stop(self, crew: Crew, live: attempts.Attempt, world: fake.World) -> None:
        if crew.stopping:
            return
        self._quit(crew, gracefully=live.stop is attempts.Cause.STOPPED and not crew.lost)
        for key, claim in crew.tasks.items():
            if claim.node not in crew.lost:
                world.stop(key)

    def _quit(self, crew: Crew, *, gracefully: bool) -> None:
        if not crew.stopping:
            self.works[crew.job].stop(self._clock(), gracefully=gracefully)
            crew.begun, crew.working, crew.stopping = False, False, True
            self._pause_others(crew.job)

    def _disturb(self) -> None:
        """Who shares a node with another gang that lies on several, as it does itself, is slower."""
        spread = [(crew, crew.nodes) for crew in self._crews.values() if crew.working]
        spread = [(crew, nodes) for crew, nodes in spread if len(nodes) > 1]
        on_node = collections.Counter(node for _, nodes in spread for node in nodes)
        disturbed = {crew.job for crew, nodes in spread if any(on_node[node] > 1 for node in nodes)}
        for crew in self._crews.values():
            if crew.working:
                slowed = self._interference if crew.job in disturbed else 0.0
                self.works[crew.job].slow(self._clock(), slowed)
                self._foresee(crew)

    def _pause_others(self, job_id: str) -> None:
        """Those that work only together with this one wait for it."""
        for one in self._together(job_id):
            if one is not None and one.working:
                self.works[one.job].stop(self._clock(), gracefully=True)
                one.working = False

    async def _begin(self, crew: Crew, batch: curves.Batch | None, world: fake.World) -> None:
        """The gang meets at the barrier and starts its processes."""
        keys = sorted(crew.tasks)
        happened: list[events.AnyEvent] = [events.TaskRegistered(**_of(key), address=ADDRESS) for key in keys]
        happened.append(events.TaskReported(**_of(crew.chief), phase="PROCESSING"))
        job = await self._store.write(lambda tx: self._tell(tx, crew, happened))
        if job is None or job.live is None or job.live.barrier_at is None:
            return
        for key in keys:
            world.begin(key)
        crew.begun, crew.batch = True, batch
        self._fails_at[crew.job] = self._clock() + self._fails_after(crew.job, crew.attempt)
        together = self._together(crew.job)
        ready = [one for one in together if one is not None and one.begun]
        if len(ready) == len(together):
            for one in ready:
                self._work(one)

    def _work(self, crew: Crew) -> None:
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
            times=min((known.get(name, 1.0) for name in held), default=1.0),  # the slowest of them sets the pace
        )
        self._foresee(crew)

    def _together(self, job_id: str) -> list[Crew | None]:
        """The crews of the jobs that work only together, its own among them; None where one does not run."""
        return [self._crews.get(one) for one in self._groups.get(job_id, (job_id,))]

    def _tell(self, tx: stores.Transaction, crew: Crew, happened: Iterable[events.AnyEvent]) -> jobs.Job | None:
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

    def _foresee(self, crew: Crew) -> None:
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
    return events.TaskReported(**_of(crew.chief), progress=progress)


def _of(key: attempts.TaskKey) -> dict[str, Any]:
    return {"attempt": key.attempt, "role": key.role, "index": key.index, "incarnation": key.incarnation}
