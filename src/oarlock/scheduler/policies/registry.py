"""The policies by their names, as settings and pools name them."""

from __future__ import annotations

from collections.abc import Mapping

from oarlock.scheduler.policies import contract, fair, fifo, gandiva, gittins, goodput, las, optimus, priority
from oarlock.spec import errors
from oarlock.spec.hints import suggestions

_ALL: tuple[contract.Policy, ...] = (fifo, priority, fair, las, gittins, gandiva, goodput, optimus)

POLICIES: Mapping[str, contract.Policy] = {policy.name: policy for policy in _ALL}


def named(name: str) -> contract.Policy:
    """Return the policy of that name. Raises InvalidInput for an unknown name."""
    if name in POLICIES:
        return POLICIES[name]
    near = suggestions.nearest(name, POLICIES)
    raise errors.InvalidInput(
        f"there is no policy {name!r}",
        hint=f"Did you mean {near!r}?" if near else f"There are {', '.join(sorted(POLICIES))}.",
        path="policy",
    )
