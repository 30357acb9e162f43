"""Authentication: the user of a bearer token, or the task of a task token.

A user's token has 256 random bits. The store keeps only its SHA-256 and finds it by that digest, so no secret is
compared byte by byte, and a stolen database contains no token. A task's token is derived from its key
(`oarlock.spec.tasktokens`) and compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping

import msgspec

from oarlock.spec import attempts, errors, tasktokens, users
from oarlock.store import stores

TOKEN_PREFIX = "oar_"
KNOWN_S = 1.0
"""Seconds that a token stays valid after another server has removed it."""
MAX_KNOWN = 1000
_MAX_TOKEN_CHARACTERS = 200
_LOGIN = (
    "Set OARLOCK_TOKEN, or run `oarlock login URL`; the server keeps its first token in the file `token` of its home."
)


class Known(msgspec.Struct, frozen=True):
    """The user of a token that was valid, remembered until `until`."""

    user: users.User
    until: float


class Authenticator:
    """Authenticator for one event loop. It remembers valid tokens for a moment, to save queries."""

    def __init__(self, store: stores.Store, task_secret: bytes, clock: Callable[[], float]) -> None:
        self._store = store
        self._task_secret = task_secret
        self._clock = clock
        self._known: dict[str, Known] = {}

    async def user(self, headers: Mapping[str, str]) -> users.User:
        """Return the user of the token. Raises Unauthenticated."""
        sha256 = digest(bearer(headers))
        known = self._known.get(sha256)
        if known is not None and self._clock() < known.until:
            return known.user
        user = await self._store.read(lambda view: _user_of(view, sha256))
        if user is None:
            self._known.pop(sha256, None)
            raise errors.Unauthenticated("The server does not know this token.", hint=_LOGIN)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[sha256] = Known(user, self._clock() + KNOWN_S)
        return user

    def forget(self) -> None:
        """Ask the store again: users or tokens have changed."""
        self._known.clear()

    def task(self, headers: Mapping[str, str]) -> attempts.TaskKey:
        """Return the key that the token was derived for. The handler checks that it is the present incarnation."""
        token = bearer(headers)
        try:
            key = attempts.TaskKey.parse(headers.get("oarlock-task", ""))
        except ValueError as error:
            raise errors.Unauthenticated(
                "The request has no valid task key.", hint="Send it in the header Oarlock-Task."
            ) from error
        if not tasktokens.holds(self._task_secret, key, token):
            raise errors.Unauthenticated(
                "The token is not of this task.", hint="Use the token of the task's assignment."
            )
        return key


def bearer(headers: Mapping[str, str]) -> str:
    """Return the bearer token. Raises Unauthenticated."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > _MAX_TOKEN_CHARACTERS:
        raise errors.Unauthenticated("The request has no token.", hint=_LOGIN)
    return token


def fresh_token(entropy: Callable[[int], bytes]) -> str:
    """Return a new token for a user."""
    return TOKEN_PREFIX + base64.urlsafe_b64encode(entropy(32)).decode().rstrip("=")


def digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _user_of(view: stores.View, sha256: str) -> users.User | None:
    token = view.token(sha256)
    if token is None or not hmac.compare_digest(token.sha256, sha256):
        return None
    return view.user(token.user)
