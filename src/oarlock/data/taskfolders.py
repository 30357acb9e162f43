"""The folders of the tasks' streams: `JOB/ATTEMPT/ROLE-INDEX/INCARNATION/` under a root.

The server makes the keys. They are checked here again, so that no key can lead out of the root.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from oarlock.data import durable
from oarlock.spec import attempts, errors

JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
ROLE = re.compile(r"[a-z]{1,32}")
STREAM = re.compile(r"[a-z]{1,32}([.-][0-9]{1,6})?")
MOST = 1 << 31


def job_folder(root: Path, job: str) -> Path:
    if JOB.fullmatch(job) is None:
        raise errors.InvalidInput("this is not a valid job id", hint="list jobs with `oarlock ps`", path="job")
    return root / job


def folder(root: Path, key: attempts.TaskKey) -> Path:
    numbers = (key.attempt, key.index, key.incarnation)
    if ROLE.fullmatch(key.role) is None or not all(0 <= number < MOST for number in numbers):
        raise errors.InvalidInput(
            "this is not a valid task key", hint="a task key is JOB/ATTEMPT/ROLE/INDEX/INCARNATION", path="key"
        )
    return job_folder(root, key.job) / str(key.attempt) / f"{key.role}-{key.index}" / str(key.incarnation)


def delete_job(root: Path, job: str) -> None:
    """Delete the folder of a job. It is gone as a whole at once, for other servers that read in it."""
    folder, draft = job_folder(root, job), durable.temporary(root / job)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(draft)
    for path in root.glob(f".{job}.*.tmp"):  # and what a killed server has left of it
        shutil.rmtree(path, ignore_errors=True)


def check_stream(stream: str) -> None:
    if STREAM.fullmatch(stream) is None:
        raise errors.InvalidInput(
            "this is not a valid stream name", hint="examples: `stdout.0`, `stderr.0`", path="stream"
        )


def folders(root: Path, job: str) -> Iterator[tuple[attempts.TaskKey, Path]]:
    """Yield the tasks of a job that have a folder, in order of attempt, role, index and incarnation."""
    found = []
    for path in job_folder(root, job).glob("*/*/*"):
        attempt, task, incarnation = path.parts[-3:]
        role, _, index = task.rpartition("-")
        if attempt.isdecimal() and index.isdecimal() and incarnation.isdecimal() and ROLE.fullmatch(role):
            found.append((attempts.TaskKey(job, int(attempt), role, int(index), int(incarnation)), path))
    return iter(sorted(found))
