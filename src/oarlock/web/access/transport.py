"""A transport of httpx that calls an ASGI application in this process, and streams its answer.

httpx's own transport collects the whole body before it returns, so that an endless stream never answers. Here the
application runs in a task. It waits until the reader has taken the chunk before, so a slow reader costs no memory.

`answer` calls the application without httpx, for an answer that is read as a whole: httpx took more than half of the
processor time of such a call, and a page makes several.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import unquote

import httpx

Message = MutableMapping[str, Any]
Application = Callable[..., Awaitable[None]]
Client = tuple[str, int]
Headers = Sequence[tuple[bytes, bytes]]


class StreamingTransport(httpx.AsyncBaseTransport):
    """A transport for one caller. `client` is the address that the application sees; `headers` go with each request."""

    def __init__(
        self,
        application: Application,
        client: Client | None = None,
        headers: Headers = (),
    ) -> None:
        self._application = application
        self._client = client
        self._headers = headers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        exchange = Exchange(request)
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        scope = self._scope(request.method, url.raw_path, headers, (url.host, url.port))
        exchange.begin(self._application(scope, exchange.receive, exchange.send))
        try:
            status, answered = await exchange.started()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(status, headers=answered, stream=exchange)

    async def answer(self, method: str, target: str, headers: Headers, body: bytes, host: str) -> tuple[int, bytes]:
        """Return the status and the whole body of the answer, 0 where the application gave none. Raises as it does."""
        whole = _Whole(body)
        scope = self._scope(method, target.encode("ascii"), [(b"host", host.encode("ascii")), *headers], (host, None))
        await self._application(scope, whole.receive, whole.send)
        return (whole.status, b"".join(whole.chunks)) if whole.complete else (0, b"")

    def _scope(
        self, method: str, target: bytes, headers: Headers, server: tuple[str, int | None]
    ) -> MutableMapping[str, Any]:
        path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "headers": [*headers, *self._headers],
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "server": server,
            "client": self._client,
            "root_path": "",
        }


class _Whole:
    """A request whose body and answer are whole. Its caller does not leave before the answer.

    The end of the body comes by itself: an application that refuses the body reads on to its end.
    """

    def __init__(self, body: bytes) -> None:
        self._parts = [b"", body] if body else [b""]  # the last one is the next
        self.status = 0
        self.chunks: list[bytes] = []
        self.complete = False

    async def receive(self) -> Message:
        if not self._parts:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": self._parts.pop(), "more_body": bool(self._parts)}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.chunks.append(message.get("body", b""))
            self.complete = not message.get("more_body", False)


class Exchange(httpx.AsyncByteStream):
    """A request and its answer on their way between the client and the application's task."""

    def __init__(self, request: httpx.Request) -> None:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self._body = request.stream.__aiter__()
        self._sent = False
        self._left = asyncio.Event()  # the reader has gone
        self._answer: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=1)
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Awaitable[None]) -> None:
        self._task = asyncio.create_task(self._run(work))

    async def started(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return the status and the headers of the answer. Raises the application's failure as a lost connection."""
        message = await self._answer.get()
        if message is None:
            raise httpx.RemoteProtocolError("the application gave no answer")
        return message["status"], list(message.get("headers", ()))

    async def receive(self) -> Message:
        if not self._sent:
            with contextlib.suppress(StopAsyncIteration):
                return {"type": "http.request", "body": await anext(self._body), "more_body": True}
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._left.is_set():
            raise ConnectionError("the reader has gone")
        await self._answer.put(message)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._answer.get()) is not None:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        self._left.set()
        task = self._task
        if task is not None and not task.done():
            if not self._answer.empty():
                self._answer.get_nowait()
            task.cancel()
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(task, return_exceptions=True)

    async def _run(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            if not self._left.is_set():
                await self._answer.put(None)
