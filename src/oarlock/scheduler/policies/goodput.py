"""Goodput: elastic gangs are sized, and their batch sizes chosen, so that the devices bring most progress.

The goodput of a gang is its progress per second: examples, weighed by their statistical value at that batch size
(Pollux, OSDI '21). The worth of a size is a power of its speedup over the speedup of an equal share, so that the first
devices count for more than the last ones. It is higher for gangs that have had little service so far: short jobs end
soon, and no policy knows beforehand which jobs are short.

A change is a restart, and has a price: the worth of any size but the present one is lowered by the share of the gang's
life that its restarts have taken, and by a margin for the errors of the curve.

Every gang has its least before anybody has more, in the order of priority and arrival; so gangs that are not elastic
are simply served in that order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from oarlock.scheduler.dividing import onetype
from oarlock.scheduler.policies import contract, parameters, typed
from oarlock.scheduler.speed import rates, relative
from oarlock.spec import plans, roles

name = "goodput"
reserves = True
sizing = True

PARAMETERS: Mapping[str, float] = {
    # The worth of a speedup of x is x to this power. 1: all devices go to the best gangs; near 0: equal shares.
    "power": 0.4,
    # A gang's worth falls with its service to this power; 0: service does not matter.
    "age": 0.25,
    # Device-seconds of service up to which a gang is new.
    "young_s": 3600.0,
    # Device-seconds of service beyond which more of it lowers a gang's worth no further; 0: there is no such bound.
    "old_s": 0.0,
    # The same as `age`, where a cluster has several types of GPU: a device-second of a slow type brings less.
    "types_age": 0.0,
    # A change must promise to be better by this part, beyond the cost of its restart.
    "margin": 0.2,
    # How many times its cost a restart is counted against a gang that has had some already.
    "restarts": 2.0,
    # Most devices for the start of a gang without a measured speed.
    "first": 4.0,
    # How many times the most devices on which it was measured a gang may get.
    "growth": 4.0,
}

TURN_S = 1800.0
TURN_FACTOR = 4.0
LAST_TURN = 15
"""Turns of elastic gangs, where there are more of them than places: a gang falls back by one after `TURN_S`
device-seconds of service, and again whenever its service has grown by `TURN_FACTOR`.
"""

CAUTION = 0.5
"""Standard deviations by which the speed is lowered on a type on which a job never ran."""

WORTH_SAYING = 1.25
"""Speedup on another type from which on the reason names that type."""

ORDINARY_PRIORITY = 50
DOUBLE_WEIGHT = 25.0
"""Difference of priority that makes an elastic gang's speed count twice."""


def wishes(
    candidates: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[contract.Wish]:
    known = _read(given)
    ranked = sorted(candidates, key=_rank)
    node = rates.node_size(budget.node_devices)
    found: dict[str, contract.Wish] = {}
    gains: dict[str, float] = {}
    if budget.types:
        found |= _by_type(ranked, budget, now, rules, known)
    if any(one.gang.elastic for one in ranked):
        wholes = [(True, budget.amount.cpus_milli)]
        if not budget.types:
            wholes.insert(0, (False, round(budget.amount.devices * 1000)))
        for cpus, whole in wholes:
            for part in _divided(ranked, cpus, whole, lambda one: _Part(one, node, now, rules, known)):
                found[part.job] = part.wish()
                gains[part.job] = part.bidder.gain
    wished = [found.get(one.gang.job) or _as_asked(one, node) for one in ranked]
    turns = [(-one.gang.priority, one.running is not None, -gains.get(one.gang.job, 0.0)) for one in ranked]
    order = sorted(
        range(len(ranked)), key=turns.__getitem__
    )  # waiting gangs come before growing ones; those that gain most come first
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
    for parameter in ("age", "types_age", "old_s", "margin", "restarts"):
        if known[parameter] < 0:
            raise parameters.refused(name, parameter, known[parameter], "0 or more")
    return known


# Order


def _rank(one: contract.Candidate) -> tuple[int, int, tuple[float, str]]:
    return -one.gang.priority, _turn(one), one.arrival


def _turn(one: contract.Candidate) -> int:
    """Return the turn of an elastic gang, by its service; 0 for other gangs."""
    if one.served_s < TURN_S or not one.gang.elastic:
        return 0
    return min(LAST_TURN, 1 + int(math.log(one.served_s / TURN_S, TURN_FACTOR)))


def _level(one: contract.Candidate) -> float:
    """Return the level. It lets a gang be stopped for higher priority, or an elastic one for one with less service."""
    rigid = 0 if one.running is not None else LAST_TURN
    return -one.gang.priority + (_turn(one) if one.gang.elastic else rigid) / (LAST_TURN + 1)


def _as_asked(one: contract.Candidate, node: int) -> contract.Wish:
    """Return the wish for a gang that is not elastic, or for which too little is left.

    A waiting elastic gang wishes its smallest size; the others wish the size that they asked for.
    """
    gang = one.gang
    size = gang.smallest if gang.elastic and one.running is None else one.asked
    batch = None
    if gang.batch is not None and gang.curve is not None:
        devices = int(gang.amount(size).devices)
        present = one.running.batch if one.running is not None else None
        batch = rates.best_batch(gang.curve, gang.batch, rates.Shape(-(-devices // node), devices), present=present)
    reason = f"priority {gang.priority}, in order of arrival"
    return contract.Wish(job=gang.job, size=size, level=_level(one), reason=reason, batch=batch)


# Division


def _divided(
    ranked: Iterable[contract.Candidate], cpus: bool, whole: int, part: Callable[[contract.Candidate], _Part]
) -> list[_Part]:
    """Return the elastic gangs with their parts of `whole`: thousandths of devices, or of CPUs without devices.

    Each gang gets its smallest size first: the gangs that hold devices, then those that wait, as far as these go.
    """
    left, held, parts = whole, 0, []
    waiting: list[tuple[contract.Candidate, int]] = []
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
    onetype.divide((each.bidder for each in parts), left + sum(each.bidder.least for each in parts))
    return parts


@functools.lru_cache(maxsize=4096)
def _least(asks: tuple[plans.Ask, ...]) -> tuple[int, int]:
    """Return thousandths of devices, and of CPUs, at the smallest size."""
    return (
        sum(ask.min * (ask.amount.gpus * 1000 + ask.amount.gpu_milli) for ask in asks),
        sum(ask.min * ask.amount.cpus_milli for ask in asks),
    )


@functools.lru_cache(maxsize=4096)
def _varied(asks: tuple[plans.Ask, ...]) -> int:
    """Return the position of the ask that is divided: the first with a variable number of tasks, workers first.

    All other asks stay as they are. Where no number may vary, it is the first ask with devices: only the type of these
    is chosen.
    """
    elastic = [place for place, ask in enumerate(asks) if ask.min < ask.max]
    elastic = elastic or [place for place, ask in enumerate(asks) if ask.amount.gpus] or [0]
    return next((place for place in elastic if asks[place].role == roles.RoleName.WORKER), elastic[0])


@functools.lru_cache(maxsize=4096)
def _rungs(least: int, limit: int, most: int, per_node: int) -> tuple[int, ...]:
    """Return the sizes to compare: halves of a node, whole nodes in growing steps, and the largest size.

    No size is above `limit`, which may be less than `most`.
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
    """The part of one elastic gang: a number of tasks of one of its asks."""

    bidder: onetype.Bidder

    def __init__(
        self, one: contract.Candidate, node: int, now: float, rules: plans.Rules, known: Mapping[str, float]
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
        """Make the bidder of the gang. `share`: thousandths of devices that are an equal share."""
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
        self.bidder = onetype.Bidder(
            self.job,
            [rung * unit for rung in rungs],
            (had or ask.min) * unit,
            value,
            grow=settled,
            shrink=settled and lasting,
        )

    def wish(self) -> contract.Wish:
        one, gang, tasks = self._one, self._one.gang, self.bidder.size // self._unit
        present = one.running.batch if one.running is not None and tasks == self._had else None
        return contract.Wish(
            job=gang.job,
            size=tuple(tasks if place == self._place else count for place, count in enumerate(one.asked)),
            level=_level(one),
            reason=self._reason(tasks),
            batch=rates.best_batch(gang.curve, gang.batch, self._shape(tasks), present=present),
        )

    def _limit(self) -> int:
        """Return the most tasks for which the measurements say anything about the speed."""
        curve = self._one.gang.curve
        measured = rates.seen(curve)
        if curve is not None and measured is None:
            return self._ask.most
        devices = self._known["growth"] * max(measured or 0, self._had * self._devices)
        return int(max(self._known["first"], devices) // self._devices)

    def _rate(self, tasks: int) -> float:
        return rates.rate(self._one.gang.curve, self._one.gang.batch, self._shape(tasks))

    def _shape(self, tasks: int) -> rates.Shape:
        """Return the present shape of the gang at its present size; the most compact shape at other sizes."""
        devices = tasks * self._devices
        compact = -(-devices // self._node) if self._spans else 1
        return rates.Shape(self._nodes if tasks == self._had and self._nodes else compact, devices, self._servers)

    def _weight(self) -> float:
        one, known = self._one, self._known
        served_s = min(one.served_s, known["old_s"]) if known["old_s"] else one.served_s
        return math.pow(1 + served_s / known["young_s"], -known["age"]) * math.pow(
            2, (one.gang.priority - ORDINARY_PRIORITY) / DOUBLE_WEIGHT
        )

    def _keep(self, took_s: float | None = None) -> float:
        """Return the part of the speed that counts at another size: the part of its life without restarts.

        `took_s` is the duration of its last start; None: the `restart_s` of the rules.
        """
        gang, restart_s = self._one.gang, self._rules.restart_s if took_s is None else took_s
        age_s = max(0.0, self._now - gang.submitted_at)
        spent_s = self._known["restarts"] * restart_s * max(0, gang.starts - 1)
        return max(0.0, age_s - spent_s) / max(1.0, age_s + restart_s) / (1 + self._known["margin"])

    def _reason(self, tasks: int) -> str:
        gang, than = self._one.gang, self._had if self._had and self._had != tasks else self._ask.min
        text = f"{tasks} of at most {self._ask.max}"
        if tasks == than:
            return text
        many = rates.speedup(gang.curve, gang.batch, self._shape(tasks), than=self._shape(than))
        guessed = "" if gang.curve is not None else ", as far as one can guess"
        return f"{text}: {many:.1f} times as fast as with {than}{guessed}"


# Several types of GPU


def _by_type(
    ranked: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    known: Mapping[str, float],
) -> dict[str, contract.Wish]:
    """Return the wishes of the gangs with whole devices, each for its type and its size."""
    ones = [one for one in ranked if typed.divides(one.gang)]
    if not ones:
        return {}
    curves = ((one.gang, one.gang.curve) for one in ones)
    measured = ((relative.kind(gang), curve.types) for gang, curve in curves if curve is not None)
    speeds_of = relative.Relative(measured, relative.of_ended(budget.ended))
    least = {one.gang.job: _least(one.gang.asks)[0] // 1000 for one in ones}
    admitted = typed.admitted(ones, least, budget.types)
    looked_at = typed.in_turn(admitted, now, rules.round_s)
    parts = [_Typed(one, budget, speeds_of, now, rules, known) for one in looked_at]
    share = sum(one.devices for one in budget.types) / max(1, len(admitted))
    for part in parts:
        part.value(share)
    dividing_now = {part.job for part in parts if part.present() or not part.holds}
    others = [one for one in ranked if one.gang.job not in dividing_now]
    served = typed.divide((part for part in parts if part.job in dividing_now), typed.without(budget, others))
    wishes = {part.job: part.wish() for part in served}
    for one in others:
        if typed.divides(one.gang) and any(had := one.had(now)):
            reason = "it keeps its devices until gangs like it are compared again"
            wishes[one.gang.job] = contract.Wish(job=one.gang.job, size=had, level=_level(one), reason=reason)
    return wishes


class _Typed(_Part):
    """The part of one gang on one type. Its speeds on all types and at all sizes are compared."""

    def __init__(
        self,
        one: contract.Candidate,
        budget: contract.Budget,
        speeds_of: relative.Relative,
        now: float,
        rules: plans.Rules,
        known: Mapping[str, float],
    ) -> None:
        super().__init__(one, 1, now, rules, {**known, "age": known["types_age"]})
        self._types = {of.gpu_type: of for of in budget.types if self._accepts(of)}
        kind, curve = relative.kind(one.gang), one.gang.curve
        names = [of.gpu_type for of in budget.types]
        self._curve = None if curve is None else speeds_of.completed(curve, kind, names)
        self._general = relative.general(speeds_of, kind, names) if curve is None else {}
        self._guessed = {each.gpu_type: each.guessed for each in self._curve.types} if self._curve is not None else {}
        held = one.running.holdings if one.running is not None and not one.running.stopping else one.gang.destined
        on = {name for claim in held for name in typed.types_of(budget, claim)} if self._had else set()
        self._on = on.pop() if len(on) == 1 else ""
        self.units = max(1, self._ask.amount.gpus)
        self.fixed = sum(ask.count * ask.amount.gpus for place, ask in enumerate(one.gang.asks) if place != self._place)
        self.gpu_type, self.tasks = self._on, self._had
        self.prices: Mapping[str, float] = {}
        limit = self._limit()
        self._speeds = {
            of.gpu_type: self._speeds_on(of.gpu_type, self._sizes(of, limit))
            for of in budget.types
            if of.gpu_type in self._types or of.gpu_type == self._on
        }

    def _accepts(self, of: contract.TypeShare) -> bool:
        return all(
            (not ask.gpu_types or of.gpu_type in ask.gpu_types)
            and (not of.memory_bytes or ask.gpu_memory_bytes <= of.memory_bytes)
            for ask in self._one.gang.asks
            if ask.amount.gpus
        )

    def value(self, share: float) -> None:
        """Set the base of the worth: the speed with `share` devices, an equal share, on each type."""
        whole = sum(of.devices for of in self._types.values()) or 1
        equal = [
            of.devices
            * max(
                (speed for tasks, speed in self._speeds[of.gpu_type].items() if tasks * self.units <= share),
                default=self._speeds[of.gpu_type][self._ask.min],
            )
            for of in self._types.values()
        ]
        self._base = sum(equal) / whole or 1.0
        self._kept = self._keep(self._one.gang.restart_s) if self._had else 1.0
        self._weighs = self._weight()

    @property
    def holds(self) -> bool:
        """Whether the gang has devices, of one type or of several."""
        return bool(self._had)

    def present(self) -> tuple[str, int] | None:
        return (self._on, self._had) if self._on and self._had else None

    def _sizes(self, of: contract.TypeShare, limit: int) -> tuple[int, ...]:
        ask = self._ask
        if ask.min == ask.max:
            return (ask.min,)
        found = _rungs(ask.min, limit, ask.most, max(1, of.per_node // self.units))
        return tuple(sorted({*found, self._had})) if of.gpu_type == self._on else found

    def _speeds_on(self, gpu_type: str, sizes: Sequence[int]) -> dict[int, float]:
        """Return the speed on that type with each number of tasks."""
        if self._curve is None:
            return {tasks: tasks * self.units * self._general[gpu_type] for tasks in sizes}
        shapes = [self._on_type(gpu_type, tasks) for tasks in sizes]
        return dict(zip(sizes, rates.speeds(self._curve, self._one.gang.batch, shapes), strict=True))

    def worths(self, of: contract.TypeShare) -> Iterator[tuple[int, float]]:
        sure = math.exp(-CAUTION * self._guessed.get(of.gpu_type, 0.0))
        floor, present, weighs, power = self._floor(), self.present(), self._weighs, self._known["power"]
        for tasks, speed in self._speeds.get(of.gpu_type, {}).items():
            same = present == (of.gpu_type, tasks)
            if same or speed > floor:
                speed *= 1.0 if same else self._kept * sure
                yield tasks, weighs * math.pow(speed / self._base, power)

    def _floor(self) -> float:
        """Return the speed above which the gang may be changed now: -1 for any change, infinity for none."""
        running = self._one.running
        if running is None or not self._had:
            return -1.0 if self.present() is None or not self._had else math.inf
        if running.stopping or running.starting or not self._one.gang.preemptible or not self._on:
            return math.inf
        settled_s = max(self._rules.min_runtime_s, 2 * (self._one.gang.restart_s or 0.0))
        lasting = self._now - running.started_at >= settled_s
        return -1.0 if lasting else self._speeds[self._on][self._had]

    def wish(self) -> contract.Wish:
        one, gang = self._one, self._one.gang
        same = self.present() == (self.gpu_type, self.tasks)
        present = one.running.batch if one.running is not None and same else None
        shape = self._on_type(self.gpu_type, self.tasks)
        return contract.Wish(
            job=gang.job,
            size=tuple(self.tasks if place == self._place else count for place, count in enumerate(one.asked)),
            level=_level(one),
            reason=self._typed_reason(),
            batch=rates.best_batch(self._curve, gang.batch, shape, present=present),
            on=self.gpu_type,
        )

    def _on_type(self, gpu_type: str, tasks: int) -> rates.Shape:
        of, devices = self._types.get(gpu_type), tasks * self.units
        compact = -(-devices // of.per_node) if of is not None else 1
        here = tasks == self._had and gpu_type == self._on and self._nodes
        return rates.Shape(self._nodes if here else compact, devices, self._servers, gpu_type)

    def _typed_reason(self) -> str:
        """Return the reason, as `4 a100 of at most 16: 3.1 times as fast as with 8 t4`."""
        text = f"{self.tasks} on {self.gpu_type}, of at most {self._ask.max}"
        than = self.present() or (self.gpu_type, self._ask.min)
        if than == (self.gpu_type, self.tasks):
            return text + self._elsewhere()
        many = self._speeds[self.gpu_type][self.tasks] / max(self._speeds[than[0]][than[1]], 1e-9)
        sure = self._guessed.get(self.gpu_type, 0.0)
        guessed = ", as far as one can guess" if self._curve is None else ""
        guessed = f", within {100 * sure:.0f} %, as it never ran there" if sure else guessed
        other = f"{than[1]} on {than[0]}" if than[0] != self.gpu_type else str(than[1])
        return f"{text}: {many:.1f} times as fast as with {other}{guessed}{self._elsewhere()}"

    def _elsewhere(self) -> str:
        """Return the reason why it does not get a type on which it is much faster; empty where there is none."""
        here = self._speeds[self.gpu_type][self.tasks]
        options = ((speed, name, tasks) for name in self._types for tasks, speed in self._speeds[name].items())
        most, name, tasks = max(options, default=(0.0, "", 0))
        if name == self.gpu_type or most < WORTH_SAYING * here:
            return ""
        why = "others gain more by it" if self.prices.get(name) else "that would not pay for a restart"
        return f"; with {tasks} on {name} it would be {most / max(here, 1e-9):.1f} times as fast, but {why}"


def _nodes_of(one: contract.Candidate, ask: plans.Ask) -> int:
    """Return the number of nodes that its tasks of one ask run on; 0 while it does not run."""
    if one.running is None or one.running.stopping:
        return 0
    return len({claim.node for claim in one.running.holdings if claim.role == ask.role})
