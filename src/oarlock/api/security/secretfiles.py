"""Secrets on disk: files of the server's home, which only the server's user can read."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec

from oarlock.data import durable
from oarlock.spec import bodies, errors

SECRET_LIMIT_BYTES = 64 * 1024
MAX_SECRET_NAME = 63
_SECRET_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_OTHERS = 0o077


class Sharing(msgspec.Struct, frozen=True):
    """`NAME.for`: who may use a secret of the server's, beside the administrators."""

    everyone: bool = False
    users: tuple[str, ...] = ()


class SecretFiles:
    """Secrets as files of the home: `provided.Secrets`.

    A user's own lie in `@USER/NAME`: nobody else's jobs get them. The server's lie in `NAME`; administrators may use
    them, and those with whom an administrator has shared them (`NAME.for`).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str, owner: str, *, admin: bool = False) -> str:
        """The value that a job of `owner` gets: their own secret of that name, else the server's."""
        places = [self._place(name, owner)]
        if admin or self._shared_with(name, owner):
            places.append(self._place(name))
        place = next((place for place in places if place.exists()), None)
        if place is None:
            raise errors.NotFound(
                f"There is no secret `{name}` for {owner}.",
                hint=f"Make it: oarlock secrets set {name}. Or ask an administrator to share the server's.",
            )
        try:
            if place.stat().st_mode & _OTHERS:
                raise errors.NotFound(
                    f"The secret `{name}` can be read by others and is not used.", hint=f"chmod 600 {place}"
                )
            return _text(place)
        except (OSError, UnicodeDecodeError) as error:
            raise errors.NotFound(
                f"The secret `{name}` cannot be read.", hint=f"Make it again: oarlock secrets set {name}"
            ) from error

    def values(self, name: str, owner: str) -> list[str]:
        """Every value that a job of `owner` may have been given under this name, to be blanked in what it wrote."""
        found = []
        for place in (self._place(name, owner), self._place(name)):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found.append(_text(place))
        return found

    def listed(self, owner: str, *, admin: bool = False) -> list[bodies.SecretInfo]:
        """The secrets that jobs of `owner` may name. Only administrators see with whom one is shared."""
        found = [bodies.SecretInfo(name=name, owner=owner) for name in _names(self._directory / f"@{owner}")]
        for name in _names(self._directory):
            sharing = self._sharing(name)
            if admin:
                found.append(bodies.SecretInfo(name=name, everyone=sharing.everyone, users=sharing.users))
            elif self._shared_with(name, owner):
                found.append(bodies.SecretInfo(name=name, everyone=sharing.everyone))
        return found

    def put(self, name: str, value: str | None, owner: str, sharing: Sharing) -> bodies.SecretInfo:
        """Write a secret of `owner`, or the server's where `owner` is "". A value of None stays as it is."""
        place = self._place(name, owner)
        if value is not None:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            durable.write(place, value.encode(), 0o600)
        elif not place.exists():
            raise errors.NotFound(f"There is no secret `{name}`.", hint="Give its value, too.")
        if not owner:
            durable.write(place.with_name(f"{name}.for"), msgspec.json.encode(sharing), 0o600)
        return bodies.SecretInfo(name=name, owner=owner, everyone=sharing.everyone, users=sharing.users)

    def remove(self, name: str, owner: str) -> None:
        place = self._place(name, owner)
        if not place.exists():
            raise errors.NotFound(f"There is no secret `{name}`.", hint="See them: oarlock secrets list")
        place.unlink()
        if not owner:
            place.with_name(f"{name}.for").unlink(missing_ok=True)

    def _shared_with(self, name: str, user: str) -> bool:
        sharing = self._sharing(name)
        return sharing.everyone or user in sharing.users

    def _sharing(self, name: str) -> Sharing:
        """Nobody, where the file is missing or cannot be read: a secret that was put there by hand."""
        try:
            return msgspec.json.decode((self._directory / f"{name}.for").read_bytes(), type=Sharing)
        except (OSError, msgspec.MsgspecError):
            return Sharing()

    def _place(self, name: str, owner: str = "") -> Path:
        """Names are keys of a fixed alphabet, never paths. Users' names begin with no dot and hold no slash."""
        if not _SECRET_NAME.fullmatch(name) or len(name) > MAX_SECRET_NAME:
            raise errors.InvalidInput("That is no name of a secret.", hint="Use lower-case letters, digits and dashes.")
        if "/" in owner or "\0" in owner:
            raise errors.InvalidInput("That is no name of a user.", hint="See `oarlock users list`.")
        return self._directory / f"@{owner}" / name if owner else self._directory / name


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir() if path.is_file() and _SECRET_NAME.fullmatch(path.name))
    except OSError:
        return []


def _text(place: Path) -> str:
    return place.read_bytes()[:SECRET_LIMIT_BYTES].decode().rstrip("\n")
