"""The server's home on disk, as far as the server itself keeps it: its lock, its address, its token and its secrets.

server.lock     held while a server lives: one server for each home
server.json     where it listens, for clients and agents: written once it can be called, gone after an orderly end
server.port     the port it had, which the next one takes again if it can: agents find it sooner
token           the first administrator's token, readable by its owner only
task-secret     what task tokens are derived from; it outlives the server, because agents do
secrets/        values that job files name: the server's, and each user's own (`SecretFiles`)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from oarlock.api import authentication
from oarlock.spec import errors, tasktokens

SECRET_LIMIT_BYTES = 64 * 1024
MAX_SECRET_NAME = 63
_SECRET_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_OTHERS = 0o077


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """`server.json`."""

    url: str
    pid: int
    started_at: float
    version: str
    token_file: str = ""


class Home:
    """The directory. Raises Unavailable, with the reason, where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unusable(path, error) from error
        self._lock: int | None = None

    def lock(self) -> None:
        """Be the one server of this home until the process ends. Raises Conflict where there is one already."""
        place = self.path / "server.lock"
        try:
            handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(place, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            there = self.read_server()
            where = f" at {there.url} (process {there.pid})" if there is not None else ""
            raise errors.Conflict(
                f"A server runs for {self.path} already{where}.",
                hint="Use it, or end it first: oarlock down. Another OARLOCK_HOME is another server.",
            ) from error
        self._lock = handle

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def token(self, entropy: Callable[[int], bytes]) -> str:
        """The administrator's token, made at the first start."""
        return self._kept("token", lambda: authentication.fresh_token(entropy).encode() + b"\n").decode().strip()

    def task_secret(self, entropy: Callable[[int], bytes]) -> bytes:
        return self._kept("task-secret", lambda: entropy(tasktokens.SECRET_BYTES))

    def read_server(self) -> ServerFile | None:
        try:
            return msgspec.json.decode((self.path / "server.json").read_bytes(), type=ServerFile)
        except (OSError, msgspec.DecodeError):
            return None

    def earlier_port(self) -> int:
        """0 where there was none."""
        try:
            text = (self.path / "server.port").read_text().strip()
        except (OSError, UnicodeDecodeError):
            return 0
        return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536 else 0

    def announce(self, told: ServerFile, port: int) -> None:
        write_whole(self.path / "server.port", f"{port}\n".encode())
        write_whole(self.path / "server.json", msgspec.json.encode(told))

    def withdraw(self) -> None:
        (self.path / "server.json").unlink(missing_ok=True)

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The content of a file that only its owner may read, made where it is missing."""
        place = self.path / name
        try:
            if not place.exists():
                write_whole(place, make())
            if place.stat().st_mode & _OTHERS:
                place.chmod(0o600)
            return place.read_bytes()
        except OSError as error:
            raise _unusable(place, error) from error


class SecretInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value. `owner` is "" for one of the server's, which `users`, or everyone, may use."""

    name: str
    owner: str = ""
    everyone: bool = False
    users: tuple[str, ...] = ()


class Sharing(msgspec.Struct, frozen=True):
    """`NAME.for`: who may use a secret of the server's, beside the administrators."""

    everyone: bool = False
    users: tuple[str, ...] = ()


class SecretFiles:
    """Secrets as files of the home: `services.Secrets`.

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

    def listed(self, owner: str, *, admin: bool = False) -> list[SecretInfo]:
        """The secrets that jobs of `owner` may name. Only administrators see with whom one is shared."""
        found = [SecretInfo(name=name, owner=owner) for name in _names(self._directory / f"@{owner}")]
        for name in _names(self._directory):
            sharing = self._sharing(name)
            if admin:
                found.append(SecretInfo(name=name, everyone=sharing.everyone, users=sharing.users))
            elif self._shared_with(name, owner):
                found.append(SecretInfo(name=name, everyone=sharing.everyone))
        return found

    def put(self, name: str, value: str | None, owner: str, sharing: Sharing) -> SecretInfo:
        """Write a secret of `owner`, or the server's where `owner` is "". A value of None stays as it is."""
        place = self._place(name, owner)
        if value is not None:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(place, value.encode())
        elif not place.exists():
            raise errors.NotFound(f"There is no secret `{name}`.", hint="Give its value, too.")
        if not owner:
            write_whole(place.with_name(f"{name}.for"), msgspec.json.encode(sharing))
        return SecretInfo(name=name, owner=owner, everyone=sharing.everyone, users=sharing.users)

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


def write_whole(place: Path, content: bytes) -> None:
    """Mode 0600 from the first byte, synced, and never half there."""
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(place)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _unusable(place: Path, error: OSError) -> errors.Unavailable:
    return errors.Unavailable(
        f"{place} cannot be used: {error.strerror}.", hint="Check its owner and the disk, or set OARLOCK_HOME."
    )
