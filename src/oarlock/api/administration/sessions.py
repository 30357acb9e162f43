"""Sessions: logins of a user's browsers, which end by themselves, and the one-time codes that begin them.

A login code is handed from a program that has a token to a browser. It is good for one session within a minute. A
session makes no code, so that no chain of sessions outlives the longest life of one.
"""

from __future__ import annotations

from oarlock.api import routes
from oarlock.api.security import authentication
from oarlock.spec import bodies, errors
from oarlock.spec.access import users
from oarlock.spec.input import validation
from oarlock.store import stores

MAX_SECRET_CHARACTERS = 200
MAX_NOTE_CHARACTERS = 200
MAX_SESSIONS = 100
"""The most of one user. The oldest ones end where a further one begins."""
CURRENT = "current"


async def make_code(call: routes.Call) -> bodies.LoginCode:
    if call.caller.session is not None:
        raise errors.Forbidden("A session makes no login code.", hint="Make it with a token.")
    code = authentication.fresh_token(call.services.entropy, authentication.CODE_PREFIX)
    caller, now = call.caller, call.services.clock()

    def write(tx: stores.Transaction) -> users.Session:
        return _put(tx, code, caller.user.name, caller.token, now, once=True)

    made = await call.services.store.write(write)
    return bodies.LoginCode(code, made.expires_at)


async def begin(call: routes.Call) -> bodies.ShownSession:
    wanted, now = call.body(bodies.NewSession), call.services.clock()
    validation.text(wanted.note, MAX_NOTE_CHARACTERS)
    sha256 = authentication.digest(wanted.secret[:MAX_SECRET_CHARACTERS])
    secret = authentication.fresh_token(call.services.entropy, authentication.SESSION_PREFIX)

    def write(tx: stores.Transaction) -> users.Session:
        token, code = _behind(tx, sha256, now)
        if code is not None:
            tx.remove_session(code.sha256)  # it is used up
        return _put(tx, secret, token.user, token.sha256, now, note=wanted.note)

    await call.services.store.read(lambda view: _behind(view, sha256, now))  # a wrong secret costs no transaction
    made = await call.services.store.write(write)
    return bodies.ShownSession(secret=secret, user=made.user, expires_at=made.expires_at)


async def show(call: routes.Call) -> bodies.SessionList:
    caller, now = call.caller, call.services.clock()
    found = await call.access.shared(lambda view: view.sessions(caller.user.name))
    return bodies.SessionList(
        tuple(
            bodies.SessionInfo(
                sha256=one.sha256,
                created_at=one.created_at,
                used_at=one.used_at,
                expires_at=one.expires_at,
                note=one.note,
                current=caller.session is not None and caller.session.sha256 == one.sha256,
            )
            for one in found
            if not one.once and one.expires_at > now
        )
    )


async def end(call: routes.Call) -> None:
    """End a session of the user: one, or the one of the request."""
    caller, wanted = call.caller, call.path["session"]
    sha256 = caller.session.sha256 if wanted == CURRENT and caller.session is not None else wanted

    def write(tx: stores.Transaction) -> None:
        if not any(one.sha256 == sha256 for one in tx.sessions(caller.user.name)):
            raise errors.NotFound("You have no such session.", hint="See your sessions: GET /api/v1/sessions")
        tx.remove_session(sha256)

    await call.services.store.write(write)
    await call.services.authenticator.forget()


def _behind(view: stores.View, sha256: str, now: float) -> tuple[users.Token, users.Session | None]:
    """Return the token that a secret stands for, and the login code if it is one. Raises Unauthenticated."""
    found = authentication.live_session(view, sha256, now)
    code = found if found is not None and found.once else None
    if code is not None:
        sha256 = code.token
    token = view.token(sha256) if authentication.user_of_token(view, sha256) is not None else None
    if token is None:
        raise errors.Unauthenticated(
            "This login link was used already, or it has expired, or the token is not valid.",
            hint="Make a new login code, or use a token.",
        )
    return token, code


def _put(
    tx: stores.Transaction, secret: str, user: str, token: str, now: float, *, once: bool = False, note: str = ""
) -> users.Session:
    tx.forget_sessions(now)
    for one in tx.sessions(user)[: -MAX_SESSIONS + 1]:
        tx.remove_session(one.sha256)
    sha256 = authentication.digest(secret)
    made = users.Session(sha256=sha256, user=user, token=token, created_at=now, used_at=now, once=once, note=note)
    tx.put_session(made)
    return made


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="POST",
        path="/api/v1/login-codes",
        handler=make_code,
        needs=users.Right.VIEWER,
        summary="make a code that begins one session within a minute; only this answer shows it",
        answer=bodies.LoginCode,
        status=201,
    ),
    routes.Route(
        method="POST",
        path="/api/v1/sessions",
        handler=begin,
        needs=routes.Open.ANYBODY,
        summary="begin a session with a login code or a token; only this answer shows its secret",
        body=bodies.NewSession,
        answer=bodies.ShownSession,
        status=201,
    ),
    routes.look("/api/v1/sessions", show, "the sessions of the user", bodies.SessionList),
    routes.Route(
        method="DELETE",
        path="/api/v1/sessions/{session}",
        handler=end,
        needs=users.Right.VIEWER,
        summary="end a session of the user, or `current`: the one of the request",
        status=204,
    ),
)
