"""The parameter servers of this attempt: where they listen, and the token that lets this process in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "OARLOCK_SERVERS"
TOKEN = "OARLOCK_SERVERS_TOKEN"


@dataclass(frozen=True)
class Addresses:
    """The addresses, HOST:PORT, in the order of the servers."""

    servers: tuple[str, ...]
    token: str
    replaced: bool = True  # whether the platform starts a server again that died

    def newest(self, number: int) -> tuple[str, int]:
        """Return host and port of a server. One that was replaced has another address, which the agent announces."""
        servers = _announced(os.environ) or self.servers
        host, _, port = servers[number if number < len(servers) else 0].rpartition(":")
        return host.strip("[]"), int(port)

    def is_replaced(self, number: int, address: tuple[str, int]) -> bool:
        """Return whether the agent announces another server in the place of that with this address."""
        return self.replaced and bool(_announced(os.environ)) and self.newest(number) != address


def given(environ: Mapping[str, str]) -> Addresses | None:
    """Return the servers of the job's role `ps`, where it has that role."""
    servers, token = environ.get(VARIABLE), environ.get(TOKEN)
    return Addresses(tuple(servers.split(",")), token) if servers and token else None


def meets(environ: Mapping[str, str]) -> bool:
    """Return whether the workers meet at the first server from the beginning: the job file names the strategy `ps`.
    Where it leaves the choice open, the successor of one that died alone does too: its gang has chosen the servers.
    """
    try:
        kind = json.loads(environ.get("OARLOCK_STRATEGY") or "{}").get("kind")
        is_successor = int(environ.get("OARLOCK_INCARNATION") or 1) > 1
        return kind == "ps" or (is_successor and kind in (None, "auto"))
    except (ValueError, AttributeError):
        return True  # the choice of the strategy refuses it, with a message


def _announced(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of the newest round, or nothing where there is only one."""
    report = environ.get("OARLOCK_REPORT")
    if not report:
        return ()
    try:
        told = json.loads((Path(report) / "rendezvous.json").read_bytes())
        env = told["processes"][int(environ.get("OARLOCK_PROCESS", "0"))]["env"]
        return tuple(str(env[VARIABLE]).split(","))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ()
