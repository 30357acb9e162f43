"""The shortcuts of a plan: the work that it leaves out, and the limits of its searches.

The plain planner takes none of them: it works everything out for every gang. Without its limits, the fast planner
makes the same decisions; the tests compare the two.
"""

from __future__ import annotations

from typing import NamedTuple

UNLIMITED = 1_000_000


class Shortcuts(NamedTuple):
    """The shortcuts that one plan takes, and the limits of its searches for gangs to stop.

    The limits are counted, not timed, so that every machine makes the same plan. A search that one plan has not begun
    is left to the next plan.
    """

    ranking: bool = True  # keep waiting gangs in order, where their policy ranks each gang by itself
    likeness: bool = True  # refuse a gang at once where a gang that asks for the same was refused
    sums: bool = True  # search for no place, and for no gangs to stop, where sums show that there are none
    clearances: int = 16  # searches for gangs to stop
    looks: int = 32  # gangs for which the plan considers such a search
    trials: int = 48  # placements tried in such searches; a search that has begun comes to its end


ALL = Shortcuts()
NONE = Shortcuts(False, False, False, UNLIMITED, UNLIMITED, UNLIMITED)
