"""A transport of httpx that calls an ASGI application in this process, and streams its answer.

httpx's own transport collects the whole body before it returns, so that an endless stream never answers. Here the
application runs in a task. It waits until the reader has taken the chunk before, so a slow reader costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import httpx

Message = MutableMapping[str, Any]
Application = Callable[..., Awaitable[None]]
Client = tuple[str, int]


class StreamingTransport(httpx.AsyncBaseTransport):
    """A transport for one caller. `client` is the address that the application sees; `headers` go with each request."""

    def __init__(
        self,
        application: Application,
        client: Client | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._application = application
        self._client = client
        self._headers = headers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = Exchange(request)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [*((name.lower(), value) for name, value in request.headers.raw), *self._headers],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port),
            "client": self._client,
            "root_path": "",
        }
        exchange.begin(self._application(scope, exchange.receive, exchange.send))
        try:
            status, headers = await exchange.started()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=exchange)


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
