"""A visit: one request of a browser for a page, with the API as its user sees it.

Pages have no rights of their own. They call the public API in this process, with the session of the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlencode

from starlette import types

from oarlock.spec import bodies, errors
from oarlock.spec.access import users
from oarlock.web.access import admissions, calls, cookies, multipart, recent, transport, turns
from oarlock.web.updates import feeds, openpages

T = TypeVar("T")

FORM_LIMIT_BYTES = 1 << 20
STREAM = "/live"
"""The path of the news for open pages. A browser opens it again and again: that is no use of the session."""
LEFT = "/live/left"
"""The path at which an open page says that it is closed, or hidden."""
UNASKED = b"oarlock-fragment"
SEQ = "oarlock-seq"
NOW = "oarlock-now"
PAGE = "oarlock-page"
LOOKED = "oarlock-looked"
_DIGITS = 16
_STRENGTH = {users.Right.VIEWER: 0, users.Right.USER: 1, users.Right.ADMIN: 2}


class Shared(NamedTuple):
    """Things that all visits share: the costly work under way, the turns of work that waits, the readers of the news,
    the open pages, and the server's state of the last moment.
    """

    busy: set[str]
    line: turns.Turns
    readers: feeds.Feeds
    pages: openpages.OpenPages
    state: recent.RecentState


class Visit:
    """One request. `client` is the SDK with the browser's session; `server` has the user that the session is of."""

    def __init__(
        self,
        scope: types.Scope,
        receive: types.Receive,
        api: types.ASGIApp,
        secret: str | None,
        cookie: cookies.SessionCookie,
        shared: Shared,
    ) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.parameters: dict[str, str] = scope.get("path_params", {})
        self.query = _decoded(scope["query_string"])
        self.scope_query: bytes = scope["query_string"]
        self.form_bytes = FORM_LIMIT_BYTES
        self.without_archive: Mapping[str, str] | None = None  # as `routing.Page` has it
        self.plain = False  # a script reads the answer: a failure is JSON, and not a page
        self.secret = secret
        self.cookie = cookie
        self._shared = shared
        self._receive = receive
        own = self.path in (STREAM, LEFT)  # a page's script asks by itself
        unasked = [(UNASKED, b"1")] if own or UNASKED in dict(scope["headers"]) else []
        self._client = transport.StreamingTransport(api, scope.get("client"), unasked)
        self._server: bodies.Server | None = None
        self._form: dict[str, list[str]] | None = None
        self._has_file = False
        self.client = self.connected(secret)

    def connected(self, secret: str | None) -> calls.Client:
        """Return a client of the API with this session, None for none."""
        return calls.Client(secret, self._client)

    @property
    def server(self) -> bodies.Server:
        assert self._server is not None, "the visit was not admitted"
        return self._server

    @property
    def admitted(self) -> bool:
        return self._server is not None

    async def admit(self, known: admissions.Admissions | None = None) -> None:
        """Find the user of the session; open pages that ask together share `known`. Raises Unauthenticated."""
        if self.secret is None:
            raise errors.Unauthenticated("You are not logged in.", hint="Open a login link: oarlock ui")
        if known is None or not self.fragment:
            self._server = await self.client.server()
        else:
            self._server = await known.find(self.secret, self.told, self.client.server)

    def admit_as(self, server: bodies.Server) -> None:
        """Take what the API has just answered to this session."""
        self._server = server

    @property
    def told(self) -> int | None:
        """The last event that the open page was told of; None where it asks for another reason."""
        told = self.headers.get(SEQ, "")
        return int(told) if told.isascii() and told.isdigit() and len(told) < _DIGITS else None

    def may(self, right: users.Right) -> bool:
        return _STRENGTH[self.server.right] >= _STRENGTH[right]

    def demand(self, right: users.Right) -> None:
        if not self.may(right):
            raise errors.Forbidden(
                f"This needs the right `{right}`; {self.server.user} has `{self.server.right}`.",
                hint="Ask an administrator of this server.",
            )

    def offers(self, capability: str) -> bool:
        """Return whether the server has the capability; each has the empty one."""
        return not capability or capability in self.server.capabilities

    def asked(self, name: str) -> str:
        """Return a parameter of the address, empty where it is missing."""
        return next(iter(self.query.get(name, ())), "")

    @property
    def fragment(self) -> bool:
        """Whether an open page fetches its content again."""
        return "oarlock-fragment" in self.headers

    @property
    def address(self) -> str:
        """Return the path with its query: the permanent link to this page."""
        return f"{self.path}?{urlencode(self.query, doseq=True)}" if self.query else self.path

    async def form(self, *, binary: bool = False) -> dict[str, list[str]]:
        """Return the fields of a posted form, with the text of its files; with `binary` other files are left out.

        Raises TooLarge, and InvalidInput.
        """
        if self._form is None:
            body = b"".join([chunk async for chunk in self.chunks(self.form_bytes)])
            media = self.headers.get("content-type", "")
            several = media.startswith(multipart.MEDIA)
            self._form = multipart.fields(body, media, binary=binary) if several else _decoded(body)
        return self._form

    async def form_kept(self) -> tuple[dict[str, list[str]], bool]:
        """Return the fields of a posted form for sending it again, and whether an archive was left out of them.

        Raises TooLarge, and InvalidInput.
        """
        if self.without_archive is None or not self.headers.get("content-type", "").startswith(multipart.MEDIA):
            return await self.form(binary=True), False
        if self._form is None:
            await self.form_with_file(lambda: None, self.client.settings.snapshot_limit_bytes)
        form = await self.form()
        if self._has_file:
            form = {**form, **{name: [value] for name, value in self.without_archive.items()}}
        return form, self._has_file

    async def form_with_file(
        self, begin: Callable[[], BinaryIO | None], limit_bytes: int
    ) -> tuple[dict[str, list[str]], bool]:
        """Return the fields of a posted form, and whether it has a file.

        When the file arrives, its content goes into the one that `begin` returns; None discards it. Raises
        TooLarge, and InvalidInput for a form that is not valid, or that has several files.
        """
        parts = multipart.Parts(self.headers.get("content-type", ""))
        pieces: list[tuple[multipart.Head, list[bytes]]] = []
        size, sent = 0, False
        file: BinaryIO | None = None
        async for chunk in self.chunks(limit_bytes + self.form_bytes):
            for one in parts.feed(chunk):
                if isinstance(one, multipart.Head):
                    pieces.append((one, []))
                    size += len(one.field) + len(one.file or b"")
                    if one.file and sent:
                        raise errors.InvalidInput("The form has several files.", hint="Choose one of them.")
                    if one.file:
                        sent, file = True, begin()
                elif pieces[-1][0].file:
                    if file is not None:
                        await asyncio.to_thread(file.write, one)
                else:
                    size += len(one)
                    pieces[-1][1].append(one)
                if size > self.form_bytes:
                    raise errors.TooLarge("The form is too large.", hint=f"At most {self.form_bytes:,} bytes.")
        if not parts.ended:
            raise errors.Truncated("The form was cut off.", hint="Send it again.")
        values: dict[str, list[str]] = {}
        for head, content in pieces:
            if head.file is None:
                values.setdefault(head.field, []).append(multipart.text(b"".join(content)))
        self._form, self._has_file = values, sent  # the body is read: `form_kept` cannot read it once more
        return values, sent

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises TooLarge."""
        received = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise errors.Truncated("The form was cut off.", hint="Send it again.")
            received += len(message.get("body", b""))
            if received > limit_bytes:
                raise errors.TooLarge("The form is too large.", hint=f"At most {limit_bytes:,} bytes.")
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    @contextlib.contextmanager
    def alone(self, work: str) -> Iterator[None]:
        """Do costly work, one of its kind at a time for each session. Raises Conflict."""
        key = f"{work} {self.secret}"
        if key in self._shared.busy:
            raise errors.Conflict(f"Another {work} of this session is under way.", hint="Wait for its end.")
        self._shared.busy.add(key)
        try:
            yield
        finally:
            self._shared.busy.discard(key)

    def turn(self, *, keep: bool = False) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait for this session's turn. Raises Conflict, as `turns.Turns.turn` does."""
        return self._shared.line.turn(str(self.secret), keep=keep)

    def news(self) -> contextlib.AbstractAsyncContextManager[feeds.Ear]:
        """Listen to the news of this session, from the events on that its pages may lack."""
        return self._shared.readers.listening(str(self.secret), self.server, lambda: self.connected(self.secret))

    async def state(self) -> bodies.ServerState:
        """Return the state of the server as of the last moment. Raises Forbidden where the user is no administrator."""
        self.demand(users.Right.ADMIN)
        return await self._shared.state.find(self.client.server_state)

    def note_open(self, address: openpages.Address, shown: Iterable[str], mark: str, period_s: float) -> bool:
        """Take note of an update of the page that asks. Return whether the page has told its name."""
        return self._shared.pages.note(str(self.secret), self.headers.get(PAGE, ""), address, shown, mark, period_s)

    def note_left(self) -> None:
        """Take note that the page that asks is closed, or hidden."""
        self._shared.pages.forget(str(self.secret), self.headers.get(PAGE, ""))

    def once(self, number: str) -> bool:
        """Return whether the form with this number is sent for the first time since the server has started."""
        return self._shared.line.once(f"{self.secret} {number}")

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of long work, which is cancelled when the browser leaves. For requests without a body."""

        async def left() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass

        tasks = (asyncio.create_task(work), asyncio.create_task(left()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise errors.Truncated("The browser has left.", hint="Open the page again.")
            return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        await self.client.close()


def one(form: Mapping[str, list[str]], name: str) -> str:
    """Return a field of a form, empty where it is missing."""
    return next(iter(form.get(name, ())), "")


def _decoded(raw: bytes) -> dict[str, list[str]]:
    with contextlib.suppress(ValueError):  # too many fields
        return parse_qs(raw.decode("latin-1"), keep_blank_values=True, errors="replace", max_num_fields=2000)
    return {}


def facts(visit: Visit) -> dict[str, Any]:
    """Return the facts that every template's frame shows."""
    told = visit._server
    return {
        "user": told.user if told is not None else "",
        "right": str(told.right) if told is not None else "",
        "version": told.version if told is not None else "",
        "seq": told.seq if told is not None else 0,
        "now": told.now if told is not None else 0.0,
        "fragment": visit.fragment,
        "path": visit.path,
        "address": visit.address,
        "asked": visit.query,
    }
