"""Facts about the server, and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from oarlock.api import routes
from oarlock.api.process import homefolder
from oarlock.spec import bodies
from oarlock.spec.access import users
from oarlock.store.sql import filesystems


class Ending(msgspec.Struct, frozen=True):
    """The server shuts down."""

    ending: bool = True


async def show(call: routes.Call) -> bodies.Server:
    about, user = call.services.about, call.access.user
    return bodies.Server(
        version=about.version,
        backend=about.backend,
        home=about.home,
        url=about.url,
        local=about.local,
        started_at=about.started_at,
        user=user.name,
        right=user.right,
        capabilities=tuple(sorted(about.capabilities)),
        currency=about.currency,
        seq=await call.services.wakes.last_seq(),
        now=call.services.clock(),
    )


SHARED_MEMORY = "/dev/shm"


def _space(path: str) -> tuple[int, int]:
    """Return the size and the free space of the disk of a path, in bytes."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def file_skew_s(home: str, clock: Callable[[], float]) -> float | None:
    """Return how far the time of a new file is ahead of the clock; None where the home takes no file."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=home) as file:
        file.write(b"oarlock")
        file.flush()
        return os.fstat(file.fileno()).st_mtime - clock()
    return None


def _machine(home: str) -> dict[str, Any]:
    """Return the facts about the machine, as `bodies.ServerState` has them."""
    (disk, free), (shared, _) = _space(home), _space(SHARED_MEMORY)
    kind = ""
    with contextlib.suppress(OSError):
        kind = filesystems.kind(Path(home), filesystems.MOUNTS.read_text())
    readable = {}
    for name in homefolder.SECRET_FILES:
        with contextlib.suppress(OSError):
            mode = Path(home, name).stat().st_mode & 0o777
            if mode & homefolder.OTHERS:
                readable[name] = mode
    told: dict[str, Any] = {"disk_bytes": disk, "disk_free_bytes": free, "shared_memory_bytes": shared}
    return {**told, "file_system": kind, "readable": readable, "file_skew_s": file_skew_s(home, time.time)}


async def state(call: routes.Call) -> bodies.ServerState:
    services = call.services
    leader, count = await call.access.administered(lambda view: (view.leader(), len(view.users())))
    machine = await asyncio.to_thread(_machine, services.about.home)
    return bodies.ServerState(
        settings=dict(services.settings),
        problems=await services.health(),
        leader=leader.holder if leader is not None else "",
        epoch=leader.epoch if leader is not None else 0,
        expires_at=leader.expires_at if leader is not None else None,
        users=count,
        programs=await services.examine() if services.examine is not None else None,
        **machine,
    )


async def shutdown(call: routes.Call) -> Ending:
    call.services.report("shutdown_asked", {"by": call.access.user.name})
    call.services.shutdown()
    return Ending()


ROUTES: tuple[routes.Route, ...] = (
    routes.look("/api/v1/server", show, "facts about the server, and the user of the request", bodies.Server),
    routes.Route(
        method="GET",
        path="/api/v1/server/state",
        handler=state,
        needs=users.Right.ADMIN,
        summary="settings, health and leader of the server",
        answer=bodies.ServerState,
    ),
    routes.Route(
        method="POST",
        path="/api/v1/shutdown",
        handler=shutdown,
        needs=users.Right.ADMIN,
        summary="end the server; running jobs go on",
        answer=Ending,
        status=202,
    ),
)
