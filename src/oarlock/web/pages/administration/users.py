"""The users of the server and their tokens, for administrators. Only the answer to its form shows a new token.

A form that makes a token has a number and is taken once: a page that is loaded again would make another token, and the
first one would be valid although no one has seen it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import MappingProxyType

from starlette import responses

from oarlock.spec import bodies, errors, phases
from oarlock.spec.access import users
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.rendering import tables

MOST_USERS = 200
REFRESH_S = 30


async def show(visit: visits.Visit) -> routing.Filled:
    return await _page(visit, visit.asked("user"))


async def act(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Add or remove a user, or make or revoke a token. A refused form comes back with its text."""
    form = await visit.form()
    typed = {name: visits.one(form, name).strip() for name in ("action", "user", "right", "note", "number", "sha256")}
    try:
        if typed["action"] == "revoke":
            return await _revoke(visit, typed["user"], typed["sha256"], sure=bool(visits.one(form, "sure")))
        if typed["action"] == "remove":
            return await _remove(visit, typed["user"], sure=bool(visits.one(form, "sure")))
        async with visit.turn(keep=True):
            return await _make(visit, typed)
    except (errors.InvalidInput, errors.Conflict, errors.NotFound) as error:
        return await _page(visit, await _known(visit, typed), error=error, typed=typed)


async def _make(visit: visits.Visit, typed: Mapping[str, str]) -> routing.Filled:
    action, name, right = typed["action"], typed["user"], typed["right"] or users.Right.USER
    if action not in ("add", "token"):
        raise errors.InvalidInput("There is no such action.", hint="There are: add, remove, token, revoke.")
    if right not in list(users.Right):
        raise errors.InvalidInput("There is no such right.", hint=f"There are: {', '.join(users.Right)}.")
    if action == "add":
        name = (await visit.client.add_user(name, users.Right(right))).name
    elif not visit.once(typed["number"]):
        raise errors.Conflict(
            "This form was sent before: it has made a token, which was shown then.",
            hint="If you have not kept the token, revoke the newest one and make another.",
        )
    return await _page(visit, name, shown=await visit.client.add_token(name, typed["note"]))


async def _revoke(visit: visits.Visit, name: str, sha256: str, *, sure: bool) -> routing.Filled | responses.Response:
    """Ask first, and say what is lost."""
    token = next((one for one in await visit.client.tokens(name) if one.sha256 == sha256), None)
    if token is None:
        raise errors.NotFound(f"{name[:100]} has no such token.", hint="It may have been revoked meanwhile.")
    if not sure:
        mine = name == visit.server.user
        return routing.Filled(
            template="administration/revoke.html", facts={"title": "Users", "token": token, "mine": mine}
        )
    await visit.client.remove_token(name, sha256)
    return routing.to(f"/users?user={name}")


async def _remove(visit: visits.Visit, name: str, *, sure: bool) -> routing.Filled | responses.Response:
    """Ask first, and say what is lost, or what is in the way."""
    error: errors.OarlockError | None = None
    if sure:
        try:
            await visit.client.remove_user(name)
            return routing.to("/users")
        except errors.Conflict as refused:
            error = refused
    tokens = len(await visit.client.tokens(name))
    counts = (await visit.client.summaries(owner=name, limit=1)).phases
    active = sum(count for phase, count in counts.items() if phase in phases.NOT_OVER)
    facts = {
        "title": "Users",
        "name": name,
        "tokens": tokens,
        "active": active,
        "ended": sum(counts.values()) - active,
        "mine": name == visit.server.user,
        "error": error,
    }
    return routing.Filled(
        template="administration/userremoval.html", facts=facts, status=error.status if error is not None else 200
    )


async def _known(visit: visits.Visit, typed: Mapping[str, str]) -> str:
    """Return the user of the tokens that a refused form is about, empty for none."""
    name = typed["user"] if typed["action"] in ("remove", "token", "revoke") else ""
    return name if name in {one.name for one in await visit.client.users()} else ""


async def _page(
    visit: visits.Visit,
    chosen: str,
    *,
    shown: bodies.ShownToken | None = None,
    error: errors.OarlockError | None = None,
    typed: Mapping[str, str] = MappingProxyType({}),
) -> routing.Filled:
    found, most = await visit.client.users(), tables.most(visit.asked(tables.PARAMETER), "users", MOST_USERS)
    facts = {
        "users": found[:most],
        "hidden": max(0, len(found) - most),
        "chosen": chosen,
        "tokens": await visit.client.tokens(chosen) if chosen else [],
        "shown": shown,
        "error": error,
        "typed": {"user": "", "right": users.Right.USER, "note": "", **typed},
        "number": secrets.token_hex(8),
        "rights": list(users.Right),
        "live": shown is None and error is None,  # the answer to a form stays as it is
        "topics": (),
        "refresh": REFRESH_S,
    }
    return routing.Filled(
        template="administration/users.html",
        facts=facts,
        status=error.status if error is not None else 200,
        once=bool(chosen),  # the form that makes a token has a number
    )


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/users", title="Users", handler=show, right=users.Right.ADMIN, key="n", live=True),
    routing.Page(path="/users", title="Users", handler=act, method="POST", right=users.Right.ADMIN),
)
