"""News and the updates of open pages: who hears of an event, and what an update sends."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from tests.web import browsers

from oarlock.api.security import authentication
from oarlock.client.asynchronous import clients
from oarlock.scheduler.forecasting import forecasts
from oarlock.spec import attempts, bodies, errors, events, phases, refusals, roles
from oarlock.spec.access import users
from oarlock.web import application, routing
from oarlock.web.access import admissions, visits
from oarlock.web.rendering import templating
from oarlock.web.updates import feeds, fragments, openpages, telling, topics

FRAGMENT = {"Oarlock-Fragment": "1"}


@pytest.fixture
def made(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The users for whom an update was made, in the order of their beginnings. It is shared for as long as it takes."""
    found: list[str] = []
    make = rig.app._made

    async def counted(visit: visits.Visit, page: routing.Page) -> object:
        found.append(visit.server.user)
        return await make(visit, page)

    monkeypatch.setattr(rig.app, "_made", counted)
    monkeypatch.setattr(fragments, "KEPT_S", 240.0)
    return found


class Silent:
    """A client of an API without news."""

    async def news(self, **_: float) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


class Telling:
    """A client of an API with one event. Then the session of `other` ends, and a further wait ends the server."""

    def __init__(self, about: bodies.Server, other: Telling | None = None) -> None:
        self._about = about
        self._other = other
        self._known = True

    async def news(self, *, after: int, wait_s: float) -> bodies.RecordPage:
        if after > self._about.seq:
            if wait_s:
                raise errors.Unavailable("The server ends.")
            if self._other is not None:
                self._other._known = False
        return bodies.RecordPage(items=(), next=self._about.seq + 1)

    async def server(self) -> bodies.Server:
        if not self._known:
            raise errors.Unauthenticated("The server does not know this session.")
        return self._about

    async def close(self) -> None:
        pass


class Page:
    """An open page's stream, read message by message."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self, kind: str) -> feeds.News:
        """Return the next message, which is of this kind."""
        async for one in self._lines:
            if one in ("event: beat", "data: {}"):
                continue
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


async def test_a_changed_pool_and_a_lost_node_reach_every_page(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser, opened(browser) as page:
        await page.next("open")
        async with rig.as_user("root") as http:
            assert (await http.patch("/api/v1/pools/fresh", json={"share": {"gpus": 3}})).status_code == 201
        news = await page.next("changed")
        assert news.topics == topics.SHARED
        told = FRAGMENT | {"Oarlock-Seq": str(news.seq)}
        assert "fresh" in (await browser.get("/pools", headers=told)).text
        node = (await rig.store.read(lambda view: view.nodes()))[0]
        await rig.store.write(
            lambda tx: (
                tx.put_node(msgspec.structs.replace(node, ready=False, reason="no contact")),
                tx.tell(events.NODES, [node.name], at=1.0),
            )
        )
        told = FRAGMENT | {"Oarlock-Seq": str((await page.next("changed")).seq)}
        for path in ("/", "/cluster"):
            assert "no contact" in (await browser.get(path, headers=told)).text


@pytest.mark.parametrize("path", ["/", "/cluster", "/pools", "/jobs", "/jobs/over"])
async def test_a_page_without_active_jobs_fetches_nothing_of_its_own_accord(rig: browsers.WebRig, path: str) -> None:
    await rig.end((await rig.launch(await rig.submit("ann", name="over"))).id)
    async with rig.browser("ann") as browser:
        assert 'data-refresh="0"' in (await browser.get(path)).text


async def test_an_update_has_a_forecast_of_its_own_event(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    real, held, begun = forecasts.forecasts, threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        begun.set()
        held.wait(240)
        return real(*given)

    await rig.submit("ann", name="first")
    monkeypatch.setattr(forecasts, "forecasts", slowly)
    async with rig.browser("ann") as ann, rig.browser("bob") as bob:
        early = asyncio.create_task(bob.get("/", headers=FRAGMENT))
        await asyncio.to_thread(begun.wait, 240)
        await rig.submit("ann", name="second")
        seq = await rig.store.read(lambda view: view.last_seq())
        late = asyncio.create_task(ann.get("/", headers=FRAGMENT | {"Oarlock-Seq": str(seq)}))
        await asyncio.sleep(0.1)
        held.set()
        await early
        waits = re.search(r">second</.*?</tr>", (await late).text, re.DOTALL)
    assert waits is not None
    assert "now" in waits[0], "its forecast is of before its submission"


def test_a_page_with_a_forecast_of_before_its_event_asks_again_soon() -> None:
    old = bodies.Forecasts(at=1.0, starts=(), ends=(), seq=4)
    assert (topics.refresh(4, old), topics.refresh(5, old)) == (topics.SLOW_S, topics.SOON_S)


async def test_news_have_the_marks_of_the_pages_that_they_concern(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "PATIENCE_S", 240.0)
    job = await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser, rig.browser("bob") as other, opened(browser) as page:
        await page.next("open")
        had = {
            name: (await browser.get(path, headers=FRAGMENT | {"Oarlock-Page": name})).headers["etag"]
            for name, path in {"list": "/jobs", "pools": "/pools", "x" * 40: "/", "Bad!": "/jobs"}.items()
        }
        await other.get("/jobs", headers=FRAGMENT | {"Oarlock-Page": "others"})
        await rig.happen(job.id, events.Edited(priority=7))
        assert (await page.next("changed")).marks == {name: had[name] for name in ("list", "pools")}, "none has changed"
        await rig.happen(job.id, events.TaskRegistered(key=attempts.TaskKey(job.id, 1, "worker", 0, 1), address="h"))
        assert (await page.next("changed")).marks.keys() == {"list"}, "no such event changes the pools"
        await rig.launch(job)
        news = await page.next("changed")
        told = FRAGMENT | {"Oarlock-Seq": str(news.seq)}
        assert news.marks["list"] != had["list"]
        assert news.marks["list"] == (await browser.get("/jobs", headers=told)).headers["etag"]


def refusal(message: str) -> refusals.Refusal:
    return refusals.Refusal(code=refusals.Code.POOL_LIMIT, message=message)


async def test_news_bring_the_content_that_a_page_lacks_along(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "PATIENCE_S", 240.0)
    job = await rig.submit("ann", name="mine")
    key = attempts.TaskKey(job.id, 1, "worker", 0, 1)
    async with rig.browser("ann") as browser, opened(browser) as page:
        await page.next("open")
        for name, path in {"list": "/jobs", "same": "/jobs", "pools": "/pools"}.items():
            await browser.get(path, headers=FRAGMENT | {"Oarlock-Page": name})
        await rig.happen(job.id, events.TaskRegistered(key=key, address="h"))
        assert (await page.next("changed")).contents == {}, "nothing has changed"
        await rig.happen(job.id, events.Refused(refusal=refusal("The pool is full.")))
        news = await page.next("changed")
        assert news.marks["list"] == news.marks["same"]
        answer = await browser.get("/jobs", headers=FRAGMENT | {"Oarlock-Seq": str(news.seq)})
        assert answer.headers["etag"] == news.marks["list"]
        assert gzip.decompress(news.contents[news.marks["list"]]).decode() == answer.text, "both pages share it"
        await rig.happen(job.id, events.TaskRegistered(key=key, address="h"))
        again = await page.next("changed")
        assert (again.marks["list"], again.contents) == (news.marks["list"], {}), "it was told already"
        monkeypatch.setattr(telling, "MOST_BYTES", 10)
        await rig.happen(job.id, events.Refused(refusal=refusal("The node is closed.")))
        last = await page.next("changed")
        assert (last.marks["list"] != news.marks["list"], last.contents) == (True, {}), "it is too long"


async def test_progress_reaches_the_pages_that_show_it_without_an_event(
    rig: browsers.WebRig, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openpages, "SOON_S", 0.05)
    monkeypatch.setattr(feeds, "REST", 0)
    job = await rig.launch(await rig.submit("ann", name="mine"))
    key = attempts.TaskKey(job.id, 1, roles.RoleName.WORKER, 0, 1)
    await rig.happen(job.id, events.TaskRegistered(key=key, address="h"))
    await rig.happen(job.id, events.TaskReported(key=key, phase=phases.Phase.PROCESSING))

    async def step(number: int) -> None:
        told = attempts.Progress(step=number, at=rig.clock(), total_steps=10)
        await rig.happen(job.id, events.TaskReported(key=key, progress=told))

    async with rig.browser("ann") as browser, opened(browser) as page:
        start = await page.next("open")
        looked = set()
        for name, path in {"list": "/jobs", "pools": "/pools", "charts": f"/jobs/{job.id}/metrics"}.items():
            answer = await browser.get(path, headers=FRAGMENT | {"Oarlock-Page": name})
            looked |= {name} if "oarlock-looked" in answer.headers else set()
        assert looked == {"list"}, "the pools change with events alone, and charts ask for their points"
        for number in (5, 6):
            await step(number)
            news = await page.next("changed")
            assert (news.after, news.seq, news.topics, news.marks.keys()) == (start.seq, start.seq, set(), {"list"})
            assert news.contents.keys() == set(news.marks.values())
            made.clear()
            told = FRAGMENT | {"Oarlock-Page": "list", "Oarlock-Seq": str(news.seq)}
            answer = await browser.get("/jobs", headers=told)
            assert (answer.headers["etag"], made) == (news.marks["list"], []), "the look at it is its update, too"
            assert f'aria-label="{number}0%"' in answer.text
        looks, make = asyncio.Semaphore(0), rig.app._made

        async def counted(visit: visits.Visit, page: routing.Page) -> fragments.Made:
            looks.release()
            return await make(visit, page)

        monkeypatch.setattr(rig.app, "_made", counted)
        for _ in range(3):
            await looks.acquire()
        await rig.happen(job.id, events.Edited(priority=7))
        assert (await page.next("changed")).seq == start.seq + 1, "looks without a change tell nothing"


async def test_no_mark_is_made_for_a_page_that_has_left(
    rig: browsers.WebRig, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "PATIENCE_S", 240.0)
    job = await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser, opened(browser) as page, rig.browser("ann") as other:
        await page.next("open")
        named = FRAGMENT | {"Oarlock-Page": "closed"}
        await browser.get("/jobs", headers=named)
        left = browsers.OURS | {"Oarlock-Page": "closed"}
        assert (await other.post("/live/left", headers=left)).status_code == 204
        made.clear()
        await rig.happen(job.id, events.Edited(priority=7))
        assert (await page.next("changed")).marks.keys() == {"closed"}, "a name is of one session"
        assert (await browser.post("/live/left", headers=left)).status_code == 204
        made.clear()
        await rig.happen(job.id, events.Edited(priority=8))
        assert ((await page.next("changed")).marks, made) == ({}, [])
        await browser.get("/jobs", headers=named)
        await rig.happen(job.id, events.Edited(priority=9))
        assert (await page.next("changed")).marks.keys() == {"closed"}, "it is shown again"


async def test_a_page_that_cannot_be_made_has_no_mark_and_asks(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="mine"))
    async with rig.browser("ann") as browser, opened(browser) as page:
        await page.next("open")
        named = FRAGMENT | {"Oarlock-Page": "named"}
        assert (await browser.get(f"/jobs/{job.id}", headers=named)).status_code == 200
        await rig.end(job.id)
        seen: set[str] = set()
        while "phase" not in seen:
            news = await page.next("changed")
            assert news.marks.keys() <= {"named"}
            seen |= {one.kind for one in await rig.store.read(lambda view: view.records(0)) if one.seq <= news.seq}
        await rig.store.write(lambda tx: tx.remove_jobs([job.id], at=rig.clock.now))
        assert (await page.next("changed")).marks == {}


def held(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Hold the updates of the page of pools until the event is set."""
    go, make = asyncio.Event(), rig.app._made

    async def slowly(visit: visits.Visit, page: routing.Page) -> fragments.Made:
        if visit.path == "/pools" and visit.told is not None:
            await go.wait()
        return await make(visit, page)

    monkeypatch.setattr(rig.app, "_made", slowly)
    return go


async def test_news_do_not_wait_for_a_page_that_takes_long(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser, opened(browser) as page:
        await page.next("open")
        for name, path in {"list": "/jobs", "slow": "/pools"}.items():
            await browser.get(path, headers=FRAGMENT | {"Oarlock-Page": name})
        go = held(rig, monkeypatch)
        await rig.happen(job.id, events.Edited(priority=7))
        news = await page.next("changed")
        assert "slow" not in news.marks
        late = asyncio.create_task(browser.get("/pools", headers=FRAGMENT | {"Oarlock-Seq": str(news.seq)}))
        go.set()
        assert (await late).status_code == 200


async def test_a_session_is_told_before_the_pages_of_others_are_made(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "PATIENCE_S", 240.0)
    job = await rig.submit("ann", name="mine")
    async with contextlib.AsyncExitStack() as stack:
        slow, quick, both = [await stack.enter_async_context(rig.browser("ann")) for _ in range(3)]
        pages = [await stack.enter_async_context(opened(one)) for one in (slow, quick, both)]
        for page in pages:
            await page.next("open")
        for browser, name, path in ((slow, "a" * 4, "/pools"), (quick, "b" * 4, "/jobs")):
            await browser.get(path, headers=FRAGMENT | {"Oarlock-Page": name})
            await both.get(path, headers=FRAGMENT | {"Oarlock-Page": name})
        go = held(rig, monkeypatch)
        await rig.happen(job.id, events.Edited(priority=7))
        assert (await pages[1].next("changed")).marks.keys() == {"bbbb"}, "the other page is not made yet"
        go.set()
        assert (await pages[0].next("changed")).marks.keys() == {"aaaa"}
        assert (await pages[2].next("changed")).marks.keys() == {"aaaa", "bbbb"}


async def test_news_reach_up_to_the_page_and_the_next_ones_go_on_from_there(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "PATIENCE_S", 240.0)
    monkeypatch.setattr(telling, "STEP_S", 240.0)
    mine, other = await rig.submit("ann", name="mine"), await rig.submit("ann", name="other")
    make = rig.app._made
    began: list[str] = []

    async def busily(visit: visits.Visit, page: routing.Page) -> fragments.Made:
        if visit.told is not None:
            began.append(visit.path)
            if len(began) == 1:  # while the first page is made
                await rig.happen(other.id, events.Edited(priority=3))
        return await make(visit, page)

    async with contextlib.AsyncExitStack() as stack:
        browsing = {path: await stack.enter_async_context(rig.browser("ann")) for path in ("/pools", "/jobs")}
        pages = {path: await stack.enter_async_context(opened(one)) for path, one in browsing.items()}
        for path, page in pages.items():
            await page.next("open")
            await browsing[path].get(path, headers=FRAGMENT | {"Oarlock-Page": "page"})
        monkeypatch.setattr(rig.app, "_made", busily)
        await rig.happen(mine.id, events.Edited(priority=7))
        told = {path: await page.next("changed") for path, page in pages.items()}
        first, second = (told[path] for path in began[:2])
        assert (first.after, first.seq + 1, second.after) == (second.after, second.seq, first.after)
        assert f"job:{other.id}" in second.topics - first.topics
        rest = await pages[began[0]].next("changed")
        assert (rest.after, rest.seq) == (first.seq, second.seq)
        assert f"job:{other.id}" in rest.topics, "what the first page's news had not is told next"
        assert f"job:{mine.id}" not in rest.topics


async def administrator(rig: browsers.WebRig, name: str) -> str:
    """Make another administrator, and return the digest of the token."""
    async with rig.as_user("root") as http:
        await http.post("/api/v1/users", json={"name": name, "right": "admin"})
        rig.tokens[name] = (await http.post(f"/api/v1/users/{name}/tokens", json={})).json()["token"]
    return authentication.digest(rig.tokens[name])


async def test_streams_of_equal_readers_share_one_reader(rig: browsers.WebRig) -> None:
    await administrator(rig, "zoe")
    job = await rig.submit("ann", name="busy")
    async with contextlib.AsyncExitStack() as stack:
        who = ("ann", "ann", "root", "zoe", "bob")
        ann, *others = [await stack.enter_async_context(rig.browser(one)) for one in who]
        pages = [await stack.enter_async_context(opened(ann)) for _ in range(10)]
        pages += [await stack.enter_async_context(opened(one)) for one in others]
        for page in pages:
            await page.next("open")
        found = {name: [len(one.ears) for one in feed.members.values()] for name, feed in rig.app._feeds._feeds.items()}
        assert found == {"user user ann": [10, 1], "administrators": [1, 1], "user user bob": [1]}
        await rig.happen(job.id, events.Edited(priority=7))
        told = [(await page.next("changed")).topics for page in pages]
        assert [f"job:{job.id}" in one for one in told] == [True] * 13 + [False]


@pytest.mark.parametrize("ends", ["root", "zoe"], ids=["the one that reads", "another"])
async def test_the_end_of_a_session_ends_no_stream_of_equal_readers(rig: browsers.WebRig, ends: str) -> None:
    digests = {"zoe": await administrator(rig, "zoe"), "root": authentication.digest(rig.tokens["root"])}
    job = await rig.submit("ann", name="busy")
    stays = "zoe" if ends == "root" else "root"
    async with rig.browser("root") as root, opened(root) as first, rig.browser("zoe") as zoe, opened(zoe) as second:
        pages = {"root": first, "zoe": second}
        for page in pages.values():
            await page.next("open")
        async with rig.as_user("root") as http:
            assert (await http.delete(f"/api/v1/users/{ends}/tokens/{digests[ends]}")).status_code == 204
        await rig.happen(job.id, events.Edited(priority=7))
        while f"job:{job.id}" not in (await pages[stays].next("changed")).topics:
            pass  # the removal of the token
        assert [one async for one in pages[ends]._lines if one.startswith("event: ")] == ["event: ended"]


@pytest.mark.parametrize("loses", ["root", "zoe"], ids=["the one that reads", "another"])
async def test_an_administrator_who_becomes_a_user_hears_no_more_of_others(rig: browsers.WebRig, loses: str) -> None:
    await administrator(rig, "zoe")
    job = await rig.submit("ann", name="hidden")
    keeps = "zoe" if loses == "root" else "root"
    async with rig.browser("root") as root, opened(root) as first, rig.browser("zoe") as zoe, opened(zoe) as second:
        pages = {"root": first, "zoe": second}
        for page in pages.values():
            await page.next("open")
        user = await rig.store.read(lambda view: view.user(loses))
        assert user is not None
        await rig.store.write(lambda tx: tx.put_user(msgspec.structs.replace(user, right=users.Right.USER)))
        await rig.services.authenticator.forget()
        await rig.happen(job.id, events.Edited(priority=7))
        assert f"job:{job.id}" in (await pages[keeps].next("changed")).topics
        assert [one async for one in pages[loses]._lines if one.startswith("event: ")] == [], "it opens another stream"
        async with opened(root if loses == "root" else zoe) as again:
            await again.next("open")
            await rig.happen(job.id, events.Edited(priority=8))
            assert (await again.next("changed")).topics == topics.SHARED


async def test_a_mark_is_made_once_for_all_equal_readers(
    rig: browsers.WebRig, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "PATIENCE_S", 240.0)
    await administrator(rig, "zoe")
    job = await rig.submit("root", name="same")
    await rig.submit("zoe", name="same")
    async with rig.browser("root") as root, opened(root) as first, rig.browser("zoe") as zoe, opened(zoe) as second:
        had: dict[str, str] = {}
        for who, browser, page in (("root", root, first), ("zoe", zoe, second)):
            await page.next("open")
            for path in ("/jobs", "/jobs/same"):
                name = {"Oarlock-Page": f"{who}{path}".replace("/", "")}
                had[name["Oarlock-Page"]] = (await browser.get(path, headers=FRAGMENT | name)).headers["etag"]
        assert had["rootjobssame"] != had["zoejobssame"]
        made.clear()
        await rig.happen(job.id, events.TaskRegistered(key=attempts.TaskKey(job.id, 1, "worker", 0, 1), address="h"))
        marks = [(await page.next("changed")).marks for page in (first, second)]
        assert made.count("root") + made.count("zoe") == 3, "the list once, and each user's own job of that name"
        assert marks[0] == {name: had[name] for name in ("rootjobs", "rootjobssame")}
        assert marks[1] == {name: had[name] for name in ("zoejobs", "zoejobssame")}


async def test_the_reader_of_a_session_ends_with_its_last_stream(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        async with opened(browser) as page:
            await page.next("open")
            assert len(rig.app._feeds._feeds) == 1
        await asyncio.sleep(0)
        assert rig.app._feeds._feeds == {}


async def test_news_that_a_slow_reader_has_not_taken_become_one(rig: browsers.WebRig) -> None:
    async with rig.as_user("ann") as http:
        about = msgspec.convert((await http.get("/api/v1/server")).json(), bodies.Server)
    async with rig.app._feeds.listening("x", about, Silent) as ear:
        ear.tell(feeds.News(1, 2, frozenset({"a"})))
        ear.tell(feeds.News(2, 5, frozenset({"b"})))
        assert await ear.next(60.0) == feeds.News(1, 5, frozenset({"a", "b"}))
        ear.tell(feeds.News(5, 6, frozenset({"a"}), {"page": "one"}))
        ear.tell(feeds.News(6, 7, frozenset({"a"}), {}))
        assert (await ear.next(60.0)).marks == {}, "the older mark may be out of date"
        ear.tell(feeds.News(7, 8, frozenset({"a"}), {"page": "one"}, {"one": b"1"}))
        ear.tell(feeds.News(8, 9, frozenset({"a"}), {"page": "two"}, {"two": b"2"}))
        assert await ear.next(60.0) == feeds.News(7, 9, frozenset({"a"}), {"page": "two"}, {"two": b"2"})


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
        told = re.sub(r'(<time data-form="age"[^>]*>)[^<]+', r"\1", found[1])
        assert re.sub(r"^\s*<main.*?>|</main>\s*$", "", part) == told, "but for the words of times that go on"


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


async def test_a_page_of_a_name_hears_of_the_next_job_of_that_name(rig: browsers.WebRig) -> None:
    job = await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser:
        shown = [
            re.findall(r'data-topics="([^"]+)"', (await browser.get(f"/jobs/{one}")).text)[0].split()
            for one in ("mine", job.id)
        ]
    assert [topics.JOBS in one for one in shown] == [True, False]


async def test_nothing_is_told_after_the_revocation_of_a_token(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "WAIT_S", 60.0)
    job = await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser, opened(browser) as page:
        await page.next("open")
        async with rig.as_user("root") as http:
            digest = authentication.digest(rig.tokens["ann"])
            assert (await http.delete(f"/api/v1/users/ann/tokens/{digest}")).status_code == 204
        await rig.happen(job.id, events.Edited(priority=7))
        told = [one async for one in page._lines if one.startswith("event: ")]
    assert told == ["event: ended"]


def test_a_stream_notices_the_end_of_its_session_within_a_second() -> None:
    """Also an end that another server has made, which this one learns when it reads the session anew.

    The sessions are asked for after each wait and after each pause, so the longer one of the two counts.
    """
    assert max(feeds.WAIT_S, feeds.PAUSE_S) + authentication.KNOWN_S < 1.0


async def test_the_sessions_of_equal_readers_are_asked_for_between_a_pause_and_a_wait(rig: browsers.WebRig) -> None:
    async with rig.as_user("ann") as http:
        about = msgspec.convert((await http.get("/api/v1/server")).json(), bodies.Server)
    listens = Telling(about)
    reads = Telling(about, listens)
    listening = rig.app._feeds.listening
    async with listening("x", about, lambda: reads), listening("y", about, lambda: listens) as ear:
        assert await ear.next(60.0) is not None
        with pytest.raises(feeds.Ended) as ended:
            await ear.next(60.0)
    assert ended.value.session


async def test_a_stream_without_news_ends_after_another_server_has_removed_the_token(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser, opened(browser) as page:
        await page.next("open")
        await rig.store.write(lambda tx: tx.remove_token(authentication.digest(rig.tokens["ann"])))
        assert [one async for one in page._lines if one.startswith("event: ")] == ["event: ended"]


async def test_a_stream_is_no_use_of_its_session(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        began = rig.clock.now
        for _ in range(3):
            rig.clock.now += 3 * 3600
            await rig.services.authenticator.forget()
            async with opened(browser) as page:
                await page.next("open")
            await browser.post("/live/left", headers=browsers.OURS)
        (session,) = await rig.store.read(lambda view: view.sessions("ann"))
        assert session.used_at == began
        await browser.get("/jobs")
        (session,) = await rig.store.read(lambda view: view.sessions("ann"))
        assert session.used_at == rig.clock.now, "a page that a person opens counts, also beside a stream"


async def test_a_stream_that_is_left_closes_its_clients(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the pages cancels every await of a stream that its browser has left."""
    made: list[clients.AsyncClient] = []
    closed: list[clients.AsyncClient] = []
    connected, close = visits.Visit.connected, clients.AsyncClient.close

    def counted(self: visits.Visit, secret: str | None) -> clients.AsyncClient:
        made.append(connected(self, secret))
        return made[-1]

    async def noted(self: clients.AsyncClient) -> None:
        await close(self)
        closed.append(self)

    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            left.set()

    async with rig.browser("ann") as browser:
        monkeypatch.setattr(visits.Visit, "connected", counted)
        monkeypatch.setattr(clients.AsyncClient, "close", noted)
        request = browser.build_request("GET", "/live", headers=browsers.OURS)
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        scope = {"type": "http", "method": "GET", "path": "/live", "query_string": b"", "headers": headers}
        scope |= {"client": ("127.0.0.1", 5), "asgi": {"version": "3.0", "spec_version": "2.3"}}
        await rig.app(scope, receive, send)
        await asyncio.gather(*rig.app._feeds._closing)
    assert len(made) == 2
    assert {id(one) for one in closed} == {id(one) for one in made}


def test_every_page_that_lives_is_told_so() -> None:
    """Without the last event in its updates a page would take each message for a gap."""
    living = {file.name for file in templating.FOLDER.rglob("*.html") if "data-live" in file.read_text()}
    assert len(living) == len([page for page in application.PAGES if page.live])


async def test_equal_readers_share_an_update_and_others_do_not(rig: browsers.WebRig, made: list[str]) -> None:
    await rig.submit("ann", name="mine")
    seq = await rig.store.read(lambda view: view.last_seq())
    told = FRAGMENT | {"Oarlock-Seq": str(seq)}
    async with rig.browser("ann") as ann, rig.browser("ann") as again, rig.browser("bob") as bob:
        answers = await asyncio.gather(*(one.get("/jobs", headers=told) for one in (ann, again, ann, bob)))
    assert sorted(made) == ["ann", "bob"]
    assert [("mine" in one.text, one.headers["oarlock-seq"]) for one in answers[:3]] == [(True, str(seq))] * 3
    assert "mine" not in answers[3].text


async def test_an_update_is_not_shared_with_a_page_that_was_told_of_a_later_event(
    rig: browsers.WebRig, made: list[str]
) -> None:
    async with rig.browser("ann") as browser:
        for name in ("one", "two", "three"):
            await rig.submit("ann", name=name)
            seq = await rig.store.read(lambda view: view.last_seq())
            answer = await browser.get("/jobs", headers=FRAGMENT | {"Oarlock-Seq": str(seq)})
            assert name in answer.text
            nonsense = await browser.get("/jobs", headers=FRAGMENT | {"Oarlock-Seq": "9" * 40})
            assert name in nonsense.text
    assert made.count("ann") >= 3


@pytest.mark.parametrize("name", ["same", "j-0123456789abcdef"], ids=["plain", "like-an-id"])
async def test_administrators_share_lists_but_no_page_of_a_named_job(
    rig: browsers.WebRig, made: list[str], name: str
) -> None:
    async with rig.as_user("root") as http:
        await http.post("/api/v1/users", json={"name": "zoe", "right": "admin"})
        rig.tokens["zoe"] = (await http.post("/api/v1/users/zoe/tokens", json={})).json()["token"]
    job = await rig.launch(await rig.submit("zoe", name=name))
    await rig.launch(await rig.submit("root", name=name))
    seq = str(await rig.store.read(lambda view: view.last_seq()))
    async with rig.browser("root") as root, rig.browser("zoe") as zoe:
        for path in ("/jobs", f"/jobs/{name}"):
            answers = [await one.get(path, headers=FRAGMENT | {"Oarlock-Seq": seq}) for one in (root, zoe)]
        assert (job.id in answers[0].text, job.id in answers[1].text) == (False, True)
        assert made == ["root", "root", "zoe"]
        same = [await one.get(f"/jobs/{job.id}", headers=FRAGMENT | {"Oarlock-Seq": seq}) for one in (root, zoe)]
        assert same[0].text == same[1].text, "an id is of one job"
    assert made == ["root", "root", "zoe", "root"]


async def test_open_pages_that_ask_together_are_admitted_once(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admissions, "KEPT_S", 240.0)
    found: list[str] = []
    server = clients.AsyncClient.server

    async def counted(self: clients.AsyncClient) -> bodies.Server:
        found.append("asked")
        return await server(self)

    monkeypatch.setattr(clients.AsyncClient, "server", counted)
    await rig.submit("ann", name="mine")
    seq = await rig.store.read(lambda view: view.last_seq())
    told, later = (FRAGMENT | {"Oarlock-Seq": str(number)} for number in (seq, seq + 1))
    async with rig.browser("ann") as ann, rig.browser("bob") as bob:
        found.clear()
        await asyncio.gather(*(ann.get(path, headers=told) for path in ("/", "/jobs", "/pools", "/jobs/mine")))
        assert len(found) == 1
        assert "mine" not in (await bob.get("/jobs", headers=told)).text
        assert len(found) == 2, "another session"
        for headers in (later, FRAGMENT, {}):
            before = len(found)
            await ann.get("/jobs", headers=headers)
            assert len(found) == before + 1, "told of a later event, asked for another reason, opened by a person"


async def test_an_admission_that_fails_is_not_shared(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as ann:
        async with rig.as_user("root") as http:
            digest = authentication.digest(rig.tokens["ann"])
            assert (await http.delete(f"/api/v1/users/ann/tokens/{digest}")).status_code == 204
        answers = await asyncio.gather(*(ann.get("/jobs", headers=FRAGMENT | {"Oarlock-Seq": "0"}) for _ in range(4)))
    assert [one.status_code for one in answers] == [401] * 4


async def test_a_failing_update_is_not_shared(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        answers = await asyncio.gather(*(browser.get("/jobs/none", headers=FRAGMENT) for _ in range(3)))
        assert [one.status_code for one in answers] == [404] * 3
        job = await rig.submit("ann", name="none")
        assert job.id in (await browser.get("/jobs/none", headers=FRAGMENT)).text


async def test_the_form_to_run_a_job_again_is_not_shared(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="over"))
    await rig.end(job.id)
    seq = str(await rig.store.read(lambda view: view.last_seq()))
    async with rig.browser("ann") as browser:
        told = FRAGMENT | {"Oarlock-Seq": seq}
        pages = await asyncio.gather(*(browser.get(f"/jobs/{job.id}", headers=told) for _ in range(2)))
        keys = [re.findall(r'name="key" value="([^"]+)"', one.text) for one in pages]
    assert len({key for (key,) in keys}) == 2, "two tabs make two jobs"


@pytest.mark.parametrize("overtaken", [False, True], ids=["in order", "overtaken"])
async def test_looks_that_overlap_hide_no_event_and_do_not_go_back(overtaken: bool) -> None:
    async def nothing(*_: object) -> Any:
        return {}

    feed = feeds._Feed("user user ann", 10, nothing, nothing, admissions.Admissions())
    await feed.close()
    own = events.Record(seq=11, kind="edited", job="j-1", at=1.0, version=2)
    looks = [bodies.RecordPage((own,), 11), bodies.RecordPage((own,), 12)]  # both after 10; the last event is another's
    for page in reversed(looks) if overtaken else looks:
        feed._note(10, page)
    assert feed.seq == 12
    assert feed._topics(11, 12) >= topics.SHARED, "lists that show jobs of others have changed"
    assert "job:j-1" in feed._topics(10, 12)
