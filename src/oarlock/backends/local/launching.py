"""The start of a task's agent, apart from the server: in a session of its own, with none of the server's files, on its
own log.

Between the fork and the agent stands a shell of three lines. It writes its pid to `agent.pid`, which it may only create
(so a second one does not start, and a file written first forbids the start), enters the task's v1 control groups, and
becomes the agent: same pid, same start time. Nothing of ours runs between fork and exec, because a server with threads
cannot fork safely.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from oarlock.backends.local import processes

STARTED = "agent.pid"
LOG = "agent.log"
_NEVER = "never\n"
_READ_TRIES = 200
_READ_PAUSE_S = 0.005

_SCRIPT = """\
set -C
read -r self </proc/$$/stat && printf '%s\\n' "$self" >agent.pid || exit 1
set +C
while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done
shift
exec "$@"
"""

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR")
"""The server's variables that an agent gets, and LC_*. Nothing of Oarlock's own, tokens least of all."""


class Started(msgspec.Struct, frozen=True):
    """The process that became the agent. `pid` 0: none, and none may any more."""

    pid: int
    start: int


class Detached(subprocess.Popen[bytes]):
    """A child that is meant to outlive us: letting go of it is no mistake, which Popen would warn of."""

    def __del__(self) -> None:
        """Do nothing: the watch on its pidfd reaps it."""


def environment(server: Mapping[str, str], mark: processes.Mark) -> dict[str, str]:
    """Return the agent's own environment.

    It carries the mark, so that whatever it starts is found even if it is killed first.
    """
    kept = {name: value for name, value in server.items() if name in INHERITED or name.startswith("LC_")}
    return {**kept, processes.KEY_MARK: mark.key, processes.DIRECTORY_MARK: mark.directory}


def start(
    argv: Sequence[str], directory: Path, env: Mapping[str, str], groups: Sequence[str], pass_fds: Sequence[int] = ()
) -> int:
    """Start the agent of this directory and return its pid. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(directory / LOG, flags, 0o600)
    try:
        return Detached(
            ["/bin/sh", "-c", _SCRIPT, "oarlock-agent", *groups, "--", *argv],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        ).pid
    finally:
        os.close(log)


def started(directory: Path) -> Started | None:
    """Return the process that was started here; None where none was yet."""
    for _ in range(_READ_TRIES):
        try:
            text = (directory / STARTED).read_text(errors="replace")
        except OSError:
            return None
        if text == _NEVER:
            return Started(0, 0)
        seen = processes.parse(text)
        if seen is not None and text.endswith("\n"):
            return Started(seen.pid, seen.start)
        time.sleep(_READ_PAUSE_S)  # it is being written at this moment
    return Started(0, 0)


def forbid(directory: Path) -> Started:
    """Forbid any later start of an agent here; return the process if one was started. Raises OSError (a full disk)."""
    filling = directory / f"{STARTED}.{os.getpid()}~"
    filling.write_text(_NEVER)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(filling, directory / STARTED)
    finally:
        filling.unlink(missing_ok=True)
    return started(directory) or Started(0, 0)
