"""Where the server is. A named one is where its name says; the local one tells in `$OARLOCK_HOME/server.json`, which is
read again at every lost connection, since a restarted local server may come back on another port.
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
    """What a local server writes once it listens. Unknown fields are ignored: the server may be newer."""

    url: str
    pid: int = 0
    version: str = ""
    started_at: float = 0.0
    token_file: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    token: str | None
    ca_file: str | None = None
    local: bool = False  # found by its file, not by name

    @property
    def loopback(self) -> bool:
        """Whether it is this machine."""
        return _LOOPBACK.fullmatch(self.url) is not None


def find(told: settings.Settings) -> Place:
    """Raises ServerNotFound where no server is named and none has left its file in the home."""
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
    """The local server's file, None where there is none or it is only half a file."""
    try:
        return msgspec.json.decode((home / SERVER_FILE).read_bytes(), type=ServerFile)
    except (OSError, msgspec.DecodeError):
        return None


def read_token(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def alive(pid: int) -> bool:
    """Whether a process of this number runs: a zombie does not."""
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
