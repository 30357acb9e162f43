"""The address of the server: a named URL, or the address in the local server's file `$OARLOCK_HOME/server.json`.

The file is read again after every lost connection, because a restarted local server may have another port.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from oarlock.client import settings
from oarlock.spec import errors

SERVER_FILE = "server.json"
TOKEN_FILE = "token"
_LOOPBACK = re.compile(r"https?://(127(\.[0-9]{1,3}){3}|localhost|\[::1\])(:[0-9]+)?(/.*)?")


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file that a local server writes once it listens. Unknown fields are ignored: the server may be newer."""

    url: str
    pid: int = 0
    version: str = ""
    started_at: float = 0.0
    token_file: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """An address with its token."""

    url: str
    token: str | None
    ca_file: str | None = None
    local: bool = False  # found by its file, not by name

    @property
    def loopback(self) -> bool:
        """Whether the server is on this machine."""
        return _LOOPBACK.fullmatch(self.url) is not None


def find(told: settings.Settings) -> Place:
    """Return the server's address. Raises ServerNotFound where no server is named and the home has no server's file."""
    if told.server is not None:
        return Place(url=told.server, token=told.token, ca_file=told.ca_file)
    left = read(told.home)
    if left is None:
        raise errors.ServerNotFound(
            f"no server runs for {told.home}", hint="Start one with `oarlock up --detach`, or name one: --server URL."
        )
    token = told.token or read_token(Path(left.token_file) if left.token_file else told.home / TOKEN_FILE)
    return Place(url=left.url.rstrip("/"), token=token, ca_file=told.ca_file, local=True)


def read(home: Path) -> ServerFile | None:
    """Return the local server's file, None where it is missing or incomplete."""
    try:
        return msgspec.json.decode((home / SERVER_FILE).read_bytes(), type=ServerFile)
    except (OSError, msgspec.DecodeError):
        return None


def read_token(path: Path) -> str | None:
    """Return the token in a file, None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def alive(pid: int) -> bool:
    """Return whether a process with this number runs. A zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return True
