"""Ranks of an attempt in words: names folded into ranges, and the ranks that failed beside the blamed one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from oarlock.spec import attempts, phases


def folded(tasks: Sequence[str]) -> str:
    """Return the tasks with one word for neighbours: `worker-0 to 7, worker-9`."""
    indexes: dict[str, list[int]] = {}
    for task in tasks:
        role, _, index = task.rpartition("-")
        indexes.setdefault(role, []).append(int(index))
    parts: list[str] = []
    for role, several in indexes.items():
        for _, run in itertools.groupby(enumerate(sorted(several)), lambda one: one[1] - one[0]):
            first, *_, last = [index for _, index in run] * 2
            parts.append(f"{role}-{first}" if first == last else f"{role}-{first} to {last}")
    return ", ".join(parts)


def failed_beside(attempt: attempts.Attempt) -> list[str]:
    """Return a sentence about the ranks that failed because the blamed one did, and one about those that failed too.

    A rank failed because of another one where its last lines say that a connection broke.
    """
    verdict = attempt.verdict
    if verdict is None:
        return []
    peers: list[str] = []
    others: list[str] = []
    for task in attempt.members:
        if task.phase is phases.TaskPhase.FAILED and task.exit is not None and task.name != verdict.task:
            (peers if task.exit.cause is attempts.Cause.PEER else others).append(task.name)
    known = verdict.task and verdict.cause is not attempts.Cause.PEER
    why = f"{verdict.task} did" if known else "a connection to a peer broke"
    return [
        *([f"{folded(peers)} failed because {why}."] if peers else []),
        *([f"{folded(others)} failed{', too' if verdict.task else ''}."] if others else []),
    ]
