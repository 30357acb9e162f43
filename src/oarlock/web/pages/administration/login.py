"""Login: a one-time code, or a pasted token, becomes a session in the browser's cookie.

The code arrives in the fragment of the address, which no server and no log sees. A script puts it into the form. A
browser that has a session keeps it, so that a link cannot replace a user's session by another's. The answer to the form
decides this: the browser sends its strict cookie with the form, but not with a link of another site.
"""

from __future__ import annotations

import contextlib

from starlette import responses

from oarlock.spec import errors
from oarlock.web import routing
from oarlock.web.access import origins, visits

NOTE_CHARACTERS = 100


async def show(visit: visits.Visit) -> routing.Filled:
    if visit.secret is not None:
        with contextlib.suppress(errors.Unauthenticated):
            await visit.admit()  # the page says so, and uses no code
    return routing.Filled(
        template="administration/login.html",
        facts={"next": origins.local_path(visit.asked("next") or "/"), "failure": ""},
    )


async def log_in(visit: visits.Visit) -> routing.Filled | responses.Response:
    form = await visit.form()
    following = origins.local_path(visits.one(form, "next") or "/")
    if visit.secret is not None:
        with contextlib.suppress(errors.Unauthenticated):
            await visit.admit()
            return routing.to(following)  # the code stays unused
    note = visit.headers.get("user-agent", "")[:NOTE_CHARACTERS]
    client = visit.connected(None)
    try:
        begun = await client.begin_session(visits.one(form, "secret").strip(), note if note.isprintable() else "")
    except (errors.Unauthenticated, errors.InvalidInput) as error:
        facts = {"next": following, "failure": f"{error.message} {error.hint}"}
        return routing.Filled(template="administration/login.html", facts=facts, status=error.status)
    finally:
        await client.close()
    return routing.to(following, visit.cookie.set(begun.secret))


async def log_out(visit: visits.Visit) -> responses.Response:
    await visit.client.end_session()
    return routing.to("/login", visit.cookie.clear())


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/login", title="Log in", handler=show, open=True),
    routing.Page(path="/login", title="Log in", handler=log_in, method="POST", open=True),
    routing.Page(path="/logout", handler=log_out, method="POST"),
)
