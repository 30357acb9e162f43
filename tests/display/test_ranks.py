"""Ranks in words: their names as ranges, and those that failed beside the blamed one."""

from __future__ import annotations

import pytest

from oarlock.display.jobs import ranks
from oarlock.spec import attempts, phases, roles


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        (["worker-0", "worker-1"], "worker-0 to 1"),
        (["worker-10", "worker-2", "worker-9"], "worker-2, worker-9 to 10"),
        (["worker-0", "chief-0", "worker-1"], "worker-0 to 1, chief-0"),
        ([f"worker-{number}" for number in range(512)], "worker-0 to 511"),
    ],
)
def test_tasks_are_told_in_few_words(tasks: list[str], told: str) -> None:
    assert ranks.folded(tasks) == told


def failed(index: int, cause: attempts.Cause = attempts.Cause.PEER, **more: object) -> attempts.Task:
    exited = attempts.Exit(code=1, cause=cause, at=1.0)
    given = {"phase": phases.TaskPhase.FAILED, "exit": exited, **more}
    return attempts.Task(role=roles.RoleName.WORKER, index=index, **given)  # type: ignore[arg-type]


def told(*tasks: attempts.Task, task: str = "worker-1", cause: attempts.Cause = attempts.Cause.ERROR) -> list[str]:
    verdict = attempts.Verdict(cause=cause, message="it failed", at=1.0, task=task)
    return ranks.failed_beside(attempts.Attempt(number=1, started_at=0.0, tasks=tasks, verdict=verdict))


def test_the_ranks_that_failed_because_of_the_blamed_one_are_told_as_such() -> None:
    blamed = failed(1, attempts.Cause.ERROR)
    assert told(failed(0), blamed, *map(failed, range(2, 8))) == [
        "worker-0, worker-2 to 7 failed because worker-1 did."
    ]
    own = failed(3, attempts.Cause.OOM)
    assert told(failed(0), blamed, own) == ["worker-0 failed because worker-1 did.", "worker-3 failed, too."]
    assert told(blamed) == []


def test_a_rank_that_did_not_fail_or_that_the_others_went_on_without_is_not_told() -> None:
    stopped = failed(0, attempts.Cause.STOPPED, phase=phases.TaskPhase.STOPPED)
    left = failed(2, part=attempts.Part.LEFT)
    assert told(stopped, failed(1, attempts.Cause.ERROR), left) == []


def test_without_a_rank_to_blame_the_broken_connection_is_the_reason() -> None:
    assert told(failed(0), failed(1), cause=attempts.Cause.PEER) == [
        "worker-0 failed because a connection to a peer broke."
    ]
    assert told(failed(0), failed(1, attempts.Cause.ERROR), task="", cause=attempts.Cause.TIMEOUT) == [
        "worker-0 failed because a connection to a peer broke.",
        "worker-1 failed.",
    ]
    assert ranks.failed_beside(attempts.Attempt(number=1, started_at=0.0, tasks=(failed(0),))) == []
