"""Random small clusters and gangs, for Hypothesis: everything that placement knows of, in every mixture."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from oarlock.scheduler.placement import freespace, placing
from oarlock.spec import holdings, jobfile, plans
from oarlock.spec.cluster import nodes

TYPES = ("v100", "h100", "exotic")
GIB = 1 << 30
OTHERS = [holdings.Resources(1000, 0, 1), holdings.Resources(3000, 2 * GIB, 2)]  # taken by pods of others
CORDON = nodes.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
HINT = nodes.Taint(key="busy", effect="PreferNoSchedule")
TEAMS = [nodes.Taint(key="team", value=value, effect="NoSchedule", tolerable=True) for value in ("a", "b")]
CLOSED = [(TEAMS[0],), (TEAMS[1],), (TEAMS[0], HINT), tuple(TEAMS), (TEAMS[0], CORDON)]
CONSTRAINTS = [
    nodes.Constraints(tolerates=("team=a",)),
    nodes.Constraints(tolerates=("team",)),
    nodes.Constraints(labels=(("disk", "ssd"),)),
    nodes.Constraints(tolerates=("other", "team=b"), labels=(("disk", "hdd"),)),
]
MOUNTS = nodes.Constraints(claims=("data", "scratch"))


@st.composite
def machines(draw: st.DrawFn, name: str) -> nodes.Node:
    kinds = draw(st.sampled_from([[], *([kind] for kind in TYPES), ["h100"], ["v100"], ["h100", "v100"]]))
    devices = [
        nodes.Device(index=index, type=draw(st.sampled_from(kinds)), memory_bytes=draw(st.sampled_from([16, 80])) * GIB)
        for index in range(draw(st.integers(1, 6)) if kinds else 0)
    ]
    domains = {
        level: f"{level}{draw(st.integers(0, 1))}" for level in ("nvlink", "rack", "zone") if draw(st.booleans())
    }
    return nodes.Node(
        name=name,
        capacity=holdings.Resources(draw(st.integers(0, 16)) * 1000, draw(st.integers(0, 16)) * GIB, len(devices)),
        devices=tuple(devices),
        domains=domains,
        price_per_h=draw(st.sampled_from([0.0, 1.0, 2.5])),
        ports=draw(st.sampled_from([None, None, (20000, 20019)])),
        ready=draw(st.integers(0, 9)) > 0,
        taken=draw(st.sampled_from([holdings.Resources()] * 3 + [holdings.Resources(500, GIB, 0)] + OTHERS)),
        taints=draw(st.sampled_from([()] * 12 + [(CORDON,), (HINT,), *CLOSED])),
        labels=draw(st.sampled_from([{}, {}, {"disk": "ssd"}, {"disk": "hdd"}])),
        lacks=draw(st.sampled_from([(), (), ("data",), ("other",)])),
    )


@st.composite
def clusters(draw: st.DrawFn, most: int = 6) -> list[nodes.Node]:
    return [draw(machines(f"n{number}")) for number in range(draw(st.integers(1, most)))]


@st.composite
def asks(draw: st.DrawFn, role: str = "worker", most: int = 6) -> plans.Ask:
    count = draw(st.integers(1, most))
    devices, milli = draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (0, 250), (0, 500)]))
    return plans.Ask(
        role=role,
        count=count,
        min=count,
        max=count,
        amount=holdings.Resources(
            draw(st.sampled_from([0, 500, 1000, 3000])), draw(st.integers(0, 2)) * GIB, devices, milli
        ),
        ports=draw(st.sampled_from([0, 0, 4])),
        gpu_types=draw(st.sampled_from([(), (), (), ("h100",), ("h100", "v100"), ("v100", "h100")])),
        gpu_memory_bytes=draw(st.sampled_from([0, 0, 0, 8, 40])) * GIB,
    )


@st.composite
def gangs(draw: st.DrawFn, *, roles: int = 1, job: str = "gang") -> plans.Gang:
    names = ("worker", "ps", "evaluator")[:roles]
    same = draw(st.sampled_from([None] * 4 + list(jobfile.Domain)))
    held = draw(st.sampled_from([None] * 4 + [*CONSTRAINTS, MOUNTS]))
    return plans.Gang(
        job=job,
        name=job,
        pool="default",
        asks=tuple(
            msgspec.structs.replace(draw(asks(role, 6 if roles == 1 else 3)), constraints=held) for role in names
        ),
        submitted_at=0.0,
        priority=draw(st.sampled_from([10, 50])),
        placement=draw(st.sampled_from([*jobfile.Placement, jobfile.Placement.PACK])),
        topology=None if same is None else jobfile.Topology(same=same, required=draw(st.booleans())),
        mixed=draw(st.booleans()),
        beside=draw(st.sampled_from([None, True, False])) if roles > 1 else None,
    )


@st.composite
def held(draw: st.DrawFn, of: list[nodes.Node]) -> list[holdings.Holding]:
    """The holdings of a few gangs on these nodes; some are given back, so that there are holes."""
    space = freespace.FreeSpace(of)
    found: list[holdings.Holding] = []
    for number in range(draw(st.integers(0, 4))):
        claims = placing.place(draw(gangs(job=f"old{number}")), space)
        if claims is not None:
            space.take(claims)
            found += [claim for claim in claims if draw(st.integers(0, 3)) > 0]
    return found
