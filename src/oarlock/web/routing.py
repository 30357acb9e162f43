"""Descriptions of pages: path, title, capability, right, and the function that fills a template.

A room to come registers one page. The table of all pages is in `application`; the tests go through it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from starlette import responses

from oarlock.spec.access import users
from oarlock.web.access import visits

_KEPT = "%/?#[]@!$&'()*+,;=:~"  # the signs that an address may contain


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """A template with its facts. `once`: it has a number that is taken once, and is made for each reader anew."""

    template: str
    facts: dict[str, Any] = {}
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    once: bool = False


Handler = Callable[[visits.Visit], Awaitable[Filled | responses.Response]]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page or an action. `key` is the letter that opens it after `g`; only pages with one stand in the menu.

    A page with a `capability` is there only on servers that have it, and for users with its `right`.

    An `open` page needs no session. A `stream` is refused to other sites although it changes nothing. A script alone
    calls an action with `script`, and gets its failures as JSON. A `live` page fetches itself again, and shows nothing
    but what its address and its user's rights determine: equal readers share its updates (`fragments`). `form_bytes` is
    the most of a form that the page takes.

    A form that comes after the end of its session is kept for sending it again, but for an archive: then it gets the
    fields `without_archive` instead. None: the page takes no archive.
    """

    path: str
    handler: Handler
    title: str = ""
    method: str = "GET"
    capability: str = ""
    right: users.Right = users.Right.VIEWER
    open: bool = False
    stream: bool = False
    script: bool = False
    live: bool = False
    form_bytes: int = visits.FORM_LIMIT_BYTES
    without_archive: Mapping[str, str] | None = None
    key: str = ""


def to(path: str, *headers: tuple[str, str]) -> responses.Response:
    """Return the redirection to a page, after a form was taken."""
    location = quote(path, safe=_KEPT)  # a header holds ASCII only
    return responses.Response(b"", 303, {"location": location, **dict(headers)})
