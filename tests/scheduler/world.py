"""A cluster that carries plans out, without any process: a job holds from its start, and until it is gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import curves, holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools

replace = msgspec.structs.replace


class World:
    def __init__(self, rules: plans.Rules | None = None) -> None:
        self.nodes: dict[str, nodes.Node] = {}
        self.pools: dict[str, pools.Pool] = {}
        self.waiting: dict[str, plans.Gang] = {}
        self.running: dict[str, plans.Running] = {}
        self.rules = rules or plans.Rules()
        self.preempted: dict[str, int] = {}  # how often each was stopped for another
        self.restarted: dict[str, int] = {}  # how often each was resized or moved

    def snapshot(self, *, reallocate: bool = True) -> plans.Snapshot:
        return plans.Snapshot(
            nodes=tuple(self.nodes.values()),
            pools=tuple(self.pools.values()),
            waiting=tuple(self.waiting.values()),
            running=tuple(self.running.values()),
            rules=self.rules,
            reallocate=reallocate,
        )

    def carry_out(self, plan: plans.Plan, now: float, *, failing: Iterable[str] = ()) -> None:
        """`failing`: launches that come to nothing."""
        for launch in plan.launches:
            if launch.job not in failing:
                self.start(launch.job, launch.holdings, now)
        for stopped in plan.preemptions:
            self.stop(stopped.job)
            self.preempted[stopped.job] = self.preempted.get(stopped.job, 0) + 1
        for changed in (*plan.resizes, *plan.moves):
            self.stop(changed.job, changed.to)
            self.restarted[changed.job] = self.restarted.get(changed.job, 0) + 1
        for job, batch in plan.batches.items():
            self.running[job] = replace(self.running[job], batch=batch)
        self.note(plan.refusals)

    def note(self, refused: dict[str, refusals.Refusal]) -> None:
        """As the server writes them: only where they say something new, so that the other gangs stay what they are."""
        for job, refusal in refused.items():
            if not refusal.same_kind(self.waiting[job].refusal):
                self.waiting[job] = replace(self.waiting[job], refusal=refusal)

    def learn(self, job: str, new: Sequence[curves.Sample]) -> None:
        """Keep its measurements with its curve; only the samples matter here."""
        running = self.running.get(job)
        gang = self.waiting[job] if running is None else running.gang
        curve = gang.curve or curves.Curve(model=curves.Table(rates=(1.0,)))
        beside = {sample.beside for sample in new}
        kept = (sample for sample in curve.samples if sample.beside not in beside)
        gang = replace(gang, curve=replace(curve, samples=(*kept, *new)))
        if running is None:
            self.waiting[job] = gang
        else:
            self.running[job] = replace(running, gang=gang)

    def told(self, job: str, curve: curves.Curve) -> None:
        """Its curve is known from now on."""
        if job in self.waiting:
            self.waiting[job] = replace(self.waiting[job], curve=curve)
        else:
            running = self.running[job]
            self.running[job] = replace(running, gang=replace(running.gang, curve=curve))

    def start(self, job: str, claims: tuple[holdings.Holding, ...], now: float, end: float | None = None) -> None:
        gang = self.waiting.pop(job)
        self.running[job] = plans.Running(
            gang=replace(gang, starts=gang.starts + 1, destined=(), refusal=None),
            holdings=tuple(replace(claim, attempt=gang.starts + 1) for claim in claims),
            started_at=now,
            expected_end=end,
        )

    def stop(self, job: str, to: tuple[holdings.Holding, ...] = (), *, returns: bool = True) -> None:
        """It is told to end; it holds what it holds."""
        running = self.running[job]
        self.running[job] = replace(
            running, gang=replace(running.gang, destined=to), stopping=True, returns=returns or running.returns
        )

    def gone(self, job: str, now: float) -> None:
        """Nothing of it runs any more. A job that returns waits again."""
        running = self.running.pop(job)
        if running.returns:
            served_s = max(0.0, now - running.started_at) * gangfacts.RunningFacts.new(running).weight
            self.waiting[job] = replace(running.gang, stopped_at=now, served_s=running.gang.served_s + served_s)

    def all_gone(self, now: float) -> None:
        for job in [job for job, running in self.running.items() if running.stopping]:
            self.gone(job, now)
