"""The effects of a change of a pool, in lines: entitlements before and after; jobs that start, give way or wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.display import amounts
from oarlock.spec import bodies

MOST_NAMED = 20
UNPLANNED = "The cluster is too large to plan on demand: the jobs that would start or give way are not known."
WORDS = (
    ("starts", "would start at once"),
    ("stops", "would give way and wait again"),
    ("shrinks", "would go on with another number of tasks"),
)


def lines(found: bodies.PoolPreview) -> Iterator[str]:
    """Yield a line for each entitlement that changes, then one for each kind of affected jobs, then one for each that
    would wait, with the reason.
    """
    changes = list(entitlements(found))
    for pool, resource, before, after in changes:
        was, will = (amounts.of_resource(resource, value) for value in (before, after))
        yield f"{pool} would be entitled to {will} (now {was})."
    if not changes:
        yield "No entitlement changes."
    if not found.planned:
        yield UNPLANNED
        return
    affected = [(word, getattr(found, field)) for field, word in WORDS if getattr(found, field)]
    for word, tenants in affected:
        yield f"{amounts.counted(len(tenants), 'job')} {word}: {_named(tenants)}."
    if not affected:
        yield "No job would start or give way at once."
    for one in found.waits[:MOST_NAMED]:
        yield f"{_named([one])} would wait. {one.refusal.message}"
    if found.waiting > MOST_NAMED:
        yield f"{amounts.counted(found.waiting - MOST_NAMED, 'more job')} would wait."


def entitlements(found: bodies.PoolPreview) -> Iterator[tuple[str, str, float, float]]:
    """Yield pool, resource, and the entitlement before and after, where the two differ."""
    before = {state.pool.name: state.entitled for state in found.before}
    for state in found.after:
        earlier = before.get(state.pool.name, {})
        for resource, value in state.entitled.items():
            if abs(value - earlier.get(resource, 0.0)) > 1e-6:
                yield state.pool.name, resource, earlier.get(resource, 0.0), value


def _named(tenants: Sequence[bodies.Tenant]) -> str:
    names = [f"{one.name} ({one.user}, {one.pool})" for one in tenants[:MOST_NAMED]]
    more = [f"{len(tenants) - MOST_NAMED} more"] if len(tenants) > MOST_NAMED else []
    return ", ".join([*names, *more])
