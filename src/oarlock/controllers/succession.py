"""The succession of leaders at a server's start.

In a home's own database the last leader is gone once this server has the home's lock, and its term need not run out. A
database that homes share is another matter: a local backend cannot see the tasks of another home, and would take them
for lost.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

from oarlock.spec import errors
from oarlock.store import stores


def home_id(home: Path) -> str:
    """Return the id that tells this home from others that use the same database."""
    return hashlib.sha256(f"{socket.gethostname()}:{home}".encode()).hexdigest()[:12]


def holder(home: str, instance: str) -> str:
    """Return the name under which one process leads.

    `home` tells homes apart, `instance` processes: neither has a colon.
    """
    return f"{home}:{instance}"


async def succeed(store: stores.Store, home: str, *, shared: bool, standby: bool) -> None:
    """Make way for a leader of `home`.

    Raises Conflict where another home has led a shared database, unless we stand by.
    """
    leader = await store.read(lambda view: view.leader())
    if leader is None:
        return
    if not shared:
        await store.resign(leader.holder, leader.epoch)
    elif leader.holder.partition(":")[0] != home and not standby:
        raise errors.Conflict(
            "This database was led from another home, whose tasks a server here cannot see.",
            hint="Use another database; or, once nothing of that home runs, start with OARLOCK_STANDBY=true.",
        )
