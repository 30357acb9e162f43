"""Expected starts of waiting jobs: one forecast for each state of the store, shared by all requests.

The scheduler's forecast covers all waiting jobs at once and takes up to a quarter of a second, so a hundred requests at
one moment cost as much as one. A thread makes it. It is kept for `KEPT_S` while no line is written to the event log. At
ten thousand nodes a single plan takes longer than that, and requests do not wait for it.

Where neither progress nor the job file tells a job's duration, the forecast takes the median duration of the last
completed jobs of the same name and owner. For a job that already runs longer than some of them, only the longer ones
count. For a job that runs longer than all of them, the duration is unknown.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from oarlock.api.security import authorisation
from oarlock.scheduler import gangs
from oarlock.scheduler.forecasting import forecasts, remedies
from oarlock.spec import holdings, jobs, phases, plans, refusals
from oarlock.spec.access import privacy
from oarlock.store import stores

KEPT_S = 2.0
KEPT_TIMES = 10
"""A forecast is kept for this many times its own duration, even if lines are written: a large cluster always writes."""

SLOW_S = 1.0
PATIENCE_S = 2.0
"""The longest wait of a request. The forecast is finished anyway, for the next request."""

HISTORY_KEPT_S = 10.0
HISTORY_JOBS = 5
HISTORY_NAMES = 100
"""The most job names for which one forecast reads earlier jobs. Others are known already, or go without."""


ADVICE = refusals.NEVER | {refusals.Code.NO_NODES}
"""Codes of refusals with a `change` that is only advice: the job might still not start after it."""


class Look(msgspec.Struct, frozen=True):
    """The scheduler's snapshot of the cluster as of line `seq` of the event log.

    `bounded` has the jobs with a time-out as their only known end.
    """

    snapshot: plans.Snapshot
    bounded: frozenset[str]
    seq: int


class Told(msgspec.Struct, frozen=True):
    """Forecasts by job, made from one look. `took_s` is the time that they took."""

    look: Look
    at: float
    made_at: float  # monotonic
    took_s: float
    forecasts: dict[str, plans.Forecast]


class Forecaster:
    """Forecasts for all requests of one server. `names` gives the names of other users' jobs."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, names: privacy.Names = privacy.PUBLIC) -> None:
        self._monotonic = monotonic
        self.names = names
        self._told: Told | None = None
        self._making: asyncio.Task[Told] | None = None
        self._history: dict[tuple[str, str], tuple[float, tuple[float, ...]]] = {}

    async def of(
        self, access: authorisation.Access, rules: plans.Rules, now: float, job: jobs.Job
    ) -> plans.Forecast | None:
        """Return the forecast of a waiting job, with the smallest change that would start it now.

        None means that the job no longer waits. In a cluster so large that a forecast takes longer than `PATIENCE_S`,
        the answer is the last refusal, without an expected start.
        """
        for _ in range(2):  # a forecast under way may be older than the job
            told = await self._fresh(access, rules, now)
            if told is None:
                return untold(job)
            gang = next((gang for gang in told.look.snapshot.waiting if gang.job == job.id), None)
            if gang is not None:
                forecast = told.forecasts[job.id]
                slow = told.took_s > SLOW_S
                return (
                    _untried(forecast) if slow else await self._with_remedy(forecast, told.look.snapshot, gang, told.at)
                )
            if told.took_s > SLOW_S:
                return untold(job)
            self._told = None
        return None

    async def all(self, access: authorisation.Access, rules: plans.Rules, now: float) -> Told | None:
        """Return the forecasts of all waiting jobs, made a moment ago; None where new ones are not ready in time."""
        return await self._fresh(access, rules, now)

    def ends(self, found: plans.Forecast | None) -> dict[str, tuple[float | None, float | None]]:
        """Return the expected end of each running job, and the latest one by its time-out.

        They belong to the plan behind `found`, the answer of `of`; none where it was not computed.
        """
        told = self._told
        if told is None or found is None or found.expected is forecasts.UNCOMPUTED:
            return {}
        return {
            one.job: (None if one.job in told.look.bounded else one.expected_end, one.latest_end)
            for one in told.look.snapshot.running
        }

    async def plan(self, access: authorisation.Access, rules: plans.Rules, now: float, job: jobs.Job) -> plans.Forecast:
        """Return the forecast of a job that is not submitted yet."""
        look = await access.shared(lambda view: self._look(view, rules, now))
        gang = gangs.gang(job, self.names, rules.profiles)
        if gang.lasts_s is None:
            took = await access.shared(lambda view: _took(view, job.owner, job.name))
            gang = msgspec.structs.replace(gang, lasts_s=_median(took))
        forecast = await asyncio.to_thread(forecasts.forecast, look.snapshot, gang, now, self._spent(), look.bounded)
        return await self._with_remedy(forecast, look.snapshot, gang, now)

    async def _fresh(self, access: authorisation.Access, rules: plans.Rules, now: float) -> Told | None:
        """Return forecasts that have these rules, and all that was written before this call; slow ones may be older.

        None where the new ones are not ready in time.
        """
        seq = await access.shared(lambda view: view.last_seq())
        told = self._told
        if told is not None and self._monotonic() - told.made_at >= max(KEPT_S, KEPT_TIMES * told.took_s):
            told = None
        for _ in range(2):  # those under way may be older than the last line
            if told is not None and (
                told.took_s > SLOW_S or (told.look.seq >= seq and told.look.snapshot.rules == rules)
            ):
                return told
            if self._making is None or self._making.done():
                self._making = asyncio.create_task(self._make(access, rules, now))
            making = self._making
            await asyncio.wait({making}, timeout=PATIENCE_S)
            if not making.done():
                return None
            told = making.result()
        return told

    async def _make(self, access: authorisation.Access, rules: plans.Rules, now: float) -> Told:
        look = await access.shared(lambda view: self._look(view, rules, now))
        spent = self._spent()
        found = await asyncio.to_thread(forecasts.forecasts, look.snapshot, now, spent, look.bounded)
        self._told = Told(look, now, self._monotonic(), spent(), found)
        return self._told

    async def _with_remedy(
        self, forecast: plans.Forecast, snapshot: plans.Snapshot, gang: plans.Gang, now: float
    ) -> plans.Forecast:
        refusal = forecast.refusal
        if refusal is None or refusal.code in ADVICE:
            return forecast
        advice = await asyncio.to_thread(remedies.smallest, snapshot, gang, refusal, now, self._spent())
        changed = msgspec.structs.replace(refusal, change=advice.words)
        return msgspec.structs.replace(forecast, refusal=changed, remedies=advice.remedies)

    def _spent(self) -> Callable[[], float]:
        began = self._monotonic()
        return lambda: self._monotonic() - began

    # The snapshot

    def snapshot(self, view: stores.View, rules: plans.Rules, now: float) -> plans.Snapshot:
        """Return the cluster as the scheduler sees it, with the durations that are known from earlier jobs."""
        return self._look(view, rules, now).snapshot

    def _look(self, view: stores.View, rules: plans.Rules, now: float) -> Look:
        held: dict[str, list[holdings.Holding]] = {}
        for holding in view.holdings():
            held.setdefault(holding.job, []).append(holding)
        active = view.active()
        self._remember(view, [job for job in active if not tells(job)])
        return Look(
            snapshot=plans.Snapshot(
                nodes=tuple(view.nodes()),
                pools=tuple(view.pools()),
                waiting=tuple(self._waiting(job, rules) for job in active if waits(job)),
                running=tuple(self._running(job, held[job.id], rules, now) for job in active if job.id in held),
                rules=rules,
            ),
            bounded=frozenset(job.id for job in active if not tells(job) and self._lasts_s(job, now) is None),
            seq=view.last_seq(),
        )

    def _waiting(self, job: jobs.Job, rules: plans.Rules) -> plans.Gang:
        gang = gangs.gang(job, self.names, rules.profiles)
        return gang if gang.lasts_s is not None else msgspec.structs.replace(gang, lasts_s=_median(self._known(job)))

    def _running(
        self, job: jobs.Job, held: Iterable[holdings.Holding], rules: plans.Rules, now: float
    ) -> plans.Running:
        running = gangs.running(job, held, self.names, rules.profiles)
        lasts_s = None if tells(job) else self._lasts_s(job, now)
        processing_at = job.live.processing_at if job.live is not None else None
        if lasts_s is None or processing_at is None:
            return running
        end = processing_at + lasts_s - job.processed_s
        if running.expected_end is not None:
            end = min(end, running.expected_end)
        return msgspec.structs.replace(running, expected_end=end)

    # Earlier jobs

    def _known(self, job: jobs.Job) -> tuple[float, ...]:
        return self._history.get((job.owner, job.name), (0.0, ()))[1]

    def _lasts_s(self, job: jobs.Job, now: float) -> float | None:
        """Return the expected whole duration of the job in seconds, None where it is unknown."""
        processing_at = job.live.processing_at if job.live is not None else None
        had_s = job.processed_s + (now - processing_at if processing_at is not None else 0.0)
        return _median([took_s for took_s in self._known(job) if took_s > had_s])

    def _remember(self, view: stores.View, asked: Iterable[jobs.Job]) -> None:
        now = self._monotonic()
        self._history = {key: row for key, row in self._history.items() if now - row[0] < HISTORY_KEPT_S}
        names = dict.fromkeys((job.owner, job.name) for job in asked)
        for owner, name in [key for key in names if key not in self._history][:HISTORY_NAMES]:
            self._history[owner, name] = now, _took(view, owner, name)


def _took(view: stores.View, owner: str, name: str) -> tuple[float, ...]:
    """Return the durations in seconds of the last completed jobs of this name."""
    which = stores.JobFilter(phases=_COMPLETED, owner=owner, name=name, limit=HISTORY_JOBS)
    return tuple(job.processed_s for job in view.jobs(which) if job.processed_s > 0)


def _median(took: Sequence[float]) -> float | None:
    return statistics.median(took) if took else None


def untold(job: jobs.Job) -> plans.Forecast:
    """Return the last refusal that the scheduler wrote, as a forecast without an expected start."""
    message = job.refusal.message if job.refusal is not None else "It waits for the next plan."
    return _untried(
        plans.Forecast(when=plans.When.LATER, message=message, refusal=job.refusal, expected=forecasts.UNCOMPUTED)
    )


def _untried(forecast: plans.Forecast) -> plans.Forecast:
    """Return the forecast without a change that was not tried."""
    refusal = forecast.refusal
    if refusal is None or refusal.code in ADVICE:
        return forecast
    return msgspec.structs.replace(forecast, refusal=msgspec.structs.replace(refusal, change=""))


def waits(job: jobs.Job) -> bool:
    """Return whether the job waits for its start."""
    return job.phase is phases.Phase.QUEUED and job.live is None


_COMPLETED = frozenset({phases.Phase.COMPLETED})


def tells(job: jobs.Job) -> bool:
    """Return whether the job's progress tells its remaining time, now or when it last ran."""
    if job.live is None:
        return job.lasts_s is not None
    return any(task.left_s is not None for task in job.live.tasks)
