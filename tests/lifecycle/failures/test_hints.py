"""The hint about memory in the record of a failed task, at the borders of the known numbers."""

from __future__ import annotations

import pytest
from tests.lifecycle import script

from oarlock.lifecycle.failures import hints
from oarlock.spec import attempts, roles

MIB = 1 << 20


def task(peak: int | None, *, ended: bool = True) -> attempts.Task:
    how = attempts.Exit(code=137, cause=attempts.Cause.OOM, at=1.0, memory_peak_bytes=peak)
    return attempts.Task(role=roles.RoleName.WORKER, index=0, exit=how if ended else None)


@pytest.mark.parametrize(
    ("memory", "peak", "said"),
    [
        ("200Mi", 150 * MIB, ": it took 150 MiB, and its limit is 200 MiB"),
        ("200Mi", 900 * MIB, ": it took 200 MiB, and its limit is 200 MiB"),
        ("200Mi", None, ": it took more, and its limit is 200 MiB"),
        ("", 150 * MIB, ": it took 150 MiB, and the machine had no more"),
        ("", None, ""),
    ],
)
def test_the_memory_that_a_task_took(memory: str, peak: int | None, said: str) -> None:
    spec = script.new_job(f"{{roles: {{worker: {{memory: {memory}}}}}}}" if memory else "{}").spec
    assert hints.took(spec, task(peak)) == said


@pytest.mark.parametrize("memory", ["", "200Mi"])
def test_the_limit_that_the_cluster_set_counts(memory: str) -> None:
    """A limit range gives one to a pod whose job file names none, or a lower one."""
    spec = script.new_job(f"{{roles: {{worker: {{memory: {memory}}}}}}}" if memory else "{}").spec
    how = attempts.Exit(code=137, cause=attempts.Cause.OOM, at=1.0, memory_limit_bytes=100 * MIB)
    killed = attempts.Task(role=roles.RoleName.WORKER, index=0, exit=how)
    assert hints.took(spec, killed) == ": it took more, and its limit is 100 MiB"
    assert "--memory 200Mi" in hints.hint(spec, killed)


def test_a_task_that_has_not_ended_has_taken_nothing() -> None:
    assert hints.took(script.new_job().spec, task(1, ended=False)) == ""


@pytest.mark.parametrize(
    ("memory", "twice"),
    [("3Gi", "6Gi"), ("1.5Gi", "3Gi"), ("1.25Gi", "2560Mi"), ("3G", "6G"), ("7M", "14M"), ("1", "2")],
)
def test_twice_the_memory_in_the_largest_unit_that_says_it_exactly(memory: str, twice: str) -> None:
    spec = script.new_job(f"{{roles: {{worker: {{memory: {memory}}}}}}}").spec
    assert f"--memory {twice}, or" in hints.hint(spec, task(None))


def test_a_failure_that_shows_no_step_has_no_hint() -> None:
    spec = script.new_job().spec
    assert hints.hint(spec, None) == ""
    assert hints.hint(spec, task(1, ended=False)) == ""
    assert hints.hint(spec, ended_by(attempts.Cause.SIGNAL, "EOFError: EOF when reading a line")) == ""
    assert hints.hint(spec, ended_by(attempts.Cause.ERROR, "ValueError: too small")) == ""
    assert hints.hint(spec, ended_by(attempts.Cause.ERROR, "EOFError: EOF when reading a line")) == hints.STDIN


def ended_by(cause: attempts.Cause, line: str) -> attempts.Task:
    how = attempts.Exit(code=1, cause=cause, at=1.0, last_lines=(line,))
    return attempts.Task(role=roles.RoleName.WORKER, index=0, exit=how)
