"""Code snapshots in: raw bytes under their own digest. Tasks read them through the agent's routes."""

from __future__ import annotations

import re

import msgspec

from oarlock.api import routes
from oarlock.spec import errors, users

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Stored(msgspec.Struct, frozen=True):
    digest: str
    bytes: int


def digest(call: routes.Call) -> str:
    """The digest in the path: a key of a fixed alphabet, never a path."""
    text = call.path["digest"]
    if not _DIGEST.fullmatch(text):
        raise errors.InvalidInput(
            "That is no digest.", path="digest", hint="It is `sha256:` and 64 hexadecimal digits, in lower case."
        )
    return text


async def look(call: routes.Call) -> None:
    if not await call.services.blobs.has(digest(call)):
        raise errors.NotFound("This snapshot is not here.", hint="Upload it: PUT /api/v1/blobs/DIGEST")


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
        summary="whether a snapshot is there",
    ),
    routes.Route(
        method="PUT",
        path="/api/v1/blobs/{digest}",
        handler=store,
        needs=users.Right.USER,
        summary="upload a snapshot; refused when the digest does not hold",
        body=bytes,
        answer=Stored,
        limit_bytes=10 << 30,
        long=True,
    ),
)
