"""Users and their rights. Both are rows; tokens are kept as hashes."""

from __future__ import annotations

from enum import StrEnum

import msgspec

CODE_S = 60.0
IDLE_S = 12 * 3600.0
SESSION_S = 7 * 86_400.0
"""The longest lives: of a login code, of a session that is not used, and of any session."""


class Right(StrEnum):
    ADMIN = "admin"  # everything, every job, pools and users
    USER = "user"  # submit; see and act on one's own jobs
    VIEWER = "viewer"  # see one's own jobs


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    right: Right = Right.USER
    created_at: float = 0.0
    version: int = 0


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """`sha256` of the secret part; the token itself is shown once and stored nowhere."""

    sha256: str
    user: str
    created_at: float
    note: str = ""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A login that ends by itself, made from a token; `sha256` of its secret, which is stored nowhere.

    With `once` it is a login code, which is good for making one session. It ends when its token is revoked.
    """

    sha256: str
    user: str
    token: str  # the `sha256` of the token that it was made from
    created_at: float
    used_at: float
    once: bool = False
    note: str = ""  # the program that logged in, in its own words

    @property
    def expires_at(self) -> float:
        """Return when it ends unless it is used before, in Unix seconds."""
        if self.once:
            return self.created_at + CODE_S
        return min(self.created_at + SESSION_S, self.used_at + IDLE_S)
