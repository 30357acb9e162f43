"""The copy of the exit record that a platform keeps: short, and still a whole record."""

from __future__ import annotations

import json

import pytest

from oarlock.agent import assignment, exitrecord, supervisor
from oarlock.agent.processes import tracking


def value(processes, lines, detail=""):
    ends = [
        {
            "code": 1,
            "signal": None,
            "ended_at": 1.0,
            "last_lines": [f"\u00e9 line {n} " + "x" * 400 for n in range(lines)],
        }
        for _ in range(processes)
    ]
    outcome = exitrecord.Outcome("exited", 1)
    outcome.detail = detail
    return exitrecord.compose("j-1/1/worker/0/1", outcome, ends, 0.0, "session", [])


@pytest.mark.parametrize(("processes", "lines"), [(1, 0), (1, 20), (8, 20), (128, 20)])
def test_it_fits_and_keeps_the_newest_lines(processes, lines):
    whole = value(processes, lines)
    text = exitrecord.brief(whole)
    assert len(text.encode()) <= exitrecord.BRIEF_BYTES
    kept = json.loads(text)
    assert kept["code"] == 1
    for each, full in zip(kept["processes"], whole["processes"], strict=False):
        assert each["last_lines"] == full["last_lines"][len(full["last_lines"]) - len(each["last_lines"]) :]
    if processes == 1 and lines:
        assert kept["processes"][0]["last_lines"], "as many as fit"
    assert len(whole["processes"]) == processes, "the record itself stays whole"


def test_the_end_of_a_long_detail_is_kept():
    whole = value(1, 1, "a" * 3000 + "b" * 1000)
    kept = json.loads(exitrecord.brief(whole))
    assert kept["detail"] == "b" * 1000
    assert kept["processes"] == whole["processes"], "its lines need not go for it"


def test_the_fields_of_the_record():
    outcome = exitrecord.Outcome("oom", 137, 9, killed_by_us=True)
    outcome.detail = "words"
    found = exitrecord.compose("j/1/worker/0/1", outcome, [{"code": 1}], 5.0, "cgroup", [41], 7, 4096)
    assert isinstance(found.pop("ended_at"), float)
    assert found == {
        "key": "j/1/worker/0/1",
        "code": 137,
        "signal": 9,
        "reason": "oom",
        "detail": "words",
        "killed_by_us": True,
        "oom": True,
        "processes": [{"code": 1}],
        "started_at": 5.0,
        "kill": "cgroup",
        "left": [41],
        "step": 7,
        "memory_peak_bytes": 4096,
    }


def test_the_agent_writes_it_into_the_file_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "begin", lambda mark: tracking.Tracking())
    log = tmp_path / "termination-log"
    log.touch()
    inode = log.stat().st_ino
    fields = {"key": "j-1/1/worker/0/1", "command": "true", "exit_copy": str(log)}
    supervisor.Supervisor(assignment.Assignment(str(tmp_path), fields))._write_record(
        exitrecord.Outcome("exited", 3), []
    )
    assert json.loads(log.read_text())["code"] == 3
    assert log.stat().st_ino == inode, "a mounted file cannot be replaced"


def test_the_address_may_be_known_in_the_pod_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("OARLOCK_ADDRESS", "10.1.2.3")
    fields = {"key": "j-1/1/worker/0/1", "command": "true"}
    assert assignment.Assignment(str(tmp_path), fields).address == "127.0.0.1"
    there = {**fields, "address": "", "address_variable": "OARLOCK_ADDRESS"}
    assert assignment.Assignment(str(tmp_path), there).address == "10.1.2.3"
    assert assignment.Assignment(str(tmp_path), {**there, "address": "10.0.0.1"}).address == "10.0.0.1"
