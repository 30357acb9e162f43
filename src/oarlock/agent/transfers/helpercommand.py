"""The helper command, which fetches data, stores results and copies checkpoints.

It is `python -m oarlock.data` under Oarlock's own interpreter, and it carries the task's mark like every other child.
Its last line of output becomes the reported detail, or the reason of the task's failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from oarlock.agent import environment
from oarlock.agent.processes import process
from oarlock.agent.protocol import client
from oarlock.agent.transfers import mailbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.processes.killing import TaskProcesses

HELPER_POLL_S = 0.05
DETAIL_EVERY_S = 1.0
DETAIL_CHARACTERS = 500
FAILURE_CHARACTERS = 6000  # a failure is reported in full
TAIL_BYTES = 16 << 10
NOT_FOR_HELPERS = ("PYTHON", "LD_", "PATH", "VIRTUAL_ENV", "OARLOCK_")


class Failed(Exception):
    """A run of the helper that failed. `reason` is one of the exit record's; the message names the cause."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class HelperCommand:
    """The helper command: its last line becomes the task's detail, or an error.

    Only one run without a `name` is under way at a time: its output files are numbered, and its last line is the task's
    detail. Runs with a `name` may run beside it: each overwrites the files of that name, and the detail stays.
    """

    def __init__(self, task: Assignment, state: AgentState, task_processes: TaskProcesses) -> None:
        self._task, self._state, self._task_processes = task, state, task_processes
        self._calls = self._sent = 0

    def run(
        self,
        arguments: list[str],
        purpose: str,
        reason: str,
        extra_env: dict[str, str] | None = None,
        name: str | None = None,
        beside: bool = False,
    ) -> str:
        """Run the helper to its end and return the last line of its output. Failed(reason) if it fails.

        With `beside` the arguments are a whole command of their own, which runs beside this agent.
        """
        out, err = self._output(name)
        said_at = time.monotonic()

        def look() -> None:
            nonlocal said_at
            time.sleep(HELPER_POLL_S)
            if name is None and time.monotonic() - said_at > DETAIL_EVERY_S:
                said_at = time.monotonic()
                self._state.detail = (f"{purpose}: {self._last_words(err) or self._last_words(out)}").rstrip(": ")

        if name is None:
            self._state.detail = purpose
        if self._task.mailbox and not beside:
            code, signum = self._send(arguments, purpose, reason, extra_env or {}, (out, err), look)
        else:
            argv = arguments if beside else self._helper(purpose, reason) + arguments
            code, signum = self._run_beside(argv, reason, extra_env or {}, (out, err), look)
        if code != 0:
            most = FAILURE_CHARACTERS
            said = self._last_words(err, most) or self._last_words(out, most) or "it printed nothing"
            how = f"signal {signum}" if signum else f"code {code}"
            raise Failed(reason, f"{purpose} failed with {how}: {said}")
        return last_line(out)

    def _helper(self, purpose: str, reason: str) -> list[str]:
        if not self._task.helper:
            raise Failed(reason, f"{purpose}: there is no helper command to fetch or store with")
        return self._task.helper

    def _run_beside(
        self,
        argv: list[str],
        reason: str,
        extra_env: dict[str, str],
        output: tuple[str, str],
        look: Callable[[], None],
    ) -> tuple[int | None, int | None]:
        """Run it as a child of this agent; return its code and signal."""
        env = dict(os.environ, **extra_env)
        env.update({environment.MARK: self._task.key.text, "PYTHONUNBUFFERED": "1"})
        child = self._start(argv, env, *output, reason)
        while not child.poll():
            look()
        self._task_processes.forget(child.pid)
        child.reap()
        return child.code, child.signal

    def _send(
        self,
        arguments: list[str],
        purpose: str,
        reason: str,
        extra_env: dict[str, str],
        output: tuple[str, str],
        look: Callable[[], None],
    ) -> tuple[int | None, int | None]:
        """Let the helper in the other container run it; return its code and signal."""
        if self._state.closing:
            raise client.Abandoned
        self._sent += 1
        env = dict(extra_env, PYTHONUNBUFFERED="1")
        try:
            errand = mailbox.Errand(self._task.mailbox or "", str(self._sent), arguments, env, output)
            while not errand.poll(self._state):
                look()
        except (mailbox.Gone, OSError, ValueError, KeyError) as error:
            raise Failed(reason, f"{purpose}: the helper does not answer: {error}") from error
        return errand.code, errand.signal

    def _output(self, name: str | None) -> tuple[str, str]:
        if name is None:
            self._calls += 1
        out, err = (self._task.path(f"helper.{name or self._calls}.{kind}") for kind in ("out", "err"))
        for path in (out, err) if name is not None else ():
            with contextlib.suppress(OSError):
                os.unlink(path)
        return out, err

    def _start(self, argv: list[str], env: dict[str, str], out: str, err: str, reason: str) -> process.Process:
        with self._state.starting:
            if self._state.closing:
                raise client.Abandoned
            try:
                child = process.start(argv, env, self._task.directory, out, err)
            except OSError as error:
                raise Failed(reason, f"the helper {argv[0]!r} cannot be started: {error.strerror or error}") from error
            self._task_processes.add(child.pid, asked=False)
            return child

    def _last_words(self, path: str, most: int = DETAIL_CHARACTERS) -> str:
        text = readable(last_line(path))[:most]
        return self._state.blanker.text(text) if self._state.blanker else text


def readable(line: str) -> str:
    """Return a line of output for people: an object's `detail`, or its `message` and `hint`; other lines unchanged."""
    try:
        said = json.loads(line)
    except ValueError:
        return line
    if not isinstance(said, dict):
        return line
    words = [str(said[name]) for name in ("detail", "message", "hint") if said.get(name)]
    for unit in ("files", "bytes"):
        if said.get(unit) is not None:
            total = said.get("total_" + unit)
            words.append(f"{said[unit]} {unit}" if total is None else f"{said[unit]} of {total} {unit}")
    return ("\n" if any("\n" in word for word in words) else "; ").join(words) or line


def last_line(path: str) -> str:
    lines = [line for line in tail(path, TAIL_BYTES).replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def helper_environment(job_env: dict[str, str], secrets: dict[str, str]) -> dict[str, str]:
    """Return the job's variables and secrets (endpoints, credentials), without those that would change our Python."""
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
