"""A turn: the wish of one gang, and the facts about the gang."""

from __future__ import annotations

from typing import Self

import msgspec

from oarlock.scheduler.policies import contract
from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import curves, plans

Key = tuple[float | str, ...]
Arrival = tuple[float, str]


class Turn(msgspec.Struct, frozen=True, gc=False):
    """A wish and its candidate.

    `sizing`: its policy has decided the size. `reserves`: its policy reserves places for gangs. `alike`: a decision
    about this gang holds for every other gang of the same kind.
    """

    wish: contract.Wish
    candidate: contract.Candidate
    profile: gangfacts.GangFacts
    sizing: bool = False
    reserves: bool = True
    alike: bool = False

    @classmethod
    def new(
        cls,
        wish: contract.Wish,
        candidate: contract.Candidate,
        profile: gangfacts.GangFacts,
        *,
        sizing: bool,
        reserves: bool,
    ) -> Self:
        alike = profile.plain and candidate.running is None and not wish.beside
        return cls(wish, candidate, profile, sizing, reserves, alike)

    @property
    def runs(self) -> bool:
        """Whether the gang has a place that it may keep."""
        running = self.candidate.running
        return running is not None and not running.stopping

    def batch(self, size: plans.Size) -> curves.Batch | None:
        """Return the batch size that was decided for the gang, if it gets the size for which it was decided."""
        return self.wish.batch if self.wish.size == size else None


def by_key(entry: tuple[Key, Turn]) -> Key:
    return entry[0]
