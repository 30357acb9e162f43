"""Devices go where they save most time: each gang's remaining time is foretold, and the next worker or parameter server
goes where it shortens one most (Optimus, EuroSys '18, section 4.1).

A gang's remaining time is the progress that it has left (as it reports, or from the fit of its loss) over its speed at
a size (from the fit of its samples). Everybody has its least first; then one task after the other goes to whoever saves
most by it, for the share of the cluster that the task takes. Where servers share the work both kinds of tasks compete.
Told tables of speeds and what is left instead of fits, it is the oracle with which others compare theirs.

Fits can be wrong. `left_error` and `speed_error` make them wrong on purpose, by a part that is the same for a job in
every round, to see what that costs.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence

from oarlock.scheduler import wording
from oarlock.scheduler.policies import contract, fair, parameters
from oarlock.scheduler.speed import rates
from oarlock.spec import holdings, plans, roles

name = "optimus"
reserves = True
sizing = True

NEW_S = 60.0
"""What a gang is taken to last at least of which nobody knows."""

PARAMETERS: Mapping[str, float] = {
    # A running gang grows only where that saves this part of its remaining time, beyond the restart. Optimus: 0.
    "margin": 0.1,
    # How many times its cost a restart has to save. Optimus: 0, growing for a second's gain.
    "restarts": 2.0,
    # Errors to be made on purpose: what is left, and the speed at each size, are wrong by up to this part.
    "left_error": 0.0,
    "speed_error": 0.0,
}


def wishes(
    candidates: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[contract.Wish]:
    known = _read(given)
    node = rates.node_size(budget.node_devices)
    ranked = sorted(candidates, key=lambda one: (-one.gang.priority, one.arrival))
    left = budget.amount
    jobs: dict[str, _Job] = {}
    for stays in (True, False):  # what is held, then what is waited for, as far as it goes
        for one in ranked:
            had, least = one.had(now), one.gang.amount(one.gang.smallest)
            if any(had) is stays and (stays or least.fits(left)):
                left -= least
                if one.gang.elastic:
                    jobs[one.gang.job] = _Job(one, had, node, known)
    _divide(list(jobs.values()), left, budget.amount)
    order = sorted(ranked, key=lambda one: (-one.gang.priority, any(one.size)))  # who waits comes before who grows
    return [_wish(one, jobs.get(one.gang.job), now, rules, known) for one in order]


def _read(given: Mapping[str, float]) -> dict[str, float]:
    known = parameters.read(name, given, PARAMETERS)
    if known["restarts"] < 0:
        raise parameters.refused(name, "restarts", known["restarts"], "0 or more")
    for parameter in ("margin", "left_error", "speed_error"):
        if not 0 <= known[parameter] < 1:
            raise parameters.refused(name, parameter, known[parameter], "a part, from 0 to less than 1")
    return known


def _divide(jobs: Sequence[_Job], left: holdings.Resources, whole: holdings.Resources) -> None:
    """One task after the other to the largest gain, while there is one and something left."""
    gains = [entry for job in jobs for entry in job.steps(whole)]
    heapq.heapify(gains)
    while gains:
        _, _, place, size, job = heapq.heappop(gains)
        if size != job.size:
            continue  # it has grown since: what another task brings is another question
        amount = job.one.gang.asks[place].amount
        if not amount.fits(left):
            continue
        left -= amount
        job.grow(place)
        for entry in job.steps(whole):
            heapq.heappush(gains, entry)


class _Job:
    """What is reckoned of one gang: its remaining time at each size, in seconds."""

    def __init__(self, one: contract.Candidate, had: plans.Size, node: int, known: Mapping[str, float]) -> None:
        self.one = one
        self.had = had
        self.size = one.gang.smallest
        self._node = node
        self._known = known
        self._seconds: dict[plans.Size, float] = {}
        self._left = self._progress_left()

    def steps(self, whole: holdings.Resources) -> Iterator[tuple[float, str, int, plans.Size, _Job]]:
        """What one task more of each kind would save, for its dominant share; negative, so that most comes first."""
        here_s = self.seconds(self.size)
        for place, ask in enumerate(self.one.gang.asks):
            if self.size[place] < ask.most:
                saved_s = here_s - self.seconds(_more(self.size, place))
                share = fair.dominant(ask.amount, whole)
                if saved_s > 0 and share > 0:
                    yield -saved_s / share, self.one.gang.job, place, self.size, self

    @property
    def told(self) -> bool:
        """Whether the job says how much it has left."""
        return self.one.gang.curve is not None and self.one.gang.curve.left is not None

    def grow(self, place: int) -> None:
        self.size = _more(self.size, place)

    def seconds(self, size: plans.Size) -> float:
        found = self._seconds.get(size)
        if found is None:
            rate = self.rate(size)
            found = self._seconds[size] = self._left / rate if rate > 0 else math.inf
        return found

    def rate(self, size: plans.Size) -> float:
        """Progress per second, wrong as much as it is meant to be."""
        gang = self.one.gang
        devices = sum(
            count * max(1, ask.amount.gpus)
            for ask, count in zip(gang.asks, size, strict=True)
            if ask.role != roles.RoleName.PS
        )
        servers = sum(count for ask, count in zip(gang.asks, size, strict=True) if ask.role == roles.RoleName.PS)
        shape = rates.Shape(-(-devices // self._node), devices, servers)
        return rates.rate(gang.curve, gang.batch, shape) * _wrong(f"{gang.job} {size}", self._known["speed_error"])

    def _progress_left(self) -> float:
        """As the job says. Where nobody knows: what it takes as long again for as it has had, on its least."""
        curve = self.one.gang.curve
        if curve is not None and curve.left is not None:
            return curve.left * _wrong(self.one.gang.job, self._known["left_error"])
        least = self.one.gang.amount(self.one.gang.smallest)
        served_s = self.one.served_s / (least.devices or least.cpus_milli / 1000 or 1.0)
        return self.rate(self.one.gang.smallest) * max(NEW_S, served_s)


def _more(size: plans.Size, place: int) -> plans.Size:
    return tuple(count + (i == place) for i, count in enumerate(size))


def _wrong(what: str, error: float) -> float:
    """1, or a factor from 1 - `error` to 1 + `error` that is always the same for the same thing."""
    return 1 + error * (2 * zlib.crc32(what.encode()) / 0xFFFFFFFF - 1) if error else 1.0


def _wish(
    one: contract.Candidate, job: _Job | None, now: float, rules: plans.Rules, known: Mapping[str, float]
) -> contract.Wish:
    gang, had = one.gang, one.had(now)
    size, reason = had if any(had) else gang.smallest, f"priority {gang.priority}, in order of arrival"
    if job is not None:
        had_s, new_s = job.seconds(had) if any(had) else math.inf, job.seconds(job.size)
        enough_s = had_s * (1 - known["margin"]) - known["restarts"] * rules.restart_s
        if not any(had) or sum(job.size) < sum(had) or new_s < enough_s:
            size = job.size
        reason = _reason(job, size)
    return contract.Wish(job=gang.job, size=size, level=-gang.priority, reason=reason)


def _reason(job: _Job, size: plans.Size) -> str:
    tasks = f"{sum(size)} task{'s' if sum(size) != 1 else ''}"
    left_s = job.seconds(size)
    if not (job.told and math.isfinite(left_s)):
        return f"{tasks}; how much is left nobody knows: taken to be as much as it has had"
    return f"{wording.about(left_s)} left with {tasks}"
