"""The command `serve DIR`: the helper as a container of its own, which runs the requests of the agent beside it.

Both containers see DIR (the mailbox) and the task's directory under the same paths. Each request is one run of the
helper command in a process of its own. The helper ends with the agent (its lock is free then); a run that is still
under way is ended too. `oarlock.agent.transfers.mailbox` describes the files.

A kubelet that ends a pod sends SIGTERM to all of its containers at once. The agent then stops its processes, and has
their last checkpoint, results and files to store: so the helper goes on while the agent lives. SIGKILL bounds both.

The task's own processes may write requests as well. So a request gets no more than it needs: one of `COMMANDS`, and no
variable that would change our interpreter.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from oarlock.data import durable
from oarlock.data.transfers import authorities

LOOK_S = 0.1
LOCK, REQUESTS, ANSWERS, CANCELS = "helper.lock", "requests", "answers", "cancels"
COMMAND = (sys.executable, "-m", "oarlock.data")
COMMANDS = frozenset({"fetch", "store", "keep", "prune", "complete"})
NOT_FOR_HELPERS = ("PYTHON", "LD_", "PATH", "VIRTUAL_ENV", "OARLOCK_")
"""How the names of variables begin that no request may set. The agent keeps to the same list."""
REFUSED = 2
AGENT_LOCK, AGENT_STARTED = "lock", "agent.json"


class Request(msgspec.Struct, frozen=True):
    arguments: tuple[str, ...]
    env: dict[str, str]
    stdout: str
    stderr: str


class Ended(msgspec.Struct, frozen=True):
    code: int | None
    signal: int | None


class Helper:
    """The runs of one mailbox. `task` is the task's directory."""

    def __init__(self, mailbox: Path, task: Path, command: tuple[str, ...] = COMMAND) -> None:
        self._mailbox, self._task = mailbox, task
        self._command = (*command, "--task", str(task))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._asked_to_end = False
        for name in (REQUESTS, ANSWERS, CANCELS):
            (mailbox / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def ask_to_end(self, *_: object) -> None:
        """Do not wait for an agent that has not begun. One that lives is served until its end."""
        self._asked_to_end = True

    def run(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Serve until the agent has ended."""
        lock = os.open(self._mailbox / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            while not (self._asked_to_end or agent_has_begun(self._task)) or agent_lives(self._task):
                self.look()
                sleep(LOOK_S)
        finally:
            for name in list(self._running):
                self._kill(name)
            os.close(lock)

    def look(self) -> None:
        """Start the new requests, end the canceled runs, and answer for the runs that have ended."""
        for path in sorted((self._mailbox / REQUESTS).glob("*.json")):
            self._start(path)
        for path in (self._mailbox / CANCELS).iterdir():
            self._kill(path.name)
            path.unlink()
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                self._answer(name, Ended(code, None) if code >= 0 else Ended(None, -code))

    def _start(self, path: Path) -> None:
        """Take the request, which holds secrets, out of the folder, and start it."""
        request = msgspec.json.decode(path.read_bytes(), type=Request)
        path.unlink()
        if not request.arguments or request.arguments[0] not in COMMANDS:
            with _appending(request.stderr) as err:
                err.write(b"the helper knows no such command: it fetches and stores\n")
            self._answer(path.stem, Ended(REFUSED, None))
            return
        given = {name: value for name, value in request.env.items() if not name.startswith(NOT_FOR_HELPERS)}
        with _appending(request.stdout) as out, _appending(request.stderr) as err:
            self._running[path.stem] = subprocess.Popen(
                [*self._command, *request.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self._task,
                env={**os.environ, **given, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        process = self._running.get(name)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _answer(self, name: str, ended: Ended) -> None:
        durable.write(self._mailbox / ANSWERS / f"{name}.json", msgspec.json.encode(ended), 0o600)


def _appending(path: str) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def agent_has_begun(task: Path) -> bool:
    """Return whether the agent has ever had its lock."""
    return (task / AGENT_STARTED).exists()


def agent_lives(task: Path) -> bool:
    """Return whether the agent holds its lock."""
    try:
        fd = os.open(task / AGENT_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def run(mailbox: str, task: str, command: tuple[str, ...] = COMMAND) -> str:
    helper = Helper(Path(mailbox), Path(task), command)
    signal.signal(signal.SIGTERM, helper.ask_to_end)  # not SIG_IGN, which the runs would inherit
    with tempfile.TemporaryDirectory() as own:  # which the task's processes do not see
        named = Path(task) / authorities.FILE
        if named.exists():
            authorities.trust(named.read_text(encoding="utf-8"), Path(own) / "authorities.pem", os.environ)
        helper.run()
    return ""
