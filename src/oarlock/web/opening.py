"""The pages around the API, which are imported when a browser asks for the first one.

The pages need a template engine and an HTTP client, which take a tenth of the time in which a server starts. Most
servers on a laptop are started by `oarlock run`, and no page of theirs is opened.
"""

from __future__ import annotations

import asyncio

from starlette import types

from oarlock.web import settings

Settings = settings.Settings


class Opening:
    """An ASGI application: the API under its own paths, the pages under all others."""

    def __init__(self, api: types.ASGIApp, facts: Settings) -> None:
        self._api = api
        self._settings = facts
        self._pages: types.ASGIApp | None = None
        self._turn = asyncio.Lock()

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        if self._settings.of_api(scope):
            await self._api(scope, receive, send)
            return
        async with self._turn:
            if self._pages is None:
                self._pages = await asyncio.to_thread(self._opened)
        await self._pages(scope, receive, send)

    def _opened(self) -> types.ASGIApp:
        from oarlock.web import application

        return application.Pages(self._api, self._settings)
