# Made by `make sdk` from `asynchronous/serververbs.py`: change that file, not this one.
"""The verbs about the server: its users and sessions, secrets, and its end."""

from __future__ import annotations

from oarlock.client import requests
from oarlock.client.synchronous import caller
from oarlock.spec import bodies
from oarlock.spec.access import kubernetessecrets

# Names, not modules: the methods below bear the modules' names.
from oarlock.spec.access.users import Right, Token, User


class ServerVerbs(caller.Caller):
    """Verbs about the server and its users."""

    def server(self) -> bodies.Server:
        """Return facts about the server, and the user of this client."""
        return self._sender.send(requests.server())

    def secrets(self) -> list[bodies.SecretInfo]:
        """Return the secrets that the user's jobs may name, without their values."""
        page = self._sender.send(requests.secrets())
        return list(page.items)

    def set_secret(
        self,
        name: str,
        value: str | None = None,
        *,
        server: bool = False,
        everyone: bool = False,
        users: tuple[str, ...] = (),
        kubernetes: str | None = None,
    ) -> bodies.SecretInfo:
        """Make or replace a secret of the user; None keeps the present value.

        Administrators make secrets of the server with `server`, and share them with `users` or `everyone`. In the place
        of a value, `kubernetes` names a key of a Kubernetes Secret, `SECRET/KEY`, in the namespace of the pods.
        """
        reference = kubernetessecrets.parse(kubernetes) if kubernetes is not None else None
        told = bodies.NewSecret(value=value, server=server, everyone=everyone, users=users, kubernetes=reference)
        return self._sender.send(requests.set_secret(name, told))

    def remove_secret(self, name: str, *, server: bool = False) -> None:
        """Remove a secret of the user, or with `server` one of the server."""
        self._sender.send(requests.remove_secret(name, server))

    def shutdown(self) -> None:
        """End the server, as an administrator. Running jobs go on."""
        self._sender.send(requests.shutdown())

    def users(self) -> list[User]:
        """Return all users, as an administrator."""
        page = self._sender.send(requests.list_users())
        return list(page.items)

    def add_user(self, name: str, right: Right | str = Right.USER) -> User:
        """Add a user, as an administrator. Raises Conflict where the name is taken."""
        return self._sender.send(requests.add_user(name, Right(right)))

    def remove_user(self, name: str) -> None:
        """Remove a user with all tokens, sessions and secrets, as an administrator.

        Raises Conflict for the last administrator, for oneself, and while the user has jobs that have not ended.
        """
        self._sender.send(requests.remove_user(name))

    def tokens(self, user: str) -> list[Token]:
        """Return the tokens of a user by note and digest, as an administrator. The tokens themselves are not kept."""
        page = self._sender.send(requests.list_tokens(user))
        return list(page.items)

    def server_state(self) -> bodies.ServerState:
        """Return settings, health and leader of the server, as an administrator."""
        return self._sender.send(requests.server_state())

    def add_token(self, user: str, note: str = "") -> bodies.ShownToken:
        """Make a token of a user, as an administrator. Only this answer shows the token."""
        return self._sender.send(requests.add_token(user, note))

    def remove_token(self, user: str, sha256: str) -> None:
        """Revoke a token, as an administrator. Raises NotFound."""
        self._sender.send(requests.remove_token(user, sha256))

    def login_code(self) -> bodies.LoginCode:
        """Make a code that begins one session within a minute. Only this answer shows it."""
        return self._sender.send(requests.make_login_code())

    def begin_session(self, secret: str, note: str = "") -> bodies.ShownSession:
        """Begin a session with a login code or a token. Raises Unauthenticated for one that is used or not valid."""
        return self._sender.send(requests.begin_session(bodies.NewSession(secret, note)))

    def sessions(self) -> list[bodies.SessionInfo]:
        """Return the sessions of the user."""
        page = self._sender.send(requests.list_sessions())
        return list(page.items)

    def end_session(self, sha256: str = "current") -> None:
        """End a session of the user, by default the one of this client. Raises NotFound."""
        self._sender.send(requests.end_session(sha256))
