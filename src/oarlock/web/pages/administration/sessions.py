"""The sessions of the user: the browsers that are logged in, each with a button that ends its session."""

from __future__ import annotations

from starlette import responses

from oarlock.web import routing
from oarlock.web.access import visits


async def show(visit: visits.Visit) -> routing.Filled:
    found = await visit.client.sessions()
    return routing.Filled(template="administration/sessions.html", facts={"sessions": found[::-1]})


async def end(visit: visits.Visit) -> responses.Response:
    form = await visit.form()
    await visit.client.end_session(visits.one(form, "sha256"))
    return routing.to("/sessions")


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/sessions", title="Sessions", handler=show),
    routing.Page(path="/sessions", handler=end, method="POST"),
)
