"""The users of the server and their tokens, for administrators. Only the answer to its form shows a new token."""

from __future__ import annotations

from starlette import responses

from oarlock.spec import bodies, errors
from oarlock.spec.access import users
from oarlock.web import routing, visits

MOST_USERS = 200


async def show(visit: visits.Visit) -> routing.Filled:
    return await _page(visit, visit.asked("user"))


async def act(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Add a user, or make or revoke a token. A refused form comes back with its text."""
    form = await visit.form()
    action, name = visits.one(form, "action"), visits.one(form, "user").strip()
    try:
        if action == "add":
            made = await visit.client.add_user(name, visits.one(form, "right") or users.Right.USER)
            return await _page(visit, made.name, shown=await visit.client.add_token(made.name))
        if action == "token":
            note = visits.one(form, "note").strip()
            return await _page(visit, name, shown=await visit.client.add_token(name, note))
        if action == "revoke":
            await visit.client.remove_token(name, visits.one(form, "sha256"))
            return routing.to(f"/users?user={name}")
        raise errors.InvalidInput("There is no such action.", hint="There are: add, token, revoke.")
    except ValueError as error:
        refused = errors.InvalidInput("There is no such right.", hint=f"There are: {', '.join(users.Right)}.")
        raise refused from error
    except (errors.InvalidInput, errors.Conflict) as error:
        return await _page(visit, "", error=error, typed=name)


async def _page(
    visit: visits.Visit,
    chosen: str,
    *,
    shown: bodies.ShownToken | None = None,
    error: errors.OarlockError | None = None,
    typed: str = "",
) -> routing.Filled:
    found = await visit.client.users()
    facts = {
        "users": found[:MOST_USERS],
        "hidden": max(0, len(found) - MOST_USERS),
        "chosen": chosen,
        "tokens": await visit.client.tokens(chosen) if chosen else [],
        "shown": shown,
        "error": error,
        "typed": typed,
        "rights": list(users.Right),
    }
    return routing.Filled(template="users.html", facts=facts, status=error.status if error is not None else 200)


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/users", title="Users", handler=show, right=users.Right.ADMIN, key="n"),
    routing.Page(path="/users", title="Users", handler=act, method="POST", right=users.Right.ADMIN),
)
