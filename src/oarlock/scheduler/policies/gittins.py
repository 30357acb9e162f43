"""The likeliest gang to end soon comes first: the Gittins index over the service of ended jobs (Tiresias, 3.2).

With the services X of the jobs that have ended, the index of a job with a service of `a` device-seconds is

    G(a) = max over d of  P(X <= a + d | X > a) / E[min(X - a, d) | X > a]

the chance that it ends within the next d device-seconds, divided by the expected use of them (Gittins 1979). X are
the ended jobs of the same kind: the same owner, and the same name up to its number (`train-7`, `train-12`). If no job
of the kind with a longer service has ended, a new job is taken to be no shorter than the others of its kind are
already: X are then all ended jobs, and the age is the longest service of the kind. Jobs with a longer service than
every ended job come last, those with most service first among them, since they likely end first. The knowledge grows
with every job that ends; no job has to be described beforehand.

The index is rounded to powers of `step`, and a gang that runs counts as one step better: so that two of nearly the same
index do not take turns.

Tiresias' released simulator adds up whole services in the denominator, X instead of X - a, which makes each job worse
as it ages, and it counts the longest job of its sample as one that never ends. We did not follow it.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from oarlock.scheduler.policies import bands, contract, parameters
from oarlock.spec import plans

name = "gittins"
reserves = False
sizing = False

PARAMETERS: Mapping[str, float] = {
    # Indexes are alike within this factor.
    "step": 2.0,
    # Device-seconds: the least d, so that no gang is stopped for one that is nearly done by chance.
    "quantum_s": 1_000.0,
    # Seconds for which a gang must have waited before others are stopped for it that came later and are as good.
    "patience_s": 1_800.0,
}

LAST = 1_000
"""The band of gangs that no ended job tells anything about."""

AGES_PER_OCTAVE = 32
"""Steps of each doubling to which a service is rounded down: an index is worked out once for each step."""

_NUMBER = re.compile(r"[-_.#]\d+$")

Kind = tuple[str, str]


def wishes(
    candidates: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[contract.Wish]:
    known = _read(given)
    history = History(budget.ended, candidates, known["quantum_s"])
    return bands.wishes([_placed(one, history, known["step"]) for one in candidates], now, known["patience_s"])


def _read(given: Mapping[str, float]) -> dict[str, float]:
    known = parameters.read(name, given, PARAMETERS)
    if known["step"] <= 1:
        raise parameters.refused(name, "step", known["step"], "more than 1")
    for parameter in ("quantum_s", "patience_s"):
        if known[parameter] < 0:
            raise parameters.refused(name, parameter, known[parameter], "seconds, 0 or more")
    return known


def _placed(one: contract.Candidate, history: History, step: float) -> bands.Placed:
    index = history.index(kind(one.gang.owner, one.gang.name), one.served_s)
    came = one.gang.submitted_at
    if not index:
        reason = f"{one.served_s:.0f} device-seconds so far: more than any job that has ended"
        return bands.Placed(LAST, (-one.served_s, came), one, reason if history else "no job has ended yet")
    band = math.floor(-math.log(index, step)) - (one.running is not None)
    reason = f"{one.served_s:.0f} device-seconds so far: of its like one in {1 / index:.0f} more of them ends"
    return bands.Placed(min(band, LAST - 1), (came,), one, reason)


def kind(owner: str, job: str) -> Kind:
    """Return the kind of a job: its owner, and its name without its number."""
    return owner, _NUMBER.sub("", job)


class History:
    """The services of ended jobs by kind, and the longest present service of each kind."""

    def __init__(
        self, ended: Iterable[plans.Ended], candidates: Iterable[contract.Candidate], quantum_s: float
    ) -> None:
        by_kind: dict[Kind, list[float]] = {}
        for one in ended:
            by_kind.setdefault(kind(one.owner, one.name), []).append(one.served_s)
        self._kinds = {of: Sample(services, quantum_s) for of, services in by_kind.items()}
        self._all = Sample(itertools.chain.from_iterable(by_kind.values()), quantum_s)
        self._longest: dict[Kind, float] = {}
        for candidate in candidates:
            of = kind(candidate.gang.owner, candidate.gang.name)
            self._longest[of] = max(self._longest.get(of, 0.0), candidate.served_s)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def index(self, of: Kind, served_s: float) -> float:
        """Return the index, in ends per device-second; 0 where no job has ended with so long a service."""
        own = self._kinds.get(of)
        index = own.index(served_s) if own is not None else 0.0
        return index or self._all.index(max(served_s, self._longest.get(of, 0.0)))


class Sample:
    """The index over some services, device-seconds."""

    def __init__(self, services: Iterable[float], quantum_s: float) -> None:
        self._sorted = sorted(services)
        self._sums = [0.0, *itertools.accumulate(self._sorted)]
        self._quantum_s = quantum_s
        self._known: dict[float, float] = {}

    def index(self, served_s: float) -> float:
        age = _rounded(served_s)
        if age not in self._known:
            self._known[age] = self._index(age)
        return self._known[age]

    def _index(self, age: float) -> float:
        first = bisect.bisect_right(self._sorted, age)
        left = len(self._sorted) - first
        best = 0.0
        for last in range(first, len(self._sorted)):
            within = self._sorted[last] - age  # d: to the end of this one
            if within < self._quantum_s and last + 1 < len(self._sorted):
                continue
            done = last + 1 - first
            taken = self._sums[last + 1] - self._sums[first] - done * age + (left - done) * within
            best = max(best, done / taken)
        return best


def _rounded(served_s: float) -> float:
    """Return a service rounded down to a step of its octave."""
    if served_s < 1.0:
        return 0.0
    return float(2.0 ** (math.floor(math.log2(served_s) * AGES_PER_OCTAVE) / AGES_PER_OCTAVE))
