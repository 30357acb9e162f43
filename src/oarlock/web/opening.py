"""The pages around the API, which are imported when a browser asks for the first one.

The pages need a template engine and an HTTP client, which take a tenth of the time in which a server starts. Most
servers on a laptop are started by `oarlock run`, and no page of theirs is opened.
"""

from __future__ import annotations

import asyncio

from starlette import responses, types

from oarlock.web import settings

Settings = settings.Settings
FAILED = (
    "The pages could not be loaded: the installation of Oarlock has changed since the server started, or is damaged.\n"
    "Start the server again: oarlock down, then oarlock up\n"
)


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
        """Return the pages; where they cannot be imported, an answer that says so to every request."""
        try:
            from oarlock.web import application

            return application.Pages(self._api, self._settings)
        except Exception as error:  # noqa: BLE001 - an installation that was changed may fail in any way
            self._settings.report("pages_failed", {"error": error})
            headers = {"cache-control": "no-store", "content-security-policy": "default-src 'none'"}
            return responses.PlainTextResponse(FAILED, status_code=503, headers=headers)
