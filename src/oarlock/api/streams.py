"""Streams of users, which end within a second of the token or the session that opened them.

A followed log, the watch of events, a command inside a task or a long upload may go on for days. While one is open, a
single task asks the store twice a second for the callers of all of them, in one reading. A stream ends where its token
or session is gone by then, with its user or alone, or where the session has expired. The request that revokes a token
or removes a user asks at once (`Authenticator.forget`): after its answer nothing more is sent by this server.

A stream ends by the cancellation of its handler, whatever the handler waits for. Then the client is told the reason: in
the refusal where nothing was sent yet, in the last line of a log, or in the last text frame of a web socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from starlette import types

from oarlock.api import failures, routes
from oarlock.api.security import authentication
from oarlock.spec import errors

LOOK_S = 0.5
FAREWELL_S = 1.0
"""The longest time for the last words to a client that does not read."""
POLICY_VIOLATION = 1008
_LINES = b"application/x-ndjson"

Report = Callable[[str, Mapping[str, object]], None]


class Streams:
    """The open streams of one event loop."""

    def __init__(self, authenticator: authentication.Authenticator, report: Report) -> None:
        self._authenticator = authenticator
        self._report = report
        self._open: set[_Stream] = set()
        self._watching: asyncio.Task[None] | None = None
        authenticator.when_forgotten(self.look)

    async def run(self, call: routes.Call, respond: Callable[[routes.Call], Awaitable[None]]) -> None:
        """Respond to the call, as long as its caller is known.

        Raises Unauthenticated where the caller is gone before anything was sent.
        """
        stream = _Stream(call)
        self._open.add(stream)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            async with stream.limit:
                await respond(call)
        except TimeoutError:
            if not stream.limit.expired():
                raise
            await stream.tell(authentication.unknown())
        finally:
            self._open.discard(stream)
            if not self._open and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def look(self) -> None:
        """End the streams of callers that are gone. While the database is lost, all of them count as there."""
        theirs = [(one, caller) for one in self._open if (caller := one.caller) is not None]
        if not theirs:
            return
        try:
            present = await self._authenticator.present({caller.secret for _, caller in theirs})
        except errors.Unavailable:
            return
        for stream, caller in theirs:
            if stream in self._open and present[caller.secret] is None:
                self._open.remove(stream)
                stream.limit.reschedule(asyncio.get_running_loop().time())

    async def _watch(self) -> None:
        """Look twice a second, while a stream is open."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may succeed
                self._report("streams_not_checked", {"error": error})


class _Stream:
    """An answer on its way. It notes how far the answer is."""

    def __init__(self, call: routes.Call) -> None:
        self.limit = asyncio.timeout(None)
        self._call = call
        self._send = call.send
        self._begun = self._ended = False
        self._lines = self._measured = False
        call.send = self.send

    @property
    def caller(self) -> authentication.Caller | None:
        """The caller, None before it is admitted."""
        return self._call.caller if self._call.is_admitted else None

    async def send(self, message: types.Message) -> None:
        await self._send(message)
        self._begun = True
        match message["type"]:
            case "http.response.start":
                headers = dict(message.get("headers", ()))
                self._lines = headers.get(b"content-type", b"").startswith(_LINES)
                self._measured = b"content-length" in headers
            case "http.response.body":
                self._ended = not message.get("more_body", False)
            case "websocket.close" | "websocket.http.response.start":
                self._ended = True

    async def tell(self, error: errors.OarlockError) -> None:
        """Tell why the stream ends. Raises the error where nothing was sent yet."""
        if not self._begun:
            raise error
        told = failures.body(error)
        if self._call.scope["type"] == "websocket":
            last: list[types.Message] = [
                {"type": "websocket.send", "text": told.decode()},
                {"type": "websocket.close", "code": POLICY_VIOLATION},
            ]
        elif self._measured:  # the client sees by the announced length that the rest is missing
            last = []
        else:
            last = [{"type": "http.response.body", "body": told + b"\n" if self._lines else b"", "more_body": False}]
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(FAREWELL_S):
                for message in () if self._ended else last:
                    await self._send(message)
