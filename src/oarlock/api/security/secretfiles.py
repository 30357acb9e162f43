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
    """The content of `NAME.for`: users, besides administrators, who may use a secret of the server."""

    everyone: bool = False
    users: tuple[str, ...] = ()


class SecretFiles:
    """Secrets as files of the home: `provided.Secrets`.

    `@USER/NAME` holds a secret of a user, for jobs of this user only. `NAME` holds a secret of the server, for
    administrators and for the users with whom an administrator has shared it (`NAME.for`).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str, owner: str, *, admin: bool = False) -> str:
        """Return the value for a job of `owner`: the owner's secret of that name, else the server's."""
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
                    f"The file of the secret `{name}` can be read by other users, so it is not used.",
                    hint=f"chmod 600 {place}",
                )
            return _text(place)
        except (OSError, UnicodeDecodeError) as error:
            raise errors.NotFound(
                f"The secret `{name}` cannot be read.", hint=f"Make it again: oarlock secrets set {name}"
            ) from error

    def values(self, name: str, owner: str) -> list[str]:
        """Return every value that a job of `owner` may have got under this name, to blank it in the job's logs."""
        found = []
        for place in (self._place(name, owner), self._place(name)):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found.append(_text(place))
        return found

    def listed(self, owner: str, *, admin: bool = False) -> list[bodies.SecretInfo]:
        """Return the secrets that jobs of `owner` may name. Only administrators see the users of a shared secret."""
        found = [bodies.SecretInfo(name=name, owner=owner) for name in _names(self._directory / f"@{owner}")]
        for name in _names(self._directory):
            sharing = self._sharing(name)
            if admin:
                found.append(bodies.SecretInfo(name=name, everyone=sharing.everyone, users=sharing.users))
            elif self._shared_with(name, owner):
                found.append(bodies.SecretInfo(name=name, everyone=sharing.everyone))
        return found

    def put(self, name: str, value: str | None, owner: str, sharing: Sharing) -> bodies.SecretInfo:
        """Write a secret of `owner`, or of the server where `owner` is empty. None keeps the present value."""
        place = self._place(name, owner)
        if value is not None:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            durable.write(place, value.encode(), 0o600)
        elif not place.exists():
            raise errors.NotFound(f"There is no secret `{name}`.", hint="Give a value.")
        if not owner:
            durable.write(place.with_name(f"{name}.for"), msgspec.json.encode(sharing), 0o600)
        return bodies.SecretInfo(name=name, owner=owner, everyone=sharing.everyone, users=sharing.users)

    def remove(self, name: str, owner: str) -> None:
        """Delete a secret. Raises NotFound."""
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
        """Return the sharing of a secret. A file without one was put there by hand, and is not shared."""
        try:
            return msgspec.json.decode((self._directory / f"{name}.for").read_bytes(), type=Sharing)
        except (OSError, msgspec.MsgspecError):
            return Sharing()

    def _place(self, name: str, owner: str = "") -> Path:
        """Return the path of a secret. Its name is a key of a fixed alphabet; a user's name has no slash."""
        if not _SECRET_NAME.fullmatch(name) or len(name) > MAX_SECRET_NAME:
            raise errors.InvalidInput(
                f"{name[:MAX_SECRET_NAME]!r} is not a valid name of a secret.",
                hint="Use lower-case letters, digits and dashes.",
            )
        if "/" in owner or "\0" in owner:
            raise errors.InvalidInput(
                "The user's name contains a slash or a NUL character.", hint="See `oarlock users list`."
            )
        return self._directory / f"@{owner}" / name if owner else self._directory / name


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir() if path.is_file() and _SECRET_NAME.fullmatch(path.name))
    except OSError:
        return []


def _text(place: Path) -> str:
    return place.read_bytes()[:SECRET_LIMIT_BYTES].decode().rstrip("\n")
