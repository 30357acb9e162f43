"""The pages as an ASGI application around the API: what is not the API's is a page.

A request passes, in this order: the Host check, the table of pages, the origin rules, the session, and the page's
function, which calls the API in this process. Every failure on the way becomes a page that names the next step. The API
does not know the pages, never reads their cookie, and keeps its own guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Collection
from typing import Any

import msgspec
from starlette import responses, routing, types

from oarlock.spec import bodies, errors
from oarlock.web import routing as table
from oarlock.web import settings
from oarlock.web.access import admissions, cookies, multipart, origins, recent, turns, visits
from oarlock.web.pages import home, live
from oarlock.web.pages.administration import login, server, sessions, users
from oarlock.web.pages.cluster import cluster, pools, simulate, usage
from oarlock.web.pages.jobs import compare, job, jobs, log, metrics, submit
from oarlock.web.rendering import assets, compressing, drawing, tables, templating, texts
from oarlock.web.updates import feeds, fragments, openpages, readers, telling

PAGES: tuple[table.Page, ...] = (
    *home.PAGES,
    *jobs.PAGES,
    *job.PAGES,
    *log.PAGES,
    *metrics.PAGES,
    *compare.PAGES,
    *cluster.PAGES,
    *pools.PAGES,
    *usage.PAGES,
    *submit.PAGES,
    *simulate.PAGES,
    *users.PAGES,
    *server.PAGES,
    *sessions.PAGES,
    *login.PAGES,
    *live.PAGES,
)
"""All pages and actions. The tests go through this table, too."""

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "font", "connect")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


async def _nothing() -> types.Message:
    return {"type": "http.disconnect"}


class Pages:
    """The application: the API under its own paths, pages under all others."""

    def __init__(self, api: types.ASGIApp, facts: settings.Settings, pages: Collection[table.Page] = PAGES) -> None:
        self._api = api
        self._settings = facts
        self._pages = pages
        self._assets = assets.Assets()
        self._templates = templating.Templates(self._assets)
        self._cookie = cookies.SessionCookie(facts.server, secure=facts.secure)
        self._routes = [(routing.compile_path(page.path), page) for page in pages]
        self._menu = [page for page in pages if page.key]
        self._making: dict[openpages.Address, asyncio.Task[fragments.Update | None]] = {}
        self._admissions = admissions.Admissions()
        self._turns = turns.Turns()
        self._feeds = feeds.Feeds(self._tell, self._changed, self._admissions)
        self._open = openpages.OpenPages()
        self._shared = visits.Shared(set(), self._turns, self._feeds, self._open, recent.RecentState())
        self._drawing = drawing.Thread()
        self._updates = fragments.Updates(self._drawing)

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        if self._settings.of_api(scope):
            await self._api(scope, receive, send)
            return
        response: types.ASGIApp | None = self._file(scope)
        if response is None:
            response = await self._answer(scope, receive)
            if isinstance(response, responses.Response) and compressing.worth(response):
                await self._drawing(compressing.compress, response, dict(scope["headers"]))
        with contextlib.suppress(ConnectionError):  # the browser is gone
            await response(scope, receive, _guarded(send, stored=scope["path"].startswith("/static/")))

    def _file(self, scope: types.Scope) -> responses.Response | None:
        """Return a static file at once, compressed already: the first paint of a page waits for it."""
        if scope["method"] not in origins.SAFE or (asset := self._assets.find(scope["path"])) is None:
            return None
        response = responses.Response(asset.content, media_type=asset.media, headers={"vary": "accept-encoding"})
        compressing.compress(response, dict(scope["headers"]))
        return response

    async def _answer(self, scope: types.Scope, receive: types.Receive) -> types.ASGIApp:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        secret = self._cookie.read(headers.get("cookie", ""))
        visit = visits.Visit(scope, receive, self._api, secret, self._cookie, self._shared)
        closing = True
        try:
            response = await self._visited(visit)
            closing = not isinstance(response, responses.StreamingResponse)  # its generator closes the visit
            return response
        except errors.OarlockError as error:
            return await self._failure(visit, error)
        except Exception as error:  # noqa: BLE001 - the last catch: the log gets the reason, and the browser does not
            number = secrets.token_hex(4)
            self._settings.report("page_failed", {"path": visit.path, "number": number, "error": error})
            hint = f"Please report it with the number {number}, which is in the server's log."
            return await self._failure(visit, errors.OarlockError("This page has failed.", hint=hint))
        finally:
            if closing:
                await visit.close()

    async def _visited(self, visit: visits.Visit) -> responses.Response:
        """Return the page, or the way to a session. Raises as the page does."""
        script = visit.fragment
        try:
            origins.check_host(visit.headers.get("host", ""), self._settings.hosts)
            page = self._page(visit)
            script, visit.plain = script or page.stream, page.script
            visit.without_archive = page.without_archive
            if visit.secret is not None:  # one that has ended counts, too: what was typed is kept
                visit.form_bytes = page.form_bytes
            if page.stream or visit.method not in origins.SAFE:
                origins.check_origin(visit.headers)
            if not page.open:
                await visit.admit(self._admissions)
                _permit(visit, page)
            if visit.fragment and page.live:
                return await self._update(visit, page)
            return await self._response(visit, await page.handler(visit), page)
        except errors.Unauthenticated as error:
            return await self._unauthenticated(visit, error, script=script)

    def _page(self, visit: visits.Visit) -> table.Page:
        """Return the page of the path. Raises NotFound, and MethodNotAllowed."""
        found = False
        for (pattern, _, convertors), page in self._routes:
            if (match := pattern.match(visit.path)) is None:
                continue
            found = True
            if visit.method == page.method or (visit.method == "HEAD" and page.method == "GET"):
                visit.parameters = {name: convertors[name].convert(text) for name, text in match.groupdict().items()}
                return page
        if found:
            raise errors.MethodNotAllowed(f"This page does not take {visit.method[:20]}.", hint="Open it as a link.")
        raise errors.NotFound("There is no such page.", hint="Start from the home page.")

    async def _update(self, visit: visits.Visit, page: table.Page) -> responses.Response:
        """Return the answer to an open page, and take note of the page."""
        response, update = await self._updates.find(visit, lambda: self._made(visit, page))
        if update is not None:
            address = openpages.Address(readers.of_page(visit.server, visit.parameters), visit.path, visit.scope_query)
            if visit.note_open(address, update.topics, update.mark, update.period_s) and update.period_s:
                response.headers[visits.LOOKED] = "1"  # the page need not look by itself
        return response

    async def _tell(self, news: feeds.Round) -> None:
        """Tell each session the news once its open pages that they concern are made, each address once."""

        async def make(address: openpages.Address, secret: str, seq: int) -> fragments.Update | None:
            if address in self._making:
                return None  # it takes longer than news come
            # Where the news are told without it, its page asks for it.
            return await asyncio.shield(self._make(news.members[secret], secret, address, seq))

        concerned = {secret: self._concerned(secret, topics) for secret, topics in news.topics.items()}
        await telling.tell(news, concerned, make)

    def _concerned(self, secret: str, topics: frozenset[str]) -> telling.Concerned:
        pages = self._open.concerned(secret, topics)
        return telling.Concerned(pages, all=len(pages) == self._open.count(secret))

    async def _changed(self, members: feeds.Members) -> dict[str, feeds.Present]:
        """Return for each session its open pages that have changed without an event."""
        due: dict[openpages.Address, list[tuple[str, str, openpages.Open, float]]] = {}
        for secret in members:
            for name, page in self._open.due(secret).items():
                due.setdefault(page.address, []).append((secret, name, page, page.looked_at))
        found: dict[str, feeds.Present] = {}
        for address, pages in due.items():
            secret = pages[0][0]
            if address in self._making or (update := await self._make(members[secret], secret, address, None)) is None:
                continue
            for secret, name, page, looked_at in pages:
                if page.mark != update.mark and page.looked_at == looked_at:  # else an event's content is newer
                    await telling.add(found.setdefault(secret, feeds.Present()), {name: page}, update)
        return found

    def _make(
        self, server: bodies.Server, secret: str, address: openpages.Address, seq: int | None
    ) -> asyncio.Task[fragments.Update | None]:
        task = self._making[address] = asyncio.create_task(self._present(secret, server, address, seq))
        task.add_done_callback(functools.partial(self._forget_making, address))
        return task

    def _forget_making(self, address: openpages.Address, _: asyncio.Task[fragments.Update | None]) -> None:
        del self._making[address]

    async def _present(
        self, secret: str, server: bodies.Server, address: openpages.Address, seq: int | None
    ) -> fragments.Update | None:
        """Return a page's present content, None where no others may share it: then each page asks.

        With `seq` it may be an update of the last moment which has this event.
        """
        headers = [(visits.UNASKED, b"1"), *([(visits.SEQ.encode(), b"%d" % seq)] if seq is not None else ())]
        scope = {"type": "http", "method": "GET", "path": address.path, "query_string": address.query}
        scope["headers"] = headers
        visit = visits.Visit(scope, _nothing, self._api, secret, self._cookie, self._shared)
        try:
            page = self._page(visit)
            visit.admit_as(server if seq is None else msgspec.structs.replace(server, seq=max(seq, server.seq)))
            _permit(visit, page)
            _, update = await self._updates.find(visit, lambda: self._made(visit, page))
            return update
        except Exception:  # noqa: BLE001 - the page itself asks, and gets the answer
            return None
        finally:
            await visit.close()

    async def _made(self, visit: visits.Visit, page: table.Page) -> fragments.Made:
        """Return the answer of a live page, with all that an update has of it."""
        answer = await page.handler(visit)
        shared = isinstance(answer, table.Filled) and not answer.once and not _by_name(visit, answer)
        facts = answer.facts if isinstance(answer, table.Filled) else {}
        period_s = 0.0 if facts.get("asks") else float(facts.get("refresh", 0))
        response = await self._response(visit, answer, page)
        return fragments.Made(response, shared, frozenset(facts.get("topics", ())), period_s)

    async def _response(
        self, visit: visits.Visit, answer: table.Filled | responses.Response, page: table.Page | None
    ) -> responses.Response:
        if isinstance(answer, table.Filled):
            frame: dict[str, Any] = {
                **visits.facts(visit),
                "title": page.title if page is not None else "",
                "menu": [one for one in self._menu if visit.admitted and _offered(visit, one)],
            }
            text = await self._drawing(self._templates.render, answer.template, **{**frame, **answer.facts})
            if page is not None and not visit.fragment and (asked := visit.asked(tables.PARAMETER)):
                return await self._sheet(text, asked)
            response: responses.Response = responses.HTMLResponse(text, answer.status)
            for name, value in answer.headers:
                response.headers.append(name, value)
            return response
        return answer

    async def _sheet(self, page: str, table: str) -> responses.Response:
        """Return a table of the page as CSV. Raises NotFound."""
        found = await self._drawing(tables.sheet, page, table)
        if found is None:
            raise errors.NotFound("This page has no such table.", hint="Follow the link CSV that stands below a table.")
        headers = {"content-disposition": f'attachment; filename="{table}.csv"'}
        return responses.Response(found, media_type="text/csv", headers=headers)

    async def _unauthenticated(
        self, visit: visits.Visit, error: errors.OarlockError, *, script: bool
    ) -> responses.Response:
        """Return the way to a session: through a reload, the login form, or for a script the bare status."""
        if visit.method == "GET" and visit.secret is None and origins.from_elsewhere(visit.headers):
            return await self._response(visit, table.Filled(template="reload.html"), None)
        if visit.method == "GET" and not script:
            return table.to("/login" + templating.query({"next": visit.address}))
        media = visit.headers.get("content-type", "").partition(";")[0]
        if media in ("application/x-www-form-urlencoded", multipart.MEDIA) and not visit.plain:
            form, left_out = await visit.form_kept()
            kept = {"title": "Not logged in", "error": error, "form": form, "left_out": left_out, "media": media}
            return await self._response(visit, table.Filled(template="again.html", facts=kept, status=401), None)
        return await self._failure(visit, error)

    async def _failure(self, visit: visits.Visit, error: errors.OarlockError) -> responses.Response:
        if visit.plain:
            told = {"error": texts.visible(f"{error.message} {error.hint}")}
            return responses.JSONResponse(told, error.status)
        facts = {"title": "Not possible", "error": error, "next": "/"}
        return await self._response(visit, table.Filled(template="error.html", facts=facts, status=error.status), None)


def _offered(visit: visits.Visit, page: table.Page) -> bool:
    return visit.offers(page.capability) and visit.may(page.right)


def _permit(visit: visits.Visit, page: table.Page) -> None:
    """Raise Forbidden for a page that the user may not open, and NotFound for one that this server does not have."""
    if not visit.offers(page.capability):
        raise errors.NotFound(
            f"This server has no such page: it lacks `{page.capability}`.", hint="Start from the home page."
        )
    visit.demand(page.right)


def _by_name(visit: visits.Visit, answer: table.Filled) -> bool:
    """Return whether the address names the shown job by a name that looks like an id: it is another job for others."""
    named = visit.parameters.get("job", "")
    return readers.is_id(named) and bool(getattr(answer.facts.get("job"), "id", "") != named)


def _guarded(send: types.Send, *, stored: bool) -> types.Send:
    cache = (b"cache-control", b"public, max-age=31536000, immutable" if stored else b"no-store")

    async def guarded(message: types.Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS, cache]
        await send(message)

    return guarded
