"""A whole server for tests, in memory and in virtual time: the real controllers over the memory store and the fake
backend, with agents that keep to their protocol as far as the store can tell.

Time passes in steps. In each, agents say what they have to say and hear their orders (as the API does it: each in a
transaction of its own, by `lifecycle`), then every controller ticks once. Nothing suspends, nothing sleeps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from oarlock.backends import backends, fake
from oarlock.controllers import inventory, leadership
from oarlock.controllers.guarding import assigning, guardian, leftovers
from oarlock.controllers.scheduling import scheduling
from oarlock.data import storage
from oarlock.lifecycle import orders, stepping
from oarlock.scheduler import planning
from oarlock.scheduler.reuse import memos
from oarlock.spec import attempts, errors, events, holdings, intents, jobfile, jobs, phases, plans, tasklogs
from oarlock.spec.cluster import nodes
from oarlock.spec.input import validation
from oarlock.spec.reconciling import observations
from oarlock.store import memory, stores

T = TypeVar("T")

START = 1_000_000.0
STEP_S = 0.25
SETTINGS = assigning.Settings(server="http://127.0.0.1:7317", task_secret=b"s" * 32, checkpoints="/ckpt")

Phase = phases.Phase
RULES = plans.Rules(policy="priority", round_s=10.0, min_runtime_s=20.0)
LIVES_AND_SUCCEEDS = fake.Behaviour(runs_s=5.0, at_barrier=True, lingers=True)


class Killed(BaseException):
    """The server is killed here: no handler of its own may stop this."""


class MemoryLogs:
    """The appended bytes, by (key, stream). Enough of `storage.Logs` for a guardian."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[str, str], bytes] = {}
        self.full = False

    async def append(self, key: attempts.TaskKey, stream: str, offset: int, data: bytes, *, at: float = 0.0) -> int:
        if self.full:
            raise errors.Unavailable("the disk is full", hint="Make room.")
        stored = self.bytes.get((str(key), stream), b"")
        if offset != len(stored):
            raise errors.OffsetMismatch("not there", detail={"length": len(stored)})
        self.bytes[str(key), stream] = stored + data
        return len(stored) + len(data)

    async def length(self, key: attempts.TaskKey, stream: str) -> int:
        return len(self.bytes.get((str(key), stream), b""))

    def shortages(self, key: attempts.TaskKey) -> dict[str, storage.Shortage]:
        return {}

    async def streams(self, job: str) -> list[storage.StreamInfo]:
        return []

    async def read(self, query: storage.LogQuery) -> AsyncIterator[tasklogs.Line]:
        return
        yield

    follow = read

    async def forget(self, job: str) -> None:
        self.bytes = {key: kept for key, kept in self.bytes.items() if not key[0].startswith(f"{job}/")}


class MemoryMetrics(MemoryLogs):
    async def append(self, key: attempts.TaskKey, process: int, offset: int, data: bytes) -> int:
        return await super().append(key, f"metrics-{process}", offset, data)

    async def names(self, job: str) -> list[str]:
        return []

    async def series(self, job: str, names: list[str] | None = None, *, points: int = 500) -> list[storage.Series]:
        return []


class OfControllers:
    """The store as controllers are given it: a write that names no epoch fails, whichever server leads."""

    def __init__(self, store: stores.Store) -> None:
        self._store = store

    async def write(self, change: Callable[[stores.Transaction], T], *, epoch: int | None = None) -> T:
        if epoch is None:
            pytest.fail("a controller writes without its epoch")  # no handler of theirs catches this
        return await self._store.write(change, epoch=epoch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class NoBlanks:
    reach = 0

    def cover(self, data: bytes) -> bytes:
        return data


class Server:
    """One server's controllers. Several may share a plant; one that is killed is simply never ticked again."""

    def __init__(
        self, plant: Plant, name: str, *, plan: scheduling.Plan = planning.plan, rules: plans.Rules = RULES
    ) -> None:
        self.name = name
        self.plant = plant
        self.reports: list[tuple[str, str]] = []
        self.stale_writes = 0
        backend = fake.Fake(plant.world)
        store: Any = OfControllers(plant.store)
        self.leading = leadership.Leading(store, holder=name, clock=plant.clock)
        left = leftovers.Leftovers(
            backend, plant.logs, plant.metrics, blanker=lambda job: NoBlanks(), clock=plant.clock
        )
        self.inventory = inventory.Inventory(store, backend, self.leading, clock=plant.clock)
        self.scheduling = scheduling.Scheduling(
            store,
            self.leading,
            plan,
            clock=plant.clock,
            report=self.report,
            rules=rules,
            memo=memos.Memo(),
        )
        self.guardian = guardian.Guardian(
            store, backend, self.leading, left, SETTINGS, clock=plant.clock, report=self.report
        )

    def report(self, what: str, error: Exception) -> None:
        self.reports.append((what, str(error)))

    async def tick(self) -> None:
        for controller in (self.leading, self.inventory, self.scheduling, self.guardian):
            epoch = self.leading.epoch
            try:
                await controller.tick()
            except errors.StaleEpoch:
                if epoch is not None:
                    self.leading.lost(epoch)


class Plant:
    def __init__(
        self,
        script: fake.Script | None = None,
        *,
        machines: Sequence[nodes.Node] | None = None,
    ) -> None:
        self.now = START
        self.store = memory.MemoryStore()
        self.logs = MemoryLogs()
        self.metrics = MemoryMetrics()
        self.behaviours: dict[str, fake.Behaviour] = {}
        self.world = fake.World(machines or [machine("n0"), machine("n1")], script or self.behaviour, self.clock)
        self.count = 0
        self.mute: set[attempts.TaskKey] = set()
        self.server = Server(self, "server-1")
        self.checks: list[Callable[[], None]] = [self.check_processes, self.check_gangs]
        self._partly_since: dict[tuple[str, int], float] = {}

    def clock(self) -> float:
        return self.now

    def behaviour(self, task: backends.TaskLaunch) -> fake.Behaviour:
        """By `JOB/ATTEMPT/ROLE/INDEX`, then `JOB/ROLE/INDEX`, then `JOB`: what the test said; else it succeeds."""
        key = task.key
        for name in (
            f"{key.job}/{key.attempt}/{key.role}/{key.index}",
            f"{key.job}/{key.role}/{key.index}",
            f"{key.job}/{key.attempt}",
            key.job,
        ):
            if name in self.behaviours:
                return self.behaviours[name]
        return LIVES_AND_SUCCEEDS

    async def submit(self, text: str = "{}", *, name: str = "") -> str:
        self.count += 1
        job_id = name or f"j-{self.count:04}"
        spec = validation.decode({"command": "train"} | validation.plain(text))
        job = jobs.Job(
            id=job_id, name=job_id, owner="alice", spec=spec, created_at=self.now, phase_at=self.now, pool=spec.pool
        )
        await self.store.write(lambda tx: tx.add_job(job, at=self.now))
        return job_id

    async def intend(self, job_id: str, intent: str) -> None:
        await self.tell(job_id, events.Intended(intent=intents.Intent(intent), by="alice"))

    async def tell(self, job_id: str, *happened: events.AnyEvent) -> jobs.Job:
        """As the API does it: the stored job, stepped, in one transaction."""

        def write(tx: stores.Transaction) -> jobs.Job:
            stored = job = tx.job(job_id)
            assert job is not None
            done = []
            for event in happened:
                after = stepping.step(job, event, self.now)
                done += [event] if after is not job else []
                job = after
            return tx.put_job(job, done, at=self.now) if job is not stored else job

        return await self.store.write(write)

    async def job(self, job_id: str) -> jobs.Job:
        found = await self.store.read(lambda view: view.job(job_id))
        assert found is not None, f"{job_id} is lost"
        return found

    async def phases(self) -> dict[str, Phase]:
        listed = await self.store.read(lambda view: view.jobs(stores.JobFilter(limit=100_000)))
        return {job.id: job.phase for job in listed}

    # Time

    async def step(self, seconds: float = STEP_S) -> None:
        """Time passes, agents move, the server ticks. Raises Killed where a failpoint says so."""
        self.now += seconds
        for key in sorted(self.world.running()):
            await self.agent(key)
        try:
            await self.server.tick()
        finally:
            for check in self.checks:
                check()

    async def until(self, holds: Callable[[dict[str, Phase]], bool], *, within_s: float = 120.0) -> None:
        until = self.now + within_s
        while not holds(await self.phases()):
            assert self.now < until, f"not within {within_s} s: {await self.describe()}"
            await self.step()

    async def until_phase(self, job_id: str, *wanted: Phase, within_s: float = 120.0) -> jobs.Job:
        await self.until(lambda now: now[job_id] in wanted, within_s=within_s)
        return await self.job(job_id)

    async def until_rest(self, *, within_s: float = 600.0) -> None:
        """Every job has ended or is halted, and the backend has nothing left."""
        resting = phases.TERMINAL | {Phase.HALTED}
        await self.until(
            lambda now: all(phase in resting for phase in now.values()) and not self.world.known(), within_s=within_s
        )
        assert await self.store.read(lambda view: view.holdings()) == []

    async def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            await self.step()

    def restart(self, name: str = "") -> None:
        """The server was killed; another one starts. Its lease must run out first, as in life."""
        self.server = Server(self, name or f"server-{self.now}")

    # Agents

    async def agent(self, key: attempts.TaskKey) -> None:
        """One agent, for a moment. Muted ones cannot reach the server; those that are not RUNNING are dead."""
        look = self.world.look(key)
        if key in self.mute or look.state is not observations.State.RUNNING or look.detail == "node lost":
            return
        job = await self.store.read(lambda view: view.job(key.job))
        try:
            if job is None:
                raise errors.StaleTask(f"{key.job} was removed")
            orders.orders(job, key, self.now)
            await self._say(job, key, look)
            job = await self.job(key.job)
            self._hear(key, orders.orders(job, key, self.now), await self._stacks(job, key))
        except errors.StaleTask:
            self.world.kill(key)

    async def _say(self, job: jobs.Job, key: attempts.TaskKey, look: observations.Observed) -> None:
        of = {"key": key}
        if look.exit is not None:
            await self.tell(key.job, events.TaskExited(**of, exit=look.exit))
        elif self.world.began(key):
            can_rejoin = jobfile.rejoins(job.spec) or None
            after = await self.tell(key.job, events.TaskReported(**of, phase="PROCESSING", can_rejoin=can_rejoin))
            if after.live is not None and after.live.task(key.role, key.index).leave_by is not None:
                self.world.end(key)  # it has heard of the round without it
        else:
            after = await self.tell(
                key.job,
                events.TaskReported(**of, phase="DOWNLOADING"),
                events.TaskRegistered(**of, address="127.0.0.1"),
            )
            if orders.admitted(after, key):
                self.world.begin(key)

    async def _stacks(self, job: jobs.Job, key: attempts.TaskKey) -> None:
        asked = orders.orders(job, key, self.now).stacks
        if asked is not None:
            of = {"key": key}
            await self.tell(key.job, events.StacksTaken(**of, request=asked, stacks={"0": "File train.py, line 3"}))

    def _hear(self, key: attempts.TaskKey, told, _) -> None:
        if told.stop is not None:
            self.world.begin(key)
            self.world.stop(key)
        if told.release:
            self.world.let_go(key)

    # Conditions that hold at every moment

    def check_processes(self) -> None:
        """At most one admitted process of each task, none of a job at rest, every start a single one."""
        state = self.store._state
        running = [key for key in self.world.running() if self.world.began(key) and self.world.look(key).exit is None]
        assert len({(key.job, key.role, key.index) for key in running}) == len(running), running
        held = {claim.job for claim in state.holdings()}
        for key in running:
            job = state.job(key.job)
            assert job is not None, f"{key} runs, its job is lost"
            assert job.live is not None, f"{key} runs, its job is {job.phase}"
            assert job.live.number == key.attempt, f"{key} runs beside attempt {job.live.number}"
            assert key.job in held, f"{key} runs on what is not held"
        assert all(count == 1 for count in self.world.starts.values()), self.world.starts

    def check_gangs(self) -> None:
        """No gang is partly bound for longer than 30 s (and one look)."""
        state = self.store._state
        partly = set()
        for job_id in {key.job for key in self.world.known()}:
            job = state.job(job_id)
            live = job.live if job is not None else None
            if live is None or live.stop is not None or live.launched_at is not None:
                continue
            bound = {
                (key.role, key.index)
                for key in self.world.known()
                if (key.job, key.attempt) == (job_id, live.number) and self.is_bound(key)
            }
            if 0 < len(bound) < len(live.tasks):
                partly.add((job_id, live.number))
        self._partly_since = {one: self._partly_since.get(one, self.now) for one in partly}
        for one, since in self._partly_since.items():
            assert self.now - since <= 30.0 + 2 * STEP_S, f"{one} is partly bound since {self.now - since} s"

    def is_bound(self, key: attempts.TaskKey) -> bool:
        """Return whether a task that was made has its place."""
        return True

    async def describe(self) -> str:
        listed = await self.store.read(lambda view: view.jobs(stores.JobFilter(limit=50)))
        lines = [f"{job.id} {job.phase} {job.intent} {job.reason} {job.live and job.live.tasks}" for job in listed]
        return "\n".join([*lines, *(str(self.world.look(key)) for key in self.world.known()), str(self.server.reports)])


def machine(name: str, *, cpus: int = 8, devices: int = 0) -> nodes.Node:
    return nodes.Node(
        name=name,
        capacity=holdings.Resources(cpus * 1000, 1 << 36, devices),
        devices=tuple(nodes.Device(index=index, type="h100", memory_bytes=1 << 36) for index in range(devices)),
        ports=(20000, 20999),
    )


def leftover(path: Path, stream: str, content: bytes) -> backends.Leftover:
    path.write_bytes(content)
    return backends.Leftover(stream, path)
