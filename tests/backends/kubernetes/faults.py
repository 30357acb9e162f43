"""A transport that loses requests and answers, answers with errors, and cuts watches, as a script says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx

Script = Callable[[httpx.Request, int], str]
"""What becomes of a request, from it and its number: `` (nothing), `lose`, `forget`, `cut` or a status code.

`lose`: it does not arrive. `forget`: it arrives, and its answer is lost. `cut`: a stream ends after its first line.
"""


class Faulty(httpx.AsyncBaseTransport):
    def __init__(self, inner: httpx.AsyncBaseTransport, script: Script) -> None:
        self._inner = inner
        self._script = script
        self.seen: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        fate = self._script(request, len(self.seen))
        self.seen.append(f"{request.method} {request.url.path}")
        if fate == "lose":
            raise httpx.ConnectError("lost on the way", request=request)
        if fate.isdigit():
            body = {"kind": "Status", "message": f"a pretended {fate}", "code": int(fate)}
            return httpx.Response(int(fate), json=body, headers={"Retry-After": "0"}, request=request)
        response = await self._inner.handle_async_request(request)
        if fate == "forget":
            await response.aread()
            await response.aclose()
            raise httpx.ReadError("the answer was lost", request=request)
        if fate == "cut":
            return httpx.Response(
                response.status_code, headers=response.headers, stream=_Cut(response), request=request
            )
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Cut(httpx.AsyncByteStream):
    """The first chunk that holds a whole line, then a broken connection."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.stream:  # type: ignore[union-attr]  # an asynchronous one
            yield chunk
            if b"\n" in chunk:
                raise httpx.ReadError("cut")

    async def aclose(self) -> None:
        await self._response.aclose()


class Killed(Exception):
    """The server died here."""


class Dying(httpx.AsyncBaseTransport):
    """Dies with the `last` write; `arrives` says whether the API server still gets it."""

    def __init__(self, inner: httpx.AsyncBaseTransport, last: int, arrives: bool) -> None:
        self._inner = inner
        self._left = last
        self._arrives = arrives

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "POST":
            return await self._inner.handle_async_request(request)
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._arrives):
            raise Killed
        response = await self._inner.handle_async_request(request)
        if self._left == 0:
            await response.aclose()
            raise Killed
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
