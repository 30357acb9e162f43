"""Objects of jobs in a cluster, beside their tasks: the way to find those that a server made late, and to remove them.

A server that stood still in a launch, and wakes when another one leads, may send one more request. A pod that it makes
is observed as a task; every other object is found here.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from oarlock.backends import backends
from oarlock.spec import errors


class Remain(msgspec.Struct, frozen=True, kw_only=True):
    """An object that was made for an attempt of the job, or for one of its requests for nodes: `number` counts them."""

    plural: str  # its kind, as the cluster calls it
    name: str
    uid: str
    job: str
    number: int
    of_attempt: bool


class Remains(Protocol):
    async def there(self) -> list[Remain]:
        """Return all such objects of this installation. Raises Unavailable."""
        ...

    async def remove(self, remain: Remain, still: backends.Still) -> None:
        """Remove the object with this UID. One that is gone, or has another UID now, counts as removed.

        Raises StaleEpoch where `still` says no.
        """
        ...


class Memory:
    """Objects in memory. A test changes `items`; `fails` has the names of those that cannot be removed."""

    def __init__(self) -> None:
        self.items: dict[str, Remain] = {}  # by UID
        self.fails: set[str] = set()

    def put(self, job: str, number: int, *, of_attempt: bool = True) -> Remain:
        name = f"{job}-{number}-{len(self.items)}"
        made = Remain(
            plural="secrets" if of_attempt else "podtemplates",
            name=name,
            uid=f"u-{name}",
            job=job,
            number=number,
            of_attempt=of_attempt,
        )
        self.items[made.uid] = made
        return made

    async def there(self) -> list[Remain]:
        return list(self.items.values())

    async def remove(self, remain: Remain, still: backends.Still) -> None:
        backends.check(still)
        if remain.name in self.fails:
            raise errors.Unavailable(f"{remain.name} cannot be removed", hint="It is tried again.")
        self.items.pop(remain.uid, None)
