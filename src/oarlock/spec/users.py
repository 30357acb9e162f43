"""Users and their rights. Both are rows; tokens are kept as hashes."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
