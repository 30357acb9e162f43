"""An open page that hears of news as the browser's page with the stream would tell them."""

from __future__ import annotations

import base64
import gzip
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

AWAY = "Object.defineProperty(document, 'hidden', { get: () => !!window.away });"
ELSEWHERE, SHOWN = ["job:another", "nodes"], ["job:another", "jobs"]
QUIET_MS = 1500
"""Longer than the pause between two updates: a page that has not asked by then does not ask."""


UPDATE = {"oarlock-fragment", "oarlock-page"}
"""The headers of the request of an open page that fetches itself."""


class Open:
    """The open list of jobs of a server on which nothing happens, and the answers to its updates."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.answers: list[int] = []
        self.asked: list[str] = []
        self.name = self.tag = ""
        page.on("request", lambda one: self.asked.append(one.url) if one.headers.keys() >= UPDATE else None)
        page.on("response", lambda answer: self._answered(answer.status, answer.request.headers, answer.headers))

    def _answered(self, status: int, headers: dict[str, str], told: dict[str, str]) -> None:
        if headers.keys() >= UPDATE:
            self.name, self.tag = headers["oarlock-page"], told.get("etag", "")
            self.answers.append(status)

    async def told(self, kind: str, seq: int = 0) -> None:
        """Tell the page of its stream's state; `seq` counts from the page's last event."""
        await self.page.evaluate(
            """({ kind, seq }) => {
                const seen = Number(document.getElementById("content").dataset.seq);
                new BroadcastChannel("oarlock-live").postMessage({ kind, seq: seen + seq });
            }""",
            {"kind": kind, "seq": seq},
        )

    async def hear(self, after: int, seq: int, topics: list[str], mark: str = "", content: str = "") -> None:
        """Tell the page news as the browser's page with the stream would; events count from the page's last one."""
        marks = {self.name: mark} if mark else {}
        contents = {mark: base64.b64encode(gzip.compress(content.encode())).decode()} if content else {}
        news = {"kind": "changed", "after": after, "seq": seq, "topics": topics, "marks": marks, "contents": contents}
        await self.page.evaluate(
            """({ after, seq, ...news }) => {
                const seen = Number(document.getElementById("content").dataset.seq);
                const channel = new BroadcastChannel("oarlock-live");
                channel.postMessage({ ...news, after: seen + after, seq: seen + seq });
            }""",
            news,
        )

    async def updated(self, count: int) -> None:
        while len(self.answers) < count:
            await self.page.wait_for_timeout(50)
        await self.page.wait_for_timeout(QUIET_MS)
        assert len(self.answers) == count
