"""Growth of running gangs: into idle devices, and to the size that a policy wishes."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted, world

from oarlock.scheduler.granting import growing
from oarlock.spec import curves

ONE_NODE = """
rules policy=priority min_runtime=60 restart=30
node a gpus=4
"""


CASES = {
    "all idle devices": ("running one tasks=2 max=8 gpus=1 on=a*2 started=0", (4,)),
    "to its own maximum": ("running one tasks=2 max=3 gpus=1 on=a*2 started=0", (3,)),
    "rigid": ("running one tasks=2 gpus=1 on=a*2 started=0", None),
    "just started": ("running one tasks=2 max=4 gpus=1 on=a*2 started=9800", None),
    "not preemptible": ("running one tasks=2 max=4 gpus=1 on=a*2 started=0 preemptible=no", None),
    "ends too soon": ("running one tasks=2 max=4 gpus=1 on=a*2 started=0 end=10060", None),
    "ends soon, but later": ("running one tasks=2 max=4 gpus=1 on=a*2 started=0 end=10061", (4,)),
    "held by another": ("running one tasks=2 max=4 gpus=1 on=a*2 started=0\nrunning x gpus=2 on=a", None),
}


@pytest.mark.parametrize(("lines", "size"), CASES.values(), ids=CASES.keys())
def test_an_elastic_gang_grows_into_idle_devices(lines: str, size: tuple[int, ...] | None) -> None:
    draft = drafted.draft(ONE_NODE + lines)
    growing.into_idle(draft)
    resized = draft.resizes.get("one")
    assert (resized and resized.size) == size


@pytest.mark.parametrize(("tasks", "grows"), [(4, True), (5, False)])
def test_growth_by_less_than_a_quarter_is_not_worth_a_restart(tasks: int, grows: bool) -> None:
    draft = drafted.draft(
        f"rules policy=priority\nnode a gpus={tasks + 1}\nrunning one tasks={tasks} max=9 gpus=1 on=a*{tasks} started=0"
    )
    growing.into_idle(draft)
    assert bool(draft.resizes) is grows


def test_the_gang_that_ranks_first_grows_first() -> None:
    draft = drafted.draft(
        """
        rules policy=priority min_runtime=60 restart=30
        node a gpus=4
        running low tasks=1 max=4 gpus=1 on=a started=0 priority=10
        running high tasks=1 max=3 gpus=1 on=a started=0 priority=90
        """
    )
    growing.into_idle(draft)
    assert {job: one.size for job, one in draft.resizes.items()} == {"high": (3,)}


def test_a_limit_bounds_growth() -> None:
    draft = drafted.draft(
        f"{ONE_NODE}pool default limit.gpus=3\nrunning one tasks=2 max=4 gpus=1 on=a*2 started=0 pool=default"
    )
    growing.into_idle(draft)
    assert draft.resizes["one"].size == (3,)


@pytest.mark.parametrize(
    ("lines", "wish", "size"),
    [
        ("running one tasks=1 max=4 gpus=1 on=a started=9999", (3,), (3,)),  # the policy has weighed the restart
        ("running one tasks=1 max=8 gpus=1 on=a started=9999", (8,), (4,)),  # as near as it can
        ("running one tasks=2 min=1 max=4 gpus=1 on=a*2 started=9999", (2,), None),
        ("running one tasks=1 max=4 gpus=1 on=a started=9999 preemptible=no", (3,), None),
    ],
)
def test_a_gang_grows_as_its_policy_wishes(lines: str, wish: tuple[int, ...], size: tuple[int, ...] | None) -> None:
    draft = drafted.draft(ONE_NODE + lines)
    growing.as_wished(draft, drafted.turn(draft, "one", size=wish, reason="more is better"), clear=False)
    resized = draft.resizes.get("one")
    assert (resized and resized.size) == size
    assert resized is None or resized.reason == "more is better"


def test_a_gang_without_a_curve_is_as_fast_as_it_has_tasks() -> None:
    draft = drafted.draft(f"{ONE_NODE}running one tasks=2 gpus=1 on=a*2 started=0")
    one = drafted.running(draft, "one")
    assert growing.speedup(one, one.holdings[:1] * 4) == 2.0


def test_the_speed_of_a_gang_depends_on_its_parameter_servers() -> None:
    """By its curve, each worker waits for its part of the servers alone."""
    draft = drafted.draft(f"{ONE_NODE}running one tasks=2 gpus=1 on=a*2 started=0")
    one = drafted.running(draft, "one")
    curve = curves.Curve(model=curves.Servers(times=(0.0, 1.0, 0.0, 0.0)))
    server = world.replace(one.holdings[0], role="ps", amount=world.replace(one.holdings[0].amount, gpus=0))
    one = world.replace(one, gang=world.replace(one.gang, curve=curve), holdings=(*one.holdings, server))
    assert growing.speedup(one, (*one.holdings, server)) == pytest.approx(2.0)
    assert growing.speedup(one, (*one.holdings[:2], *one.holdings)) == pytest.approx(1.0)
