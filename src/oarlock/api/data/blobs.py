"""Uploads of code snapshots, named by their digests. Tasks read them through the agent's routes."""

from __future__ import annotations

import re

import msgspec

from oarlock.api import routes
from oarlock.spec import errors
from oarlock.spec.access import users

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Stored(msgspec.Struct, frozen=True):
    """A stored snapshot and its size."""

    digest: str
    bytes: int


def digest(call: routes.Call) -> str:
    """Return the digest in the path, a key of a fixed alphabet. Raises InvalidInput."""
    text = call.path["digest"]
    if not _DIGEST.fullmatch(text):
        raise errors.InvalidInput(
            "The path has no valid digest.", path="digest", hint="Use `sha256:` and 64 lower-case hexadecimal digits."
        )
    return text


async def look(call: routes.Call) -> None:
    if not await call.services.blobs.has(digest(call)):
        raise errors.NotFound("The server does not have this snapshot.", hint="Upload it: PUT /api/v1/blobs/DIGEST")


async def store(call: routes.Call) -> Stored:
    name = digest(call)
    length = await call.services.blobs.put(name, call.chunks(), limit_bytes=call.services.snapshot_limit_bytes)
    return Stored(name, length)


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="HEAD",
        path="/api/v1/blobs/{digest}",
        handler=look,
        needs=users.Right.USER,
        summary="whether the server has a snapshot",
    ),
    routes.Route(
        method="PUT",
        path="/api/v1/blobs/{digest}",
        handler=store,
        needs=users.Right.USER,
        summary="upload a snapshot; a wrong digest is refused",
        body=bytes,
        answer=Stored,
        limit_bytes=10 << 30,
        long=True,
    ),
)
