"""The server's home on disk: the files that the server itself writes.

server.lock     held while a server lives: one server for each home
server.json     the server's address for clients and agents: written once it answers, removed by an orderly end
server.port     the server's last port, which the next server takes if it can, so that agents find it sooner
token           the first administrator's token, readable by its owner only
task-secret     the secret for deriving task tokens; agents may live longer than the server, so it stays
secrets/        values that job files name: of the server, and of each user (`security/secretfiles.py`)
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from oarlock.api.security import authentication
from oarlock.data import durable
from oarlock.spec import errors
from oarlock.spec.protocol import tasktokens

OTHERS = 0o077
"""The rights of others than the owner."""

SECRET_FILES = ("token", "task-secret")


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `server.json`."""

    url: str
    pid: int
    started_at: float
    version: str
    token_file: str = ""


class Home:
    """The directory. Raises Unavailable with the reason where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unusable(path, error) from error
        self._lock: int | None = None

    def lock(self) -> None:
        """Make this process the only server of the home. Raises Conflict where another server runs."""
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
                f"A server for {self.path} runs already{where}.",
                hint="Use it, or end it: oarlock down. For a second server, set another OARLOCK_HOME.",
            ) from error
        self._lock = handle

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def token(self, entropy: Callable[[int], bytes]) -> str:
        """Return the administrator's token, which the first start makes."""
        return self._kept("token", lambda: authentication.fresh_token(entropy).encode() + b"\n").decode().strip()

    def task_secret(self, entropy: Callable[[int], bytes]) -> bytes:
        """Return the secret for deriving task tokens, which the first start makes."""
        return self._kept("task-secret", lambda: entropy(tasktokens.SECRET_BYTES))

    def read_server(self) -> ServerFile | None:
        """Return the address of the running server, or None."""
        try:
            return msgspec.json.decode((self.path / "server.json").read_bytes(), type=ServerFile)
        except (OSError, msgspec.DecodeError):
            return None

    def earlier_port(self) -> int:
        """Return the port of the last server, 0 where there was none."""
        try:
            text = (self.path / "server.port").read_text().strip()
        except (OSError, UnicodeDecodeError):
            return 0
        return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536 else 0

    def announce(self, told: ServerFile, port: int) -> None:
        """Write the server's address. Raises Unavailable."""
        try:
            durable.write(self.path / "server.port", f"{port}\n".encode(), 0o600)
            durable.write(self.path / "server.json", msgspec.json.encode(told), 0o600)
        except OSError as error:
            raise _unusable(self.path / "server.json", error) from error

    def withdraw(self) -> None:
        """Remove the server's address."""
        (self.path / "server.json").unlink(missing_ok=True)

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the content of a file that only its owner may read; make the file where it is missing."""
        place = self.path / name
        try:
            if not place.exists():
                durable.write(place, make(), 0o600)
            if place.stat().st_mode & OTHERS:
                place.chmod(0o600)
            return place.read_bytes()
        except OSError as error:
            raise _unusable(place, error) from error


def _unusable(place: Path, error: OSError) -> errors.Unavailable:
    return errors.Unavailable(
        f"{place} cannot be used: {error.strerror}.", hint="Check its owner and the disk, or set OARLOCK_HOME."
    )
