"""The order of the looks at objects of the cluster."""

from __future__ import annotations

from oarlock.api.customresources import looks
from oarlock.api.customresources.looks import AGAIN_FIRST_S, AT_ONCE, LATE_S, WHILE_LAUNCHING


class World:
    def __init__(self) -> None:
        self.now, self.launches = 0.0, False
        self.looks = looks.Looks(launches=lambda: self.launches, monotonic=lambda: self.now)


def test_words_wait_while_gangs_are_launched() -> None:
    world = World()
    world.launches = True
    world.looks.tell("first")
    world.now += LATE_S / 2
    world.looks.tell("second")
    world.looks.tell("first")
    assert world.looks.take() == []
    world.now += LATE_S / 2
    assert world.looks.take() == ["first"], "it has waited since it was told first"
    world.looks.tell("first")
    world.looks.done("first", None)
    assert world.looks.take() == []
    world.launches = False
    assert world.looks.take() == ["second", "first"]


def test_late_words_are_few_while_gangs_are_launched_and_users_do_not_wait() -> None:
    world = World()
    world.launches = True
    for number in range(100):
        world.looks.tell(f"told-{number}")
    world.now += LATE_S
    assert world.looks.take() == [f"told-{number}" for number in range(WHILE_LAUNCHING)]
    assert world.looks.take() == []
    world.looks.touch("deleted")
    world.looks.touch("told-50")
    assert world.looks.take() == ["deleted", "told-50"]
    for uid in ("told-0", "deleted", "told-50"):
        world.looks.done(uid, None)
    assert world.looks.take() == [f"told-{WHILE_LAUNCHING}"]
    world.launches = False
    assert len(world.looks.take()) == AT_ONCE - WHILE_LAUNCHING
    for number in range(100):
        world.looks.done(f"told-{number}", None)
    assert "told-50" not in world.looks.take(), "one look served both reasons"


def test_users_share_what_there_is() -> None:
    world = World()
    for number in range(3 * AT_ONCE):
        world.looks.touch(f"touched-{number}")
    world.looks.tell("told")
    assert world.looks.take() == [f"touched-{number}" for number in range(AT_ONCE)]
    assert world.looks.take() == []


def test_one_object_is_looked_at_once_at_a_time() -> None:
    world = World()
    world.looks.touch("one")
    assert world.looks.take() == ["one"]
    world.looks.touch("one")
    assert world.looks.take() == []
    world.looks.done("one", None)
    assert world.looks.bell.is_set()
    assert world.looks.take() == ["one"]


def test_a_look_is_repeated_after_longer_and_longer_pauses() -> None:
    world = World()
    world.looks.touch("one")
    pauses = []
    for _ in range(9):
        assert world.looks.take() == ["one"]
        world.looks.done("one", AGAIN_FIRST_S)
        began = world.now
        while not world.looks._told:
            world.now += 0.5
            world.looks._tell_due()
        pauses.append(world.now - began)
    assert pauses[:3] == [2.0, 4.0, 8.0]
    assert pauses[-1] == looks.AGAIN_MOST_S
    assert world.looks.take() == ["one"]
    world.looks.done("one", None)
    world.now += 1000
    assert world.looks.take() == []
