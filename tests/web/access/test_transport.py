"""The transport that calls the application in this process: endless streams, slow readers, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from oarlock.web.access import transport


class Talkative:
    """An application that sends chunks as fast as they are taken, and notes how many it could send and its end.

    It lets others run after each chunk and sends `MOST` at last, so that a transport that takes all fails a test and
    does not hang it.
    """

    MOST = 1000

    def __init__(self) -> None:
        self.sent = 0
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while self.sent < self.MOST:
                await send({"type": "http.response.body", "body": b"%d" % self.sent, "more_body": True})
                self.sent += 1
                await asyncio.sleep(0)
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def client(application: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport.StreamingTransport(application), base_url="http://127.0.0.1")


async def test_an_answer_arrives_piece_by_piece_and_is_one_piece_ahead_of_its_reader() -> None:
    talkative = Talkative()
    async with client(talkative) as http, http.stream("GET", "/") as answer:
        chunks = answer.aiter_raw()
        for taken in range(5):
            assert await anext(chunks) == b"%d" % taken
            for _ in range(2 * Talkative.MOST):
                await asyncio.sleep(0)
            assert talkative.sent == taken + 2, "a slow reader costs the memory of one chunk"
        assert not talkative.ended.is_set()
    await asyncio.wait_for(talkative.ended.wait(), 60)


async def test_a_body_arrives_and_the_application_hears_of_the_end() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-path", scope["raw_path"])]})
        await send({"type": "http.response.body", "body": body + scope["query_string"]})

    async with client(echo) as http:
        answer = await http.post("/a%2Fb?c=d", content=b"hello ")
    assert (answer.status_code, answer.headers["x-path"], answer.text) == (201, "/a%2Fb", "hello c=d")


async def test_an_application_that_fails_is_a_lost_connection() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    async with client(broken) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/")
