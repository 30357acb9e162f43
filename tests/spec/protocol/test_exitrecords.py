"""The agent's exit record as the job's record keeps it."""

from __future__ import annotations

import msgspec
import pytest

from oarlock.spec import attempts
from oarlock.spec.protocol import exitrecords


def process(code: int, at: float, line: str) -> dict[str, object]:
    return {"code": code, "ended_at": at, "last_lines": [line]}


@pytest.mark.parametrize(
    ("processes", "first", "says"),
    [
        ([process(0, 1.0, "fine"), process(3, 3.0, "later"), process(3, 2.0, "sooner")], 2, "sooner"),
        ([process(3, 2.0, "one"), process(3, 2.0, "other")], 0, "one"),
        ([process(0, 2.0, "one"), process(0, 1.0, "other")], 0, "one"),
    ],
    ids=["the first by time, not by number", "at the same time: the lower number", "none failed"],
)
def test_the_process_that_failed_first_is_quoted(processes: list[dict[str, object]], first: int, says: str) -> None:
    raw = msgspec.json.encode({"code": 3, "reason": "exited", "processes": processes, "ended_at": 9.0})
    how = exitrecords.read(raw, now=10.0)
    assert how.step is None
    assert (how.process, how.last_lines, how.cause) == (first, (says,), attempts.Cause.ERROR)
