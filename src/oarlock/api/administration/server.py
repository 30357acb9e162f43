"""Facts about the server, and its shutdown."""

from __future__ import annotations

import msgspec

from oarlock.api import routes
from oarlock.spec import bodies
from oarlock.spec.access import users


class Ending(msgspec.Struct, frozen=True):
    """The server shuts down."""

    ending: bool = True


async def show(call: routes.Call) -> bodies.Server:
    about, user = call.services.about, call.access.user
    return bodies.Server(
        version=about.version,
        backend=about.backend,
        home=about.home,
        url=about.url,
        local=about.local,
        started_at=about.started_at,
        user=user.name,
        right=user.right,
        capabilities=tuple(sorted(about.capabilities)),
        currency=about.currency,
        seq=await call.access.shared(lambda view: view.last_seq()),
    )


async def shutdown(call: routes.Call) -> Ending:
    call.services.report("shutdown_asked", {"by": call.access.user.name})
    call.services.shutdown()
    return Ending()


ROUTES: tuple[routes.Route, ...] = (
    routes.look("/api/v1/server", show, "facts about the server, and the user of the request", bodies.Server),
    routes.Route(
        method="POST",
        path="/api/v1/shutdown",
        handler=shutdown,
        needs=users.Right.ADMIN,
        summary="end the server; running jobs go on",
        answer=Ending,
        status=202,
    ),
)
