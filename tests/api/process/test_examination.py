"""The programs of the server's machine: read in a thread, now and then, and never waited for for long."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from oarlock.api.administration import server
from oarlock.api.process import examination
from oarlock.client import programs
from oarlock.spec import bodies


def found(version: str) -> bodies.Programs:
    return bodies.Programs(python=bodies.Python(path="/bin/python", version=version), gpus=bodies.Driver())


async def test_programs_are_read_again_after_some_minutes_and_the_last_answer_is_given_meanwhile() -> None:
    now, looks = [0.0], 0
    done = threading.Event()
    done.set()

    def look() -> bodies.Programs:
        nonlocal looks
        looks += 1
        told = found(str(looks))
        done.wait(60)
        return told

    examine = examination.Examination(look, lambda: now[0])
    assert [await examine() for _ in range(2)] == [found("1")] * 2
    assert looks == 1
    now[0] += examination.KEPT_S
    done.clear()
    assert await examine() == found("1"), "the second look is under way"
    done.set()
    async with asyncio.timeout(60):
        while await examine() != found("2"):  # noqa: ASYNC110  (the look tells nothing)
            await asyncio.sleep(0.01)
    assert looks == 2


async def test_a_first_look_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "PATIENCE_S", 0.01)
    done = threading.Event()

    def look() -> bodies.Programs:
        done.wait(60)
        return found("1")

    examine = examination.Examination(look, lambda: 0.0)
    assert await examine() is None
    done.set()
    async with asyncio.timeout(60):
        while await examine() is None:  # noqa: ASYNC110  (the look tells nothing)
            await asyncio.sleep(0.01)


def test_the_programs_of_a_path(tmp_path: Path) -> None:
    assert programs.find(str(tmp_path)).python == bodies.Python()
    for name, text in (("python", "echo 3.12.0 True"), ("nvidia-smi", "echo mismatch; exit 18")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    told = programs.find(f"{tmp_path}:/bin:/usr/bin")
    assert told.python == bodies.Python(path=str(tmp_path / "python"), version="3.12.0", torch=True)
    assert told.gpus == bodies.Driver(tool=str(tmp_path / "nvidia-smi"), silence="mismatch")


def test_new_files_tell_how_far_the_clock_is_off(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    behind = (tmp_path / "file").stat().st_mtime - 90.0
    skew = server.file_skew_s(str(tmp_path), lambda: behind)
    assert skew is not None
    assert skew >= 90.0
    assert server.file_skew_s(str(tmp_path / "none"), lambda: behind) is None
