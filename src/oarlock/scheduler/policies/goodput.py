"""Devices go where they bring most: elastic gangs are sized by their speed curves, and their batch sizes with them.

The goodput of a gang is the progress it makes per second: examples, weighed by what they teach at that batch size
(Pollux, OSDI '21). What a size is worth to a gang is a power of its speedup over the speedup of an equal share, so that
the first devices count for more than the last ones. It is worth more to who has had little service so far: short jobs
are over soon, and nobody knows yet which ones are short.

Whoever is changed is restarted, and pays: a size other than the present one is worth what it would be, less the share
of the gang's life that its restarts have taken, and less a margin for what the curve does not know.

Every gang has its least before anybody has more, in the order of priority and arrival; so gangs that are not elastic
are simply served in that order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from oarlock.scheduler import curves as speeds
from oarlock.scheduler import dividing
from oarlock.scheduler.policies import parameters, port
from oarlock.spec import plans, roles

name = "goodput"
reserves = True
sizing = True

PARAMETERS: Mapping[str, float] = {
    # What a speedup of x is worth: x to this power. 1: all goes to who makes most of it; near 0: to each alike.
    "power": 0.4,
    # A gang's worth falls with its service to this power; 0: service does not matter.
    "age": 0.25,
    # Device-seconds of service up to which a gang is new.
    "young_s": 3600.0,
    # A change must promise to be better by this part, beyond what its restart costs.
    "margin": 0.2,
    # How many times its cost a restart is counted against a gang that has had some already.
    "restarts": 2.0,
    # Devices on which a gang starts at most whose speed was never measured.
    "first": 4.0,
    # How many times the most devices on which it was measured a gang may get.
    "growth": 4.0,
}

TURN_S = 1800.0
TURN_FACTOR = 4.0
LAST_TURN = 15
"""Where there are more elastic gangs than places they take turns: a gang falls back by one when it has had so many
device-seconds of service, and again whenever that has grown by the factor.
"""

ORDINARY_PRIORITY = 50
DOUBLE_WEIGHT = 25.0
"""So much more priority makes an elastic gang's speed count twice."""


def wishes(
    candidates: Sequence[port.Candidate],
    budget: port.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[port.Wish]:
    known = _read(given)
    ranked = sorted(candidates, key=_rank)
    node = speeds.node_size(budget.node_devices)
    found: dict[str, port.Wish] = {}
    gains: dict[str, float] = {}
    if any(one.gang.elastic for one in ranked):
        for cpus, whole in ((False, round(budget.amount.devices * 1000)), (True, budget.amount.cpus_milli)):
            for part in _divided(ranked, cpus, whole, lambda one: _Part(one, node, now, rules, known)):
                found[part.job] = part.wish()
                gains[part.job] = part.bidder.gain
    wished = [found.get(one.gang.job) or _as_asked(one, node) for one in ranked]
    turns = [(-one.gang.priority, one.running is not None, -gains.get(one.gang.job, 0.0)) for one in ranked]
    order = sorted(
        range(len(ranked)), key=turns.__getitem__
    )  # who waits comes before who grows, of these who gains most
    return [wished[place] for place in order]


def _read(given: Mapping[str, float]) -> dict[str, float]:
    known = parameters.read(name, given, PARAMETERS)
    if not 0 < known["power"] <= 1:
        raise parameters.refused(name, "power", known["power"], "more than 0, and 1 at most")
    if known["young_s"] <= 0:
        raise parameters.refused(name, "young_s", known["young_s"], "device-seconds, more than 0")
    for parameter in ("first", "growth"):
        if known[parameter] < 1:
            raise parameters.refused(name, parameter, known[parameter], "1 or more")
    for parameter in ("age", "margin", "restarts"):
        if known[parameter] < 0:
            raise parameters.refused(name, parameter, known[parameter], "0 or more")
    return known


# Order


def _rank(one: port.Candidate) -> tuple[int, int, tuple[float, str]]:
    return -one.gang.priority, _turn(one), one.arrival


def _turn(one: port.Candidate) -> int:
    """Elastic gangs take turns, by their service; others do not."""
    if one.served_s < TURN_S or not one.gang.elastic:
        return 0
    return min(LAST_TURN, 1 + int(math.log(one.served_s / TURN_S, TURN_FACTOR)))


def _level(one: port.Candidate) -> float:
    """A gang may be stopped for higher priority; an elastic one also for an elastic one with far less service."""
    rigid = 0 if one.running is not None else LAST_TURN
    return -one.gang.priority + (_turn(one) if one.gang.elastic else rigid) / (LAST_TURN + 1)


def _as_asked(one: port.Candidate, node: int) -> port.Wish:
    """Of one that is not elastic, or for whose least nothing is left: it waits for that, or keeps what it has."""
    gang = one.gang
    size = gang.smallest if gang.elastic and one.running is None else one.asked
    batch = None
    if gang.batch is not None and gang.curve is not None:
        devices = int(gang.amount(size).devices)
        present = one.running.batch if one.running is not None else None
        batch = speeds.best_batch(gang.curve, gang.batch, speeds.Shape(-(-devices // node), devices), present=present)
    reason = f"priority {gang.priority}, in order of arrival"
    return port.Wish(job=gang.job, size=size, level=_level(one), reason=reason, batch=batch)


# Division


def _divided(
    ranked: Iterable[port.Candidate], cpus: bool, whole: int, part: Callable[[port.Candidate], _Part]
) -> list[_Part]:
    """The elastic gangs, each with its part of `whole`: thousandths of devices, or of CPUs where a gang has no devices.

    First everybody's least: of those who hold something, then of those who wait, as far as it goes.
    """
    left, held, parts = whole, 0, []
    waiting: list[tuple[port.Candidate, int]] = []
    for one in ranked:
        devices, cores = _least(one.gang.asks)
        least = (0 if devices else cores) if cpus else devices
        if not least:
            continue
        if one.running is None and not one.gang.destined:
            waiting.append((one, least))
            continue
        left -= least
        held += 1
        if one.gang.elastic:
            parts.append(part(one))
    for one, least in waiting:
        if least <= left:
            left -= least
            held += 1
            if one.gang.elastic:
                parts.append(part(one))
    share = whole / max(1, held)
    for each in parts:
        each.bid(share)
    dividing.divide((each.bidder for each in parts), left + sum(each.bidder.least for each in parts))
    return parts


@functools.lru_cache(maxsize=4096)
def _least(asks: tuple[plans.Ask, ...]) -> tuple[int, int]:
    """Thousandths of devices, and of CPUs."""
    return (
        sum(ask.min * (ask.amount.gpus * 1000 + ask.amount.gpu_milli) for ask in asks),
        sum(ask.min * ask.amount.cpus_milli for ask in asks),
    )


@functools.lru_cache(maxsize=4096)
def _varied(asks: tuple[plans.Ask, ...]) -> int:
    """Which ask is divided: the first whose number may vary, workers before others. All else stays as asked for."""
    elastic = [place for place, ask in enumerate(asks) if ask.min < ask.max]
    return next((place for place in elastic if asks[place].role == roles.RoleName.WORKER), elastic[0])


@functools.lru_cache(maxsize=4096)
def _rungs(least: int, limit: int, most: int, per_node: int) -> tuple[int, ...]:
    """Sizes worth thinking of: halves of a node, whole nodes (fewer of them, the more there are), and the most that it
    may have; none above `limit`, which may be less.
    """
    rungs, count = {least, most}, 1
    while count < per_node:
        rungs.add(count)
        count *= 2
    count = per_node
    while count < most:
        rungs.add(count)
        count += max(per_node, count // 8 // per_node * per_node)
    return tuple(sorted(rung for rung in rungs if least <= rung <= max(least, min(limit, most))))


class _Part:
    """What one elastic gang gets: so many tasks of one of its asks."""

    bidder: dividing.Bidder

    def __init__(
        self, one: port.Candidate, node: int, now: float, rules: plans.Rules, known: Mapping[str, float]
    ) -> None:
        gang = one.gang
        self.job = gang.job
        self._one, self._node, self._now, self._rules, self._known = one, node, now, rules, known
        self._place = _varied(gang.asks)
        self._ask = ask = gang.asks[self._place]
        devices = ask.amount.gpus * 1000 + ask.amount.gpu_milli
        self._unit = devices or ask.amount.cpus_milli or 1  # thousandths of a task
        self._devices = max(1, ask.amount.gpus)  # of a task, as its curve counts them
        self._spans = devices > 0  # its tasks fill nodes
        self._servers = sum(other.count for other in gang.asks if other.role == roles.RoleName.PS)
        self._had = one.had(now)[self._place]
        self._nodes = _nodes_of(one, ask)

    def bid(self, share: float) -> None:
        """`share`: thousandths of devices that would be an equal share."""
        one, ask, had, unit = self._one, self._ask, self._had, self._unit
        per_node = max(1, self._node // self._devices) if self._spans else ask.max
        rungs = _rungs(ask.min, self._limit(), ask.most, per_node)
        if had and had not in rungs:
            rungs = tuple(sorted({*rungs, had}))
        equal = max((rung for rung in rungs if rung * unit <= share), default=rungs[0])
        base, weight, power = self._rate(equal) or 1.0, self._weight(), self._known["power"]
        keep = self._keep() if had else 1.0

        def value(units: int) -> float:
            tasks = units // unit
            return weight * math.pow(self._rate(tasks) * (1 if tasks == had else keep) / base, power)

        running = one.running
        settled = not had or (running is not None and not running.stopping and one.gang.preemptible)
        lasting = running is None or self._now - running.started_at >= self._rules.min_runtime_s
        self.bidder = dividing.Bidder(
            self.job,
            [rung * unit for rung in rungs],
            (had or ask.min) * unit,
            value,
            grow=settled,
            shrink=settled and lasting,
        )

    def wish(self) -> port.Wish:
        one, gang, tasks = self._one, self._one.gang, self.bidder.size // self._unit
        present = one.running.batch if one.running is not None and tasks == self._had else None
        return port.Wish(
            job=gang.job,
            size=tuple(tasks if place == self._place else count for place, count in enumerate(one.asked)),
            level=_level(one),
            reason=self._reason(tasks),
            batch=speeds.best_batch(gang.curve, gang.batch, self._shape(tasks), present=present),
        )

    def _limit(self) -> int:
        """Tasks beyond which nobody knows what it would do."""
        curve = self._one.gang.curve
        measured = speeds.seen(curve)
        if curve is not None and measured is None:
            return self._ask.most
        devices = self._known["growth"] * max(measured or 0, self._had * self._devices)
        return int(max(self._known["first"], devices) // self._devices)

    def _rate(self, tasks: int) -> float:
        return speeds.rate(self._one.gang.curve, self._one.gang.batch, self._shape(tasks))

    def _shape(self, tasks: int) -> speeds.Shape:
        """As it lies now, or as compactly as it could."""
        devices = tasks * self._devices
        compact = -(-devices // self._node) if self._spans else 1
        return speeds.Shape(self._nodes if tasks == self._had and self._nodes else compact, devices, self._servers)

    def _weight(self) -> float:
        one, known = self._one, self._known
        return math.pow(1 + one.served_s / known["young_s"], -known["age"]) * math.pow(
            2, (one.gang.priority - ORDINARY_PRIORITY) / DOUBLE_WEIGHT
        )

    def _keep(self) -> float:
        """Which part of its speed counts at another size: the part of its life that restarts would have left it."""
        gang, restart_s = self._one.gang, self._rules.restart_s
        age_s = max(0.0, self._now - gang.submitted_at)
        spent_s = self._known["restarts"] * restart_s * max(0, gang.starts - 1)
        return max(0.0, age_s - spent_s) / max(1.0, age_s + restart_s) / (1 + self._known["margin"])

    def _reason(self, tasks: int) -> str:
        gang, than = self._one.gang, self._had if self._had and self._had != tasks else self._ask.min
        text = f"{tasks} of at most {self._ask.max}"
        if tasks == than:
            return text
        many = speeds.speedup(gang.curve, gang.batch, self._shape(tasks), than=self._shape(than))
        guessed = "" if gang.curve is not None else ", as far as one can guess"
        return f"{text}: {many:.1f} times as fast as with {than}{guessed}"


def _nodes_of(one: port.Candidate, ask: plans.Ask) -> int:
    """On which its tasks are; 0 where it does not run."""
    if one.running is None or one.running.stopping:
        return 0
    return len({claim.node for claim in one.running.holdings if claim.role == ask.role})
