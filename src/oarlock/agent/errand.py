"""Errands: the helper command that fetches data, builds environments, stores results and copies checkpoints.

It is a command of ours under our own interpreter, found by the task's mark like every other child; its last words
become the detail that is reported, or the reason why the task could not go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from oarlock.agent import client, environment, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board
    from oarlock.agent.killing import Reach

HELPER_POLL_S = 0.05
DETAIL_EVERY_S = 1.0
DETAIL_CHARACTERS = 500
FAILURE_CHARACTERS = 6000  # a failure is told whole
TAIL_BYTES = 16 << 10
NOT_FOR_HELPERS = ("PYTHON", "LD_", "PATH", "VIRTUAL_ENV", "OARLOCK_")


class Failed(Exception):
    """`reason` is one of the exit record's; the message says what to look at."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Errands:
    """Runs the helper command and turns its last line into the detail or the error.

    One call at a time is the task's own: numbered output, its words are the task's detail. Those with a `name` may run
    beside it: their output is under that name, written anew each time, and the detail is left alone.
    """

    def __init__(self, task: Assignment, board: Board, reach: Reach) -> None:
        self._task, self._board, self._reach = task, board, reach
        self._calls = 0

    def run(
        self,
        arguments: list[str],
        what: str,
        reason: str,
        extra_env: dict[str, str] | None = None,
        name: str | None = None,
    ) -> str:
        """Wait for the helper's end and return the last line of its output; Failed(reason) if it went wrong."""
        out, err = self._output(name)
        if not self._task.helper:
            raise Failed(reason, f"{what}: there is no helper command to fetch or store with")
        env = dict(os.environ, **(extra_env or {}))
        env.update({environment.MARK: self._task.key.text, "PYTHONUNBUFFERED": "1"})
        child = self._start(self._task.helper + arguments, env, out, err, reason)
        if name is None:
            self._board.detail = what
        said_at = time.monotonic()
        while not child.poll():
            time.sleep(HELPER_POLL_S)
            if name is None and time.monotonic() - said_at > DETAIL_EVERY_S:
                said_at = time.monotonic()
                self._board.detail = (f"{what}: {self._last_words(err) or self._last_words(out)}").rstrip(": ")
        self._reach.forget(child.pid)
        child.reap()
        if child.code != 0:
            most = FAILURE_CHARACTERS
            said = self._last_words(err, most) or self._last_words(out, most) or "it said nothing"
            how = f"signal {child.signal}" if child.signal else f"code {child.code}"
            raise Failed(reason, f"{what} failed with {how}: {said}")
        return last_line(out)

    def _output(self, name: str | None) -> tuple[str, str]:
        if name is None:
            self._calls += 1
        out, err = (self._task.path(f"helper.{name or self._calls}.{kind}") for kind in ("out", "err"))
        for path in (out, err) if name is not None else ():
            with contextlib.suppress(OSError):
                os.unlink(path)
        return out, err

    def _start(self, argv: list[str], env: dict[str, str], out: str, err: str, reason: str) -> process.Process:
        with self._board.starting:
            if self._board.closing:
                raise client.Abandoned
            try:
                child = process.start(argv, env, self._task.directory, out, err)
            except OSError as error:
                raise Failed(reason, f"the helper {argv[0]!r} cannot be started: {error.strerror or error}") from error
            self._reach.add(child.pid, asked=False)
            return child

    def _last_words(self, path: str, most: int = DETAIL_CHARACTERS) -> str:
        text = spoken(last_line(path))[:most]
        return self._board.blanker.text(text) if self._board.blanker else text


def spoken(line: str) -> str:
    """What a line says to people: an object's `detail`, or its `message` and `hint`; any other line as it is."""
    try:
        said = json.loads(line)
    except ValueError:
        return line
    if not isinstance(said, dict):
        return line
    words = [str(said[name]) for name in ("detail", "message", "hint") if said.get(name)]
    for what in ("files", "bytes"):
        if said.get(what) is not None:
            total = said.get("total_" + what)
            words.append(f"{said[what]} {what}" if total is None else f"{said[what]} of {total} {what}")
    return ("\n" if any("\n" in word for word in words) else "; ").join(words) or line


def last_line(path: str) -> str:
    lines = [line for line in tail(path, TAIL_BYTES).replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def helper_environment(job_env: dict[str, str], secrets: dict[str, str]) -> dict[str, str]:
    """What storing may need of the job's variables (endpoints, credentials), without what would change our Python."""
    kept = {name: value for name, value in job_env.items() if not name.startswith(NOT_FOR_HELPERS)}
    kept.update({name: value for name, value in secrets.items() if not name.startswith(NOT_FOR_HELPERS)})
    return kept


def tail(path: str, size_bytes: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size_bytes))
            return file.read(size_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
