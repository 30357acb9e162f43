"""Files of a job: listed as one tree of keys, and sent whole or in part.

A key is text in the query, never a path of the server; `oarlock.data.jobfiles` finds its file. Files that the job file
sends elsewhere (an object store, another directory) are listed by their place only: the server has no access to it, and
the user's own client reads them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from starlette import responses, types

from oarlock.api import routes
from oarlock.data import filekeys, storage
from oarlock.spec import bodies, errors, jobs

MAX_PAGE = 10_000
CHUNK_BYTES = 1 << 18
MAX_KEY = 12_000
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?")

Key = Annotated[str, msgspec.Meta(max_length=MAX_KEY)]


class FilesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    under: Key = ""  # a file, or a folder with everything below it
    after: Key = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 1000


class FileQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    path: Key = ""


async def show_all(call: routes.Call) -> bodies.FileList:
    query = call.query(FilesQuery)
    job = await call.access.job(call.path["job"])
    under = query.under.strip("/")
    places = await _checkpoints(call, job) if filekeys.is_under(under, "checkpoints") or not under else []
    found = [one for one in await call.services.files.listing(job.id, places) if filekeys.is_under(one.path, under)]
    there = tuple(
        one for one in elsewhere(job) if filekeys.is_under(one.path, under) or filekeys.is_under(under, one.path)
    )
    if under and not found and not there:
        hint = f"See its files: oarlock files {call.path['job']}"
        raise errors.NotFound(f"{job.name} has no file `{under[:200]}`.", hint=hint)
    page = [one for one in found if one.path > query.after][: query.limit + 1]
    more = len(page) > query.limit
    page = page[: query.limit]
    after = page[-1].path if more else None
    return bodies.FileList(tuple(page), after, len(found), sum(one.bytes for one in found), there)


async def send(call: routes.Call) -> responses.Response:
    """Send the file, or the part that `Range` requests. With `If-Range`, a file that has changed is sent whole."""
    job = await call.access.job(call.path["job"])
    path = call.query(FileQuery).path.strip("/")
    places = await _checkpoints(call, job) if path.startswith("checkpoints/") else []
    file = await call.services.files.open(job.id, path, places)
    begin, end = _span(call, file)
    headers = {
        "Content-Length": str(end - begin),
        "ETag": f'"{file.version}"',
        "Accept-Ranges": "bytes",
    }
    if end - begin == file.size_bytes:
        return Sending(file, begin, end, 200, headers)
    there = f"{begin}-{end - 1}" if end > begin else "*"
    headers["Content-Range"] = f"bytes {there}/{file.size_bytes}"
    return Sending(file, begin, end, 206, headers)


class Sending(responses.StreamingResponse):
    """A part of a file as a response, which always closes the file."""

    def __init__(self, file: storage.OpenFile, begin: int, end: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(_chunks(file, begin, end), status, headers, "application/octet-stream")
        self._file = file

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


def elsewhere(job: jobs.Job) -> list[bodies.Elsewhere]:
    """Return the parts of the tree that the job file sends to places of their own."""
    places = (("results", job.spec.results), ("checkpoints", job.spec.checkpoint.to))
    found = [bodies.Elsewhere(path, url) for path, url in places if url is not None]
    return [
        msgspec.structs.replace(one, url=f"{one.url.rstrip('/')}/{job.id}") if one.path == "checkpoints" else one
        for one in found
    ]


async def _checkpoints(call: routes.Call, job: jobs.Job) -> list[str]:
    return [checkpoint.path for checkpoint in await call.access.checkpoints(job.id)]


def _span(call: routes.Call, file: storage.OpenFile) -> tuple[int, int]:
    """Return the first byte and the end of the requested part: one range, or else the whole file."""
    asked = _RANGE.fullmatch(call.headers.get("range", ""))
    version = call.headers.get("if-range")
    if asked is None or (version is not None and version != f'"{file.version}"'):
        return 0, file.size_bytes
    begin = int(asked[1])
    end = min(int(asked[2]) + 1 if asked[2] else file.size_bytes, file.size_bytes)
    if begin > file.size_bytes or end < begin:
        file.close()
        raise errors.InvalidInput(
            f"The file has {file.size_bytes} bytes.", path="Range", hint="Request a part within the file."
        )
    return begin, end


async def _chunks(file: storage.OpenFile, begin: int, end: int) -> AsyncIterator[bytes]:
    while begin < end:
        chunk = await file.read(begin, min(CHUNK_BYTES, end - begin))
        if not chunk:
            raise ConnectionError("the file became shorter meanwhile: the client sees it by the announced length")
        begin += len(chunk)
        yield chunk


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/jobs/{job}/files",
        show_all,
        "the files of the job as one tree: the working directory's, results, checkpoints and logs",
        bodies.FileList,
        query=FilesQuery,
    ),
    routes.look(
        "/api/v1/jobs/{job}/file",
        send,
        "one of these files; `Range` and `If-Range` are understood",
        bytes,
        query=FileQuery,
        media="application/octet-stream",
        others={206: "the part that `Range` asks for"},
        headers=("Range", "If-Range"),
        long=True,
    ),
)
