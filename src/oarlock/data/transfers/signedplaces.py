"""The installation's own place for checkpoints, `oarlock:checkpoints/JOB/NAME`, as a task's helper reads and writes it.

The server has the credentials of the object store. For each object it gives a signed URL, and the bytes go straight
between this process and the store. The server knows the task by its token, and gives out nothing of another job: the
task's own processes may write the path of a request, too.

`SignedPlace` has the methods of fsspec's file systems that the commands of the helper use.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import msgspec

from oarlock.data.transfers import patience, schemes, serverplaces
from oarlock.spec import errors

if TYPE_CHECKING:
    import httpx

PART_BYTES = 256 << 20
"""A larger file is sent in parts of this size. S3 takes 10,000 of them."""
BLOCK_BYTES = 1 << 20
ANSWER_S = 120.0
"""The longest silence within one request. A slow store answers late, once it has written all of a part."""
CONNECT_S = 15.0
_LASTING = frozenset({400, 401, 403, 405, 411, 413})


class _Object(msgspec.Struct, frozen=True):
    key: str
    bytes: int
    version: str


class _Objects(msgspec.Struct, frozen=True):
    objects: tuple[_Object, ...]


class Blocks:
    """The content of an object, to be read from its beginning to its end."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def read(self, size: int = -1) -> bytes:
        """Return the next block, whatever its size; nothing at the end."""
        return next(self._blocks, b"")


class SignedPlace:
    """The place of the task's checkpoints. Paths are the keys: JOB/NAME/FILE. Threads may share it."""

    def __init__(
        self,
        task: str | None,
        sleep: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        self._server = serverplaces.ServerPlace(schemes.SIGNED, task, sleep)
        self._sleep, self._monotonic = sleep, monotonic
        # No connection is kept: the process ends soon, and the store may be slow to take the next file.
        self._http = httpx.Client(
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
            transport=transport,
        )

    def invalidate_cache(self) -> None:
        """Do nothing: nothing is remembered."""

    def find(self, root: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return the facts of all objects below the path, by key."""
        return {key: info for key, info in self._listed(root.rstrip("/")).items() if key != root}

    def info(self, path: str) -> dict[str, Any]:
        """Return the facts of the object, or of the folder. FileNotFoundError."""
        found = self._listed(path.rstrip("/"))
        if path in found:
            return found[path]
        if not found:
            raise FileNotFoundError(path)
        return {"name": path, "type": "directory", "size": 0}

    def cat_file(self, path: str) -> bytes:
        return b"".join(self._read(path))

    @contextlib.contextmanager
    def open(self, path: str, mode: str = "rb", **_: object) -> Iterator[Blocks]:
        with contextlib.closing(self._read(path)) as blocks:
            yield Blocks(blocks)

    def get_file(self, path: str, target: str, callback: Any) -> None:
        with contextlib.closing(self._read(path)) as blocks, Path(target).open("wb") as file:
            for block in blocks:
                file.write(block)
                callback.relative_update(len(block))

    def put_file(self, source: str, path: str, callback: Any) -> None:
        with Path(source).open("rb") as file:
            size = file.seek(0, 2)
            if size <= PART_BYTES:
                self._put({"key": path, "use": "write"}, file, 0, size)
                callback.relative_update(size)
                return
            upload = self._ask("/uploads", {"key": path})["upload"]
            etags = []
            for number, start in enumerate(range(0, size, PART_BYTES), 1):
                length = min(PART_BYTES, size - start)
                wanted = {"key": path, "use": "part", "upload": upload, "part": number}
                etags.append(self._put(wanted, file, start, length))
                callback.relative_update(length)
            self._ask("/uploads/end", {"key": path, "upload": upload, "etags": etags})

    def rm(self, paths: Iterable[str]) -> None:
        self._ask("/removal", {"keys": list(paths)})

    def _listed(self, path: str) -> dict[str, dict[str, Any]]:
        raw = self._server.ask("GET", f"/checkpoints/objects?path={quote(path, safe='')}")
        found = msgspec.json.decode(raw, type=_Objects).objects
        return {
            one.key: {"name": one.key, "type": "file", "size": one.bytes, "ETag": one.version or None} for one in found
        }

    def _ask(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        raw = self._server.ask("POST", f"/checkpoints/objects{route}", msgspec.json.encode(body))
        return msgspec.json.decode(raw, type=dict[str, Any])

    def _waiting(self) -> patience.Patience:
        return patience.Patience(self._monotonic, self._sleep)

    def _read(self, path: str) -> Generator[bytes, None, None]:
        """Yield the content. An answer that breaks off is gone on with behind the bytes that have come."""
        import httpx

        came, version, waiting = 0, "", self._waiting()
        while True:
            headers = {"Range": f"bytes={came}-"} if came else {}
            headers |= {"If-Match": version} if came and version else {}
            with self._tried({"key": path, "use": "read"}, "GET", None, headers, waiting) as answer:
                version, passed = answer.headers.get("etag", ""), came if answer.status_code != 206 else 0
                try:
                    for block in answer.iter_raw():
                        new = block[passed:]
                        passed -= len(block) - len(new)
                        came += len(new)
                        if new:
                            waiting.moved(came)
                            yield new
                    return
                except httpx.TransportError as error:
                    why = type(error).__name__
            if waiting.is_over:
                raise _dead("GET", path, why, waiting)
            waiting.pause()

    def _put(self, wanted: dict[str, Any], file: BinaryIO, start: int, length: int) -> str:
        """Send a part of the file; return the store's ETag."""
        waiting = self._waiting()

        def blocks() -> Iterator[bytes]:
            file.seek(start)
            left = length
            while left:
                block = file.read(min(BLOCK_BYTES, left))
                if not block:
                    raise errors.Unavailable(f"{wanted['key']} became shorter", hint="a newer checkpoint is stored")
                yield block
                left -= len(block)
                waiting.moved(length - left)

        with self._tried(wanted, "PUT", blocks, {"Content-Length": str(length)}, waiting) as answer:
            return str(answer.headers.get("etag", ""))

    @contextlib.contextmanager
    def _tried(
        self,
        wanted: dict[str, Any],
        method: str,
        content: Callable[[], Iterator[bytes]] | None,
        headers: dict[str, str],
        waiting: patience.Patience,
    ) -> Iterator[httpx.Response]:
        """Send the request until the store takes it, each time with a URL of its own. No message names the URL."""
        with contextlib.ExitStack() as stack:
            yield self._answered(stack, wanted, method, content, headers, waiting)

    def _answered(
        self,
        stack: contextlib.ExitStack,
        wanted: dict[str, Any],
        method: str,
        content: Callable[[], Iterator[bytes]] | None,
        headers: dict[str, str],
        waiting: patience.Patience,
    ) -> httpx.Response:
        import httpx

        while True:
            url = self._ask("/url", wanted)["url"]
            said = {"Accept-Encoding": "identity", **headers}
            try:
                body = content() if content is not None else None
                answer = stack.enter_context(self._http.stream(method, url, content=body, headers=said))
            except httpx.TransportError as error:
                why, lasting = type(error).__name__, False
            else:
                if answer.status_code < 300:
                    return answer
                if answer.status_code == 404:
                    raise FileNotFoundError(wanted["key"])
                if answer.status_code == 412:
                    raise errors.Unavailable(f"{wanted['key']} changed while it was read", hint="read it again")
                why, lasting = f"status {answer.status_code}", answer.status_code in _LASTING
                stack.close()
            if lasting or waiting.is_over:
                raise _dead(method, wanted["key"], why, waiting)
            waiting.pause()


def _dead(method: str, key: str, why: str, waiting: patience.Patience) -> errors.GivenUp:
    waited = f", and nothing of it has moved for {waiting.waited_s:.0f} s" if waiting.is_over else ""
    return errors.GivenUp(
        f"the object store of the checkpoints does not take {method} {key}: {why}{waited}",
        hint="pods have to reach the store at the address by which the server knows it (docs/kubernetes.md)",
    )
