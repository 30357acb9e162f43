"""Why a gang does not run now, as a value with numbers in it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Code(StrEnum):
    NO_CAPACITY = "no_capacity"  # it would fit an emptier cluster: the holders of its resources are named
    BEHIND = "behind"  # other gangs are before it, and the free resources are kept for them
    RESERVED = "reserved"  # it would fit now, and would delay a gang that came first: that one's place is named
    OUTRANKED = "outranked"  # the policy gives the resources to others for now
    STOPPING = "stopping"  # its place is being cleared: those that hold it are being stopped for it
    POOL_LIMIT = "pool_limit"  # the pool's limit is used up
    POOL_SHARE = "pool_share"  # its pool has its entitlement, and others want the rest
    NOT_RESERVED = "not_reserved"  # it must not be preempted, and its pool's reservation is used up
    NEVER_FITS = "never_fits"  # no state of the declared nodes could hold it
    NEVER_IN_POOL = "never_in_pool"  # the pool's limit is below its need
    NO_SUCH_DEVICE = "no_such_device"  # no declared node has the GPU type or memory
    NO_NODES = "no_nodes"  # no node is ready
    BACKING_OFF = "backing_off"  # a failure of the platform; the next try is at a known time


NEVER = frozenset({Code.NEVER_FITS, Code.NEVER_IN_POOL, Code.NO_SUCH_DEVICE})


class Holder(msgspec.Struct, frozen=True, gc=False):
    """A job that holds resources which the refused one needs. `name` is the public one (`spec.access.privacy`); `job`,
    the id, is "" where it is hidden.
    """

    job: str
    name: str
    amount: dict[str, float]
    owner: str = ""
    pool: str = ""


class Refusal(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`needed`, `free` and `total` map a resource (`cpus`, `memory`, `gpus`) to an amount: cores, bytes, devices.

    `message` is one plain sentence made of those numbers; `change` the smallest change that would admit the gang.
    """

    code: Code
    message: str
    needed: dict[str, float] = {}
    free: dict[str, float] = {}
    total: dict[str, float] = {}
    holders: tuple[Holder, ...] = ()
    ahead: int = 0  # how many wait before it; grows and shrinks without being a change
    change: str = ""
    not_before: float | None = None
    until: float | None = None  # Unix seconds at which the earlier gang is expected to take its reserved place
    kept: tuple[str, ...] = ()  # nodes that are being kept, or cleared, for it until enough of them is free

    def same_kind(self, other: Refusal | None) -> bool:
        """Return whether nothing has materially changed since `other`.

        Reason, shortage and holders are the same, and so is the place that is being cleared for it.
        """
        return (
            other is not None
            and (self.code, self.needed, self.free) == (other.code, other.needed, other.free)
            and [one.job for one in self.holders] == [one.job for one in other.holders]
            and (self.code is not Code.STOPPING or self.kept == other.kept)
        )
