"""The exit record: how the task ended, decided from the ends of its processes."""

from __future__ import annotations

import json
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.processes.process import Process

COMMAND_NOT_FOUND = 127
SHELL_SIGNAL_BASE = 128
LAST_SIGNAL = 31
BRIEF_BYTES = 4000
"""The most in a copy of the record: Kubernetes keeps 4096 bytes of a termination message."""
TERMINATED, KILLED = 15, 9
ORPHANED = "orphaned"  # a fault of the platform, although the agent sent the signal


class Outcome:
    """The end of this task as the job sees it. `code` and `signal` are those of the first failure."""

    def __init__(self, reason: str, code: int, signum: int | None = None, killed_by_us: bool = False) -> None:
        self.reason, self.code, self.signal, self.killed_by_us = reason, code, signum, killed_by_us
        self.detail = ""

    @property
    def good(self) -> bool:
        return self.reason == "exited" and self.code == 0


def outcome_of(
    processes: list[Process], ending: str | None, through_shell: bool, oom_seen: bool, oom_sure: bool
) -> Outcome:
    """Return the outcome of ended processes. `ending`: why the agent ended them (stopped, stale, orphaned), or None.

    The first process that failed before the agent's signal reached it decides. Without one, the agent's signal decides,
    which is not a failure. `oom_sure`: the counter belongs to this task alone. Otherwise memory is blamed only for a
    SIGKILL that the agent did not send.
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
    """Return the outcome of a task that was told to end before its processes started."""
    return Outcome(ending, SHELL_SIGNAL_BASE + TERMINATED, None, ending != ORPHANED)


def code_of(process: Process) -> int:
    """Return the code that a shell would give: 128 plus a signal's number; 137 if even SIGKILL did not end it."""
    if process.signal:
        return SHELL_SIGNAL_BASE + process.signal
    return process.code if process.code is not None else SHELL_SIGNAL_BASE + KILLED


def _failure(process: Process, through_shell: bool, oom_seen: bool, oom_sure: bool) -> Outcome:
    code, signum = code_of(process), process.signal
    if through_shell and signum is None and SHELL_SIGNAL_BASE < code <= SHELL_SIGNAL_BASE + LAST_SIGNAL:
        signum = code - SHELL_SIGNAL_BASE  # a shell's code for a child that was killed
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
    kill_method: str,
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
        "kill": kill_method,
        "left": left,
        "step": step,
        "memory_peak_bytes": memory_peak_bytes,
    }


def brief(value: dict[str, Any]) -> str:
    """Return the record as JSON of at most `BRIEF_BYTES`: the first of the last lines go, until the rest fits."""
    kept = dict(value, processes=[dict(each) for each in value["processes"]], detail=value["detail"][-1000:])
    order = _dropped(kept["processes"])
    least, most = 0, len(order)
    while least < most:  # the fewest lines to drop: writing the record after each line takes seconds for many processes
        middle = (least + most) // 2
        if _fits(_without(kept, order[:middle])):
            most = middle
        else:
            least = middle + 1
    kept = _without(kept, order[:least])
    while kept["processes"] and not _fits(kept):
        kept["processes"] = kept["processes"][: len(kept["processes"]) // 2]
    return json.dumps(kept, sort_keys=True)


def _dropped(processes: list[dict[str, Any]]) -> list[int]:
    """Return the process whose oldest line goes, for each line in turn: the first of those with the most lines."""
    left = [len(each["last_lines"]) for each in processes]
    order = []
    for count in range(max(left, default=0), 0, -1):
        for index in range(len(left)):
            if left[index] == count:
                left[index] -= 1
                order.append(index)
    return order


def _without(value: dict[str, Any], dropped: list[int]) -> dict[str, Any]:
    gone = [0] * len(value["processes"])
    for index in dropped:
        gone[index] += 1
    kept = [dict(each, last_lines=each["last_lines"][lines:]) for each, lines in zip(value["processes"], gone)]
    return dict(value, processes=kept)


def _fits(value: dict[str, Any]) -> bool:
    return len(json.dumps(value, sort_keys=True).encode()) <= BRIEF_BYTES
