"""Secrets of users and of the server: making, listing and removing them. No route for users returns a value.

A secret belongs to the user that made it, and only the jobs of this user get it. Administrators make secrets of the
server, and share them with users or with everyone. Such a secret may refer to a key of a Kubernetes Secret: the server
has no value then, and the pods of jobs get it from the cluster.
"""

from __future__ import annotations

import asyncio

import msgspec

from oarlock.api import routes
from oarlock.api.security import secretfiles
from oarlock.api.services import provided
from oarlock.spec import bodies, errors
from oarlock.spec.access import kubernetessecrets, users


class SecretQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    server: bool = False


async def show(call: routes.Call) -> bodies.SecretList:
    access = call.access
    listed = await asyncio.to_thread(call.services.secrets.listed, access.user.name, admin=access.admin)
    return bodies.SecretList(tuple(listed))


async def confide(call: routes.Call) -> bodies.SecretInfo:
    told = call.body(bodies.NewSecret)
    if told.value is not None and not 0 < len(told.value.encode()) <= secretfiles.SECRET_LIMIT_BYTES:
        raise errors.InvalidInput(
            "The value is empty or too long.",
            path="value",
            hint=f"Give 1 to {secretfiles.SECRET_LIMIT_BYTES} bytes of text.",
        )
    if (told.everyone or told.users or told.kubernetes is not None) and not told.server:
        raise errors.InvalidInput(
            "Only secrets of the server can be shared, or refer to a Kubernetes Secret.",
            path="server",
            hint="Set `server`, as an administrator.",
        )
    owner = _owner(call, told.server)
    if told.kubernetes is not None:
        _judge(told.kubernetes, told.value, call.services.about)
    sharing = secretfiles.Sharing(told.everyone, tuple(dict.fromkeys(told.users)))
    content = told.kubernetes or told.value
    return await asyncio.to_thread(call.services.secrets.put, call.path["name"], content, owner, sharing)


def _judge(reference: kubernetessecrets.Reference, value: str | None, about: provided.About) -> None:
    if kubernetessecrets.CAPABILITY not in about.capabilities:
        raise errors.Unsupported(
            f"The {about.backend} backend starts tasks that see no Kubernetes Secrets.",
            path="kubernetes",
            hint="Give the secret a value: leave `kubernetes` out (--from-kubernetes).",
        )
    if value is not None:
        raise errors.InvalidInput(
            "A secret has a value, or refers to a Kubernetes Secret.", path="value", hint="Leave one of them out."
        )
    kubernetessecrets.judge(reference)


async def remove(call: routes.Call) -> None:
    owner = _owner(call, call.query(SecretQuery).server)
    await asyncio.to_thread(call.services.secrets.remove, call.path["name"], owner)


def _owner(call: routes.Call, server: bool) -> str:
    if server:
        call.access.demand(users.Right.ADMIN)
    return "" if server else call.access.user.name


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/secrets", show, "the secrets that the user's jobs may name, without their values", bodies.SecretList
    ),
    routes.Route(
        method="PUT",
        path="/api/v1/secrets/{name}",
        handler=confide,
        needs=users.Right.USER,
        summary="make or replace a secret of the user; administrators may make and share the server's",
        body=bodies.NewSecret,
        answer=bodies.SecretInfo,
    ),
    routes.Route(
        method="DELETE",
        path="/api/v1/secrets/{name}",
        handler=remove,
        needs=users.Right.USER,
        summary="remove a secret of the user, or with `server` one of the server",
        query=SecretQuery,
        status=204,
    ),
)
