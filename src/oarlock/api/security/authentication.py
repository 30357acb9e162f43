"""Who calls: the user of a bearer token, or the task of a task's token.

A user's token is 256 bits of chance. The store keeps its SHA-256 alone: it is found by that digest, so that nothing is
compared byte by byte with a secret, and whoever reads the database cannot call. A task's token is derived from its key
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
"""How long a token stays good after another server removed it."""
MAX_KNOWN = 1000
_MAX_TOKEN_CHARACTERS = 200
_LOGIN = (
    "Set OARLOCK_TOKEN, or run `oarlock login URL`; the server keeps its first token in the file `token` of its home."
)


class Known(msgspec.Struct, frozen=True):
    user: users.User
    until: float


class Authenticator:
    """Tokens that were good a moment ago are remembered, so that a request costs no query for it. One event loop."""

    def __init__(self, store: stores.Store, task_secret: bytes, clock: Callable[[], float]) -> None:
        self._store = store
        self._task_secret = task_secret
        self._clock = clock
        self._known: dict[str, Known] = {}

    async def user(self, headers: Mapping[str, str]) -> users.User:
        """Raises Unauthenticated."""
        sha256 = digest(bearer(headers))
        known = self._known.get(sha256)
        if known is not None and self._clock() < known.until:
            return known.user
        user = await self._store.read(lambda view: _user_of(view, sha256))
        if user is None:
            self._known.pop(sha256, None)
            raise errors.Unauthenticated("This token is not known here.", hint=_LOGIN)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[sha256] = Known(user, self._clock() + KNOWN_S)
        return user

    def forget(self) -> None:
        """Users or tokens have changed: ask the store again."""
        self._known.clear()

    def task(self, headers: Mapping[str, str]) -> attempts.TaskKey:
        """The key that the token was derived for. Whether it is the present incarnation's is the handler's to see."""
        token = bearer(headers)
        try:
            key = attempts.TaskKey.parse(headers.get("oarlock-task", ""))
        except ValueError as error:
            raise errors.Unauthenticated("There is no task key.", hint="Send it as Oarlock-Task.") from error
        if not tasktokens.holds(self._task_secret, key, token):
            raise errors.Unauthenticated("This is not the task's token.", hint="It is in the task's assignment.")
        return key


def bearer(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > _MAX_TOKEN_CHARACTERS:
        raise errors.Unauthenticated("There is no token in this request.", hint=_LOGIN)
    return token


def fresh_token(entropy: Callable[[int], bytes]) -> str:
    """A new token, to be shown once."""
    return TOKEN_PREFIX + base64.urlsafe_b64encode(entropy(32)).decode().rstrip("=")


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _user_of(view: stores.View, sha256: str) -> users.User | None:
    token = view.token(sha256)
    if token is None or not hmac.compare_digest(token.sha256, sha256):
        return None
    return view.user(token.user)
