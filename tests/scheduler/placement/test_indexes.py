"""An index that follows changes holds the sums that a new index of the same states holds."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st
from tests import examples

from oarlock.scheduler.placement import indexes, shapes

KIND = shapes.Kind((), None, 1.0)
DOMAINS = {f"n{number}": f"r{number % 3}" for number in range(11)}  # n11 is in no rack


def state(cores: int, *names: str) -> shapes.State:
    found = shapes.State(KIND, cores * 1000, 0, (), (), ())
    found.names[:] = sorted(names)
    return found


def slots(cores: int = 0) -> shapes.Shape:
    return shapes.Shape(cpus=cores * 1000)


def table(**domains: int) -> indexes.Table:
    """A table whose domain `a` with three slots is made of three nodes with one slot each, and so on."""
    found = indexes.Table({f"{name}{number}": name for name, count in domains.items() for number in range(count)})
    for name, count in domains.items():
        found.add([f"{name}{number}" for number in range(count)], 1)
    return found


@pytest.mark.parametrize(
    ("count", "found"),
    [(1, ["c", "a", "d", "b"]), (2, ["a", "d", "b"]), (3, ["d", "b"]), (4, ["b"]), (6, [])],
)
def test_domains_with_enough_slots_come_tightest_first(count: int, found: list[str]) -> None:
    assert list(table(a=2, b=5, c=1, d=3).holding(count)) == found


def test_the_domain_with_most_slots() -> None:
    assert table(a=2, b=5, c=5).most() == (5, "c")
    assert indexes.Table({}).most() is None
    emptied = table(a=1)
    emptied.add(["a0"], -1)
    assert emptied.most() is None


def test_a_node_in_no_domain_counts_in_none() -> None:
    found = table(a=2)
    found.add(["elsewhere"], 7)
    assert found.totals == {"a": 2}


@pytest.mark.parametrize("domains", [3, 40])
def test_few_changes_and_many_are_sorted_in(domains: int) -> None:
    """With 3 domains a change sorts all of them anew, with 40 it moves one: the order is the same."""
    found = indexes.Table({f"n{number}": f"d{number:02}" for number in range(domains)})
    for number in range(domains):
        found.add([f"n{number}"], number)
    assert list(found.holding(1)) == [f"d{number:02}" for number in range(1, domains)]
    found.add(["n1"], 100)
    assert list(found.holding(1))[-1] == "d01"
    found.add(["n1"], -101)
    assert list(found.holding(1)) == [f"d{number:02}" for number in range(2, domains)]
    found.add(["n1"], 2)
    assert list(found.holding(2))[:2] == ["d01", "d02"]


def test_the_nodes_of_one_size_come_in_the_order_of_their_states() -> None:
    states = [state(5, "n5", "n4"), state(4, "n1", "n7"), state(9, "n2"), state(1, "n3"), state(4)]
    index = indexes.Index(slots(2), states, 0)
    assert (index.total, index.sizes) == (2 * 4 + 4, {2: 4, 4: 1})
    assert list(index.names(2)) == ["n1", "n7", "n4", "n5"]
    assert list(index.firsts(2)) == ["n1", "n4"]
    assert list(index.names(3)) == []


def seen(index: indexes.Index) -> object:
    """Return all that an index answers."""
    racks = index.table("rack", DOMAINS)
    return (
        index.total,
        {size: count for size, count in index.sizes.items() if count},
        {size: (list(index.names(size)), list(index.firsts(size))) for size in range(1, 17)},
        [(least, list(racks.holding(least))) for least in range(1, 40)],
        racks.most(),
    )


@hypothesis.settings(max_examples=examples.at_most(200))
@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(-1, 8)), max_size=40), st.integers(1, 3), st.integers(1, 5)
)
def test_an_index_that_follows_equals_a_new_one(moves: list[tuple[int, int]], cores: int, every: int) -> None:
    """Each move gives one node another state; -1: the node is not ready. The index looks at every few moves at once."""
    states = {number: state(number) for number in range(9)}
    states[4].names[:] = sorted(f"n{number}" for number in range(12))
    where = {f"n{number}": 4 for number in range(12)}
    index = indexes.Index(slots(cores), states.values(), 0)
    index.table("rack", DOMAINS)
    log: list[indexes.Change] = []
    for place, (number, to) in enumerate(moves):
        name = f"n{number}"
        old, new = states.get(where[name]), states.get(to)
        where[name] = to
        if old is not None:
            old.names.remove(name)
        if new is not None:
            new.names[:] = sorted([*new.names, name])
        log.append(indexes.Change(old, new, (name,)))
        if place % every == 0:
            index.follow(log)
            index.forget()
    index.follow(log)
    assert seen(index) == seen(indexes.Index(slots(cores), states.values(), 0))
