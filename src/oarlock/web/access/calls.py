"""The SDK as the pages use it: its verbs call the API in this process, most of them without an HTTP client.

The API gets the same request as over a connection, and answers it by the rights of its token. Only answers that are
read as they arrive, and uploads from files, go through httpx.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from oarlock.client import connection, failures, requests, settings
from oarlock.client.asynchronous import clients, sender
from oarlock.web.access import transport

T = TypeVar("T")

HOST = "127.0.0.1"


class Client(clients.AsyncClient):
    """A client of the API in this process, with the token or the session `secret`, None for none."""

    def __init__(self, secret: str | None, way: transport.StreamingTransport) -> None:
        told = settings.Settings(home=Path(), server=f"http://{HOST}", token=secret)
        super().__init__(told=told, transport=way)
        self._sender = _Sender(told, way)


class _Sender(sender.AsyncSender):
    def __init__(self, told: settings.Settings, way: transport.StreamingTransport) -> None:
        super().__init__(told, transport=way)
        self._way = way

    async def _once(self, request: requests.Request[T]) -> T:
        if request.upload is not None:
            return await super()._once(request)
        place = self.place
        named = connection.headers_of(place, request)
        headers = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in named.items()]
        body = request.content() or b""
        try:
            status, answer = await self._way.answer(request.method, request.target(), headers, body, HOST)
        except Exception as error:
            raise failures.lost(place, error) from error
        if not status:
            raise failures.lost(place, ConnectionError("the application gave no answer"))
        if status >= 300:
            raise failures.from_response(status, answer)
        return failures.decoded(answer, request.answer)
