"""The next step after a failure, where its end shows the reason: one sentence for the record."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oarlock.spec import attempts, jobfile
from oarlock.spec.input import quantities

_NO_MODULE = re.compile(r"ModuleNotFoundError: .*No module named '([A-Za-z0-9_]+)")
_NO_INPUT = "EOFError: EOF when reading a line"

STDIN = "The stdin of a job is closed. Pass the program's input as an argument, or with --env."
TORCH = "Install torch where the job runs (pip install torch), or name it in --dependencies requirements.txt."
MODULE = "Install {} where the job runs, or name it in --dependencies FILE; a file of yours must be in the snapshot."


def hint(spec: jobfile.JobSpec, task: attempts.Task | None) -> str:
    """Return the next step after the failure of `task`; empty where its end shows none."""
    how = task.exit if task is not None else None
    if task is None or how is None:
        return ""
    if how.cause is attempts.Cause.OOM:
        return _memory(spec, task)
    return _of_lines(how.last_lines) if how.cause is attempts.Cause.ERROR else ""


def took(spec: jobfile.JobSpec, task: attempts.Task) -> str:
    """Return the peak and the limit of a task that ran out of memory, as the rest of a sentence; empty if unknown."""
    limit, peak = limit_bytes(spec, task), task.exit.memory_peak_bytes if task.exit is not None else None
    if peak is not None and limit is not None:
        peak = min(peak, limit)  # a counter may see more than the task itself
    taken = quantities.memory_text(peak) if peak is not None else "more"
    if limit is not None:
        return f": it took {taken}, and its limit is {quantities.memory_text(limit)}"
    return f": it took {taken}, and the machine had no more" if peak is not None else ""


def limit_bytes(spec: jobfile.JobSpec, task: attempts.Task) -> int | None:
    """Return the limit that held: a cluster may set one that the job file does not name."""
    if task.exit is not None and task.exit.memory_limit_bytes is not None:
        return task.exit.memory_limit_bytes
    role = spec.roles.get(task.role)
    return quantities.memory_bytes(role.memory) if role is not None and role.memory is not None else None


def _memory(spec: jobfile.JobSpec, task: attempts.Task) -> str:
    limit = limit_bytes(spec, task)
    if limit is None:
        return "Say with --memory how much each task needs, so that it waits for a machine that has it."
    return f"Give each task more, for example --memory {_twice(limit)}, or take smaller batches."


def _twice(limit: int) -> str:
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("G", 10**9), ("M", 10**6)):
        if 2 * limit % size == 0:
            return f"{2 * limit // size}{unit}"
    return str(2 * limit)


def _of_lines(lines: Sequence[str]) -> str:
    last = next((line for line in reversed(lines) if line.strip()), "")
    if _NO_INPUT in last:
        return STDIN
    missing = _NO_MODULE.search(last)
    if missing is None:
        return ""
    return TORCH if missing[1] == "torch" else MODULE.format(missing[1])
