"""A free space equals a new one of the same state, whatever changes led to it."""

from __future__ import annotations

from contextlib import AbstractContextManager

import hypothesis
import msgspec
from hypothesis import stateful
from hypothesis import strategies as st
from tests import examples
from tests.scheduler import clusters

from oarlock.scheduler.placement import freespace, placing
from oarlock.spec import holdings, jobfile, plans
from oarlock.spec.cluster import nodes

ASKED = [
    plans.Ask(
        role="worker", count=2, min=2, max=2, amount=amount, gpu_types=types, gpu_memory_bytes=memory, ports=ports
    )
    for amount, types, memory, ports in (
        (holdings.Resources(1000, 0, 1), (), 0, 0),
        (holdings.Resources(0, clusters.GIB, 2), ("h100", "v100"), 0, 4),
        (holdings.Resources(500, 0, 0, 250), (), 8 * clusters.GIB, 0),
        (holdings.Resources(2000), (), 0, 4),
    )
]
WANTED = [
    plans.Gang(
        job="asked",
        name="asked",
        pool="default",
        asks=(ask,),
        submitted_at=0.0,
        placement=placed,
        topology=None if same is None else jobfile.Topology(same=same, required=True),
    )
    for ask in ASKED
    for placed, same in (
        (jobfile.Placement.PACK, None),
        (jobfile.Placement.SPREAD, None),
        (jobfile.Placement.PACK, jobfile.Domain.RACK),
        (jobfile.Placement.PACK, jobfile.Domain.NVLINK),
    )
]


def shown(space: freespace.FreeSpace) -> dict[str, object]:
    """All that can be seen of a room."""
    return {
        "free": space.free(),
        "total": space.total(),
        "nodes": {
            name: (node.node, node.free, node.devices, sorted(node.ports_taken), [node.shares(i) for i in range(4)])
            for name, node in space.nodes.items()
        },
        "order": list(space.nodes),
        "ready": [node.name for node in space.ready()],
        "slots": [(space.slots(ask), space.slots(ask, mixed=True)) for ask in ASKED],
        "places": [placing.place(gang, space) for gang in WANTED],
        "most": [(placing.most(gang, space), placing.widest(gang, space)) for gang in WANTED],
        "types": [placing.gpu_types(gang, space) for gang in WANTED],
        "domains": [[[node.name for node in group] for group in space.domains(level)] for level in ("node", "rack")],
    }


class Rooms(stateful.RuleBasedStateMachine):
    """One free space goes through all changes, beside a plain record of the state; now and then both are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.space = freespace.FreeSpace()
        self.nodes: dict[str, nodes.Node] = {}
        self.running: dict[str, plans.Running] = {}
        self.taken: list[holdings.Holding] = []  # since the snapshot
        self.given_back: list[holdings.Holding] = []
        self.trials: list[tuple[AbstractContextManager[None], list[holdings.Holding], list[holdings.Holding]]] = []
        self.jobs = 0

    @stateful.rule(data=st.data(), returns=st.booleans())
    def nodes_change(self, data: st.DataObject, returns: bool) -> None:
        """A node comes, or comes back changed; one goes, even with holdings on it."""
        for name in data.draw(st.sets(st.sampled_from(["n0", "n1", "n2", "n3"]), max_size=2)):
            if name in self.nodes and not returns:
                del self.nodes[name]
            else:
                self.nodes[name] = data.draw(clusters.machines(name))
        self._next_snapshot()

    @stateful.rule(data=st.data())
    def a_node_is_written_again(self, data: st.DataObject) -> None:
        """Its readiness, its place or its price is another now, or nothing is."""
        if self.nodes:
            name = data.draw(st.sampled_from(sorted(self.nodes)))
            change = data.draw(st.sampled_from([{}, {"ready": False}, {"ready": True}, {"price_per_h": 7.0}]))
            domains = data.draw(st.sampled_from([{}, {"domains": {"rack": "rack0"}}, {"domains": {}}]))
            self.nodes[name] = msgspec.structs.replace(self.nodes[name], **change, **domains)
        self._next_snapshot()

    @stateful.rule(data=st.data())
    def jobs_start_and_end(self, data: st.DataObject) -> None:
        for job in data.draw(st.sets(st.sampled_from(sorted(self.running)))) if self.running else ():
            del self.running[job]
        space = freespace.FreeSpace(tuple(self.nodes.values()), self._held())
        for _ in range(data.draw(st.integers(0, 2))):
            self.jobs += 1
            gang = data.draw(clusters.gangs(roles=2, job=f"job{self.jobs}"))
            claims = placing.place(gang, space)
            if claims is not None:
                space.take(claims)
                self.running[gang.job] = plans.Running(gang=gang, holdings=claims, started_at=0.0)
        self._next_snapshot()

    @stateful.rule(data=st.data())
    def a_job_is_written_again(self, data: st.DataObject) -> None:
        """Its record is another object; it holds the same, or less."""
        if self.running:
            job = data.draw(st.sampled_from(sorted(self.running)))
            held = self.running[job].holdings
            less = held[: data.draw(st.integers(0, len(held)))] if data.draw(st.booleans()) else (*held,)
            self.running[job] = msgspec.structs.replace(self.running[job], holdings=less)
        self._next_snapshot()

    def _next_snapshot(self) -> None:
        self._end_trials(0)
        self.taken, self.given_back = [], []
        self.space.follow(tuple(self.nodes.values()), tuple(self.running.values()))

    @stateful.rule(gang=clusters.gangs(roles=2))
    def take(self, gang: plans.Gang) -> None:
        self.jobs += 1
        claims = placing.place(gang, self.space)
        if claims is not None:
            self.space.take(claims)
            self.taken += claims

    @stateful.precondition(lambda self: self.running)
    @stateful.rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        left = [one for one in self._held() if one not in self.given_back]
        claims = data.draw(st.lists(st.sampled_from(left), unique=True, max_size=3)) if left else []
        self.space.give_back(claims)
        self.given_back += claims

    @stateful.rule()
    def begin_a_trial(self) -> None:
        trial = self.space.trial()
        trial.__enter__()
        self.trials.append((trial, list(self.taken), list(self.given_back)))

    @stateful.precondition(lambda self: self.trials)
    @stateful.rule(data=st.data())
    def end_trials(self, data: st.DataObject) -> None:
        self._end_trials(data.draw(st.integers(0, len(self.trials) - 1)))

    def _end_trials(self, left: int) -> None:
        while len(self.trials) > left:
            trial, self.taken, self.given_back = self.trials.pop()
            trial.__exit__(None, None, None)

    @stateful.invariant()
    def it_is_what_a_fresh_one_is(self) -> None:
        held = [one for one in self._held() if one not in self.given_back] + self.taken
        names = sorted(self.nodes, reverse=True)
        assert shown(self.space) == shown(
            freespace.FreeSpace(tuple(self.nodes[name] for name in names), reversed(held))
        )

    def _held(self) -> list[holdings.Holding]:
        return [claim for job in self.running.values() for claim in job.holdings]


TestRooms = Rooms.TestCase
TestRooms.settings = hypothesis.settings(max_examples=examples.at_most(60), stateful_step_count=12)


def test_nothing_grows_with_time_and_nothing_is_forgotten(monkeypatch) -> None:
    """After months of changes a free space keeps no old state, and its present state is right."""
    monkeypatch.setattr(freespace, "MAX_LOG", 50)
    monkeypatch.setattr(freespace, "MAX_LAG", 10)
    monkeypatch.setattr(freespace, "MAX_STATES", 30)
    of = tuple(
        nodes.Node(name=f"n{number}", capacity=holdings.Resources(64_000, 64 * clusters.GIB)) for number in range(20)
    )
    space = freespace.FreeSpace()
    for turn in range(300):
        ask = plans.Ask(role="worker", count=3, min=3, max=3, amount=holdings.Resources(1000 * (turn % 7), turn))
        gang = plans.Gang(job=f"job{turn}", name="job", pool="default", asks=(ask,), submitted_at=0.0)
        claims = placing.place(gang, space) or ()
        running = plans.Running(gang=gang, holdings=claims, started_at=0.0)
        space.follow(of, (running,))
        assert space.slots(ASKED[3]) == freespace.FreeSpace(of, claims).slots(ASKED[3])
        assert len(space._log) <= 60
        assert len(space._states) <= 2 * len(of) + 30 + 60
        assert not space._done
        assert all(len(index._counts) <= len(space._states) + 120 for index in space._indexes.values())


def test_holdings_on_a_node_that_went_are_held_when_it_is_back() -> None:
    node = nodes.Node(
        name="a",
        capacity=holdings.Resources(4000, 0, 2),
        devices=tuple(nodes.Device(index=i, type="t4") for i in (0, 1)),
    )
    claim = holdings.Holding(
        job="j", attempt=1, role="worker", index=0, node="a", amount=holdings.Resources(1000, 0, 1), devices=(1,)
    )
    gang = plans.Gang(job="j", name="j", pool="default", asks=(ASKED[0],), submitted_at=0.0)
    running = (plans.Running(gang=gang, holdings=(claim,), started_at=0.0),)
    space = freespace.FreeSpace()
    for of in ((), (node,), (), (node,)):
        space.follow(of, running)
    assert space.free() == holdings.Resources(3000, 0, 1)
    assert list(space.nodes["a"].devices) == [0]
    assert not space.holds([claim])
    assert space.holds([msgspec.structs.replace(claim, devices=(0,))])


def test_a_node_that_is_declared_again_keeps_its_holdings() -> None:
    """One device and all other resources are added to a node, one part of which a gang holds."""
    devices = tuple(nodes.Device(index=i, type="t4") for i in (0, 1, 2))
    before = nodes.Node(name="a", capacity=holdings.Resources(4000, 8, 2), devices=devices[:2])
    after = msgspec.structs.replace(before, capacity=holdings.Resources(9000, 32, 3), devices=devices)
    claim = holdings.Holding(
        job="j", attempt=1, role="worker", index=0, node="a", amount=holdings.Resources(1000, 2, 1), devices=(1,)
    )
    gang = plans.Gang(job="j", name="j", pool="default", asks=(ASKED[0],), submitted_at=0.0)
    running = (plans.Running(gang=gang, holdings=(claim,), started_at=0.0),)
    space = freespace.FreeSpace()
    for node, free in ((before, (3000, 6, 1)), (after, (8000, 30, 2)), (before, (3000, 6, 1))):
        space.follow((node,), running)
        assert space.free() == space.nodes["a"].free == holdings.Resources(*free)
    assert list(space.nodes["a"].devices) == [0]
