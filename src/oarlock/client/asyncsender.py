"""Carries requests out on an event loop: `oarlock.client.sender`, with the waiting left to asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from oarlock.client import failures, following, places, requests, sender, settings
from oarlock.spec import errors

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_CHUNK_BYTES = 1 << 18


class AsyncSender:
    """Belongs to one event loop."""

    def __init__(
        self,
        told: settings.Settings,
        *,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._told = told
        self._timeout_s = timeout_s
        self._transport = transport
        self._sleep = sleep
        self._place: places.Place | None = None
        self._client: httpx.AsyncClient | None = None
        self.server_date: str | None = None

    @property
    def place(self) -> places.Place:
        if self._place is None:
            self._place = places.find(self._told)
        return self._place

    async def send(self, request: requests.Request[T]) -> T:
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
    async def lines(self, request: requests.Request[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        place = self.place
        timeout = (sender.STREAM_PAUSE_S, sender.CONNECT_TIMEOUT_S)
        with sender.translated(place, self._told.named):
            async with self._open(place, request, timeout) as response:
                if response.status_code >= 300:
                    raise failures.from_response(response.status_code, await response.aread())
                yield _split(response)

    @contextlib.asynccontextmanager
    async def content(
        self, request: requests.Request[Any]
    ) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
        """The answer and its bytes as they come. Raises as `lines` does."""
        place = self.place
        timeout = (sender.STREAM_PAUSE_S, sender.CONNECT_TIMEOUT_S)
        with sender.translated(place, self._told.named):
            async with self._open(place, request, timeout) as response:
                if response.status_code >= 300:
                    raise failures.from_response(response.status_code, await response.aread())
                yield response, response.aiter_raw()

    def forget_place(self) -> None:
        if self._place is not None and self._place.local:
            self._place = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _once(self, request: requests.Request[T]) -> T:
        place = self.place
        with sender.translated(place, self._told.named):
            silence_s = max(self._timeout_s, request.patience_s)
            async with self._open(place, request, (silence_s, sender.CONNECT_TIMEOUT_S)) as response:
                body = await response.aread()
                self.server_date = response.headers.get("date")
                if response.status_code >= 300:
                    raise failures.from_response(response.status_code, body)
        return failures.decoded(body, request.answer)

    @contextlib.asynccontextmanager
    async def _open(
        self, place: places.Place, request: requests.Request[Any], timeout: tuple[float, float]
    ) -> AsyncIterator[httpx.Response]:
        import httpx

        content: Any = request.content()
        headers = sender.headers_of(place, request)
        if isinstance(request.upload, bytes):
            content = request.upload
        elif request.upload is not None:
            content = _chunks(request.upload)
            headers["Content-Length"] = str(request.upload.stat().st_size)
        url = place.url + request.target()
        limits = httpx.Timeout(timeout[0], connect=timeout[1])
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
                verify=sender.trust(place),
                follow_redirects=False,
            )
        return self._client


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


async def _split(response: httpx.Response) -> AsyncIterator[bytes]:
    splitter = following.Splitter()
    async for chunk in response.aiter_bytes():
        for line in splitter.feed(chunk):
            yield line
