"""Users and their tokens, for administrators. Only the answer to its creation shows a token."""

from __future__ import annotations

import asyncio
import re

from oarlock.api import routes
from oarlock.api.security import authentication
from oarlock.spec import bodies, errors, jobs, phases
from oarlock.spec.access import users
from oarlock.spec.input import validation
from oarlock.store import stores

MAX_NAME_LENGTH = 63
MAX_NOTE_CHARACTERS = 200
NAMED_JOBS = 3
"""The most jobs that the refusal of a removal names."""
_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9._@-]*[a-zA-Z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


async def show_all(call: routes.Call) -> bodies.UserList:
    return bodies.UserList(tuple(await call.access.administered(lambda view: view.users())))


async def show_tokens(call: routes.Call) -> bodies.TokenList:
    name = call.path["name"]

    def read(view: stores.View) -> bodies.TokenList:
        _known(view, name)
        return bodies.TokenList(tuple(view.tokens(name)))

    return await call.access.administered(read)


async def add(call: routes.Call) -> users.User:
    wanted = call.body(bodies.NewUser)
    if len(wanted.name) > MAX_NAME_LENGTH or not _NAME.fullmatch(wanted.name):
        raise errors.InvalidInput(
            f"{wanted.name[:MAX_NAME_LENGTH]!r} is not a valid name of a user.",
            path="name",
            hint="Use letters and digits, with `.`, `_`, `@` and `-` between them.",
        )
    user = users.User(name=wanted.name, right=wanted.right, created_at=call.services.clock())

    def write(tx: stores.Transaction) -> users.User:
        if tx.user(user.name) is not None:
            raise errors.Conflict(f"There is a user `{user.name}` already.", path="name", hint="Choose another name.")
        return tx.put_user(user)

    return await call.access.administer(write)


async def remove(call: routes.Call) -> None:
    """Remove a user. The secrets go first: after a failure the removal is asked for once more, and finds the user."""
    name, caller = call.path["name"], call.caller.user.name
    await call.access.administered(lambda view: _check_removal(view, name, caller))
    await asyncio.to_thread(call.services.secrets.forget, name)

    def write(tx: stores.Transaction) -> None:
        _check_removal(tx, name, caller)
        tx.remove_user(name)

    await call.access.administer(write)
    await call.services.authenticator.forget()


def _check_removal(view: stores.View, name: str, caller: str) -> None:
    """Raise NotFound for an unknown user, and Conflict for one that must stay."""
    _known(view, name)
    if [one.name for one in view.users() if one.right is users.Right.ADMIN] == [name]:
        raise errors.Conflict(
            f"{name} is the last administrator.", hint="Add another one first: oarlock users add NAME --right admin"
        )
    if name == caller:
        raise errors.Conflict("You cannot remove yourself.", hint="Ask another administrator to do it.")
    which = stores.JobFilter(owner=name, phases=phases.NOT_OVER, limit=NAMED_JOBS)
    active = view.jobs(which)
    if active:
        raise _has_jobs(name, active, sum(view.count(which).get(phase, 0) for phase in phases.NOT_OVER))


def _has_jobs(user: str, active: list[jobs.Job], count: int) -> errors.Conflict:
    more = f" and {count - len(active)} more" if count > len(active) else ""
    ids = [job.id for job in active]
    return errors.Conflict(
        f"{user} has jobs that have not ended: {', '.join(job.name for job in active)}{more}.",
        hint=f"Wait for their end, or cancel them: oarlock cancel {' '.join(ids)}",
        detail={"user": user, "count": count, "jobs": ids},
    )


async def add_token(call: routes.Call) -> bodies.ShownToken:
    note = call.body(bodies.NewToken).note
    validation.text(note, MAX_NOTE_CHARACTERS)
    name, now = call.path["name"], call.services.clock()
    token = authentication.fresh_token(call.services.entropy)
    sha256 = authentication.digest(token)

    def write(tx: stores.Transaction) -> None:
        _known(tx, name)
        tx.put_token(users.Token(sha256=sha256, user=name, created_at=now, note=note))

    await call.access.administer(write)
    return bodies.ShownToken(token, sha256, name)


async def remove_token(call: routes.Call) -> None:
    name, sha256 = call.path["name"], call.path["sha256"]

    def write(tx: stores.Transaction) -> None:
        _known(tx, name)
        token = tx.token(sha256) if _SHA256.fullmatch(sha256) else None
        if token is None or token.user != name:
            raise errors.NotFound(
                f"{name} has no such token.", hint="Name it by the `sha256` that its creation returned."
            )
        tx.remove_token(sha256)

    await call.access.administer(write)
    await call.services.authenticator.forget()


def _known(view: stores.View, name: str) -> None:
    if view.user(name) is None:
        raise errors.NotFound(f"There is no user `{name[:100]}`.", hint="See the users: oarlock users list")


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/api/v1/users",
        handler=show_all,
        needs=users.Right.ADMIN,
        summary="users and their rights",
        answer=bodies.UserList,
    ),
    routes.Route(
        method="POST",
        path="/api/v1/users",
        handler=add,
        needs=users.Right.ADMIN,
        summary="add a user",
        body=bodies.NewUser,
        answer=users.User,
        status=201,
    ),
    routes.Route(
        method="DELETE",
        path="/api/v1/users/{name}",
        handler=remove,
        needs=users.Right.ADMIN,
        summary="remove a user with its tokens, sessions and secrets, once its jobs have ended",
        status=204,
    ),
    routes.Route(
        method="GET",
        path="/api/v1/users/{name}/tokens",
        handler=show_tokens,
        needs=users.Right.ADMIN,
        summary="the tokens of a user by digest and note, and never the tokens themselves",
        answer=bodies.TokenList,
    ),
    routes.Route(
        method="POST",
        path="/api/v1/users/{name}/tokens",
        handler=add_token,
        needs=users.Right.ADMIN,
        summary="make a token of a user; only this answer shows it",
        body=bodies.NewToken,
        answer=bodies.ShownToken,
        status=201,
    ),
    routes.Route(
        method="DELETE",
        path="/api/v1/users/{name}/tokens/{sha256}",
        handler=remove_token,
        needs=users.Right.ADMIN,
        summary="revoke a token",
        status=204,
    ),
)
