"""Devices go where they save most time (Optimus, EuroSys '18, section 4.1).

The remaining time of a gang is its remaining progress (as it reports, or from the fit of its loss) divided by its speed
at a size (from the fit of its samples). Each gang gets its smallest size first. Then one worker or parameter server
after the other goes to the gang that saves most time by it, in relation to the share of the cluster that the task
takes. With tables of speeds and remaining progress instead of fits, it is an oracle for comparisons.

Fits can be wrong. `left_error` and `speed_error` make them wrong on purpose, by a factor that is the same for a job in
every round, to measure the cost of errors.
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
"""Least remaining seconds of a gang that does not report them."""

PARAMETERS: Mapping[str, float] = {
    # A running gang grows only where that saves this part of its remaining time, beyond the restart. Optimus: 0.
    "margin": 0.1,
    # How many times its cost a restart has to save. Optimus: 0, growing for a second's gain.
    "restarts": 2.0,
    # Errors that are made on purpose: the remaining progress, and the speed at each size, are off by up to this part.
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
    for stays in (True, False):  # gangs that hold devices, then waiting gangs, as far as the devices go
        for one in ranked:
            had, least = one.had(now), one.gang.amount(one.gang.smallest)
            if any(had) is stays and (stays or least.fits(left)):
                left -= least
                if one.gang.elastic:
                    jobs[one.gang.job] = _Job(one, had, node, known)
    _divide(list(jobs.values()), left, budget.amount)
    order = sorted(
        ranked, key=lambda one: (-one.gang.priority, any(one.size))
    )  # waiting gangs come before growing ones
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
    """Give one task after the other to the gang with the largest gain, while any is left."""
    gains = [entry for job in jobs for entry in job.steps(whole)]
    heapq.heapify(gains)
    while gains:
        _, _, place, size, job = heapq.heappop(gains)
        if size != job.size:
            continue  # the gang has grown since: its next task has another gain
        amount = job.one.gang.asks[place].amount
        if not amount.fits(left):
            continue
        left -= amount
        job.grow(place)
        for entry in job.steps(whole):
            heapq.heappush(gains, entry)


class _Job:
    """The estimates for one gang: its remaining time at each size, in seconds."""

    def __init__(self, one: contract.Candidate, had: plans.Size, node: int, known: Mapping[str, float]) -> None:
        self.one = one
        self.had = had
        self.size = one.gang.smallest
        self._node = node
        self._known = known
        self._seconds: dict[plans.Size, float] = {}
        self._left = self._progress_left()

    def steps(self, whole: holdings.Resources) -> Iterator[tuple[float, str, int, plans.Size, _Job]]:
        """Yield the time that one more task of each ask saves, for its dominant share; negative: most comes first."""
        here_s = self.seconds(self.size)
        for place, ask in enumerate(self.one.gang.asks):
            if self.size[place] < ask.most:
                saved_s = here_s - self.seconds(_more(self.size, place))
                share = fair.dominant(ask.amount, whole)
                if saved_s > 0 and share > 0:
                    yield -saved_s / share, self.one.gang.job, place, self.size, self

    @property
    def told(self) -> bool:
        """Whether the job reports its remaining progress."""
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
        """Return the progress per second, with the intended error."""
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
        """Return the remaining progress: as reported, or as much as it has made at its smallest size."""
        curve = self.one.gang.curve
        if curve is not None and curve.left is not None:
            return curve.left * _wrong(self.one.gang.job, self._known["left_error"])
        least = self.one.gang.amount(self.one.gang.smallest)
        served_s = self.one.served_s / (least.devices or least.cpus_milli / 1000 or 1.0)
        return self.rate(self.one.gang.smallest) * max(NEW_S, served_s)


def _more(size: plans.Size, place: int) -> plans.Size:
    return tuple(count + (i == place) for i, count in enumerate(size))


def _wrong(text: str, error: float) -> float:
    """Return a factor from 1 - `error` to 1 + `error` that is always the same for the same text."""
    return 1 + error * (2 * zlib.crc32(text.encode()) / 0xFFFFFFFF - 1) if error else 1.0


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
        return f"{tasks}; its remaining time is not known, and taken to be as long as its time so far"
    return f"{wording.about(left_s)} left with {tasks}"
