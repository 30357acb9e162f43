"""HTTP to the API server. aiohttp, because a launch makes hundreds of requests: each costs a tenth of httpx's CPU time.

A transport sends one request and says what came back. It tries nothing again and understands nothing: that is
`client.Client`'s part. Tests wrap it, to lose requests and answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import aiohttp
import msgspec

from oarlock.backends.kubernetes.apiserver import credentials
from oarlock.spec import errors

CONNECT_S = 5.0
_AGENT = "oarlock"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`read_s` is the longest time without a byte of the answer."""

    method: str
    path: str
    params: Mapping[str, str | int] = {}
    data: bytes | None = None
    headers: Mapping[str, str] = {}
    read_s: float = 30.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    body: bytes
    retry_after: str = ""
    date: str = ""  # by the server's clock


class Lost(Exception):
    """There was no whole answer. Whether the request has arrived is not known."""


class Quiet(Lost):
    """No byte of the answer came for the longest time."""


class Stream(Protocol):
    """An answer that comes bit by bit. Raises Lost where it breaks off, Quiet where nothing more comes."""

    status: int

    def chunks(self) -> AsyncIterator[bytes]: ...


class Transport(Protocol):
    """Raises Lost."""

    async def send(self, request: Request) -> Answer: ...

    def stream(self, request: Request) -> contextlib.AbstractAsyncContextManager[Stream]: ...

    async def close(self) -> None: ...


class Http:
    """The transport over aiohttp. It belongs to the event loop in which it was made."""

    def __init__(self, access: credentials.Access, connections: int) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections, ssl=access.tls if access.tls is not None else True, keepalive_timeout=60.0
            ),
            headers={"User-Agent": _AGENT},
            response_class=Response,
            trust_env=False,
        )

    async def send(self, request: Request) -> Answer:
        try:
            async with self._open(request) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_words(error)) from error
        told = response.headers
        return Answer(
            status=response.status, body=body, retry_after=told.get("Retry-After", ""), date=told.get("Date", "")
        )

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        try:
            response = await self._open(request)
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_words(error)) from error
        try:
            yield _Stream(response)
        finally:
            response.close()

    async def close(self) -> None:
        await self._session.close()

    def _open(self, request: Request) -> aiohttp.client._RequestContextManager:
        return self._session.request(
            request.method,
            f"{self._access.server}{request.path}",
            params=dict(request.params),
            data=request.data,
            headers=request.headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=request.read_s),
            server_hostname=self._access.host_name,
            proxy=self._access.proxy,
            allow_redirects=False,
        )


class Response(aiohttp.ClientResponse):
    """An answer that ends its connection at once where it is broken off, also before its first byte.

    A close of TLS would wait for the other side's word. The event loop may end before that, and the socket stay open.
    """

    def close(self) -> None:
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.abort()
        super().close()


class _Stream:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except aiohttp.SocketTimeoutError as error:
            raise Quiet(errors.words(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_words(error)) from error


def _words(error: Exception) -> str:
    """Return the words for an error, without the URL of a proxy: it may have a password."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status} {error.message}"
    return errors.words(error)
