"""The pages are imported at the first request for one; until then, and beside them, the API answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from oarlock.web import application, opening, settings


class Answering:
    """An ASGI application that answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name.encode()})


async def test_the_pages_are_opened_once_and_only_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def pages(api: Any, facts: Any) -> Answering:
        opened.append(facts)
        return Answering("page")

    monkeypatch.setattr(application, "Pages", pages)
    facts = settings.Settings(server="s", api=frozenset({"api"}), hosts=None, secure=False, report=lambda *_: None)
    app = opening.Opening(Answering("api"), facts)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert (await client.get("/api/v1/jobs")).text == "api"
        assert opened == []
        several = await asyncio.gather(*(client.get("/jobs") for _ in range(5)))
        assert [answer.text for answer in several] == ["page"] * 5
        assert opened == [facts]
        assert (await client.get("/api/v1/jobs")).text == "api"


async def test_pages_that_cannot_be_imported_say_so_and_the_api_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []

    def broken(*_: Any) -> None:
        raise ImportError("cannot import name 'wide'")

    monkeypatch.setattr(application, "Pages", broken)
    facts = settings.Settings(
        server="s", api=frozenset({"api"}), hosts=None, secure=False, report=lambda event, _: reports.append(event)
    )
    app = opening.Opening(Answering("api"), facts)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for _ in range(2):
            answer = await client.get("/jobs")
            assert answer.status_code == 503
            assert "Start the server again" in answer.text
            assert answer.headers["cache-control"] == "no-store"
        assert (await client.get("/api/v1/jobs")).text == "api"
    assert reports == ["pages_failed"], "once, not for each request"
