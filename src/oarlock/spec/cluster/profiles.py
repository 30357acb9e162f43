"""The part of an administrator's profiles that decides on which nodes a gang may be placed.

A profile holds for the jobs of some pools and of some users. The constraints of a gang are those of all its profiles
together. A gang without any constraint may be placed on each open node that has no taint.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oarlock.spec.cluster import nodes


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The taints that pods tolerate (`KEY` or `KEY=VALUE`), the labels that their nodes must have, and the claims of
    volumes that they mount, of devices (`nodes.DEVICES`) and of extended resources (`nodes.RESOURCES`).
    """

    pools: tuple[str, ...] = ()  # empty: all
    users: tuple[str, ...] = ()  # owners of jobs; empty: all
    tolerate: tuple[str, ...] = ()
    node_labels: dict[str, str] = {}
    claims: tuple[str, ...] = ()

    def covers(self, pool: str, owner: str) -> bool:
        """Return whether the profile holds for a job of this owner in this pool."""
        return (not self.pools or pool in self.pools) and (not self.users or owner in self.users)


def constraints(
    profiles: Iterable[Profile], pool: str, owner: str, claims: Iterable[str] = ()
) -> nodes.Constraints | None:
    """Return the constraints of a gang that mounts these claims; None where neither it nor its profiles have any."""
    mounted = set(claims)
    tolerates: set[str] = set()
    labels: dict[str, str] = {}
    for one in profiles:
        if one.covers(pool, owner):
            tolerates.update(one.tolerate)
            labels |= one.node_labels
            mounted.update(one.claims)
    if not tolerates and not labels and not mounted:
        return None
    return nodes.Constraints(
        tolerates=tuple(sorted(tolerates)), labels=tuple(sorted(labels.items())), claims=tuple(sorted(mounted))
    )
