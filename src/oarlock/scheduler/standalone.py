"""The scheduler for a program without a server: the program reports events, and gets decisions.

`planning.plan` is a function of a snapshot and keeps nothing. A server keeps the state in its store; `Scheduler` keeps
it in memory. A program submits jobs, reports measurements and ends, and asks for the next decision with `tick`. Nothing
here decides: each plan is the one that a server would make.

There are two ways of stopping. In a simulator a job stops at once: one `tick` stops it and starts it again. Where a
stop takes time (`at_once=False`), `tick` says which jobs to stop, `stopped` tells that one is gone, and a later `tick`
starts it again where its place was kept.

All times are seconds on one clock of the caller's. The state is a value (`snapshot`), from which another `Scheduler`
goes on (`restored`).
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Self, TypeVar

import msgspec

from oarlock.scheduler import planning
from oarlock.scheduler.explaining import impossible
from oarlock.scheduler.reuse import gangfacts, memos
from oarlock.spec import curves, errors, holdings, jobfile, plans, refusals
from oarlock.spec.cluster import nodes, pools

KEPT = 500
"""Ended jobs that are remembered: a policy learns from them how long others may last."""

T = TypeVar("T", bound=msgspec.Struct)


class What(StrEnum):
    START = "start"
    RESIZE = "resize"  # it goes on with another number of tasks
    MOVE = "move"  # it goes on in another place
    STOP = "stop"  # it waits again
    BATCH = "batch"  # it goes on as it is, with another batch size


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one job. `holdings` and `batch` are its holdings and its batch size afterwards.

    `batch` None: the job's own batch size. `reason` is one line.
    """

    job: str
    what: What
    holdings: holdings.Claims = ()
    batch: curves.Batch | None = None
    reason: str = ""

    @property
    def allocation(self) -> list[str]:
        """The node of every device; of every task, where the job has no devices."""
        return sorted(claim.node for claim in self.holdings for _ in claim.devices or (0,))


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. `refusals` says of each job that waits why; `plans` are the plans that were made."""

    changes: tuple[Change, ...] = ()
    refusals: dict[str, refusals.Refusal] = {}
    plans: tuple[plans.Plan, ...] = ()


def node(name: str, gpus: int, *, gpu_type: str = "gpu", cpus: float = 0.0) -> nodes.Node:
    """Return a node with `gpus` devices of one type."""
    devices = tuple(nodes.Device(index=index, type=gpu_type) for index in range(gpus))
    return nodes.Node(name=name, capacity=holdings.Resources(round(cpus * 1000), 0, gpus), devices=devices)


def gang(job: str, submitted_at: float, *, least: int = 1, most: int = 1, gpus: int = 1) -> plans.Gang:
    """Return a job of `least` to `most` workers with `gpus` devices each, of which nothing is known yet."""
    ask = plans.Ask(role="worker", count=least, min=least, max=most, amount=holdings.Resources(gpus=gpus))
    return plans.Gang(job=job, name=job, pool=pools.DEFAULT, asks=(ask,), submitted_at=submitted_at)


class Scheduler:
    """The jobs of one cluster. Every method but `snapshot` takes the time, which never goes back.

    With `batches=False` the jobs choose their batch sizes themselves, within the bounds of `Gang.batch`: their speed is
    reckoned with the best one, and none is decided.

    Raises InvalidInput for invalid values, NameTaken for a job that is known, NotFound for one that is not, and
    Impossible for one that no state of the nodes could hold.
    """

    def __init__(
        self,
        machines: Iterable[nodes.Node],
        rules: plans.Rules | None = None,
        *,
        pools: Iterable[pools.Pool] = (),
        at_once: bool = True,
        batches: bool = True,
    ) -> None:
        self._nodes = _named(machines)
        self._rules = rules or plans.Rules()
        self._pools = tuple(pools)
        self._at_once = at_once
        self._batches = batches
        self._waiting: dict[str, plans.Gang] = {}
        self._running: dict[str, plans.Running] = {}
        self._ended: tuple[plans.Ended, ...] = ()
        self._memo = memos.Memo()
        self._declared = impossible.Declared(self._nodes, self._pools)
        self._now = -math.inf
        self._touched_at = -math.inf
        planning.plan(self.snapshot(), 0.0)  # rules that name a policy or a parameter that there is not are refused

    @classmethod
    def restored(cls, snapshot: plans.Snapshot, *, at_once: bool = True, batches: bool = True) -> Self:
        """Return a scheduler that goes on from the `snapshot` of another one."""
        found = cls(snapshot.nodes, snapshot.rules, pools=snapshot.pools, at_once=at_once, batches=batches)
        found._waiting = {one.job: one for one in snapshot.waiting}
        found._running = {one.job: one for one in snapshot.running}
        found._ended = snapshot.ended
        return found

    @property
    def waiting(self) -> Mapping[str, plans.Gang]:
        return self._waiting

    @property
    def running(self) -> Mapping[str, plans.Running]:
        """The jobs that hold something, those among them that are being stopped."""
        return self._running

    def snapshot(self, *, reallocate: bool = True) -> plans.Snapshot:
        return plans.Snapshot(
            nodes=self._nodes,
            pools=self._pools,
            waiting=tuple(self._waiting.values()),
            running=tuple(self._running.values()),
            ended=self._ended,
            rules=self._rules,
            reallocate=reallocate,
        )

    # Events

    def submit(self, gang: plans.Gang, now: float) -> None:
        """Add a job, which waits from now on."""
        self._pass(now)
        if gang.job in self._waiting or gang.job in self._running:
            hint = "Give each job an id of its own. A job that was stopped waits by itself: do not submit it again."
            raise errors.NameTaken(f"the job {gang.job} is known already", hint=hint)
        _check(gang, now)
        never = self._declared.never(gang)
        if never is not None:
            raise errors.Impossible(f"{gang.job}: {never.message}", hint=never.change)
        self._waiting[gang.job] = gang

    def finish(self, job: str, now: float) -> None:
        """Report the end of a job, whatever its result was. Its holdings are free."""
        self._pass(now)
        gang = self._gang(job)
        served_s = gang.served_s + self._served_s(job, now)
        self._waiting.pop(job, None)
        self._running.pop(job, None)
        if served_s > 0:
            types = () if gang.curve is None else gang.curve.types
            ended = plans.Ended(owner=gang.owner, name=gang.name, served_s=served_s, types=types)
            self._ended = (*self._ended, ended)[-KEPT:]

    def stopped(self, job: str, now: float, *, not_before: float | None = None) -> None:
        """Take note that a job that ran holds nothing any more: it was told to stop, or it failed.

        It waits again, and is not started before `not_before`.
        """
        self._pass(now)
        self._gang(job)
        running = self._running.get(job)
        if running is None:
            hint = "Call `stopped` once, for a job that holds something; `finish` for one that is over."
            raise errors.InvalidInput(f"the job {job} does not run", hint=hint)
        self._stop(running, now, not_before)

    def measure(
        self,
        job: str,
        now: float,
        *,
        curve: curves.Curve | None = None,
        batch: curves.Batch | None = None,
        bounds: jobfile.Batch | None = None,
        most: Mapping[str, int | None] | None = None,
        checkpoint_at: float | None = None,
        expected_end: float | None = None,
        began_at: float | None = None,
        lasts_s: float | None = None,
        restart_s: float | None = None,
    ) -> None:
        """Report facts about a job. Arguments that are left out stay as they were.

        `curve` is its speed curve, `bounds` those of its batch size, and `batch` the batch size that it uses. `most`
        says by role how many tasks the job may have for now (None: as many as it asked for). `checkpoint_at` is the
        time of its last checkpoint, `expected_end` that of its end, `began_at` when its processes began; these and
        `batch` are of a job that runs. `lasts_s` is how long it would still run as its owner asked, `restart_s`
        how long its last start took until it trained.
        """
        self._pass(now)
        gang, running = self._gang(job), self._running.get(job)
        _check_kind("curve", curve, curves.Curve, "`rates.of_params` and `fitting.allreduce` make one.")
        _check_kind("most", most, Mapping, 'It is the most tasks by role: {"worker": 4}.')
        _check_kind("bounds", bounds, jobfile.Batch, "It is a jobfile.Batch(size, max, local_min, local_max).")
        _check_kind("batch", batch, curves.Batch, "It is a curves.Batch(local, accumulate); `bounds` are the bounds.")
        of_gang = _set(curve=curve, batch=bounds, lasts_s=lasts_s, restart_s=restart_s)
        of_run = _set(batch=batch, checkpoint_at=checkpoint_at, expected_end=expected_end, began_at=began_at)
        for name, value in {**of_run, **_set(lasts_s=lasts_s, restart_s=restart_s)}.items():
            if isinstance(value, int | float) and not math.isfinite(value):
                raise errors.InvalidInput(f"{value} is not a time", path=name, hint="Give seconds, or leave it out.")
        if most is not None:
            of_gang["asks"] = _capped(gang, most)
        if of_run and running is None:
            hint = f"Leave out {', '.join(of_run)}: they are of jobs that run."
            raise errors.InvalidInput(f"the job {job} waits", hint=hint)
        if of_gang:
            gang = _changed(gang, of_gang)
        if running is None:
            self._waiting[job] = gang
        else:
            self._running[job] = _changed(running, {"gang": gang, **of_run})

    def declare(self, machines: Iterable[nodes.Node], now: float) -> None:
        """Replace the nodes. One that is lost is not `ready`, and its jobs are `stopped` first."""
        self._pass(now)
        found = _named(machines)
        lost = {claim.node for one in self._running.values() for claim in one.holdings} - {one.name for one in found}
        if lost:
            hint = "Call `stopped` or `finish` for these jobs first."
            raise errors.InvalidInput(f"jobs hold devices of {', '.join(sorted(lost))}", path="nodes", hint=hint)
        self._nodes = found
        self._declared = impossible.Declared(found, self._pools)

    # Decisions

    def tick(self, now: float, *, reallocate: bool | None = None) -> Tick:
        """Return the next decision, which is taken to be carried out.

        Running jobs are touched once in `Rules.round_s` at most, or as `reallocate` says; between two rounds free
        devices are given to jobs that wait.
        """
        self._pass(now)
        if reallocate is None:
            reallocate = not self._touched_at <= now < self._touched_at + self._rules.round_s
        before = dict(self._running)
        made = [self._carry_out(now, reallocate=reallocate)]
        if reallocate:
            self._touched_at = now
        if self._at_once and (stops := _stops(made[0])):
            for stop in stops:
                self._stop(self._running[stop.job], now)
            made.append(self._carry_out(now, reallocate=False))
        return Tick(changes=self._changes(before, made), refusals=made[-1].refusals, plans=tuple(made))

    def _carry_out(self, now: float, *, reallocate: bool) -> plans.Plan:
        plan = planning.plan(self.snapshot(reallocate=reallocate), now, self._memo)
        for launch in plan.launches:
            gang = self._waiting.pop(launch.job)
            number = gang.starts + 1
            self._running[launch.job] = plans.Running(
                gang=msgspec.structs.replace(gang, starts=number, destined=(), refusal=None, not_before=None),
                holdings=tuple(msgspec.structs.replace(claim, attempt=number) for claim in launch.holdings),
                started_at=now,
                batch=launch.batch if self._batches else None,
            )
        for stop in _stops(plan):
            running = self._running[stop.job]
            to = () if isinstance(stop, plans.Preemption) else stop.to
            leaving = msgspec.structs.replace(running.gang, destined=to)
            self._running[stop.job] = msgspec.structs.replace(running, gang=leaving, stopping=True, returns=True)
        for job, batch in plan.batches.items() if self._batches else ():
            self._running[job] = msgspec.structs.replace(self._running[job], batch=batch)
        for job, refusal in plan.refusals.items():  # a later plan reads there which places are being cleared
            if job in self._waiting and not refusal.same_kind(self._waiting[job].refusal):
                self._waiting[job] = msgspec.structs.replace(self._waiting[job], refusal=refusal)
        return plan

    def _stop(self, running: plans.Running, now: float, not_before: float | None = None) -> None:
        gang = running.gang
        self._waiting[gang.job] = msgspec.structs.replace(
            gang,
            served_s=gang.served_s + self._served_s(gang.job, now),
            stopped_at=now if running.stopping else gang.stopped_at,
            not_before=not_before,
        )
        del self._running[gang.job]

    def _changes(self, before: Mapping[str, plans.Running], made: Iterable[plans.Plan]) -> tuple[Change, ...]:
        reasons: dict[str, str] = {}
        for plan in made:
            for stop in _stops(plan):
                reasons[stop.job] = stop.reason
            for launch in plan.launches:
                reasons.setdefault(launch.job, launch.reason)
        found = (_change(job, before.get(job), self._running.get(job), reasons) for job in {**before, **self._running})
        return tuple(change for change in found if change is not None)

    # The present state

    def _gang(self, job: str) -> plans.Gang:
        running = self._running.get(job)
        found = self._waiting.get(job) if running is None else running.gang
        if found is None:
            raise errors.NotFound(f"there is no job {job}", hint="Submit it first. A job that is over is forgotten.")
        return found

    def _served_s(self, job: str, now: float) -> float:
        """Return the device-seconds that it has held since it was started."""
        running = self._running.get(job)
        return 0.0 if running is None else (now - running.started_at) * gangfacts.RunningFacts.new(running).weight

    def _pass(self, now: float) -> None:
        if not math.isfinite(now) or now < self._now:
            hint = "Give every call the time of the same clock, in seconds."
            raise errors.InvalidInput(f"the time was {self._now:g} and cannot be {now:g}", path="now", hint=hint)
        self._now = now


def _stops(plan: plans.Plan) -> list[plans.Preemption | plans.Resize | plans.Move]:
    return [*plan.preemptions, *plan.resizes, *plan.moves]


def _change(
    job: str, old: plans.Running | None, new: plans.Running | None, reasons: Mapping[str, str]
) -> Change | None:
    reason = reasons.get(job, "")
    if new is None:
        return Change(job=job, what=What.STOP, reason=reason)
    if old is None:
        return Change(job=job, what=What.START, holdings=new.holdings, batch=new.batch, reason=reason)
    if new.stopping and not old.stopping:
        to = new.gang.destined
        size = tuple(sum(claim.role == ask.role for claim in to) for ask in new.gang.asks)
        what = What.STOP if not to else What.RESIZE if size != old.size else What.MOVE
        return Change(job=job, what=what, holdings=to, reason=reason)
    if new.gang.starts != old.gang.starts:
        what = What.RESIZE if new.size != old.size else What.MOVE
        return Change(job=job, what=what, holdings=new.holdings, batch=new.batch, reason=reason)
    if new.batch != old.batch:
        return Change(job=job, what=What.BATCH, holdings=new.holdings, batch=new.batch)
    return None


# Bad input


def _named(machines: Iterable[nodes.Node]) -> tuple[nodes.Node, ...]:
    found = tuple(machines)
    counts = collections.Counter(one.name for one in found)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        hint = "Give each node a name of its own."
        raise errors.InvalidInput(f"{', '.join(twice)} is there twice", path="nodes", hint=hint)
    for one in found:
        if len(one.devices) != one.capacity.gpus:
            raise errors.InvalidInput(
                f"{one.name} has {len(one.devices)} devices, and its capacity says {one.capacity.gpus}",
                path="nodes",
                hint="List each device in `devices`, and set `capacity.gpus` to their number.",
            )
    return found


def _check(gang: plans.Gang, now: float) -> None:
    if not gang.asks:
        raise errors.InvalidInput(f"{gang.job} asks for nothing", path="asks", hint="Give at least one plans.Ask.")
    if not math.isfinite(gang.submitted_at) or gang.submitted_at > now:
        raise errors.InvalidInput(
            f"{gang.job} was submitted at {gang.submitted_at:g}, and it is {now:g}",
            path="submitted_at",
            hint="Submit a job when it comes, with that time.",
        )
    for ask in gang.asks:
        if not (0 <= ask.min <= ask.count <= ask.max and ask.max > 0):
            raise errors.InvalidInput(
                f"{ask.role} has min {ask.min}, count {ask.count} and max {ask.max}",
                path=f"{gang.job}.asks.{ask.role}",
                hint="They must be in this order, none of them negative, and `max` at least 1.",
            )


def _check_kind(name: str, value: object, kind: type, hint: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise errors.InvalidInput(f"it cannot be a {type(value).__name__}", path=name, hint=hint)


def _capped(gang: plans.Gang, most: Mapping[str, int | None]) -> tuple[plans.Ask, ...]:
    roles = {ask.role for ask in gang.asks}
    for role, cap in most.items():
        least = next((ask.min for ask in gang.asks if ask.role == role), None)
        if least is None:
            hint = f"Its roles are {', '.join(sorted(roles))}."
            raise errors.InvalidInput(f"{gang.job} has no role {role}", path="most", hint=hint)
        if cap is not None and cap < least:
            hint = f"It needs {least}: give {least} or more, or None."
            raise errors.InvalidInput(f"{gang.job} cannot have {cap} tasks of {role}", path="most", hint=hint)
    return tuple(msgspec.structs.replace(ask, cap=most[ask.role]) if ask.role in most else ask for ask in gang.asks)


def _set(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _changed(one: T, values: Mapping[str, object]) -> T:
    """Return `one` with these values; `one` itself if nothing differs, because plans keep facts by identity."""
    if all(getattr(one, name) == value for name, value in values.items()):
        return one
    return msgspec.structs.replace(one, **values)
