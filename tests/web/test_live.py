"""News and the updates of open pages: which topics an event names, who hears of it, and what an update sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from tests.web import browsers

from oarlock.spec import events, phases
from oarlock.web import feeds, topics

FRAGMENT = {"Oarlock-Fragment": "1"}
KINDS = sorted({one.__struct_config__.tag for one in events.AnyEvent.__args__} | {"submitted", "phase", "removed"})


def line(kind: str, job: str = "j-1", seq: int = 1) -> events.Record:
    return events.Record(seq=seq, at=0.0, job=job, kind=kind, version=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_names_its_own_job(kind: str) -> None:
    assert topics.of_job("j-1") in topics.of([line(kind)])


def test_an_event_names_the_topics_that_it_may_change() -> None:
    everything = {topics.JOBS, *topics.SHARED}
    table = {
        "submitted": everything,
        "phase": everything,
        "admitted": everything,
        "released": everything,
        "removed": everything,
        "a kind of a later version": everything,
        "edited": {topics.JOBS, topics.QUEUE, topics.POOLS},
        "refused": {topics.JOBS, topics.QUEUE},
        "task_registered": {topics.JOBS},
        "checkpoint_visible": set(),
    }
    assert {kind: set(topics.of([line(kind)])) - {"job:j-1"} for kind in table} == table


def test_the_table_of_kinds_has_no_kind_that_no_event_has() -> None:
    assert set(topics._KINDS) <= set(KINDS)


def test_a_message_is_bounded() -> None:
    assert topics.of([line("projected", f"j-{number}") for number in range(topics.MOST + 1)]) == {topics.EVERYTHING}


class Silent:
    """A client of an API without news."""

    async def news(self, **_: float) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


class Page:
    """An open page's stream, read message by message."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self, kind: str) -> feeds.News:
        """Return the next message, which is of this kind."""
        async for one in self._lines:
            if one.startswith("event: "):
                assert one == f"event: {kind}"
            if one.startswith("data: "):
                told = {"after": 0, "topics": [], **json.loads(one.removeprefix("data: "))}
                return msgspec.convert(told, feeds.News)
        raise AssertionError("the stream has ended")


@contextlib.asynccontextmanager
async def opened(browser: httpx.AsyncClient) -> AsyncIterator[Page]:
    async with browser.stream("GET", "/live", headers=browsers.OURS) as answer:
        yield Page(answer.aiter_lines())


async def test_a_message_names_topics_and_the_events_that_it_covers(rig: browsers.WebRig) -> None:
    job = await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser, opened(browser) as page:
        start = await page.next("open")
        await rig.happen(job.id, events.Edited(priority=7))
        news = await page.next("changed")
        assert (news.after, news.seq) == (start.seq, start.seq + 1), "no event lies between two messages"
        assert news.topics == {f"job:{job.id}", topics.JOBS, topics.QUEUE, topics.POOLS}


async def test_events_of_others_are_told_without_their_jobs(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser, opened(browser) as page:
        await page.next("open")
        await rig.submit("bob", name="hidden")
        assert (await page.next("changed")).topics == topics.SHARED
    async with rig.browser("root") as browser, opened(browser) as page:
        await page.next("open")
        job = await rig.submit("bob", name="seen")
        assert f"job:{job.id}" in (await page.next("changed")).topics


async def test_streams_of_one_session_share_one_reader(rig: browsers.WebRig) -> None:
    job = await rig.submit("ann", name="busy")
    async with contextlib.AsyncExitStack() as stack:
        ann, again, bob = [await stack.enter_async_context(rig.browser(who)) for who in ("ann", "ann", "bob")]
        pages = [await stack.enter_async_context(opened(ann)) for _ in range(10)]
        pages += [await stack.enter_async_context(opened(one)) for one in (again, bob)]
        for page in pages:
            await page.next("open")
        readers = rig.app._feeds._feeds.values()
        assert sorted(len(one.ears) for one in readers) == [1, 1, 10], "one reader for each session"
        await rig.happen(job.id, events.Edited(priority=7))
        for page in pages[:11]:
            assert f"job:{job.id}" in (await page.next("changed")).topics


async def test_the_reader_of_a_session_ends_with_its_last_stream(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        async with opened(browser) as page:
            await page.next("open")
            assert len(rig.app._feeds._feeds) == 1
        await asyncio.sleep(0)
        assert rig.app._feeds._feeds == {}


async def test_news_that_a_slow_reader_has_not_taken_become_one(rig: browsers.WebRig) -> None:
    listening = rig.app._feeds.listening
    async with listening("x", Silent, 1) as ear:
        ear.tell(feeds.News(1, 2, frozenset({"a"})))
        ear.tell(feeds.News(2, 5, frozenset({"b"})))
        assert await ear.next(60.0) == feeds.News(1, 5, frozenset({"a", "b"}))


async def test_an_update_without_a_change_has_no_body(rig: browsers.WebRig) -> None:
    job = await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser:
        first = await browser.get("/jobs", headers=FRAGMENT)
        mark = {"If-None-Match": first.headers["etag"]}
        same = await browser.get("/jobs", headers=FRAGMENT | mark)
        assert (same.status_code, same.content) == (304, b"")
        await rig.happen(job.id, events.Edited(priority=3))
        unseen = await browser.get("/jobs", headers=FRAGMENT | mark)
        assert unseen.status_code == 304, "the list shows no priority"
        assert int(unseen.headers["oarlock-seq"]) == int(first.headers["oarlock-seq"]) + 1
        await rig.launch(job)
        changed = await browser.get("/jobs", headers=FRAGMENT | mark)
        assert changed.status_code == 200
        assert phases.Phase.DEPLOYING in browsers.text(changed.text)
    async with rig.browser("bob") as browser:
        assert (await browser.get("/jobs", headers=FRAGMENT | mark)).status_code == 200, "another user has another list"


async def test_an_update_holds_the_content_alone(rig: browsers.WebRig) -> None:
    await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser:
        whole, part = (await browser.get("/jobs")).text, (await browser.get("/jobs", headers=FRAGMENT)).text
        found = re.search(r"<main.*?>(.*)</main>", whole, re.DOTALL)
        assert found is not None
        assert re.sub(r"^\s*<main.*?>|</main>\s*$", "", part) == found[1]


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/mine", "/cluster", "/pools"])
async def test_a_live_page_names_its_topics_and_its_last_event(rig: browsers.WebRig, path: str) -> None:
    await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser:
        text = (await browser.get(path)).text
        seq = await rig.store.read(lambda view: view.last_seq())
        tag = re.search(r'<main id="content"[^>]*>', text)
        assert tag is not None
        assert f'data-seq="{seq}"' in tag[0]
        assert re.search(r'data-topics="[a-z]', tag[0])
