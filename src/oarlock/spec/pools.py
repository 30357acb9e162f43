"""Resource pools: a tree, jobs in its leaves."""

from __future__ import annotations

import msgspec

DEFAULT = "default"


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Per resource (`cpus`, `memory`, `gpus`) a reservation, a limit (absent: none) and a share. Today's policy reads
    the limits.
    """

    name: str
    parent: str | None = None
    reserve: dict[str, float] = {}
    limit: dict[str, float] = {}
    share: float = 1.0
    version: int = 0
