"""The installation's own place for checkpoints in an object store, as the agents of tasks use it.

The server lists and removes objects for a task, and signs a URL for each one that the task reads or writes. A task
writes the checkpoints of its own attempt, and reads and removes those of its own job. It also reads a checkpoint of
another job from which its own job continues. The token of the task decides which job that is, never the request.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from oarlock.api import routes
from oarlock.api.agents import agents
from oarlock.data.checkpoints import signing
from oarlock.spec import attempts, errors
from oarlock.spec.checkpoints import checkpointlocations

MAX_PARTS = 10_000
MAX_KEYS = 100_000
LIMIT_BYTES = 40 << 20
_PATH = re.compile(
    r"(?P<job>[^/]+)(/(?P<name>attempt-(?P<attempt>\d{1,9})-round-\d{1,9}-step-\d{1,19})(/(?P<file>.+))?)?"
)
_FILE = re.compile(r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,255}")

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Upload = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]


class ObjectsQuery(msgspec.Struct, frozen=True):
    """`path` is JOB, JOB/CHECKPOINT or JOB/CHECKPOINT/FILE."""

    path: Key


class Objects(msgspec.Struct, frozen=True):
    """The objects below the path, or the object itself."""

    objects: tuple[signing.StoredObject, ...]


class UrlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One object, and the request for which the URL is wanted. `part` belongs to `upload`, and counts from 1."""

    key: Key
    use: Literal["read", "write", "part"]
    upload: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    part: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1


class SignedUrl(msgspec.Struct, frozen=True):
    """A URL that is good for this request alone, which has to begin within `expires_s`."""

    url: str
    expires_s: int = signing.EXPIRES_S


class UploadRequest(msgspec.Struct, frozen=True):
    key: Key


class UploadBegun(msgspec.Struct, frozen=True):
    upload: str


class UploadEnd(msgspec.Struct, frozen=True):
    """The ETags of all parts, in their order."""

    key: Key
    upload: Upload
    etags: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=200)], ...], msgspec.Meta(max_length=MAX_PARTS)]


class Removal(msgspec.Struct, frozen=True):
    keys: Annotated[tuple[Key, ...], msgspec.Meta(max_length=MAX_KEYS)]


class Done(msgspec.Struct, frozen=True):
    done: bool = True


async def listed(call: routes.Call) -> Objects:
    objects, path = await _place(call), call.query(ObjectsQuery).path
    await _may_read(call, path)
    return Objects(tuple(await objects.listed(path)))


async def url(call: routes.Call) -> SignedUrl:
    objects, told = await _place(call), call.body(UrlRequest)
    if told.use == "read":
        await _may_read(call, _object(told.key))
        return SignedUrl(await objects.url(told.key, signing.READ))
    _may_write(call.task, _object(told.key))
    if told.use == "write":
        return SignedUrl(await objects.url(told.key, signing.WRITE))
    if not told.upload:
        raise errors.InvalidInput("A part belongs to an upload.", path="upload", hint="Begin one before.")
    return SignedUrl(await objects.url(told.key, signing.PART, UploadId=told.upload, PartNumber=told.part))


async def begin(call: routes.Call) -> UploadBegun:
    objects, key = await _place(call), _object(call.body(UploadRequest).key)
    _may_write(call.task, key)
    return UploadBegun(await objects.begin(key))


async def end(call: routes.Call) -> Done:
    objects, told = await _place(call), call.body(UploadEnd)
    _may_write(call.task, _object(told.key))
    await objects.end(told.key, told.upload, told.etags)
    return Done()


async def remove(call: routes.Call) -> Done:
    objects, told = await _place(call), call.body(Removal)
    for key in told.keys:
        if _parts(_object(key))["job"] != call.task.job:
            raise _foreign(key)
    await objects.remove(told.keys)
    return Done()


async def _place(call: routes.Call) -> signing.SignedObjects:
    """Return the place, for a task that is present. Raises StaleTask, and NotFound where there is no place."""
    await agents.present(call)
    objects = call.services.checkpoints.objects
    if objects is None:
        raise errors.NotFound(
            "This installation has no place for checkpoints in an object store.",
            hint="An administrator sets `checkpoint_url` in [kubernetes].",
        )
    return objects


def _parts(path: str) -> dict[str, str | None]:
    found = _PATH.fullmatch(path)
    if found is None or (found["file"] is not None and _FILE.fullmatch(found["file"]) is None):
        raise errors.InvalidInput(
            f"{path[:200]!r} is not a path of checkpoints.", path="path", hint="It is JOB/CHECKPOINT/FILE."
        )
    return found.groupdict()


def _object(key: str) -> str:
    """Return the key. Raises InvalidInput where it is not that of an object."""
    if _parts(key)["file"] is None:
        raise errors.InvalidInput(f"{key[:200]!r} is not an object.", path="key", hint="It is JOB/CHECKPOINT/FILE.")
    return key


async def _may_read(call: routes.Call, path: str) -> None:
    parts = _parts(path)
    if parts["job"] == call.task.job:
        return
    checkpoint = f"{checkpointlocations.STORED}/{parts['job']}/{parts['name']}"
    listed = await call.services.store.read(lambda view: view.checkpoints(call.task.job))
    if parts["name"] is None or all(one.path != checkpoint for one in listed):
        raise _foreign(path)


def _may_write(task: attempts.TaskKey, key: str) -> None:
    """Raise Forbidden unless the checkpoint is of the task's own attempt: nothing changes those of earlier ones."""
    parts = _parts(key)
    if parts["job"] != task.job or int(parts["attempt"] or 0) != task.attempt:
        raise _foreign(key)


def _foreign(path: str) -> errors.Forbidden:
    return errors.Forbidden(
        f"{path[:200]!r} is not of this task's job and attempt.", hint="A task uses the checkpoints of its own job."
    )


ROUTES: tuple[routes.Route, ...] = (
    agents.route(
        "GET",
        "/checkpoints/objects",
        listed,
        "objects of the installation's place for checkpoints, below a path",
        query=ObjectsQuery,
        answer=Objects,
    ),
    agents.route(
        "POST",
        "/checkpoints/objects/url",
        url,
        "a signed URL by which the task reads or writes one object",
        body=UrlRequest,
        answer=SignedUrl,
    ),
    agents.route(
        "POST",
        "/checkpoints/objects/uploads",
        begin,
        "begin the upload of an object in parts",
        body=UploadRequest,
        answer=UploadBegun,
    ),
    agents.route(
        "POST",
        "/checkpoints/objects/uploads/end",
        end,
        "make the object of the parts that were sent",
        body=UploadEnd,
        answer=Done,
        limit_bytes=LIMIT_BYTES,
    ),
    agents.route(
        "POST",
        "/checkpoints/objects/removal",
        remove,
        "remove objects of the task's job",
        body=Removal,
        answer=Done,
        limit_bytes=LIMIT_BYTES,
    ),
)
