"""Calls of the API in this process: the same request as over a connection, and failures as a lost connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oarlock.client import failures
from oarlock.spec import errors
from oarlock.web.access import calls, transport

START = {"type": "http.response.start", "status": 200, "headers": []}


async def ask(application: Any, secret: str | None = "oas_x") -> Any:
    client = calls.Client(secret, transport.StreamingTransport(application, ("10.0.0.1", 7), [(b"x-more", b"1")]))
    try:
        return await client.set("a@b", priority=7)
    finally:
        await client.close()


async def test_the_application_gets_the_whole_request() -> None:
    found: list[Any] = []

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        found.extend((scope, first := await receive()))
        if first["more_body"]:
            found.append(await receive())
        await send({**START, "status": 404})
        await send({"type": "http.response.body", "body": b'{"error":{"code":"not_found",', "more_body": True})
        await send({"type": "http.response.body", "body": b'"message":"no such job"}}'})

    with pytest.raises(errors.NotFound, match="no such job"):
        await ask(refuse)
    scope, message, end = found
    assert (scope["method"], scope["path"], scope["query_string"]) == ("PATCH", "/api/v1/jobs/a@b", b"")
    assert (scope["client"], scope["headers"].count((b"x-more", b"1"))) == (("10.0.0.1", 7), 1)
    told = dict(scope["headers"])
    assert (told[b"host"], told[b"authorization"]) == (b"127.0.0.1", b"Bearer oas_x")
    assert (told[b"content-type"], message) == (
        b"application/json",
        {"type": "http.request", "body": b'{"priority":7,"pool":null,"min":null,"max":null}', "more_body": True},
    )
    assert end == {"type": "http.request", "body": b"", "more_body": False}


async def test_a_refused_body_has_an_end() -> None:
    """The API reads the rest of a body that is too large: without an end it would wait for one."""
    ends: list[Any] = []

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if (await receive())["more_body"]:
            ends.append((await receive())["more_body"])
        await send({**START, "status": 413})
        await send({"type": "http.response.body", "body": b'{"error":{"code":"too_large","message":"too large"}}'})

    with pytest.raises(errors.TooLarge):
        await ask(refuse)
    assert ends == [False]


async def test_without_a_secret_no_one_is_named() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        assert b"authorization" not in dict(scope["headers"])
        await send({**START, "status": 401})
        await send({"type": "http.response.body", "body": b"{}"})

    with pytest.raises(errors.Unauthenticated):
        await ask(refuse, None)


async def raises(scope: Any, receive: Any, send: Any) -> None:
    raise ZeroDivisionError


async def says_nothing(scope: Any, receive: Any, send: Any) -> None:
    pass


async def ends_early(scope: Any, receive: Any, send: Any) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"{", "more_body": True})


@pytest.mark.parametrize("application", [raises, says_nothing, ends_early])
async def test_an_application_that_fails_is_a_lost_connection(
    application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "LOST_PAUSES_S", ())
    with pytest.raises(failures.Lost):
        await ask(application)


async def test_the_application_ends_with_its_caller() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        begun.set()
        try:
            await receive()  # the caller does not leave
        finally:
            ended.set()

    asking = asyncio.create_task(ask(slow))
    async with asyncio.timeout(60):
        await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert ended.is_set()
