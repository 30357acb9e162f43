"""A task that lacks a file which was left out of the snapshot: its record says so, where that is certain."""

from __future__ import annotations

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import stepping
from oarlock.lifecycle.failures import missing
from oarlock.spec import attempts, events, jobfile

LEFT_OUT = (
    jobfile.LeftOut(path="data/", why=".gitignore"),
    jobfile.LeftOut(path="configs/secret.yaml", why=".oarlockignore"),
    jobfile.LeftOut(path="weights/*.pt", why=".gitignore"),
    jobfile.LeftOut(path="env/", why="a virtual environment"),
    jobfile.LeftOut(path="helper.py", why=".gitignore"),
    jobfile.LeftOut(path="latest.pt", why="a link to nothing"),
    jobfile.LeftOut(path="runsX/", why=".gitignore"),
    jobfile.LeftOut(path="logs/deep/run*un.log", why="larger than 1 MB"),
    jobfile.LeftOut(path="package/__init__.py", why=".gitignore"),
)
COPY = "/home/ann/.oarlock/tasks/j-1/1/worker-0-1/code"

SAID = [
    ("FileNotFoundError: [Errno 2] No such file or directory: 'data/rows.csv'", "data/rows.csv", "!data/"),
    ("FileNotFoundError: [Errno 2] No such file or directory: './data//x/../rows.csv'", "", ""),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'data'", "data", "!data/"),
    ("FileNotFoundError: [Errno 2] No such file or directory: './data//rows.csv'", "data/rows.csv", "!data/"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'runsX'", "runsX", "!runsX/"),
    ("RuntimeError: Unable to open file weights/.pt", "weights/.pt", "!weights/*.pt"),
    ("RuntimeError: Unable to open file logs/deep/run-un.log", "logs/deep/run-un.log", ""),
    ("ModuleNotFoundError: No module named 'package.inner.part'", "package/__init__.py", "!package/__init__.py"),
    (f"FileNotFoundError: [Errno 2] No such file or directory: '{COPY}/data/a b.csv'", "data/a b.csv", "!data/"),
    ("cat: data/rows.csv: No such file or directory", "data/rows.csv", "!data/"),
    ("OSError: configs/secret.yaml not found.", "configs/secret.yaml", "!configs/secret.yaml"),
    ("RuntimeError: Unable to open file weights/a.pt", "weights/a.pt", "!weights/*.pt"),
    ('ValueError: Path "data/train" does not exist', "data/train", "!data/"),
    ("ModuleNotFoundError: No module named 'helper'", "helper.py", "!helper.py"),
    ("ModuleNotFoundError: No module named 'data.loader'", "data/loader.py", "!data/"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'env/bin/tool'", "env/bin/tool", ""),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'latest.pt'", "latest.pt", ""),
    # Not ours to explain.
    ("FileNotFoundError: [Errno 2] No such file or directory: 'dataset/rows.csv'", "", ""),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/rows.csv'", "", ""),
    ("FileNotFoundError: [Errno 2] No such file or directory: '../data/rows.csv'", "", ""),
    ("RuntimeError: Unable to open file weights/a.bin", "", ""),
    ("RuntimeError: Unable to open file weights/deep/a.pt", "", ""),
    ("RuntimeError: Unable to open file logs/deep/run.log", "", ""),
    ("ModuleNotFoundError: No module named 'torch'", "", ""),
    ("read data/rows.csv: 3 rows", "", ""),
    ("", "", ""),
]


@pytest.mark.parametrize(("line", "path", "again"), SAID)
def test_a_line_that_names_a_file_that_was_left_out(line: str, path: str, again: str) -> None:
    said = missing.hint(LEFT_OUT, ("Traceback (most recent call last):", line))
    if not path:
        assert said == ""
        return
    assert said.startswith(f"{path} is not in the job's copy of your directory: ")
    assert ("into .oarlockignore" in said) == bool(again)
    assert f"Write {again} into" in said or not again
    assert "--in-place" in said
    assert "--data SOURCE:MOUNT" in said


def test_the_whole_sentence() -> None:
    said = missing.hint(LEFT_OUT, ("No such file or directory: 'data/rows.csv'",))
    assert said == (
        "data/rows.csv is not in the job's copy of your directory: data/ was left out (.gitignore). "
        "Write !data/ into .oarlockignore, run with --in-place, or fetch it with --data SOURCE:MOUNT."
    )


def test_the_whole_sentence_for_one_of_many_files_that_no_pattern_left_out() -> None:
    said = missing.hint(LEFT_OUT, ("Unable to open file logs/deep/run-un.log",))
    assert said == (
        "logs/deep/run-un.log is not in the job's copy of your directory: files like logs/deep/run*un.log "
        "were left out (larger than 1 MB). Run with --in-place, or fetch it with --data SOURCE:MOUNT."
    )


def test_an_attempt_that_failed_so_has_it_in_its_verdict() -> None:
    job = msgspec.structs.replace(script.new_job("{max_restarts: 0}"), left_out=LEFT_OUT)
    job = stepping.step(job, events.Admitted(attempt=1, holdings=script.places(job, 1)), 1.0)
    job = stepping.step(job, events.Launched(attempt=1), 2.0)
    where = {"key": attempts.TaskKey(job.id, 1, "worker", 0, 1)}
    job = stepping.step(job, events.TaskRegistered(**where, address="127.0.0.1"), 3.0)
    lines = ("FileNotFoundError: [Errno 2] No such file or directory: 'data/rows.csv'",)
    failed = attempts.Exit(code=1, cause=attempts.Cause.ERROR, at=4.0, last_lines=lines)
    job = stepping.step(job, events.TaskExited(**where, exit=failed), 4.0)
    job = stepping.step(job, events.TaskGone(**where), 4.0)
    stop = events.StopDecided(attempt=1, cause=attempts.Cause.ERROR, message="it failed", task="worker-0")
    job = stepping.step(job, stop, 6.0)
    job = stepping.step(job, events.Released(attempt=1), 7.0)
    assert job.attempts[-1].verdict is not None
    assert job.attempts[-1].verdict.hint == missing.hint(LEFT_OUT, lines)


def test_the_first_star_stands_for_names_and_another_is_the_names_own() -> None:
    assert missing.covers("data/*.c*v", "data/rows.c*v")
    assert not missing.covers("data/*.c*v", "data/rows.csv")
