"""The ports that this home's tasks may be given, out of a range from which the kernel gives none by itself.

Homes on one machine must not hand out the same port. Each claims a run of blocks, beginning where its hash points, so
that it finds the same ones after a restart. The claim is the server's: ports in use while it is down are not claimed,
and then only the agents' probing at registration keeps a port from being used twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

FIRST, LAST = 20_000, 29_999
"""Below most systems' ephemeral range, and below Kubernetes' node ports."""

BLOCK = 250
MIN_ROOM = 2_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

Claim = Callable[[str], int | None]


class Claimed:
    """Ports [first, last], held until `close`.

    `certain` is False where no free run was left and another home may have the same.
    """

    def __init__(self, first: int, last: int, claims: list[int], *, certain: bool) -> None:
        self.first, self.last, self.certain = first, last, certain
        self._claims = claims

    def split(self, parts: int) -> list[tuple[int, int]]:
        """Return as many ranges of equal size: nodes that share the machine share no port."""
        size = (self.last - self.first + 1) // parts
        return [(self.first + part * size, self.first + (part + 1) * size - 1) for part in range(parts)]

    def close(self) -> None:
        while self._claims:
            os.close(self._claims.pop())


def ephemeral() -> tuple[int, int]:
    try:
        low, high = _EPHEMERAL.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def room(low: int, high: int) -> tuple[int, int]:
    """Return the range to take from, given the ephemeral one [low, high]; else the usual one."""
    for first, last in ((FIRST, min(LAST, low - 1)), (10_000, min(LAST, low - 1)), (max(high + 1, FIRST), 65_535)):
        if last - first + 1 >= MIN_ROOM:
            return first, last
    return FIRST, LAST


def take(home_hash: str, count: int, claim: Claim, within: tuple[int, int] | None = None) -> Claimed:
    """Return a free run of at least `count` ports."""
    first, last = within or room(*ephemeral())
    blocks = (last - first + 1) // BLOCK
    wanted = min(blocks, -(-count // BLOCK))
    start = int(home_hash, 16) % blocks
    for begin in ((start + step) % blocks for step in range(blocks)):
        if begin + wanted > blocks:
            continue
        claims = _claim_run(range(begin, begin + wanted), first, claim)
        if claims is not None:
            return Claimed(first + begin * BLOCK, first + (begin + wanted) * BLOCK - 1, claims, certain=True)
    begin = min(start, blocks - wanted)
    return Claimed(first + begin * BLOCK, first + (begin + wanted) * BLOCK - 1, [], certain=False)


def _claim_run(run: range, first: int, claim: Claim) -> list[int] | None:
    claims: list[int] = []
    for block in run:
        try:
            held = claim(f"ports-{first + block * BLOCK}")
        except OSError:
            held = None
        if held is None:
            for fd in claims:
                os.close(fd)
            return None
        claims.append(held)
    return claims
