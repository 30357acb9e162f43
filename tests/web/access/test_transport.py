"""The transport that calls the application in this process: endless streams, slow readers, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from oarlock.web.access import transport


class Endless:
    """An application that sends chunks for ever, and notes how many were taken and how it ended."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
                self.sent += 1
        finally:
            self.ended.set()


def client(application: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport.StreamingTransport(application), base_url="http://127.0.0.1")


async def test_an_endless_answer_arrives_piece_by_piece_and_waits_for_its_reader() -> None:
    endless = Endless()
    async with client(endless) as http, http.stream("GET", "/") as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"x" * 1000
        for _ in range(100):
            await asyncio.sleep(0)
        assert endless.sent <= 3, "a slow reader costs no memory"
    await endless.ended.wait()


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
