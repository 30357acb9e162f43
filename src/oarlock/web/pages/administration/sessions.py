"""The sessions of the user: the browsers that are logged in, each with a button that ends its session."""

from __future__ import annotations

from starlette import responses

from oarlock.web import routing
from oarlock.web.access import visits

REFRESH_S = 30


async def show(visit: visits.Visit) -> routing.Filled:
    found = await visit.client.sessions()
    facts = {"sessions": found[::-1], "topics": (), "refresh": REFRESH_S}
    return routing.Filled(template="administration/sessions.html", facts=facts, once=True)  # it names its reader's own


async def end(visit: visits.Visit) -> responses.Response:
    form = await visit.form()
    await visit.client.end_session(visits.one(form, "sha256"))
    return routing.to("/sessions")


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/sessions", title="Sessions", handler=show, live=True),
    routing.Page(path="/sessions", handler=end, method="POST"),
)
