"""The server for its administrators: version, health by part, the leader and its term, and the settings."""

from __future__ import annotations

from oarlock.spec.access import users
from oarlock.web import routing
from oarlock.web.access import visits

REFRESH_S = 10


async def show(visit: visits.Visit) -> routing.Filled:
    state = await visit.client.server_state()
    facts = {"server": visit.server, "state": state, "topics": (), "refresh": REFRESH_S}
    return routing.Filled(template="administration/server.html", facts=facts)


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/server", title="Server", handler=show, right=users.Right.ADMIN, key="v", live=True),
)
