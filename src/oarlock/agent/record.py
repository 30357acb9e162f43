"""The exit record: how the task ended, decided from what was seen, and written so that it is whole or absent."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.process import Process

COMMAND_NOT_FOUND = 127
SHELL_SIGNAL_BASE = 128
LAST_SIGNAL = 31
TERMINATED, KILLED = 15, 9
ORPHANED = "orphaned"  # the platform's fault, although the signal was ours


class Outcome:
    """What the job is told of this task's end. `code` and `signal` are the first failure's."""

    def __init__(self, reason: str, code: int, signum: int | None = None, killed_by_us: bool = False) -> None:
        self.reason, self.code, self.signal, self.killed_by_us = reason, code, signum, killed_by_us
        self.detail = ""

    @property
    def good(self) -> bool:
        return self.reason == "exited" and self.code == 0


def judge(processes: list[Process], ending: str | None, through_shell: bool, oom_seen: bool, oom_sure: bool) -> Outcome:
    """The outcome of ended processes. `ending` is why we ended them, if we did: stopped, stale, orphaned.

    A process that failed before our signal reached it decides: the first one, by time. Then our own signal, which is
    neutral. `oom_sure`: the counter is the task's alone; otherwise only a SIGKILL that was not ours is put down to it.
    """
    failures = sorted((p for p in processes if p.failed), key=lambda p: p.ended_at or 0.0)
    if failures and ending not in ("stale", "orphaned"):
        return _failure(failures[0], through_shell, oom_seen, oom_sure)
    if ending is not None:
        ended = [p for p in processes if p.signal or p.code] or processes
        first = ended[0] if ended else None
        if first is not None:
            return Outcome(ending, code_of(first), first.signal, ending != ORPHANED)
        return unstarted(ending)
    return Outcome("exited", 0)


def unstarted(ending: str) -> Outcome:
    """The end of a task whose processes never started, because we were told to end it."""
    return Outcome(ending, SHELL_SIGNAL_BASE + TERMINATED, None, ending != ORPHANED)


def code_of(process: Process) -> int:
    """As a shell would say it: a signal is 128 and its number. 137 for what did not even die of SIGKILL."""
    if process.signal:
        return SHELL_SIGNAL_BASE + process.signal
    return process.code if process.code is not None else SHELL_SIGNAL_BASE + KILLED


def _failure(process: Process, through_shell: bool, oom_seen: bool, oom_sure: bool) -> Outcome:
    code, signum = code_of(process), process.signal
    if through_shell and signum is None and SHELL_SIGNAL_BASE < code <= SHELL_SIGNAL_BASE + LAST_SIGNAL:
        signum = code - SHELL_SIGNAL_BASE  # the shell's way to say that its child was killed
    if oom_seen and (oom_sure or signum == KILLED):
        return Outcome("oom", code, signum)
    if signum:
        return Outcome("signal", code, signum)
    if through_shell and code == COMMAND_NOT_FOUND:
        return Outcome("command_not_found", code)
    return Outcome("exited", code)


def compose(
    key: str,
    outcome: Outcome,
    processes: list[dict[str, Any]],
    started_at: float | None,
    way: str,
    left: list[int],
    step: int | None = None,
    memory_peak_bytes: int | None = None,
) -> dict[str, Any]:
    return {
        "key": key,
        "code": outcome.code,
        "signal": outcome.signal,
        "reason": outcome.reason,
        "detail": outcome.detail,
        "killed_by_us": outcome.killed_by_us,
        "oom": outcome.reason == "oom",
        "processes": processes,
        "started_at": started_at,
        "ended_at": time.time(),
        "kill": way,
        "left": left,
        "step": step,
        "memory_peak_bytes": memory_peak_bytes,
    }
