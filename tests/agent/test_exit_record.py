"""The exit record is on the disk before anybody is told of it: synced, renamed, and the name synced too.

A power cut after the rename must not leave an empty record: the job would have an unknown end.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from oarlock.agent import assignment, exitrecord, supervisor
from oarlock.agent.processes import tracking


class Disk:
    """The writes to the disk, in order; the calls themselves go through."""

    def __init__(self, monkeypatch):
        self.did = []
        self._fsync, self._rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "rename", self.rename)
        monkeypatch.setattr(os, "replace", self.rename)

    def fsync(self, fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        content = None if stat.S_ISDIR(os.fstat(fd).st_mode) else Path(path).read_text()
        self.did.append(("fsync", path, content))
        self._fsync(fd)

    def rename(self, old, new):
        self.did.append(("rename", str(old), str(new)))
        self._rename(old, new)


def test_the_exit_record_is_synced_then_renamed_then_its_name_is_synced(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "begin", lambda mark: tracking.Tracking())
    task = assignment.Assignment(str(tmp_path), {"key": "j-1/1/worker/0/1", "command": "true"})
    agent = supervisor.Supervisor(task)
    disk = Disk(monkeypatch)
    agent._write_record(exitrecord.Outcome("exited", 3), [])
    final = str(tmp_path / "exit.json")
    (draft,) = [old for what, old, new in disk.did if what == "rename" and new == final]
    assert [(what, where) for what, where, _ in disk.did] == [
        ("fsync", draft),
        ("rename", draft),
        ("fsync", str(tmp_path)),
    ]
    assert json.loads(disk.did[0][2])["code"] == 3, "it was whole when it was synced"
    assert agent._state.exit == json.loads((tmp_path / "exit.json").read_text())


def test_the_server_is_told_of_an_exit_only_once_it_is_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "begin", lambda mark: tracking.Tracking())
    task = assignment.Assignment(str(tmp_path), {"key": "j-1/1/worker/0/1", "command": "true"})
    agent = supervisor.Supervisor(task)
    told = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (told.append(agent._state.exit), sync(fd)))
    agent._write_record(exitrecord.Outcome("exited", 0), [])
    assert told == [None, None]
    assert agent._state.exit["code"] == 0
