"""Files that a task sends to the server, where it does not share a file system with it: results and kept files."""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.api.agents import agents

LIMIT_BYTES = 1 << 40

Path = Annotated[str, msgspec.Meta(max_length=12_000)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class PathQuery(msgspec.Struct, frozen=True):
    path: Path


class OlderQuery(msgspec.Struct, frozen=True, kw_only=True):
    bytes: Amount
    files: Amount


class Stored(msgspec.Struct, frozen=True):
    """The size of the file, which is durable."""

    bytes: int


class Removed(msgspec.Struct, frozen=True):
    """The names of the earlier lives that were deleted."""

    removed: tuple[str, ...]


async def store(call: routes.Call) -> Stored:
    await agents.present(call)
    path = call.query(PathQuery).path
    return Stored(await call.services.received.put(call.task, path, call.chunks(), lambda: agents.present(call)))


async def delete_older(call: routes.Call) -> Removed:
    await agents.present(call)
    asked = call.query(OlderQuery)
    return Removed(tuple(await call.services.received.delete_older(call.task, asked.bytes, asked.files)))


ROUTES: tuple[routes.Route, ...] = (
    agents.route(
        "PUT",
        "/files",
        store,
        "a result or a kept file of the task, whole; answered once it is durable",
        query=PathQuery,
        body=bytes,
        answer=Stored,
        limit_bytes=LIMIT_BYTES,
        long=True,
    ),
    agents.route(
        "POST",
        "/files/older",
        delete_older,
        "deletion of kept files of the task's earlier lives that are over its limits",
        query=OlderQuery,
        answer=Removed,
    ),
)
