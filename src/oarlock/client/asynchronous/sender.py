"""Transport of requests to a server: httpx below, the error tree above.

httpx is imported at the first request, because a wrong flag or `--help` needs none of it. The address of a local server
is looked up again whenever a connection cannot be made.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from oarlock.client import connection, failures, places, requests, settings
from oarlock.client.asynchronous import waiting
from oarlock.spec import errors

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_CHUNK_BYTES = 1 << 18


class AsyncSender:
    """A sender of requests. The one of `Client` may be shared by threads, that of `AsyncClient` by tasks of a loop."""

    def __init__(
        self,
        told: settings.Settings,
        *,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: waiting.Sleep = waiting.sleep,
    ) -> None:
        self._told = told
        self._timeout_s = timeout_s
        self._transport = transport
        self._sleep = sleep
        self._place: places.Place | None = None
        self._client: httpx.AsyncClient | None = None
        self.server_date: str | None = None  # as the last answer's header says

    @property
    def place(self) -> places.Place:
        """The server's address. Raises ServerNotFound where no server is named and no local server runs."""
        if self._place is None:
            self._place = places.find(self._told)
        return self._place

    async def send(self, request: requests.Request[T]) -> T:
        """Send the request, again where that is safe, and return the decoded answer."""
        tries = 0
        while True:
            try:
                return await self._once(request)
            except errors.OarlockError as failure:
                tries += 1
                pause = failures.pause_s(request, failure, tries)
                if pause is None:
                    raise
                await self._sleep(pause)
                if isinstance(failure, failures.Unsent):
                    self.forget_place()

    @contextlib.asynccontextmanager
    async def content(
        self, request: requests.Request[Any]
    ) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
        """Yield the answer and its bytes as they arrive.

        Raises Unsent, Lost (also while the bytes are read), and the server's own errors.
        """
        async with self._streaming(request) as response:
            yield response, response.aiter_raw()

    def forget_place(self) -> None:
        """Look up the address of a local server again: it may have come back on another port."""
        if self._place is not None and self._place.local:
            self._place = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _once(self, request: requests.Request[T]) -> T:
        place = self.place
        silence_s = max(self._timeout_s, request.patience_s)
        with connection.translated(place, self._told.named):
            async with self._open(place, request, silence_s) as response:
                body = await response.aread()
                self.server_date = response.headers.get("date")
                if response.status_code >= 300:
                    raise failures.from_response(response.status_code, body)
        return failures.decoded(body, request.answer)

    @contextlib.asynccontextmanager
    async def _streaming(self, request: requests.Request[Any]) -> AsyncIterator[httpx.Response]:
        place = self.place
        with connection.translated(place, self._told.named):
            async with self._open(place, request, connection.STREAM_PAUSE_S) as response:
                if response.status_code >= 300:
                    raise failures.from_response(response.status_code, await response.aread())
                yield response

    @contextlib.asynccontextmanager
    async def _open(
        self, place: places.Place, request: requests.Request[Any], silence_s: float
    ) -> AsyncIterator[httpx.Response]:
        import httpx

        content: Any = request.content()
        headers = connection.headers_of(place, request)
        if isinstance(request.upload, bytes):
            content = request.upload
        elif request.upload is not None:
            content = _chunks(request.upload)
            headers["Content-Length"] = str(request.upload.stat().st_size)
        url = place.url + request.target()
        limits = httpx.Timeout(silence_s, connect=connection.CONNECT_TIMEOUT_S)
        async with self._http(place).stream(
            request.method, url, content=content, headers=headers, timeout=limits
        ) as response:
            yield response

    def _http(self, place: places.Place) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            self._client = httpx.AsyncClient(
                transport=self._transport,
                trust_env=not place.loopback,
                verify=connection.trust(place),
                follow_redirects=False,
            )
        return self._client


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await waiting.in_thread(file.read, _CHUNK_BYTES):
            yield chunk
