"""The files that processes leave in the working directory, after good ends and bad ones."""

from __future__ import annotations

import json
import sys

from tests.agent import rig as rigs

KEEP = {"to": "file:///nowhere", "ignore": ["-x", "*.tmp"], "limit_bytes": 5, "limit_files": 6}
TELL = "json.dump(args, open(os.environ['OUT'] + '/asked', 'w')); print(json.dumps({'files': 1, 'bytes': 2}))"


def helper(rig, body=TELL):
    path = rig.outside / "helper.py"
    path.write_text(f"import json, os, sys, time\nverb, args = sys.argv[1], sys.argv[2:]\n{body}\n")
    return ["/usr/bin/env", f"OUT={rig.outside}", sys.executable, str(path)]


def kept(rig):
    return [report["kept"] for report in rig.server.reports if report.get("kept")]


@rigs.EVERY_PYTHON
def test_a_good_end_waits_for_the_files_to_keep(make_rig, python):
    rig = make_rig(python)
    record = rig.run("echo new > made", helper=helper(rig), keep=KEEP)
    assert record["code"] == 0
    task = rig.directory
    assert json.loads((rig.outside / "asked").read_text()) == [
        *(f"{task}/code", "file:///nowhere", "--baseline", f"{task}/baseline"),
        *("--limit-bytes", "5", "--limit-files", "6", "--ignore=-x", "--ignore=*.tmp"),
    ]
    assert kept(rig) == [{"files": 1, "bytes": 2}]
    assert rig.server.phases() == ["PROCESSING", "STORING"]
    told = [sorted(report.keys() & {"exit", "kept"}) for report in rig.server.reports]
    assert ["exit"] not in told[: told.index(next(each for each in told if "kept" in each))], "the exit comes after"


def test_nothing_new_costs_no_process(rig):
    record = rig.run("mkdir __pycache__; echo > __pycache__/a.pyc", helper=helper(rig), keep=KEEP)
    assert record["code"] == 0
    assert not (rig.outside / "asked").exists()
    assert (kept(rig), rig.server.phases()) == ([], ["PROCESSING"])


def test_a_failure_is_told_before_its_files_are_kept(rig):
    body = "\nfor _ in range(30000): os.path.exists(os.environ['OUT'] + '/go') or time.sleep(0.01)\n" + TELL
    rig.begin("echo new > made; exit 3", helper=helper(rig, body), keep=KEEP)
    rig.server.wait_for(rig.server.exits)
    assert kept(rig) == []
    (rig.outside / "go").touch()
    record = rig.finish()
    assert (record["code"], record["reason"]) == (3, "exited")
    assert kept(rig) == [{"files": 1, "bytes": 2}]


def test_files_of_a_stopped_process_are_kept_within_the_grace(rig):
    rig.begin("trap 'echo bye > made; exit 0' TERM; echo up > $OUTSIDE/up; for _ in $(seq 1200); do sleep 0.05; done",
              helper=helper(rig), keep=KEEP)  # fmt: skip
    rig.wait_for_file("up")
    rig.server.order(stop={"grace_s": 5, "reason": "cancel"})
    record = rig.finish()
    assert record["reason"] == "stopped"
    assert kept(rig) == [{"files": 1, "bytes": 2}]


def test_a_helper_that_does_not_end_is_cut_short_and_that_is_said(rig, monkeypatch):
    """A good end waits for it; a stop that comes then sets a limit, and does not make the end a bad one."""
    body = "open(os.environ['OUT'] + '/up', 'w').write('up\\n'); time.sleep(1000)"
    rig.begin("echo new > made", helper=helper(rig, body), keep=KEEP)
    rig.wait_for_file("up")
    rig.server.order(stop={"grace_s": 0.2, "reason": "cancel"})
    record = rig.finish()
    assert (record["reason"], record["code"]) == ("exited", 0)
    assert kept(rig) == [{"failure": "there was not enough time to keep all files"}]
    assert not rigs.processes_with(rig.key)


def test_files_that_cannot_be_kept_do_not_change_the_end(rig):
    said = '{"event": "error", "code": "unavailable", "message": "the disk is full", "hint": "free some"}'
    record = rig.run("echo new > made", helper=helper(rig, f"sys.exit({said!r})"), keep=KEEP)
    assert (record["reason"], record["code"]) == ("exited", 0)
    (told,) = kept(rig)
    assert told["failure"].endswith("the disk is full; free some")
