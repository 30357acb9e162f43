"""A transport that loses requests and answers, answers with errors, and cuts watches, as a script says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from oarlock.backends.kubernetes.apiserver import transports

Script = Callable[[transports.Request, int], str]
"""The fate of a request, from the request and its number: `` (nothing), a word or a status code.

`lose`: it does not arrive. `forget`: it arrives, and its answer is lost. `cut`: a stream ends after its first line.
`deaf`: a watch hears of no deletion.
"""


class Faulty:
    def __init__(self, inner: transports.Transport, script: Script) -> None:
        self._inner = inner
        self._script = script
        self.seen = 0

    async def send(self, request: transports.Request) -> transports.Answer:
        fate = self._fate(request)
        if fate.isdigit():
            return transports.Answer(status=int(fate), body=_status(fate), retry_after="0")
        answer = await self._inner.send(request)
        if fate == "forget":
            raise transports.Lost("the answer was lost")
        return answer

    @contextlib.asynccontextmanager
    async def stream(self, request: transports.Request) -> AsyncIterator[transports.Stream]:
        fate = self._fate(request)
        if fate.isdigit():
            yield _Whole(int(fate))
            return
        async with self._inner.stream(request) as found:
            yield _Cut(found) if fate == "cut" else _Deaf(found) if fate == "deaf" else found

    async def close(self) -> None:
        await self._inner.close()

    def _fate(self, request: transports.Request) -> str:
        self.seen += 1
        fate = self._script(request, self.seen - 1)
        if fate == "lose":
            raise transports.Lost("lost on the way")
        return fate


def _status(code: str) -> bytes:
    return json.dumps({"kind": "Status", "message": f"a pretended {code}", "code": int(code)}).encode()


class _Whole:
    def __init__(self, status: int) -> None:
        self.status = status

    async def chunks(self) -> AsyncIterator[bytes]:
        yield _status(str(self.status))


class _Cut:
    """The first chunk that holds a whole line, then a broken connection."""

    def __init__(self, inner: transports.Stream) -> None:
        self.status = inner.status
        self._inner = inner

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner.chunks():
            yield chunk
            if b"\n" in chunk:
                raise transports.Lost("cut")


class _Deaf:
    """The lines of a watch, but for those that tell of a deletion."""

    def __init__(self, inner: transports.Stream) -> None:
        self.status = inner.status
        self._inner = inner

    async def chunks(self) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._inner.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if not line.startswith(b'{"type":"DELETED"'):
                    yield line + b"\n"


class Meanwhile:
    """Once the first pod is made, and before its answer arrives, something else happens in the cluster."""

    def __init__(self, inner: transports.Transport, happen: Callable[[], Awaitable[object]]) -> None:
        self._inner = inner
        self._happen: Callable[[], Awaitable[object]] | None = happen

    async def send(self, request: transports.Request) -> transports.Answer:
        answer = await self._inner.send(request)
        happen = self._happen
        if happen is not None and request.method == "POST" and request.path.endswith("/pods"):
            self._happen = None
            await happen()
        return answer

    def stream(self, request: transports.Request) -> contextlib.AbstractAsyncContextManager[transports.Stream]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()


class Lagging:
    """Answers a request to read `path` as it was answered first, while `lags`."""

    def __init__(self, inner: transports.Transport, path: str, lags: Callable[[], bool]) -> None:
        self._inner = inner
        self._path = path
        self._lags = lags
        self._first: transports.Answer | None = None

    async def send(self, request: transports.Request) -> transports.Answer:
        if self._first is not None and request.path == self._path and self._lags():
            return self._first
        answer = await self._inner.send(request)
        if request.path == self._path:
            self._first = self._first or answer
        return answer

    def stream(self, request: transports.Request) -> contextlib.AbstractAsyncContextManager[transports.Stream]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()


class Killed(Exception):
    """The server died here."""


class Dying:
    """Dies with the `last` write; `arrives` says whether the API server still gets it."""

    def __init__(self, inner: transports.Transport, last: int, arrives: bool) -> None:
        self._inner = inner
        self._left = last
        self._arrives = arrives

    async def send(self, request: transports.Request) -> transports.Answer:
        if request.method != "POST":
            return await self._inner.send(request)
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._arrives):
            raise Killed
        answer = await self._inner.send(request)
        if self._left == 0:
            raise Killed
        return answer

    def stream(self, request: transports.Request) -> contextlib.AbstractAsyncContextManager[transports.Stream]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()
