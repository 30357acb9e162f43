"""The facts of the server that the pages need."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from starlette import types

Report = Callable[[str, Mapping[str, object]], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the server.

    `server` names it to browsers (`access/cookies.py`); `api` lists the first segments of the API's paths.
    """

    server: str
    api: frozenset[str]
    hosts: frozenset[str] | None
    secure: bool
    report: Report

    def of_api(self, scope: types.Scope) -> bool:
        """Return whether a request is for the API: its path says so, or it is not HTTP."""
        return scope["type"] != "http" or scope["path"][1:].partition("/")[0] in self.api
