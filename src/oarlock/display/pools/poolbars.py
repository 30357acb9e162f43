"""The bar of one resource of a pool: its used, entitled and reserved amounts and its limit, on one scale."""

from __future__ import annotations

from typing import NamedTuple

from oarlock.display import bars

NUMBERS = ("USED", "ENTITLED", "RESERVED", "LIMIT")
WORDS = {
    "used": "used",
    "borrowed": "used beyond the entitlement",
    "entitled": "entitled",
    "reserved": "reserved",
    "limit": "limit",
}
"""The legend, by kind of cell."""
IDLE = "In a pool without jobs, ENTITLED is the amount that new jobs would get at once."
"""The note below a tree in which a pool without jobs has an entitlement."""


class Stretch(NamedTuple):
    """The amounts of one resource of a pool, all in one unit."""

    used: float
    entitled: float
    reserved: float
    limit: float | None


def kinds(of: Stretch, width: int) -> list[str]:
    """Return the kinds of `width` cells.

    The scale ends at the greatest amount of the pool; a limit counts up to four times the other amounts.
    """
    greatest = max(of.used, of.entitled, of.reserved)
    full = max(greatest, min(of.limit or 0.0, 4 * greatest))
    if full <= 0:
        return bars.bar(width, [], [bars.Reach("limit", 1.0)] if of.limit is not None else [])
    reaches = [("used", min(of.used, of.entitled)), ("borrowed", of.used), ("entitled", of.entitled)]
    marks = [("reserved", of.reserved)] if of.reserved else []
    marks += [("limit", of.limit)] if of.limit is not None else []
    return bars.bar(
        width,
        [bars.Reach(kind, amount / full) for kind, amount in reaches],
        [bars.Reach(kind, amount / full) for kind, amount in marks],
    )
