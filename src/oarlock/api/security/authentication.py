"""Authentication: the user of a bearer token or of a session, or the task of a task token.

A user's token has 256 random bits. The store keeps only its SHA-256 and finds it by that digest, so no secret is
compared byte by byte, and a stolen database contains no token. Sessions and login codes are kept in the same way, and
expire. A task's token is derived from its key (`oarlock.spec.protocol.tasktokens`) and compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Set

import msgspec

from oarlock.api import gathering
from oarlock.spec import attempts, errors
from oarlock.spec.access import users
from oarlock.spec.protocol import tasktokens
from oarlock.store import stores

TOKEN_PREFIX = "oar_"
SESSION_PREFIX = "oas_"
CODE_PREFIX = "oac_"
KNOWN_S = 0.4
"""Seconds that a token or a session stays valid after another server has removed it. A stream of news looks twice a
second, and ends within one.
"""
TOUCH_S = 60.0
"""Seconds after which another use of a session is written down: it may expire so much too early."""
MAX_KNOWN = 1000
_MAX_TOKEN_CHARACTERS = 200
_LOGIN = (
    "Set OARLOCK_TOKEN, or run `oarlock login URL`; the server keeps its first token in the file `token` of its home."
)


class Caller(msgspec.Struct, frozen=True):
    """A user, and the token by which the user came: with a session, the token that the session was made from."""

    user: users.User
    token: str  # its SHA-256
    session: users.Session | None = None

    @property
    def secret(self) -> str:
        """The SHA-256 of the token or the session of the request."""
        return self.token if self.session is None else self.session.sha256


class Known(msgspec.Struct, frozen=True):
    """A caller whose token was valid, remembered until `until`. Without `counted` no use was written down for it."""

    caller: Caller
    until: float
    counted: bool


class Authenticator:
    """Authenticator for one event loop. It remembers valid tokens for a moment, to save queries."""

    def __init__(
        self,
        store: stores.Store,
        task_secret: bytes,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """Take two clocks: `clock` is monotonic; `wall` is the server's clock, by which sessions expire."""
        self._store = store
        self._task_secret = task_secret
        self._clock = clock
        self._wall = wall
        self._known: dict[str, Known] = {}
        self._asked = gathering.Gathering(self.present)
        self._when_forgotten: list[Callable[[], Awaitable[None]]] = []

    async def caller(self, headers: Mapping[str, str], *, waiting: bool = False) -> Caller:
        """Return the user of the token or session. A request that is `waiting` does not count as a use of a session.

        Raises Unauthenticated.
        """
        sha256 = digest(bearer(headers))
        known = self._known.get(sha256)
        if known is not None and self._clock() < known.until and (known.counted or waiting):
            return known.caller
        now = self._wall()
        caller = await self._asked.find(sha256)
        if caller is None:
            self._known.pop(sha256, None)
            raise unknown()
        if caller.session is not None and not waiting and now - caller.session.used_at >= TOUCH_S:
            await self._store.write(lambda tx: _touch(tx, sha256, now))
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[sha256] = Known(caller, self._clock() + KNOWN_S, counted=caller.session is None or not waiting)
        return caller

    async def present(self, digests: Set[str]) -> dict[str, Caller | None]:
        """Return the callers of these tokens and sessions as the store has them now, None for an unknown one."""
        now = self._wall()
        return await self._store.read(lambda view: _callers(view, digests, now))

    def when_forgotten(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call it whenever users or tokens have changed by this server."""
        self._when_forgotten.append(call)

    async def forget(self) -> None:
        """Ask the store again: users or tokens have changed."""
        self._known.clear()
        for call in self._when_forgotten:
            await call()

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

    async def tensorboard(self, headers: Mapping[str, str], job: str) -> Caller:
        """Return the owner of the job, with the right to look, for the token of the job's TensorBoard.

        The token is good while its attempt of the job lives. Raises Unauthenticated.
        """
        token = bearer(headers)
        found = await self._store.read(lambda view: _running(view, job))
        if found is not None:
            owner, attempt = found
            wanted = tasktokens.of_tensorboard(self._task_secret, job, attempt)
            if hmac.compare_digest(wanted.encode(), token.encode()):
                return Caller(msgspec.structs.replace(owner, right=users.Right.VIEWER), digest(token))
        raise errors.Unauthenticated("The token is not of this job's TensorBoard.", hint="Its attempt has ended.")


def _running(view: stores.View, job_id: str) -> tuple[users.User, int] | None:
    """Return the owner of this job and the number of the attempt that lives, if one does."""
    job = view.job(job_id)
    owner = view.user(job.owner) if job is not None else None
    return (owner, job.live.number) if job is not None and job.live is not None and owner is not None else None


def is_of_tensorboard(headers: Mapping[str, str]) -> bool:
    """Return whether the request has the token of a TensorBoard. Raises Unauthenticated where it has none."""
    return bearer(headers).startswith(tasktokens.TENSORBOARD_PREFIX)


def unknown() -> errors.Unauthenticated:
    """Return the error for a token or a session that the store does not have."""
    return errors.Unauthenticated("The server does not know this token, or it has expired.", hint=_LOGIN)


def bearer(headers: Mapping[str, str]) -> str:
    """Return the bearer token. Raises Unauthenticated."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > _MAX_TOKEN_CHARACTERS:
        raise errors.Unauthenticated("The request has no token.", hint=_LOGIN)
    return token


def fresh_token(entropy: Callable[[int], bytes], prefix: str = TOKEN_PREFIX) -> str:
    """Return a new token for a user, or with another prefix the secret of a session or a login code."""
    return prefix + base64.urlsafe_b64encode(entropy(32)).decode().rstrip("=")


def digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def live_session(view: stores.View, sha256: str, now: float) -> users.Session | None:
    """Return the session or login code, unless it has expired or its token is no longer its user's."""
    session = view.session(sha256)
    token = view.token(session.token) if session is not None else None
    return session if session is not None and _lives(session, token, now) else None


def user_of_token(view: stores.View, sha256: str) -> users.User | None:
    """Return the user of a token, None for an unknown one."""
    token = view.token(sha256)
    return view.user(token.user) if token is not None else None


def _lives(session: users.Session, token: users.Token | None, now: float) -> bool:
    return now < session.expires_at and token is not None and token.user == session.user


def _callers(view: stores.View, digests: Set[str], now: float) -> dict[str, Caller | None]:
    """Return the callers by few statements: a page's reader asks for all of its sessions together."""
    sessions = view.sessions_by_digest(digests)
    tokens = view.tokens_by_digest({*digests, *(one.token for one in sessions.values())})
    known = view.users_by_name({one.user for one in tokens.values()})

    def of(sha256: str) -> Caller | None:
        session = sessions.get(sha256)
        if session is not None and not session.once and _lives(session, tokens.get(session.token), now):
            user = known.get(session.user)
            return Caller(user, session.token, session) if user is not None else None
        token = tokens.get(sha256)
        user = known.get(token.user) if token is not None else None
        return Caller(user, sha256) if user is not None else None

    return {one: of(one) for one in digests}


def _touch(tx: stores.Transaction, sha256: str, now: float) -> None:
    session = live_session(tx, sha256, now)  # it may have ended since it was read
    if session is not None:
        tx.put_session(msgspec.structs.replace(session, used_at=now))


async def admit_owner(store: stores.Store, name: str, token: str, *, at: float) -> None:
    """Make the user of the server's process its first administrator, by the token in the home."""
    sha256 = digest(token)

    def write(tx: stores.Transaction) -> None:
        if tx.user(name) is None:
            tx.put_user(users.User(name=name, right=users.Right.ADMIN, created_at=at))
        if tx.token(sha256) is None:
            tx.put_token(users.Token(sha256=sha256, user=name, created_at=at, note="the server's own"))

    if await store.read(lambda view: view.token(sha256)) is None:
        await store.write(write)
