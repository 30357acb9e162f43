"""The amounts that a policy may divide: all nodes, or the entitlement of one leaf."""

from __future__ import annotations

from tests.scheduler import drafted

from oarlock.scheduler.ordering import budgets


def test_types_are_counted_only_where_there_are_several() -> None:
    one = drafted.cluster("node a gpus=4:v100 cpus=8")
    found = budgets.whole(one.nodes.values())
    assert (found.amount.gpus, found.amount.cpus_milli, found.types, found.type_of) == (4, 8000, (), {})
    two = drafted.cluster("node a gpus=4:v100\nnode b gpus=2:h100 gpu_memory=40Gi\nnode c gpus=2:h100")
    found = budgets.whole(two.nodes.values())
    assert [(one.gpu_type, one.devices, one.per_node, one.memory_bytes >> 30) for one in found.types] == [
        ("h100", 4, 2, 40),
        ("v100", 4, 4, 80),
    ]
    assert found.type_of == {"a": "v100", "b": "h100", "c": "h100"}
    assert found.node_devices == (4, 2, 2)


def test_a_leaf_divides_its_entitlement_and_the_same_part_of_each_type() -> None:
    draft = drafted.draft(
        "rules policy=fifo\nnode a gpus=8:v100\nnode b gpus=8:h100\npool left reserve.gpus=4 limit.gpus=4\n"
        "pool right\njob one gpus=8 tasks=2 pool=left\njob two gpus=8 tasks=2 pool=right"
    )
    whole = budgets.whole(draft.snapshot.nodes)
    left = budgets.of_leaf(whole, "left", draft.bounds)
    assert left.amount.gpus == 4
    assert {one.gpu_type: one.devices for one in left.types} == {"v100": 2, "h100": 2}


def test_a_pool_without_bounds_divides_all() -> None:
    draft = drafted.draft("rules policy=fifo\nnode a gpus=8\njob one gpus=8")
    whole = budgets.whole(draft.snapshot.nodes)
    assert budgets.of_leaf(whole, "", draft.bounds) is whole
