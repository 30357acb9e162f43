"""Steps whose exchanges are lost and that are not repeated: a bounded number in a row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from oarlock import train
from oarlock.train import errors, membership, rounds, stopping, worlds


class NextRounds:
    """A server that lets the same member meet again at once."""

    def __init__(self) -> None:
        self.numbers = itertools.count(2)

    def later(self, cause: BaseException | None) -> rounds.Round:
        return rounds.Round(next(self.numbers), 0, 1, "127.0.0.1", 0)


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> membership.Membership:
    monkeypatch.setattr(worlds, "enter", lambda later: None)
    made: Any = NextRounds()
    return membership.Membership(made, {}, [])


def lose(member: membership.Membership, step: int) -> int:
    """Lose the exchange of this step. Return the step from which the gang goes on."""
    here = membership.Position(step - 1, exchanges=1)
    return member.change(here, errors.PeersLost("the link is broken"), stopping.Wish(), lambda number: None).step


def test_a_link_that_loses_every_gradient_ends_the_gang(member: membership.Membership) -> None:
    train.init()
    step = 7
    for _ in range(membership.MOST_LOST):
        assert lose(member, step) == step
        step += 1
    with pytest.raises(errors.PeersLost, match="steps in a row were lost; the last: the link is broken"):
        lose(member, step)


def test_a_step_between_begins_the_count_anew(member: membership.Membership) -> None:
    train.init()
    for step in range(1, 10 * membership.MOST_LOST, 2):
        assert lose(member, step) == step
