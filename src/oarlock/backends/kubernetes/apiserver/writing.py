"""Connections for the requests that change an object: a launch makes hundreds of them in a second.

A request of ours is small, and so is its answer. aiohttp spends a quarter of a millisecond of CPU on such a request,
most of it on features that an API server does not use (cookies, redirects, compression, multipart bodies). This takes a
quarter of that, and speaks as much of HTTP/1.1 as servers use in such answers: a length, chunks, or the end of the
connection.

    send ──> an idle connection, else a new one ──> request ──> head ──> body ──> idle again, or closed

A connection that a request was broken off on is closed: its answer may still come.
"""

from __future__ import annotations

import asyncio
import collections
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

from oarlock.backends.kubernetes.apiserver import credentials

IDLE_S = 60.0
"""A connection that was idle for so long is not used again: the other side may be about to close it."""
MOST_HEAD_BYTES = 1 << 18
"""The most in front of an answer's body."""
_END = b"\r\n\r\n"
_WITHOUT_BODY = (204, 304)
_SAFE = "/%:@!$&'()*+,;=~-._"


class Broken(Exception):
    """The connection could not be made, broke off, or brought something that is not an answer of HTTP/1.1."""


class Answer(NamedTuple):
    """`headers` have names in small letters. `stays` tells whether the connection can take another request."""

    status: int
    headers: dict[str, str]
    body: bytes
    stays: bool


class Pool:
    """At most `limit` connections. Belongs to the event loop in which it is used. Without a proxy only."""

    def __init__(self, access: credentials.Access, limit: int, *, connect_s: float, agent: str) -> None:
        address = urllib.parse.urlsplit(access.server)
        secure = address.scheme == "https"
        self._host = address.hostname or ""
        self._port = address.port or (443 if secure else 80)
        self._root = address.path.rstrip("/")
        self._tls = (access.tls or ssl.create_default_context()) if secure else None
        self._name = (access.host_name or self._host) if secure else None
        self._fixed = f" HTTP/1.1\r\nHost: {address.netloc.rpartition('@')[2]}\r\nUser-Agent: {agent}\r\n"
        self._connect_s = connect_s
        self._limit = limit
        self._idle: list[tuple[Connection, float]] = []  # with the time since which it is so
        self._open: set[Connection] = set()
        self._making = 0
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    async def send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int],
        headers: Mapping[str, str],
        body: bytes,
        quiet_s: float,
    ) -> Answer:
        """Send the request and return its answer. `quiet_s` is the longest time without a byte. Raises Broken."""
        target = self._root + urllib.parse.quote(path, safe=_SAFE)
        if params:
            target += "?" + urllib.parse.urlencode(params)
        named = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"{method} {target}{self._fixed}{named}Content-Length: {len(body)}\r\n\r\n"
        if head.count("\r\n") != len(headers) + 5 or head.count("\n") != len(headers) + 5:
            raise Broken("a header has a line break")
        connection = await self._connection()
        try:
            answer = await connection.exchange(head.encode() + body, quiet_s)
        except BaseException:
            connection.abort()
            raise
        finally:
            if connection.is_idle:
                self._idle.append((connection, asyncio.get_running_loop().time()))
            else:
                self._open.discard(connection)
            self._wake()
        return answer

    async def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # each connection hears of its end in the next turn of the loop

    async def _connection(self) -> Connection:
        """Return an idle connection, or make one, once there are fewer than the limit."""
        loop = asyncio.get_running_loop()
        while True:
            while self._idle:
                connection, since = self._idle.pop()
                if connection.is_idle and loop.time() - since < IDLE_S:
                    return connection
                connection.abort()
                self._open.discard(connection)
            if len(self._open) + self._making < self._limit:
                break
            turn = loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # the turn was this one's, which does not use it
                raise
        self._making += 1
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls, server_hostname=self._name
                )
        except TimeoutError as error:
            self._wake()
            raise Broken(f"no connection to {self._host}:{self._port} within {self._connect_s:g} s") from error
        except OSError as error:  # also those of TLS
            self._wake()
            raise Broken(str(error) or type(error).__name__) from error
        finally:
            self._making -= 1
        self._open.add(connection)
        return connection

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._data = bytearray()
        self._heard_at = 0.0
        self._stays = True

    @property
    def is_idle(self) -> bool:
        """Whether a request may be sent."""
        return self._stays and self._answer is None and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, quiet_s: float) -> Answer:
        """Send the request and return its answer. Raises Broken."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._heard_at = loop.time()
        patience = loop.call_later(quiet_s, self._look, quiet_s)
        try:
            self._transport.write(request)
            answer = await self._answer
        finally:
            self._answer = None
            patience.cancel()
        self._stays = self._stays and answer.stays
        if not self._stays:
            self.abort()
        return answer

    def abort(self) -> None:
        self._stays = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():  # nothing was asked for: the server says farewell
            self.abort()
            return
        self._heard_at = asyncio.get_running_loop().time()
        self._data += data
        self._read(ended=False)

    def eof_received(self) -> None:
        self._stays = False
        self._read(ended=True)

    def connection_lost(self, error: Exception | None) -> None:
        self._stays = False
        self._fail(str(error or "the connection was closed before the answer was whole"))

    def _read(self, *, ended: bool) -> None:
        try:
            answer = parse(self._data, ended=ended)
        except ValueError as error:
            self._fail(f"the answer is not one of HTTP/1.1: {error}")
            return
        if answer is not None and self._answer is not None and not self._answer.done():
            self._data = bytearray()
            self._answer.set_result(answer)

    def _look(self, quiet_s: float) -> None:
        """Give up where no byte has come for too long, else look again later."""
        if self._answer is None:
            return
        loop = asyncio.get_running_loop()
        at = self._heard_at + quiet_s
        if at <= loop.time():
            self._fail(f"no byte came for {quiet_s:g} s")
        else:
            loop.call_at(at, self._look, quiet_s)

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(why))


def parse(data: bytearray, *, ended: bool) -> Answer | None:
    """Return the answer in these bytes; None where some are missing. `ended` says that no more will come.

    Raises ValueError for something else than an answer of HTTP/1.1.
    """
    begin = 0
    while True:
        end = data.find(_END, begin)
        if end < 0:
            if len(data) - begin > MOST_HEAD_BYTES:
                raise ValueError("its head has no end")
            return None
        first, *lines = data[begin:end].decode("latin-1").split("\r\n")
        protocol, _, told = first.partition(" ")
        if protocol not in {"HTTP/1.1", "HTTP/1.0"} or not told[:3].isdecimal():
            raise ValueError(f"it begins with {first[:40]!r}")
        begin, status = end + len(_END), int(told[:3])
        if status >= 200:  # else Early Hints or the like: the answer follows
            break
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    connection = headers.get("connection", "").lower()
    stays = connection != "close" if protocol == "HTTP/1.1" else connection == "keep-alive"
    if status in _WITHOUT_BODY:
        return Answer(status, headers, b"", stays and len(data) == begin)
    if "transfer-encoding" in headers:
        whole = _chunks(data, begin)
        return None if whole is None else Answer(status, headers, whole[0], stays and len(data) == whole[1])
    if "content-length" in headers:
        until = begin + int(headers["content-length"])
        if until < begin:
            raise ValueError("its length is negative")
        return (
            None
            if len(data) < until
            else Answer(status, headers, bytes(data[begin:until]), stays and len(data) == until)
        )
    return Answer(status, headers, bytes(data[begin:]), stays=False) if ended else None


def _chunks(data: bytearray, at: int) -> tuple[bytes, int] | None:
    """Return the body that begins at this place in chunks, and the place where it ends; None where some are missing."""
    if not data.endswith(b"\r\n"):
        return None
    parts = []
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(data[at:end].partition(b";")[0], 16)
        if size < 0:
            raise ValueError("the length of a chunk is negative")
        at = end + 2
        if not size:
            break
        if len(data) < at + size + 2:
            return None
        parts.append(bytes(data[at : at + size]))
        at += size + 2
    while data[at : at + 2] != b"\r\n":  # headers after the body
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        at = end + 2
    return b"".join(parts), at + 2
