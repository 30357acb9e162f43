"""The type of GPU that a running gang holds, and whether another place has a slower one.

A gang that is restarted for its own sake gains nothing on a slower type: no number of nodes or of tasks is worth it.
"""

from __future__ import annotations

from oarlock.scheduler.granting import drafts
from oarlock.scheduler.placement import placing
from oarlock.scheduler.speed import relative
from oarlock.spec import holdings, plans


def held_type(draft: drafts.Draft, running: plans.Running) -> str:
    """Return the type of the devices that a gang holds; empty where there are several types."""
    found = _types(draft, running.holdings)
    return found.pop() if len(found) == 1 else ""


def is_slower(draft: drafts.Draft, running: plans.Running, claims: holdings.Claims) -> bool:
    """Return whether the slowest device of a place is slower than that of the gang's present place.

    The speeds are the published ones (`relative.GENERAL`): all tasks wait for the slowest.
    """
    return _slowest(draft, claims) < _slowest(draft, running.holdings)


def place(
    draft: drafts.Draft, running: plans.Running, size: plans.Size, *, slower: bool = False
) -> holdings.Claims | None:
    """Return a place for the gang in its present place and the free space; None where there is none.

    Only with `slower` it may have a slower type of GPU.
    """
    gang, space, near = running.gang, draft.timeline.later, draft.facts.held(running).nodes
    with space.trial():
        space.give_back(running.holdings)
        claims = placing.place(gang, space, size, prefer=near)
        if claims is None or slower or not is_slower(draft, running, claims):
            return claims
        present = held_type(draft, running)
        return placing.place(plans.on(gang, present), space, size, prefer=near) if present else None


def _slowest(draft: drafts.Draft, claims: holdings.Claims) -> float:
    speeds = (relative.GENERAL.get(name, relative.UNKNOWN_SPEED) for name in _types(draft, claims))
    return min(speeds, default=relative.UNKNOWN_SPEED)


def _types(draft: drafts.Draft, claims: holdings.Claims) -> set[str]:
    found = set()
    for claim in claims:
        node = draft.space.nodes.get(claim.node)
        if node is not None and claim.devices:
            found |= {device.type for device in node.node.devices if device.index in claim.devices}
    return found
