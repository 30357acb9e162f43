"""Properties of every plan, over random clusters and queues."""

from __future__ import annotations

import hypothesis
import msgspec
from hypothesis import strategies as st

from oarlock.scheduler import forecasting, planning
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, jobfile, nodes, plans, refusals

TYPES = ["v100", "h100"]


@st.composite
def snapshots(draw: st.DrawFn) -> plans.Snapshot:
    found = []
    for number in range(draw(st.integers(1, 5))):
        gpus = draw(st.integers(0, 4))
        kind = draw(st.sampled_from(TYPES))
        found.append(
            nodes.Node(
                name=f"n{number}",
                capacity=holdings.Resources(draw(st.integers(0, 8)) * 1000, draw(st.integers(0, 8)) << 30, gpus),
                devices=tuple(nodes.Device(index=i, type=kind) for i in range(gpus)),
                domains={"rack": f"r{number % 2}"},
                ports=draw(st.sampled_from([None, (20000, 20019)])),
                ready=draw(st.booleans()) or number == 0,
            )
        )
    return plans.Snapshot(nodes=tuple(found), waiting=tuple(draw(st.lists(gangs(), max_size=8, unique_by=_id))))


@st.composite
def gangs(draw: st.DrawFn) -> plans.Gang:
    count = draw(st.integers(1, 5))
    ask = plans.Ask(
        role="worker",
        count=count,
        min=count,
        max=count,
        amount=holdings.Resources(
            draw(st.integers(0, 4)) * 1000, draw(st.integers(0, 3)) << 30, draw(st.sampled_from([0, 0, 1, 2]))
        ),
        ports=draw(st.sampled_from([0, 4])),
        gpu_types=tuple(draw(st.sampled_from([[], ["h100"], ["h100", "v100"]]))),
    )
    same = draw(st.sampled_from([None, jobfile.Domain.NODE, jobfile.Domain.RACK]))
    name = f"j{draw(st.integers(0, 30))}"
    return plans.Gang(
        job=name,
        name=name,
        pool="default",
        asks=(ask,),
        submitted_at=float(draw(st.integers(0, 3))),
        priority=draw(st.sampled_from([50, 60])),
        placement=draw(st.sampled_from(list(jobfile.Placement))),
        topology=jobfile.Topology(same=same, required=draw(st.booleans())) if same else None,
    )


def _id(gang: plans.Gang) -> str:
    return gang.job


@hypothesis.given(snapshots())
def test_gangs_are_whole_and_nothing_is_held_twice(snapshot: plans.Snapshot) -> None:
    answer = planning.plan(snapshot, 0.0)
    waiting = {gang.job: gang for gang in snapshot.waiting}
    assert {launch.job for launch in answer.launches} | set(answer.refusals) == set(waiting)
    by_name = {node.name: node for node in snapshot.nodes}
    taken: set[tuple[str, str, int]] = set()
    used: dict[str, holdings.Resources] = {}
    for launch in answer.launches:
        gang = waiting[launch.job]
        assert sorted(claim.index for claim in launch.holdings) == [task.index for task in gang.tasks]
        types = set()
        for claim in launch.holdings:
            node = by_name[claim.node]
            task = gang.tasks[claim.index]
            assert node.ready
            assert claim.amount == task.amount
            assert len(claim.devices) == task.amount.gpus
            assert len(claim.ports) == (task.ports if node.ports else 0)
            slots = {(claim.node, "device", i) for i in claim.devices} | {(claim.node, "port", i) for i in claim.ports}
            assert not slots & taken
            taken |= slots
            used[claim.node] = used.get(claim.node, rooms.NOTHING) + claim.amount
            types |= {device.type for device in node.devices if device.index in claim.devices}
        assert len(types) <= 1
        assert not gang.tasks[0].gpu_types or types <= set(gang.tasks[0].gpu_types)
        if gang.topology is not None and gang.topology.required:
            level = gang.topology.same
            places = {c.node if level == "node" else by_name[c.node].domains["rack"] for c in launch.holdings}
            assert len(places) == 1
    for name, amount in used.items():
        assert amount.fits(by_name[name].capacity)


@hypothesis.given(snapshots(), st.randoms())
def test_the_order_of_the_input_changes_nothing(snapshot: plans.Snapshot, random: st.DataObject) -> None:
    shuffled = list(snapshot.waiting)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    machines = list(snapshot.nodes)
    random.shuffle(machines)  # type: ignore[attr-defined]
    other = msgspec.structs.replace(snapshot, waiting=tuple(shuffled), nodes=tuple(machines))
    one, two = planning.plan(snapshot, 0.0), planning.plan(other, 0.0)
    assert one.launches == two.launches
    assert one.refusals == two.refusals


@hypothesis.given(snapshots())
def test_never_means_never(snapshot: plans.Snapshot) -> None:
    """What is refused for ever does not fit the empty cluster either, and the rest does once it is alone."""
    revived = tuple(msgspec.structs.replace(node, ready=True) for node in snapshot.nodes)
    for gang in snapshot.waiting:
        alone = planning.plan(plans.Snapshot(nodes=revived, waiting=(gang,)), 0.0)
        verdict = forecasting.forecast(snapshot, gang, 0.0, spent=lambda: 0.0)
        assert (verdict.when is plans.When.NEVER) == (not alone.launches)
        if verdict.when is plans.When.NEVER:
            assert verdict.refusal is not None
            assert verdict.refusal.code in refusals.NEVER
            assert verdict.refusal.message
