"""Equal readers: sessions that the API answers alike, so that one of them may read for all."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oarlock.spec import bodies
from oarlock.spec.access import users

_ID = re.compile(r"j-[0-9a-z]{8,40}")


def of_log(server: bodies.Server) -> str:
    """Return the name of this user's equal readers of the event log: they see the same lines."""
    return "administrators" if server.right is users.Right.ADMIN else of_user(server)


def of_page(server: bodies.Server, parameters: Mapping[str, str]) -> str:
    """Return the name of this user's equal readers of a page. A job's name means another job for another user."""
    return of_log(server) if all(map(is_id, parameters.values())) else of_user(server)


def of_user(server: bodies.Server) -> str:
    return f"user {server.right} {server.user}"


def is_id(name: str) -> bool:
    """Return whether an address that names a job so may name it by its id. A job's name may look the same."""
    return _ID.fullmatch(name) is not None
