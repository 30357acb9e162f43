"""The bars of pools as SVG: used, borrowed, entitled, reserved and limit, on one scale for each resource. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.spec import bodies
from oarlock.spec.cluster import pools, pooltrees

WIDTH = 240


class Bar(msgspec.Struct, frozen=True):
    """The amounts of one resource of a pool, as widths of at most `WIDTH`, and in words. None: no mark."""

    resource: str
    used: float
    borrowed: float
    entitled: float
    reserved: float | None
    limit: float | None
    words: str


def resources(tree: Sequence[bodies.PoolState], capacity: bodies.Amounts) -> list[str]:
    """Return the resources that the nodes have, or that a pool reserves, limits or needs."""
    spoken = [capacity, *(of for state in tree for of in (state.pool.reserve, state.pool.limit, state.demand))]
    return [name for name in pools.RESOURCES if any(of.get(name) for of in spoken)]


def scale(tree: Sequence[bodies.PoolState], capacity: bodies.Amounts, resource: str) -> float:
    """Return the amount at the right end of all bars. A greater limit stands at the end."""
    found = [capacity.get(resource, 0.0)]
    for state in tree:
        found += [pools.amounts(state.held)[resource], state.entitled.get(resource, 0.0)]
        found.append(state.pool.reserve.get(resource, 0.0))
    return max(found) or 1.0


def bar(state: bodies.PoolState, resource: str, full: float) -> Bar:
    used, entitled = pools.amounts(state.held)[resource], state.entitled.get(resource, 0.0)
    reserve, limit = state.pool.reserve.get(resource), state.pool.limit.get(resource)
    told = [f"{pooltrees.shown(resource, used)} used", f"{pooltrees.shown(resource, entitled)} entitled"]
    told += [f"{pooltrees.shown(resource, used - entitled)} borrowed"] if used > entitled else []
    told += [f"{pooltrees.shown(resource, reserve)} reserved"] if reserve else []
    told += [f"limit {pooltrees.shown(resource, limit)}"] if limit is not None else []
    return Bar(
        resource=resource,
        used=_width(min(used, entitled), full),
        borrowed=_width(max(0.0, used - entitled), full),
        entitled=_width(entitled, full),
        reserved=_width(reserve, full) if reserve else None,
        limit=_width(limit, full) if limit is not None else None,
        words=", ".join(told),
    )


def _width(amount: float, full: float) -> float:
    return WIDTH * min(1.0, amount / full)
