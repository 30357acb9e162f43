"""The local server, as its users start, find and stop it: a process of its own, named in `server.json`.

The starter waits until the server answers, and prints the server's last lines if it does not. If two commands start it
at once, the second waits for the first and uses its server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from oarlock.cli.output import terminal
from oarlock.client import places, settings
from oarlock.display import durations
from oarlock.spec import errors

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
LOG_FILE = "server.log"
LOCK_FILE = "start.lock"
SERVER_LOCK_FILE = "server.lock"
_LOOK_S = 0.02


Options = Mapping[str, object]
"""Flags of `python -m oarlock.main`, by name."""


def running(home: Path) -> places.ServerFile | None:
    """Return the file of the local server, if its process lives."""
    left = places.read(home)
    return left if left is not None and (not left.pid or places.alive(left.pid)) else None


def ensure(told: settings.Settings) -> None:
    """Start the local server, and say so, unless the settings name a server or the local one runs."""
    if told.server is not None or running(told.home) is not None:
        return
    began = time.monotonic()
    left = start(told.home, {})
    took = durations.text(time.monotonic() - began)
    terminal.say(f"Started a local server at {left.url} in {took}. To stop it: oarlock down")


def start(home: Path, options: Options) -> places.ServerFile:
    """Start a server that outlives this process, and wait until it listens. Raises Unavailable with its last lines."""
    make_home(home)
    with _alone(home):
        left = running(home)
        if left is not None and answers(left.url):
            return left  # another command was faster
        return _start(home, options)


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Let one command start a server at a time, so that the next one finds it."""
    with _opened(home / LOCK_FILE) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start(home: Path, options: Options) -> places.ServerFile:
    log = home / LOG_FILE
    with _opened(log) as file:
        began_at = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "oarlock.main", *arguments(options)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "OARLOCK_HOME": str(home)},
            cwd=home,
            start_new_session=True,
        )
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        left = running(home)
        if left is not None and answers(left.url):
            process.returncode = 0  # it outlives us on purpose, so Popen must not warn
            return left
        if process.poll() is not None:
            raise _failed(f"the local server ended at once (exit code {process.returncode})", log, began_at)
        time.sleep(_LOOK_S)
    process.kill()
    process.wait()
    raise _failed(f"the local server did not answer within {START_TIMEOUT_S:.0f} s", log, began_at)


def arguments(options: Options) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = "it is not a directory" if home.exists() else f"it cannot be made ({error.strerror or error})"
        raise _unwritable(home, why) from error


def check_home(home: Path) -> None:
    """Make the home if it is missing. Raises Unavailable if it cannot be written, before any other work is done."""
    make_home(home)
    if not os.access(home, os.W_OK | os.X_OK):
        raise _unwritable(home, "it belongs to another user, or its disk is read-only")


def _unwritable(home: Path, why: str) -> errors.Unavailable:
    return errors.Unavailable(
        f"Oarlock's home {home} cannot be written: {why}", hint="Set OARLOCK_HOME to a directory that you may write."
    )


def holds(home: Path) -> bool:
    """Return whether a server of this home lives. After a crash `server.json` may name another program."""
    try:
        with (home / SERVER_LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def stop(home: Path, left: places.ServerFile) -> None:
    """Wait until the process has ended, and remind it once with SIGTERM. Raises Unavailable if it does not end."""
    until = time.monotonic() + STOP_TIMEOUT_S
    asked = False
    while places.alive(left.pid):
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise errors.Unavailable(
                f"the server (process {left.pid}) has not ended in {STOP_TIMEOUT_S:.0f} s",
                hint=f"Read its log ({home / LOG_FILE}), or end it: kill -9 {left.pid}. Running jobs go on.",
            )
        if not asked and remaining < STOP_TIMEOUT_S - 3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left.pid, signal.SIGTERM)
            asked = True
        time.sleep(_LOOK_S)


def answers(url: str) -> bool:
    """Return whether a server listens there."""
    import socket

    host, _, port = url.partition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except (OSError, ValueError):
        return False


def _opened(path: Path) -> IO[bytes]:
    """Open the file for appending, readable by its owner alone."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
    except OSError as error:
        raise errors.Unavailable(
            f"{path} cannot be written: {error.strerror}", hint="Set OARLOCK_HOME to a directory that you may write."
        ) from error


def _failed(message: str, log: Path, began_at: int) -> errors.Unavailable:
    said = last_lines(log, began_at)
    body = "".join(f"\n  | {line}" for line in said)
    return errors.Unavailable(
        message + (f". Its last lines:{body}" if body else ""), hint="Find the reason: oarlock doctor"
    )


def last_lines(log: Path, began_at: int = 0, count: int = 10) -> Sequence[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(began_at, log.stat().st_size - 16_384))
            return file.read(16_384).decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []
