"""Secrets on disk: files of the server's home, which only the server's user can read."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec

from oarlock.data import durable
from oarlock.spec import bodies, errors
from oarlock.spec.access import kubernetessecrets

SECRET_LIMIT_BYTES = 64 * 1024
MAX_SECRET_NAME = 63
_REFERENCE = ".kubernetes"
_SECRET_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_OTHERS = 0o077

Found = str | kubernetessecrets.Reference
"""A secret: its value, or the key of a Kubernetes Secret to which it refers."""


class Sharing(msgspec.Struct, frozen=True):
    """The content of `NAME.for`: users, besides administrators, who may use a secret of the server."""

    everyone: bool = False
    users: tuple[str, ...] = ()


class SecretFiles:
    """Secrets as files of the home: `provided.Secrets`.

    `@USER/NAME` holds a secret of a user, for jobs of this user only. `NAME` holds a secret of the server, for
    administrators and for the users with whom an administrator has shared it (`NAME.for`). In the place of a value a
    secret of the server may refer to a key of a Kubernetes Secret (`NAME.kubernetes`).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str, owner: str, *, admin: bool = False) -> Found:
        """Return the secret for a job of `owner`: the owner's of that name, else the server's."""
        places = [self._place(name, owner)]
        if admin or self._shared_with(name, owner):
            places += [_reference_of(self._place(name)), self._place(name)]
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
            return _read(place)
        except errors.InvalidInput as error:  # a reference that was put there by hand
            raise errors.NotFound(error.message, hint=error.hint) from error
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
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
            if admin or self._shared_with(name, owner):
                sharing, told = self._sharing(name), _reference(_reference_of(self._directory / name))
                users = sharing.users if admin else ()
                found.append(bodies.SecretInfo(name=name, everyone=sharing.everyone, users=users, kubernetes=told))
        return found

    def put(self, name: str, told: Found | None, owner: str, sharing: Sharing) -> bodies.SecretInfo:
        """Write a secret of `owner`, or of the server where `owner` is empty. None keeps the present one."""
        place = self._place(name, owner)
        if told is not None:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if isinstance(told, str):
            durable.write(place, told.encode(), 0o600)
            _reference_of(place).unlink(missing_ok=True)
        elif told is not None:
            durable.write(_reference_of(place), msgspec.json.encode(told), 0o600)
            place.unlink(missing_ok=True)
        elif not place.exists() and not _reference_of(place).exists():
            raise errors.NotFound(f"There is no secret `{name}`.", hint="Give a value.")
        if not owner:
            durable.write(place.with_name(f"{name}.for"), msgspec.json.encode(sharing), 0o600)
        return bodies.SecretInfo(
            name=name,
            owner=owner,
            everyone=sharing.everyone,
            users=sharing.users,
            kubernetes=_reference(_reference_of(place)),
        )

    def remove(self, name: str, owner: str) -> None:
        """Delete a secret. Raises NotFound."""
        place = self._place(name, owner)
        if not place.exists() and not _reference_of(place).exists():
            more = " One of the server's needs --of-server." if owner else ""
            raise errors.NotFound(f"There is no secret `{name}`.", hint=f"See them: oarlock secrets list.{more}")
        place.unlink(missing_ok=True)
        _reference_of(place).unlink(missing_ok=True)
        if not owner:
            place.with_name(f"{name}.for").unlink(missing_ok=True)

    def forget(self, owner: str) -> None:
        """Delete all secrets of a user, and share none of the server's with this user any more."""
        for name in _names(self._directory):
            sharing = self._sharing(name)
            if owner in sharing.users:
                others = tuple(one for one in sharing.users if one != owner)
                kept = msgspec.json.encode(msgspec.structs.replace(sharing, users=others))
                durable.write(self._directory / f"{name}.for", kept, 0o600)
        for name in _names(self._directory / f"@{owner}"):
            self.remove(name, owner)

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
        named = {path.name.removesuffix(_REFERENCE) for path in directory.iterdir() if path.is_file()}
    except OSError:
        return []
    return sorted(name for name in named if _SECRET_NAME.fullmatch(name))


def _reference_of(place: Path) -> Path:
    """Return the file of a secret that is a reference. Where there is one, a value of that name is not read."""
    return place.with_name(place.name + _REFERENCE)


def _reference(place: Path) -> kubernetessecrets.Reference | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=kubernetessecrets.Reference)
    except (OSError, msgspec.MsgspecError):
        return None


def _read(place: Path) -> Found:
    """Return the content of a secret's file. Raises InvalidInput for a reference that is not allowed."""
    if not place.name.endswith(_REFERENCE):
        return _text(place)
    found = msgspec.json.decode(place.read_bytes(), type=kubernetessecrets.Reference)
    kubernetessecrets.judge(found)
    return found


def _text(place: Path) -> str:
    return place.read_bytes()[:SECRET_LIMIT_BYTES].decode().rstrip("\n")
