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

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from oarlock.scheduler import curves as speeds
from oarlock.scheduler import dividing
from oarlock.scheduler.policies import parameters, port
from oarlock.spec import plans, roles

name = "goodput"
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

TURN_S = 3600.0
TURN_FACTOR = 8.0
"""Where there are more elastic gangs than places they take turns: a gang falls back by one whenever its service in
device-seconds, beyond the first, has grown by the factor.
"""


class Form(NamedTuple):
    """What of a gang is divided: the tasks of one ask, in thousandths of a device (of a CPU, without devices)."""

    ask: int  # its place in the gang
    unit: int  # thousandths of one task
    devices: int  # of one task, as its curve counts them
    servers: int
    cpus: bool


def wishes(
    candidates: Sequence[port.Candidate],
    budget: port.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[port.Wish]:
    known = _read(given)
    ranked = sorted(candidates, key=_rank)
    division = _Division(speeds.node_size(budget.node_devices), now, rules, known)
    divided = [(one, _form(one.gang)) for one in ranked]
    found: dict[str, port.Wish] = {}
    for cpus, whole in ((False, round(budget.amount.devices * 1000)), (True, budget.amount.cpus_milli)):
        of_kind = [(one, form) for one, form in divided if form.cpus is cpus]
        found.update((wish.job, wish) for wish in division.wishes(of_kind, whole))
    order = sorted(ranked, key=lambda one: (-one.gang.priority, any(one.size)))  # who waits comes before who grows
    return [found[one.gang.job] for one in order]


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


def _rank(one: port.Candidate) -> tuple[int, int, tuple[float, str]]:
    return -one.gang.priority, _turn(one), one.arrival


def _turn(one: port.Candidate) -> int:
    """Elastic gangs take turns, by their service; others do not."""
    return min(15, int(math.log(1 + one.served_s / TURN_S, TURN_FACTOR))) if one.gang.elastic else 0


def _level(one: port.Candidate) -> float:
    """A gang may be stopped for higher priority; an elastic one also for an elastic one with far less service."""
    last = 0 if any(one.size) else 15
    return -one.gang.priority + (_turn(one) if one.gang.elastic else last) / 16


def _form(gang: plans.Gang) -> Form:
    """The tasks that are divided are those whose number may vary, workers before others; else the largest."""
    elastic = [place for place, ask in enumerate(gang.asks) if ask.min < ask.max]
    workers = [place for place in elastic if gang.asks[place].role == roles.RoleName.WORKER]
    among = workers[:1] or elastic[:1] or range(len(gang.asks))
    place = max(among, key=lambda place: (gang.asks[place].amount.devices, -place))
    amount = gang.asks[place].amount
    milli = amount.gpus * 1000 + amount.gpu_milli
    return Form(
        ask=place,
        unit=milli or amount.cpus_milli or 1,
        devices=max(1, amount.gpus),
        servers=sum(ask.count for ask in gang.asks if ask.role == roles.RoleName.PS),
        cpus=not milli,
    )


class _Division:
    """Divides one kind of unit among the gangs that are made of it. `node`: devices of a node."""

    def __init__(self, node: int, now: float, rules: plans.Rules, known: Mapping[str, float]) -> None:
        self._node = node
        self._now = now
        self._rules = rules
        self._known = known

    def wishes(self, candidates: Sequence[tuple[port.Candidate, Form]], whole: int) -> Iterator[port.Wish]:
        """In no order. `whole`: thousandths of devices, or of CPUs."""
        left = whole
        counted: list[tuple[port.Candidate, Form, int]] = []
        had = {one.gang.job: one.had(self._now)[form.ask] for one, form in candidates}
        for stays in (True, False):  # what is held, then what is waited for, as far as it goes
            for one, form in candidates:
                least = one.gang.asks[form.ask].min * form.unit
                if (had[one.gang.job] > 0) is stays and (stays or least <= left):
                    left -= least
                    counted.append((one, form, had[one.gang.job]))
        share = whole / max(1, len(counted))
        bidders = {
            one.gang.job: self._bidder(one, form, tasks, share)
            for one, form, tasks in counted
            if one.gang.asks[form.ask].min < one.gang.asks[form.ask].max
        }
        dividing.divide(bidders.values(), left + sum(bidder.least for bidder in bidders.values()))
        for one, form in candidates:
            bidder = bidders.get(one.gang.job)
            tasks = bidder.size // form.unit if bidder else None
            yield self._wish(one, form, tasks)

    def _bidder(self, one: port.Candidate, form: Form, had: int, share: float) -> dividing.Bidder:
        gang, ask = one.gang, one.gang.asks[form.ask]
        rungs = [count for count in self._rungs(ask, form) if count <= self._most(gang, form, had)]
        rungs = sorted({*rungs, ask.min, had or ask.min})
        equal = max((count for count in rungs if count * form.unit <= share), default=rungs[0])
        base = self._rate(one, form, equal) or 1.0
        weight = self._weight(one)
        keep = self._keep(one) if had else 1.0
        power = self._known["power"]
        nodes = _nodes_of(one, ask) or None

        def value(units: int) -> float:
            tasks = units // form.unit
            speed = self._rate(one, form, tasks, nodes) if tasks == had else self._rate(one, form, tasks) * keep
            return weight * math.pow(speed / base, power)

        running = one.running
        settled = not had or (running is not None and not running.stopping and gang.preemptible)
        lasting = running is None or self._now - running.started_at >= self._rules.min_runtime_s
        return dividing.Bidder(
            gang.job,
            [count * form.unit for count in rungs],
            (had or ask.min) * form.unit,
            value,
            grow=settled,
            shrink=settled and lasting,
        )

    def _rungs(self, ask: plans.Ask, form: Form) -> Iterator[int]:
        """Sizes that are worth thinking of: halves of a node, whole nodes, and the most it may have."""
        per_node = max(1, self._node // form.devices) if not form.cpus else ask.max
        count = 1
        while count < min(per_node, ask.max):
            yield count
            count *= 2
        step = count = per_node
        while count < ask.max:
            yield count
            step = max(per_node, count // 8 // per_node * per_node)
            count += step
        yield ask.max

    def _most(self, gang: plans.Gang, form: Form, had: int) -> int:
        """Tasks beyond which nobody knows what it would do."""
        seen = speeds.seen(gang.curve)
        if seen is None and gang.curve is not None:
            return gang.asks[form.ask].max
        known = self._known
        devices = max(known["first"], known["growth"] * max(seen or 0, had * form.devices))
        return int(devices // form.devices)

    def _rate(self, one: port.Candidate, form: Form, tasks: int, nodes: int | None = None) -> float:
        return speeds.rate(one.gang.curve, one.gang.batch, self._shape(form, tasks, nodes))

    def _shape(self, form: Form, tasks: int, nodes: int | None = None) -> speeds.Shape:
        devices = tasks * form.devices
        compact = 1 if form.cpus else -(-devices // self._node)
        return speeds.Shape(nodes or compact, devices, form.servers)

    def _weight(self, one: port.Candidate) -> float:
        young_s = self._known["young_s"]
        return math.pow(1 + one.served_s / young_s, -self._known["age"]) * math.pow(2, (one.gang.priority - 50) / 25)

    def _keep(self, one: port.Candidate) -> float:
        """Which part of a gang's speed counts at another size: the share of its life that restarts have left it."""
        age_s = max(0.0, self._now - one.gang.submitted_at)
        restart_s = self._rules.restart_s
        had_s = self._known["restarts"] * restart_s * max(0, one.gang.starts - 1)
        return max(0.0, age_s - had_s) / (age_s + restart_s) / (1 + self._known["margin"]) if age_s > 0 else 0.0

    def _wish(self, one: port.Candidate, form: Form, tasks: int | None) -> port.Wish:
        """`tasks` None: it is not divided; it waits for, or keeps, what its owner asked for."""
        gang = one.gang
        ask = gang.asks[form.ask]
        had = one.had(self._now)[form.ask]
        if tasks is None:
            tasks = had or ask.min
        size = tuple(tasks if place == form.ask else count for place, count in enumerate(one.asked))
        nodes = _nodes_of(one, ask) if tasks == one.size[form.ask] else 0
        shape = self._shape(form, tasks, nodes or None)
        return port.Wish(
            job=gang.job,
            size=size,
            level=_level(one),
            reason=self._reason(one, form, had, tasks),
            batch=speeds.best_batch(gang.curve, gang.batch, shape),
        )

    def _reason(self, one: port.Candidate, form: Form, had: int, tasks: int) -> str:
        gang = one.gang
        if not gang.elastic:
            return f"priority {gang.priority}, in order of arrival"
        least = gang.asks[form.ask].min
        if tasks != had and had:
            than, many = (
                f"with {had}",
                speeds.speedup(
                    gang.curve,
                    gang.batch,
                    self._shape(form, tasks),
                    than=self._shape(form, had, _nodes_of(one, gang.asks[form.ask])),
                ),
            )
        else:
            than, many = (
                f"with {least}",
                speeds.speedup(gang.curve, gang.batch, self._shape(form, tasks), than=self._shape(form, least)),
            )
        guessed = "" if gang.curve is not None else ", as far as one can guess"
        return f"{tasks} of at most {gang.asks[form.ask].max}: {many:.1f} times as fast as {than}{guessed}"


def _nodes_of(one: port.Candidate, ask: plans.Ask) -> int:
    if one.running is None or one.running.stopping:
        return 0
    return len({claim.node for claim in one.running.holdings if claim.role == ask.role})
