"""The sums of GPUs below the table of `oarlock nodes`."""

from __future__ import annotations

from oarlock.display.tables import gputypes
from oarlock.spec import bodies, holdings
from oarlock.spec.cluster.nodes import Device, Node, Taint


def view(
    *types: str,
    held: tuple[tuple[tuple[int, ...], holdings.Resources], ...] = (),
    taken: int = 0,
    **more: object,
) -> bodies.NodeState:
    devices = tuple(Device(index=index, type=kind) for index, kind in enumerate(types))
    machine = Node(
        name="n",
        capacity=holdings.Resources(8000, 0, len(types)),
        devices=devices,
        taken=holdings.Resources(0, 0, taken),
        **more,
    )
    claims = tuple(
        holdings.Holding(job="j", attempt=1, role="worker", index=0, node="n", devices=indices, amount=amount)
        for indices, amount in held
    )
    return bodies.NodeState(machine, sum((one.amount for one in claims), holdings.Resources()), claims)


def rows(*views: bodies.NodeState) -> list[list[str]]:
    return [gputypes.row(one) for one in gputypes.of(views)]


TWO = holdings.Resources(0, 0, 2)
HALF = holdings.Resources(0, 0, 0, 500)


def test_the_gpus_of_a_type_are_summed_over_the_nodes() -> None:
    found = rows(
        view("a100", "a100", "a100", "a100", held=(((0, 1), TWO),), taken=1),
        view("a100", "a100", held=(((0,), HALF),)),
        view("h100"),
        view(),
    )
    assert found == [["a100", "6", "2.5", "1", "2.5"], ["h100", "1", "0", "0", "1"]]


def test_the_gpus_of_a_node_that_takes_no_tasks_are_not_free() -> None:
    cordoned = (Taint(key="maintenance", effect="NoSchedule"),)
    assert rows(view("a100", "a100", taints=cordoned), view("a100", ready=False)) == [["a100", "3", "0", "0", "0"]]


def test_a_node_with_several_types_sums_up_each() -> None:
    """Others are taken to have those that jobs leave."""
    found = rows(view("a100", "a100", "t4", held=(((0, 1), TWO),), taken=1))
    assert found == [["a100", "2", "2", "0", "0"], ["t4", "1", "0", "1", "0"]]
