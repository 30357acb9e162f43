"""A server for months: old values are not kept, and a value in use is never made a second time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

from oarlock.data import recent, storage
from oarlock.data.logs import joblogs, logfiles
from oarlock.spec import attempts


class Thing:
    def __init__(self, name: str) -> None:
        self.name = name


def test_the_last_asked_for_are_kept_and_the_others_forgotten() -> None:
    things = recent.Recent(Thing, most=2)
    a, b, c = (weakref.ref(things.get(name)) for name in "abc")
    gc.collect()
    assert a() is None
    assert things.get("b") is b()
    d = weakref.ref(things.get("d"))
    gc.collect()
    assert (c(), b(), d()) == (None, things.get("b"), things.get("d")), "asked for again is recent again"


def test_an_object_in_use_is_the_only_one_of_its_name() -> None:
    things = recent.Recent(Thing, most=1)
    used = things.get("a")
    for name in "bcd":
        things.get(name)
    assert things.get("a") is used


def test_an_object_that_was_dropped_is_made_anew() -> None:
    things = recent.Recent(Thing)
    before = things.get("a")
    things.drop("a")
    things.drop("never asked for")
    assert things.get("a") is not before


async def test_a_stream_goes_on_where_it_stood_when_its_job_was_forgotten_meanwhile(tmp_path: Path) -> None:
    stored = logfiles.DirectoryLogs(tmp_path)
    stored._jobs = recent.Recent(lambda job: joblogs.JobLogs(tmp_path, job, stored._short), most=0)
    key = attempts.TaskKey("j-1", 1, "worker", 0, 1)
    for number in range(3):
        assert await stored.append(key, "stdout.0", 2 * number, b"x\n", at=number) == 2 * number + 2
    assert await stored.length(key, "stdout.0") == 6
    assert [(line.offset, line.at) async for line in stored.read(storage.LogQuery(job="j-1"))] == [
        (0, 0),
        (2, 1),
        (4, 2),
    ]
    stored.close()


async def test_a_follower_hears_of_a_job_that_was_not_asked_for_long(tmp_path: Path) -> None:
    stored = logfiles.DirectoryLogs(tmp_path)
    stored._jobs = recent.Recent(lambda job: joblogs.JobLogs(tmp_path, job, stored._short), most=0)
    key = attempts.TaskKey("j-1", 1, "worker", 0, 1)
    await stored.append(key, "stdout.0", 0, b"one\n", at=1)
    lines = stored.follow(storage.LogQuery(job="j-1"))
    async with asyncio.timeout(240):
        assert (await anext(lines)).text == "one"
        hearing = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        await stored.append(key, "stdout.0", 4, b"two\n", at=2)
        assert (await hearing).text == "two"
    await lines.aclose()  # type: ignore[attr-defined]  # it is a generator
    stored.close()
