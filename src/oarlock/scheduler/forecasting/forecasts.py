"""Forecasts: when waiting gangs will start. The scheduler's own plan is run forward on demand, over the expected ends.

One run answers for all waiting gangs. It begins with the snapshot and carries out the plan: launches happen at once,
and a stopped gang is gone after `STOPPING_S`. Then it goes on to the next moment at which anything can change, and
plans again. Such moments are:

- the end of a job that runs, or was started on the way; an unknown end never comes;
- the end of a back-off;
- a round that may stop running gangs: after `round_s`, and after twice as long each time that such a round changed
  nothing. So the turn of a gang that waits for its time slice is found, and a long wait for an end costs few plans.

Moments close together, relative to their distance from the beginning (`CLOSE`), count as one: a forecast of "in 15
minutes" need not be exact to the second. Gangs behind more than `DEPTH` others are left out.

The **earliest** start follows from the expected ends, which come from progress or from earlier runs. The **latest**
start comes from a second run, in which every job lasts until its time-out. None means that the start depends on an
unknown end: a gang that waits for a job with a time-out and no other end has a latest start and no earliest one.

Both runs together have `BUDGET_S` of the caller's clock (`spent` returns the used part; this package has no clock),
`MOST_PLANS` plans each, and `HORIZON_S` of simulated time. The forecast tells which of these ended the search. Where
one plan of the whole cluster takes longer than the budget (`MOST_LOOKED_AT`) nothing is run forward: all waiting gangs
get their last refusals and no start time, and a single gang gets a forecast of whether it starts now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum

import msgspec

from oarlock.scheduler import planning, pricing, sizes, wording
from oarlock.scheduler.explaining import contexts, reasons
from oarlock.scheduler.reuse import memos
from oarlock.spec import holdings, plans, refusals

Spent = Callable[[], float]

BUDGET_S = 0.25
EARLIEST_S = 0.17
"""Part of the budget for the run that finds the earliest starts."""

UNCOMPUTED = f"The start time was not computed: that takes more than {BUDGET_S * 1000:.0f} ms."

CLOSE = ((0.0, 1 / 32), (0.06, 1 / 16), (0.12, 1 / 8))
"""Seconds of the budget spent, and from then on the part of the time since the beginning that makes no difference."""

MOST_LOOKED_AT = 10_000
"""Sum of nodes, running gangs and waiting gangs. A plan without a memo looks at 35,000 to 60,000 of them per second."""

MOST_PLANS = 1_000
DEPTH = 256
HORIZON_S = 24 * 3600.0
STOPPING_S = 30.0
"""Assumed time that a stopped gang holds its devices: the usual grace."""

SOON_S = 1.0
"""Assumed remaining time of a job that is past its expected end."""


class NoStart(StrEnum):
    """The reason why a run found no start."""

    UNKNOWN = "unknown"  # it depends on an unknown end
    BEYOND = "beyond"  # later than the horizon
    UNCOMPUTED = "uncomputed"  # the budget was spent
    DEEP = "deep"  # too many gangs are ahead of it


class Start(msgspec.Struct, frozen=True):
    """The time and the place of a gang's start in a run."""

    at: float
    holdings: tuple[holdings.Holding, ...]


class RunResult(msgspec.Struct, frozen=True):
    """The result of a run forward: starts by job, and the reason `rest` why the other jobs have none.

    `endless` names the jobs in the way that have no known end. `stops` has, by job, the gangs that give way to it
    before its start.
    """

    starts: Mapping[str, Start]
    rest: NoStart
    endless: tuple[str, ...] = ()
    stops: Mapping[str, Sequence[plans.Stop]] = {}


def forecasts(
    snapshot: plans.Snapshot, now: float, spent: Spent, bounded: Collection[str] = ()
) -> dict[str, plans.Forecast]:
    """Return the forecast of each gang that waits in `snapshot`, at `now` (Unix seconds).

    In a cluster that is too large (`MOST_LOOKED_AT`) each gang gets its last refusal; its `position` may be out of
    date. `bounded` are the running jobs with no other expected end than their time-out: they may end at any moment
    before it.
    """
    if too_large(snapshot):
        return {gang.job: _from_last_refusal(gang, len(snapshot.waiting)) for gang in snapshot.waiting}
    waiting = {gang.job for gang in snapshot.waiting}
    return _verdicts(snapshot, now, spent, waiting, bounded)


def forecast(
    snapshot: plans.Snapshot, gang: plans.Gang, now: float, spent: Spent, bounded: Collection[str] = ()
) -> plans.Forecast:
    """Return the forecast of `gang` alone, as if it was submitted now, or as it waits already."""
    impossible = never(snapshot, gang)
    if impossible is not None:
        return impossible
    others = tuple(other for other in snapshot.waiting if other.job != gang.job)
    asked = msgspec.structs.replace(snapshot, waiting=(*others, msgspec.structs.replace(gang, refusal=None)))
    return _verdicts(asked, now, spent, {gang.job}, bounded)[gang.job]


def never(snapshot: plans.Snapshot, gang: plans.Gang) -> plans.Forecast | None:
    """Return the forecast of a gang that the declared nodes and pools could never hold; None if they could."""
    impossible = reasons.never(gang, contexts.Context(snapshot))
    if impossible is None:
        return None
    return plans.Forecast(when=plans.When.NEVER, message=impossible.message, refusal=impossible)


def _verdicts(
    snapshot: plans.Snapshot, now: float, spent: Spent, asked: Collection[str], bounded: Collection[str]
) -> dict[str, plans.Forecast]:
    snapshot = msgspec.structs.replace(snapshot, reallocate=True)
    memo = memos.Memo()
    first = planning.plan(snapshot, now, memo)
    launched = {launch.job: launch for launch in first.launches}
    later = {job for job in asked if job not in launched and not _never(first.refusals.get(job))}
    position = {job: place for place, job in enumerate(_queue(snapshot, first), 1)}
    if any(place > DEPTH for place in position.values()):
        first_ones = tuple(gang for gang in snapshot.waiting if position.get(gang.job, 0) <= DEPTH)
        ahead = msgspec.structs.replace(snapshot, waiting=first_ones)
    else:
        ahead = snapshot
    deep = {job for job in later if position[job] > DEPTH}
    earliest, latest = RunResult({}, NoStart.UNCOMPUTED), None
    if not too_large(snapshot):
        earliest = Run(ahead, now, first, memo, spent, EARLIEST_S, _Expected(bounded)).until(later - deep)
    if not too_large(snapshot) and any(job.latest_end is not None for job in snapshot.running):
        latest = Run(ahead, now, first, memos.Memo(), spent, BUDGET_S, _Latest()).until(later - deep)
    told = {}
    book = pricing.Book(snapshot.nodes)
    for job in sorted(asked):
        if job in launched:
            told[job] = _now(launched[job], now, book)
        elif job not in later:
            refusal = first.refusals[job]
            told[job] = plans.Forecast(when=plans.When.NEVER, message=refusal.message, refusal=refusal)
        else:
            found = _later(job, _in_future_tense(first.refusals[job], snapshot), now, earliest, latest, position, book)
            told[job] = _with_stops(found, job, earliest, latest, now, snapshot.rules)
    return told


def too_large(snapshot: plans.Snapshot) -> bool:
    return len(snapshot.nodes) + len(snapshot.running) + len(snapshot.waiting) > MOST_LOOKED_AT


def _from_last_refusal(gang: plans.Gang, waiting: int) -> plans.Forecast:
    """Return the forecast that the last plan's refusal gives, without a time."""
    refusal = gang.refusal
    if refusal is None:
        return plans.Forecast(
            when=plans.When.LATER, message="It waits for the next plan.", expected=UNCOMPUTED, waiting=waiting
        )
    if _never(refusal):
        return plans.Forecast(when=plans.When.NEVER, message=refusal.message, refusal=refusal)
    return plans.Forecast(
        when=plans.When.LATER,
        message=refusal.message,
        expected=UNCOMPUTED,
        refusal=refusal,
        position=min(refusal.ahead + 1, waiting),
        waiting=waiting,
    )


def _never(refusal: refusals.Refusal | None) -> bool:
    return refusal is not None and refusal.code in refusals.NEVER


def _queue(snapshot: plans.Snapshot, first: plans.Plan) -> list[str]:
    """Return the gangs that wait on, in the order in which the plan looked at them."""
    waiting = {gang.job for gang in snapshot.waiting}
    return [job for job, refusal in first.refusals.items() if job in waiting and not _never(refusal)]


# The verdicts


def _now(launch: plans.Launch, now: float, book: pricing.Book) -> plans.Forecast:
    return plans.Forecast(
        when=plans.When.NOW,
        message=f"It starts on {_where(launch.holdings)}.",
        expected="It starts now.",
        start=now,
        latest=now,
        placement=launch.holdings,
        price_per_h=book.per_hour(launch.holdings),
    )


def _later(
    job: str,
    refusal: refusals.Refusal,
    now: float,
    earliest: RunResult,
    latest: RunResult | None,
    position: Mapping[str, int],
    book: pricing.Book,
) -> plans.Forecast:
    start = earliest.starts.get(job)
    bound = latest.starts.get(job) if latest is not None else None
    end = None if bound is None else bound.at if start is None else max(bound.at, start.at)
    rest = NoStart.DEEP if position.get(job, 0) > DEPTH else earliest.rest
    expected, starts = _expected(start, end, refusal, earliest, rest, now)
    return plans.Forecast(
        when=plans.When.LATER,
        message=refusal.message,
        expected=expected,
        starts=starts,
        refusal=refusal,
        start=None if start is None else start.at,
        latest=end,
        position=position.get(job, 0),
        waiting=len(position),
        placement=start.holdings if start is not None else (),
        price_per_h=book.per_hour(place.holdings) if (place := start or bound) is not None else 0.0,
    )


def _in_future_tense(refusal: refusals.Refusal, snapshot: plans.Snapshot) -> refusals.Refusal:
    """Return a refusal with code STOPPING in the future tense where the jobs it names are not being stopped yet."""
    stopping = {one.job for one in snapshot.running if one.stopping}
    if refusal.code is not refusals.Code.STOPPING or stopping.issuperset(one.job for one in refusal.holders):
        return refusal
    needed = wording.several(refusal.needed)
    return msgspec.structs.replace(refusal, message=f"It needs {needed}, and other jobs are to give way to it.")


def _with_stops(
    of: plans.Forecast, job: str, earliest: RunResult, latest: RunResult | None, now: float, rules: plans.Rules
) -> plans.Forecast:
    stops = tuple(earliest.stops.get(job, ()) or (latest.stops.get(job, ()) if latest is not None else ()))
    if not stops:
        return of
    preempted = [one.name for one in stops if not one.shrinks]
    shrunk = [one.name for one in stops if one.shrinks]
    told = [f"{wording.named(preempted)} {_are(preempted)} expected to be preempted for it"] if preempted else []
    told += [f"{wording.named(shrunk)} {_are(shrunk)} expected to shrink for it"] if shrunk else []
    in_s = stops[0].at - now
    when = (
        f"in about {wording.about(in_s)}" if in_s > 0 else f"in the next round, within {wording.about(rules.round_s)}"
    )
    return msgspec.structs.replace(of, stops=stops, makes_way=f"{', and '.join(told)} {when}.")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _endless(refusal: refusals.Refusal, found: RunResult) -> list[str]:
    """Return the jobs without a known end that hold the missing resources; all such jobs where none of them does."""
    holders = {one.name for one in refusal.holders}
    return [name for name in found.endless if name in holders] or list(found.endless)


def _expected(
    start: Start | None, latest: float | None, refusal: refusals.Refusal, found: RunResult, rest: NoStart, now: float
) -> tuple[str, str]:
    """Return the sentence that tells the expected start, and its words for a column of starts."""
    if words := _starts(start, latest, rest, now):
        return f"It should start {words}.", words
    if rest is NoStart.UNCOMPUTED:
        return UNCOMPUTED, ""
    if rest is NoStart.DEEP:
        return f"The start time was not computed: more than {DEPTH} jobs are ahead of it.", ""
    endless = _endless(refusal, found)
    words = f"unknown: nothing tells when {wording.named(endless)} will end" if endless else "unknown"
    return f"The start time is {words}.", words


def _starts(start: Start | None, latest: float | None, rest: NoStart, now: float) -> str:
    """Return the expected start as the end of a sentence; empty where none was found."""
    if start is not None and latest is not None:
        return f"in {wording.span(start.at - now, latest - now)}"
    if latest is not None:
        return f"within {wording.about(latest - now)}"
    if start is not None:
        return f"in about {wording.about(start.at - now)}"
    return f"later than in {wording.about(HORIZON_S)}" if rest is NoStart.BEYOND else ""


def _where(claims: tuple[holdings.Holding, ...]) -> str:
    return wording.named(dict.fromkeys(claim.node for claim in claims), "more nodes")


# Running forward


class _Expected:
    """Every job ends at its expected end. A job that only has a time-out has no expected end."""

    def __init__(self, bounded: Collection[str]) -> None:
        self._bounded = bounded

    def of(self, job: plans.Running) -> float | None:
        return None if job.job in self._bounded else job.expected_end

    def started(self, gang: plans.Gang, size: plans.Size, now: float) -> float | None:
        """Return the end of a gang that starts now. Its duration is inversely proportional to its size."""
        if gang.lasts_s is None:
            return None
        lasts_s = gang.lasts_s * max(1, sum(gang.wanted)) / max(1, sum(size))
        return now + (lasts_s if gang.at_most_s is None else min(lasts_s, gang.at_most_s))


class _Latest:
    """Every job lasts until its time-out."""

    def of(self, job: plans.Running) -> float | None:
        return job.latest_end

    def started(self, gang: plans.Gang, size: plans.Size, now: float) -> float | None:
        return None if gang.at_most_s is None else now + gang.at_most_s


class Run:
    """One run forward, from a plan of `snapshot` made at `now`."""

    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        first: plans.Plan,
        memo: memos.Memo,
        spent: Spent,
        budget_s: float,
        ends: _Expected | _Latest,
    ) -> None:
        self._snapshot = snapshot
        self._began = self._now = now
        self._answer = first
        self._memo = memo
        self._spent = spent
        self._budget_s = budget_s
        self._ends = ends
        self._waiting = {gang.job: _refused(gang, first) for gang in snapshot.waiting}
        self._running = {job.job: job for job in snapshot.running}
        self._end: dict[str, float | None] = {
            job.job: now + STOPPING_S if job.stopping else self._due(ends.of(job)) for job in snapshot.running
        }
        self._starts: dict[str, Start] = {}
        self._stops: dict[str, list[plans.Stop]] = {}
        self._probe_s = snapshot.rules.round_s

    def until(self, asked: Collection[str]) -> RunResult:
        """Run until all of `asked` have started, or one of the limits is reached. Return the result."""
        left = set(asked)
        for _ in range(MOST_PLANS):
            self._carry_out(self._answer)
            left -= self._starts.keys()
            if not left:
                return self._found(NoStart.UNKNOWN)
            at = self._next()
            if at is None:
                return self._found(NoStart.UNKNOWN)
            if at > self._began + HORIZON_S:
                return self._found(NoStart.UNKNOWN if self._endless() else NoStart.BEYOND)
            if self._spent() > self._budget_s:
                return self._found(NoStart.UNCOMPUTED)
            self._go_to(at)
            self._answer = planning.plan(self._present(), at, self._memo, words=False)
        return self._found(NoStart.UNCOMPUTED)

    def _carry_out(self, answer: plans.Plan) -> None:
        for launch in answer.launches:
            gang = self._waiting.pop(launch.job)
            size = sizes.of_claims(gang, launch.holdings)
            self._starts.setdefault(launch.job, Start(self._now, launch.holdings))
            end = self._ends.started(gang, size, self._now)
            self._end[launch.job] = end
            self._running[launch.job] = plans.Running(
                gang=msgspec.structs.replace(gang, starts=gang.starts + 1, destined=()),
                holdings=launch.holdings,
                started_at=self._now,
                expected_end=end,
                latest_end=None if gang.at_most_s is None else self._now + gang.at_most_s,
                batch=launch.batch,
            )
        for stopped in answer.preemptions:
            self._note(stopped.job, stopped.by)
            self._stop(stopped.job, ())
        for resized in answer.resizes:
            self._note(resized.job, resized.by, shrinks=True)
            self._stop(resized.job, resized.to)
        for moved in answer.moves:
            self._stop(moved.job, moved.to)
        quiet = not (answer.launches or answer.preemptions or answer.resizes or answer.moves)
        self._probe_s = 2 * self._probe_s if quiet else self._snapshot.rules.round_s

    def _note(self, job: str, by: str, *, shrinks: bool = False) -> None:
        """Note that a job gives way to another one that has not started yet."""
        if by and by not in self._starts:
            name = self._running[job].name
            self._stops.setdefault(by, []).append(plans.Stop(job=job, name=name, at=self._now, shrinks=shrinks))

    def _stop(self, job: str, to: tuple[holdings.Holding, ...]) -> None:
        """Stop a job: it goes back to the queue with its remaining work."""
        running, end = self._running[job], self._end[job]
        gang = msgspec.structs.replace(
            running.gang,
            destined=to,
            lasts_s=running.gang.lasts_s if end is None else max(0.0, end - self._now),
            stopped_at=self._now,
            served_s=running.gang.served_s + _weight(running) * max(0.0, self._now - running.started_at),
        )
        self._running[job] = msgspec.structs.replace(running, gang=gang, stopping=True, returns=True)
        self._end[job] = self._now + STOPPING_S

    def _next(self) -> float | None:
        """Return the next moment at which anything can change, or the last of several close ones.

        Return None if there is none.
        """
        times = [end for end in self._end.values() if end is not None]
        times += [gang.not_before for gang in self._waiting.values() if gang.not_before and gang.not_before > self._now]
        probe = self._now + self._probe_s
        first = min(times, default=None)
        if self._running and self._probe_s <= HORIZON_S and (first is None or probe < first):
            first = probe
        if first is None:
            return None
        close = next(part for since, part in reversed(CLOSE) if self._spent() >= since)
        return max((at for at in times if at <= first + close * (first - self._began)), default=first)

    def _go_to(self, at: float) -> None:
        self._now = at
        for job in [job for job, end in self._end.items() if end is not None and end <= at]:
            gone = self._running.pop(job)
            del self._end[job]
            if gone.stopping and gone.returns:
                self._waiting[job] = gone.gang
            self._probe_s = self._snapshot.rules.round_s

    def _present(self) -> plans.Snapshot:
        return msgspec.structs.replace(
            self._snapshot, waiting=tuple(self._waiting.values()), running=tuple(self._running.values())
        )

    def _due(self, end: float | None) -> float | None:
        return None if end is None else max(end, self._now + SOON_S)

    def _endless(self) -> list[plans.Running]:
        """Return the running jobs without a known end, the largest first."""
        found = [self._running[job] for job, end in self._end.items() if end is None]
        return sorted(found, key=lambda job: (-_weight(job), job.job))

    def _found(self, rest: NoStart) -> RunResult:
        return RunResult(self._starts, rest, tuple(job.name for job in self._endless()), self._stops)


def _refused(gang: plans.Gang, first: plans.Plan) -> plans.Gang:
    """Return the gang with its refusal, so that the next plan does not check again whether it is possible at all."""
    refusal = first.refusals.get(gang.job)
    return gang if refusal is None or gang.refusal is refusal else msgspec.structs.replace(gang, refusal=refusal)


def _weight(running: plans.Running) -> float:
    """Return the devices that it holds; cores if it holds none."""
    amount = sum((claim.amount for claim in running.holdings), holdings.Resources())
    return amount.devices or amount.cpus_milli / 1000
