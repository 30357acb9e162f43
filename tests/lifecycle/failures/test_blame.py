"""The rank to blame, the words of the blame, and the ends that count as the loss of a peer."""

from __future__ import annotations

import traceback

import pytest
from tests.lifecycle import script

from oarlock.lifecycle.failures import blame
from oarlock.spec import attempts, phases, roles

Cause = attempts.Cause

ENDS = [
    ("platform", {"cause": Cause.PLATFORM}, "worker-2 was lost: exit unknown"),
    ("platform exit_unknown", {"cause": Cause.PLATFORM}, "worker-2 was lost: it ended without an exit record"),
    ("platform not in the table", {"cause": Cause.PLATFORM}, "worker-2 was lost: not in the table"),
    ("oom", {"cause": Cause.OOM}, None),
    ("signal", {"cause": Cause.SIGNAL, "signal": 9}, "worker-2 was killed by SIGKILL"),
    ("signal", {"cause": Cause.SIGNAL, "signal": 99}, "worker-2 was killed by signal 99"),
    ("signal", {"cause": Cause.SIGNAL, "signal": None}, "worker-2 was killed by signal None"),
    ("left", {"cause": Cause.LEFT_EARLY}, "worker-2 ended while it was still needed"),
    ("peer", {"cause": Cause.PEER, "code": 4}, "worker-2 exited with code 4: a connection to a peer broke"),
    ("error", {"cause": Cause.ERROR, "code": 5}, "worker-2 exited with code 5"),
    ("error command_not_found", {"cause": Cause.ERROR}, "worker-2: the command was not found"),
]


def task(how: attempts.Exit | None, index: int = 2) -> attempts.Task:
    return attempts.Task(role=roles.RoleName.WORKER, index=index, exit=how, phase=phases.TaskPhase.FAILED, phase_at=0.0)


def ended(cause: Cause, at: float = 10.0, code: int = 1, **fields: object) -> attempts.Exit:
    return attempts.Exit(cause=cause, at=at, code=code, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "fields", "expected"), ENDS)
def test_the_sentence_of_an_end(kind: str, fields: dict[str, object], expected: str | None) -> None:
    reason = kind.partition(" ")[2]
    said = blame.sentence(task(ended(**fields, reason=reason)))  # type: ignore[arg-type]
    assert said == expected if expected is not None else said.startswith("worker-2 ran out of memory")


def test_the_sentence_names_the_process_of_several() -> None:
    how = ended(Cause.ERROR, code=5, process=3)
    assert blame.sentence(task(how)) == "worker-2 exited with code 5"
    assert blame.sentence(task(how), several=True) == "worker-2, process 3, exited with code 5"


def test_the_gravest_cause_is_blamed_whatever_came_first() -> None:
    order = list(blame.GRAVITY)
    spec = script.new_job("{roles: {worker: {count: 9}}}").spec
    for place, cause in enumerate(order):
        tasks = [task(ended(one, at=100.0 - index), index) for index, one in enumerate(order) if index >= place]
        found = blame.settle(reversed(tasks), spec)
        assert found is not None
        assert (found.cause, found.task) == (cause, f"worker-{place}")


def test_the_earliest_of_equally_grave_causes_is_blamed() -> None:
    spec = script.new_job("{roles: {worker: {count: 3}}}").spec
    tasks = [task(ended(Cause.ERROR, at=at), index) for index, at in enumerate((12.0, 10.0, 11.0))]
    found = blame.settle(tasks, spec)
    assert found == blame.Blame(task="worker-1", cause=Cause.ERROR, message="worker-1 exited with code 1")


def test_only_failed_tasks_are_blamed() -> None:
    spec = script.new_job("{roles: {worker: {count: 3}}}").spec
    well = attempts.Task(role=roles.RoleName.WORKER, index=0, phase=phases.TaskPhase.SUCCEEDED, exit=ended(Cause.ERROR))
    assert blame.settle([well], spec) is None
    assert blame.settle([], spec) is None


def test_a_cause_without_a_gravity_is_an_error() -> None:
    spec = script.new_job("{}").spec
    found = blame.settle([task(ended(Cause.HANG))], spec)
    assert found is not None
    assert found.cause is Cause.ERROR


@pytest.mark.parametrize("phrase", blame.PEER_LOST)
def test_a_lost_peer_is_found_in_any_line_and_case(phrase: str) -> None:
    lines = ("step 1", f"RuntimeError: {phrase.upper()} [1]", "the end")
    assert blame.lost_a_peer(lines)
    assert blame.refined(ended(Cause.ERROR, last_lines=lines)).cause is Cause.PEER
    assert blame.refined(ended(Cause.SIGNAL, signal=6, last_lines=lines)).cause is Cause.PEER
    assert blame.refined(ended(Cause.SIGNAL, signal=9, last_lines=lines)).cause is Cause.SIGNAL
    assert blame.refined(ended(Cause.OOM, last_lines=lines)).cause is Cause.OOM
    assert blame.refined(ended(Cause.ERROR, last_lines=lines, reason="download_failed")).cause is Cause.ERROR


@pytest.mark.parametrize(
    "error", [ConnectionResetError, ConnectionAbortedError, ConnectionRefusedError, BrokenPipeError]
)
def test_a_broken_connection_is_a_lost_peer_in_any_words(error: type[OSError]) -> None:
    lines = tuple(traceback.format_exception_only(error("rank 1 is gone")))
    assert blame.refined(ended(Cause.ERROR, last_lines=lines)).cause is Cause.PEER


@pytest.mark.parametrize("line", ["ValueError: no such thing", "EOFError: Ran out of input"])
def test_no_peer_is_lost_without_such_words(line: str) -> None:
    how = ended(Cause.ERROR, last_lines=("step 1", line))
    assert blame.refined(how) is how
