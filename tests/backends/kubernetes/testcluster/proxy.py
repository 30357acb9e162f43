"""A proxy in front of an API server, so that a real server process meets faults: errors, lost requests and answers.

It speaks plain HTTP to the server under test. `fate` decides what becomes of each request, from its method, its path
and whether it is a watch:

    ``        nothing       `lose`    it does not arrive      `forget`   it arrives, and its answer is lost
    `cut`     a watch ends after its first bytes              a number   an answer with that code, without the request
    `old`     a watch tells within its stream that its resource version is too old

`before` is awaited before each request is passed on, and may hold it up; `after` once its answer was.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from oarlock.backends.kubernetes.apiserver import transports

Fate = Callable[[str, str, bool], str]
Moment = Callable[[str, str], Awaitable[None]]
FAULTS = ("429", "500", "lose", "forget")
CALLS = 20
"""Each of these faults meets one call in so many."""
_OLD = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def none(method: str, path: str, watch: bool) -> str:
    return ""


def unreliable(chance: random.Random) -> Fate:
    """Return a fate by which two of each 20 calls are answered by 429 and 500, one does not arrive, and one gets no
    answer. Watches are cut, and some are told that they are too old.
    """
    dealt: list[str] = []

    def fate(method: str, path: str, watch: bool) -> str:
        if watch:
            return chance.choice(["cut", "cut", "410", ""])
        if not dealt:
            dealt.extend([*FAULTS, *[""] * (CALLS - len(FAULTS))])
            chance.shuffle(dealt)
        return dealt.pop()

    return fate


async def at_once(method: str, path: str) -> None:
    return


class Proxy:
    """Belongs to one event loop. `met` counts the faults."""

    def __init__(self, upstream: str) -> None:
        self.fate: Fate = none
        self.before: Moment = at_once
        self.after: Moment = at_once
        self.met: Counter[str] = Counter()
        self.url = ""
        self._upstream = upstream
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        connector = aiohttp.TCPConnector(ssl=False, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=timeout, response_class=transports.Response
        )
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        watch = "watch" in request.query
        fate = self.fate(request.method, request.path, watch)
        if fate:
            self.met[fate] += 1
        if fate == "lose":
            return _broken(request)
        if fate == "old":
            return web.Response(text=json.dumps(_OLD) + "\n", content_type="application/json")
        if fate.isdigit():
            text = json.dumps({"kind": "Status", "message": f"a pretended {fate}", "code": int(fate)})
            return web.Response(status=int(fate), text=text, content_type="application/json")
        await self.before(request.method, request.path)
        skipped = {"Host", "Content-Length", "Transfer-Encoding", "Connection"}
        headers = {name: value for name, value in request.headers.items() if name not in skipped}
        body = await request.read()
        try:
            async with self._session.request(
                request.method, f"{self._upstream}{request.path_qs}", headers=headers, data=body or None
            ) as found:
                try:
                    answer = await self._pass_on(request, found, fate, watch)
                finally:
                    found.close()
        except (aiohttp.ClientError, OSError):
            return _broken(request)
        await self.after(request.method, request.path)
        return answer

    async def _pass_on(
        self, request: web.Request, found: aiohttp.ClientResponse, fate: str, watch: bool
    ) -> web.StreamResponse:
        if fate == "forget":
            await found.read()
            return _broken(request)
        told = {"Content-Type": found.content_type}
        if "Content-Encoding" in found.headers:  # a long answer is packed
            told["Content-Encoding"] = found.headers["Content-Encoding"]
        answer = web.StreamResponse(status=found.status, headers=told)
        await answer.prepare(request)
        async for chunk in found.content.iter_any():
            await answer.write(chunk)
            if fate == "cut":
                return _broken(request, answer)
        await answer.write_eof()
        return answer


def _broken(request: web.Request, answer: web.StreamResponse | None = None) -> web.StreamResponse:
    """Break the connection off, so that the client has no whole answer."""
    if request.transport is not None:
        request.transport.abort()
    return answer if answer is not None else web.Response(status=502)
