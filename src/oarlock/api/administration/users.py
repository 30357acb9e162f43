"""Users and their tokens, for administrators. A token is shown once, in the answer that made it."""

from __future__ import annotations

import re

import msgspec

from oarlock.api import routes
from oarlock.api.security import authentication
from oarlock.spec import errors, users, validation
from oarlock.store import stores

MAX_NAME_LENGTH = 63
MAX_NOTE_CHARACTERS = 200
_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9._@-]*[a-zA-Z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class NewUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    right: users.Right = users.Right.USER


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: str = ""


class ShownToken(msgspec.Struct, frozen=True):
    """`token` is shown this once; `sha256` names it from now on."""

    token: str
    sha256: str
    user: str


class UserList(msgspec.Struct, frozen=True):
    items: list[users.User]
    next: str | None = None


async def show_all(call: routes.Call) -> UserList:
    return UserList(await call.access.administered(lambda view: view.users()))


async def add(call: routes.Call) -> users.User:
    wanted = call.body(NewUser)
    if len(wanted.name) > MAX_NAME_LENGTH or not _NAME.fullmatch(wanted.name):
        raise errors.InvalidInput(
            "That is no name of a user.", path="name", hint="Use letters, digits and `.`, `_`, `@`, `-` between them."
        )
    user = users.User(name=wanted.name, right=wanted.right, created_at=call.services.clock())

    def write(tx: stores.Transaction) -> users.User:
        if tx.user(user.name) is not None:
            raise errors.Conflict(f"There is a user `{user.name}`.", path="name", hint="Choose another name.")
        return tx.put_user(user)

    return await call.access.administer(write)


async def add_token(call: routes.Call) -> ShownToken:
    note = call.body(NewToken).note
    validation.text(note, MAX_NOTE_CHARACTERS)
    name, now = call.path["name"], call.services.clock()
    token = authentication.fresh_token(call.services.entropy)
    sha256 = authentication.digest(token)

    def write(tx: stores.Transaction) -> None:
        _known(tx, name)
        tx.put_token(users.Token(sha256=sha256, user=name, created_at=now, note=note))

    await call.access.administer(write)
    return ShownToken(token, sha256, name)


async def remove_token(call: routes.Call) -> None:
    name, sha256 = call.path["name"], call.path["sha256"]

    def write(tx: stores.Transaction) -> None:
        _known(tx, name)
        token = tx.token(sha256) if _SHA256.fullmatch(sha256) else None
        if token is None or token.user != name:
            raise errors.NotFound("There is no such token.", hint="It is named by the SHA-256 that its maker was told.")
        tx.remove_token(sha256)

    await call.access.administer(write)
    call.services.authenticator.forget()


def _known(view: stores.View, name: str) -> None:
    if view.user(name) is None:
        raise errors.NotFound(f"There is no user `{name[:100]}`.", hint="See GET /api/v1/users.")


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/api/v1/users",
        handler=show_all,
        needs=users.Right.ADMIN,
        summary="users and their rights",
        answer=UserList,
    ),
    routes.Route(
        method="POST",
        path="/api/v1/users",
        handler=add,
        needs=users.Right.ADMIN,
        summary="a new user",
        body=NewUser,
        answer=users.User,
        status=201,
    ),
    routes.Route(
        method="POST",
        path="/api/v1/users/{name}/tokens",
        handler=add_token,
        needs=users.Right.ADMIN,
        summary="a new token of a user; it is shown this once",
        body=NewToken,
        answer=ShownToken,
        status=201,
    ),
    routes.Route(
        method="DELETE",
        path="/api/v1/users/{name}/tokens/{sha256}",
        handler=remove_token,
        needs=users.Right.ADMIN,
        summary="a token holds no longer",
        status=204,
    ),
)
