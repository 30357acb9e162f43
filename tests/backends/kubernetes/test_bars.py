"""Nodes that the stock scheduler refused to a claim: when they are closed to it, and when they open again."""

from __future__ import annotations

from oarlock.backends.kubernetes import bars


class Desk:
    """Bars over a state and a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.node: object = "a node"
        self.volume: object = None
        self.pods = {"one", "two"}
        self.freed = 0
        self.made = bars.Bars(monotonic=lambda: self.now)

    def look(self, claim: str, name: str) -> bars.Seen:
        return bars.Seen((name, self.node), self.volume, frozenset(self.pods), self.freed)

    def refuse(self, *names: str) -> None:
        self.made.put(["disk"], names or ("n1",), self.look)

    @property
    def closed(self) -> bool:
        return self.made.of("n1", self.look) == ["disk"]


def test_a_bar_ends_by_time_and_each_one_in_a_row_lasts_longer() -> None:
    desk, lasted = Desk(), []
    for _ in range(6):
        desk.refuse()
        began = desk.now
        while desk.closed:
            desk.now += 1.0
        lasted.append(desk.now - began)
    assert lasted == [60, 120, 240, 480, 600, 600]
    desk.now += bars.FORGOTTEN_S
    assert not desk.closed
    desk.refuse()
    desk.now += bars.FIRST_S
    assert not desk.closed, "a first one again"


def test_a_bar_ends_at_once_where_its_reason_may_have_gone() -> None:
    desk = Desk()

    def bar() -> None:
        desk.refuse()
        assert desk.closed

    bar()
    desk.pods.add("three")
    assert desk.closed, "a pod that came takes more"
    desk.pods.remove("two")
    assert not desk.closed, "a pod that left may have had the devices"
    bar()
    desk.freed += 1
    assert not desk.closed, "so may a pod of others"
    bar()
    desk.volume = "made"
    assert not desk.closed
    bar()
    desk.node = "the node with another label"
    assert not desk.closed
    desk.node = "a node"
    assert not desk.closed, "it does not come back by itself"


def test_once_each_node_has_refused_all_are_tried_again() -> None:
    desk = Desk()
    desk.refuse("n1")
    desk.made.lift("disk", ["n1", "n2"])
    assert desk.closed, "n2 is left"
    desk.refuse("n2")
    desk.made.lift("disk", ["n1", "n2"])
    assert not desk.closed
