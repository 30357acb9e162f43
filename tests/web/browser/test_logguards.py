"""What a log's page must not do to its reader: take away a selection, ask while it is hidden, or ask without pauses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from tests.api import rig as rigs
from tests.web.browser import conftest, hearing, stills, test_log, test_stills

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Page, Route

pytestmark = pytest.mark.browser

QUIET_MS = 2500
"""Longer than the pause between two requests of a log that has gone quiet: half a second for each, five at most."""
LAST = "document.querySelector('#lines li:last-child code').textContent"


class Printed:
    """The open log of a job that runs and prints what it is told. `asked` are the requests for lines."""

    def __init__(self, still: stills.Still, page: Page, job: str, said: int) -> None:
        self.page = page
        self.asked: list[str] = []
        self._still, self._job, self._said = still, job, said
        page.on("request", lambda one: self.asked.append(one.url) if "/log/lines" in one.url else None)

    async def say(self, text: str, end: str = "\n") -> None:
        data = f"{text}{end}".encode()
        rig = self._still.rig
        key = rigs.key_of(await rig.job(self._job))
        await rig.logs.append(key, "stdout.0", self._said, data, at=rig.clock.now)
        self._said += len(data)

    async def leave(self, top: int) -> None:
        """Scroll away from the end. Lines that come within the same frame take a reader who follows back to it."""
        while await self.page.get_attribute("#follow", "aria-pressed") != "false":
            await self.page.evaluate(f"{test_log.TOP} = {top}")
            await self.page.wait_for_timeout(50)

    async def shows(self, text: str) -> None:
        await conftest.until(self.page, f"{LAST} === '{text}'")


@contextlib.asynccontextmanager
async def printing(chromium: conftest.Chromium, folder: Path, lines: int) -> AsyncIterator[Printed]:
    async with stills.serving(folder, full=False) as still:
        job = await still.rig.launch(await still.rig.submit("root", name="prints"))
        text = "".join(f"step {number}\n" for number in range(lines)).encode()
        await still.rig.logs.append(rigs.key_of(job), "stdout.0", 0, text, at=still.rig.clock.now)
        watched = await test_stills.opened(chromium, still, moving=True)
        await watched.context.add_init_script(hearing.AWAY)
        page = await watched.page("/jobs/prints/log")
        one = Printed(still, page, job.id, len(text))
        await one.shows(f"step {lines - 1}")
        yield one
        await watched.context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def printed(chromium: conftest.Chromium, tmp_path: Path) -> AsyncIterator[Printed]:
    async with printing(chromium, tmp_path, 100) as one:
        yield one


async def test_lines_wait_for_the_end_of_a_selection(printed: Printed) -> None:
    chosen = "document.querySelector('#lines li:nth-child(90) code')"
    await printed.page.evaluate(f"getSelection().selectAllChildren({chosen})")
    await printed.say("new")
    await printed.page.wait_for_timeout(QUIET_MS)
    assert await printed.page.evaluate(LAST) == "step 99"
    assert await printed.page.evaluate("getSelection().toString()") == "step 89"
    await printed.page.evaluate("getSelection().removeAllRanges()")
    await printed.shows("new")


async def test_a_hidden_log_asks_once_it_is_seen(printed: Printed) -> None:
    await printed.page.evaluate("window.away = true")
    await printed.page.wait_for_timeout(500)  # a request may be on its way
    printed.asked.clear()
    await printed.say("new")
    await printed.page.wait_for_timeout(QUIET_MS)
    assert printed.asked == []
    await printed.page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    await printed.shows("new")


async def test_a_reader_who_scrolls_does_not_hurry_a_server_that_fails(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    async with printing(chromium, tmp_path, 3000) as one:
        chromium.expect(r"status of 502 .* at \S*/log/lines")
        await one.page.route("**/log/lines**", lambda route: route.fulfill(status=502))
        await one.leave(0)
        await one.page.locator("#log-connection").filter(has_text="reconnecting").wait_for()
        assert await one.page.locator("#connection").is_hidden(), "the rest of the page is up to date"
        one.asked.clear()
        before = await one.page.evaluate("performance.now()")
        for _ in range(60):
            await one.page.evaluate("document.getElementById('log').dispatchEvent(new Event('scroll'))")
            await one.page.wait_for_timeout(50)
        took_s = (await one.page.evaluate("performance.now()") - before) / 1000
        assert 1 <= len(one.asked) <= 2 * took_s + 2
        await one.page.unroute("**/log/lines**")
        await conftest.until(one.page, f"{test_log.COUNT} > 1400")


async def test_a_log_asks_once_at_a_time(chromium: conftest.Chromium, tmp_path: Path) -> None:
    async with printing(chromium, tmp_path, 3000) as one:
        go = asyncio.Event()

        async def hold(route: Route) -> None:
            await go.wait()
            await route.continue_()

        await one.page.wait_for_timeout(500)
        await one.page.route("**/log/lines**", hold)
        one.asked.clear()
        await one.leave(0)
        for _ in range(20):
            await one.page.evaluate("document.getElementById('log').dispatchEvent(new Event('scroll'))")
            await one.page.wait_for_timeout(50)
        assert len(one.asked) == 1, "the first answer is on its way"
        go.set()
        await conftest.until(one.page, f"{test_log.COUNT} > 1400")


async def test_a_log_that_is_quiet_is_asked_less_often(printed: Printed) -> None:
    await printed.page.wait_for_timeout(4 * QUIET_MS)
    before = await printed.page.evaluate("performance.now()")
    printed.asked.clear()
    await printed.page.wait_for_timeout(3 * QUIET_MS)
    took_s = (await printed.page.evaluate("performance.now()") - before) / 1000
    assert 1 <= len(printed.asked) <= took_s / 2 + 2, "half a second apart at first, and then 2.5"


async def test_new_lines_do_not_move_a_reader_who_has_scrolled_away(printed: Printed) -> None:
    await printed.leave(0)
    await printed.say("new")
    await printed.shows("new")
    assert await printed.page.evaluate(test_log.TOP) == 0
    await printed.page.click("#follow")
    await conftest.until(printed.page, f"{test_log.TOP} > 0")


async def test_rows_that_come_above_move_nothing(chromium: conftest.Chromium, tmp_path: Path) -> None:
    """Also in a browser that does not keep the place by itself."""
    async with printing(chromium, tmp_path, 3000) as one:
        go = asyncio.Event()

        async def hold(route: Route) -> None:
            await go.wait()
            await route.continue_()

        await one.page.evaluate("document.getElementById('log').style.overflowAnchor = 'none'")
        await one.page.route("**/log/lines**", hold)
        await one.leave(300)
        before = await one.page.evaluate(test_log.PLACE)
        go.set()
        await conftest.until(one.page, f"{test_log.COUNT} > 1400")
        assert await one.page.evaluate(test_log.PLACE) == before


async def test_a_log_that_is_followed_has_fewer_rows(chromium: conftest.Chromium, tmp_path: Path) -> None:
    async with printing(chromium, tmp_path, 3000) as one:
        for batch in range(4):
            await one.say("\n".join(f"more {batch}-{number}" for number in range(450)))
            await one.shows(f"more {batch}-449")
        assert await one.page.evaluate(test_log.COUNT) == 2000


FIRST = "document.querySelector('#lines li').id"


async def test_rows_that_are_cut_or_made_anew_move_nothing_and_wait_for_a_selection(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    """A reader goes down until rows above are cut, and up again, where they come anew."""
    async with printing(chromium, tmp_path, 9000) as one:
        page = one.page
        while await page.evaluate(test_log.COUNT) < 5000:
            await page.evaluate(f"{test_log.TOP} = 0")
            await page.wait_for_timeout(50)
        await page.goto(f"{page.url}?line={await page.evaluate(FIRST)}")
        await page.evaluate("document.getElementById('log').style.overflowAnchor = 'none'")
        while await page.evaluate(test_log.COUNT) < 5000:
            last = await page.evaluate(LAST)
            await page.evaluate(f"{test_log.TOP} = 1e9")
            await conftest.until(page, f"{LAST} !== '{last}' || {test_log.COUNT} >= 5000")
        await page.wait_for_timeout(500)
        first = await page.evaluate(FIRST)
        await page.evaluate("""() => {
            const box = document.getElementById("log");
            box.scrollTop = box.scrollHeight - box.clientHeight - 300;
        }""")
        before = await page.evaluate(test_log.PLACE)
        await conftest.until(page, f"{FIRST} !== '{first}'")
        assert await page.evaluate(test_log.PLACE) == before
        assert await page.evaluate(test_log.COUNT) == 5000

        await page.evaluate(f"{test_log.TOP} = 5000")
        first = await page.evaluate(FIRST)
        async with conftest.answered(page, "/log/lines", "the newest line"):
            await one.say("the newest line")
        await page.wait_for_timeout(300)
        assert await page.evaluate(FIRST) == first, "no row above is cut while its reader may be there"

        await page.evaluate("getSelection().selectAllChildren(document.querySelector('#lines li:nth-child(20) code'))")
        await page.evaluate(f"{test_log.TOP} = 300")
        before = await page.evaluate(test_log.PLACE)
        await page.wait_for_timeout(QUIET_MS)
        assert await page.evaluate(test_log.COUNT) == 5000
        await page.evaluate("getSelection().removeAllRanges()")
        await page.evaluate(f"{test_log.TOP} = 301")
        await page.evaluate(f"{test_log.TOP} = 300")
        await conftest.until(page, f"{test_log.COUNT} < 5000")
        assert await page.evaluate(test_log.PLACE) == before


async def test_a_line_that_comes_in_parts_is_one_row(printed: Printed) -> None:
    rows = "[...document.querySelectorAll('#lines li code')].slice(100).map((one) => one.textContent)"
    await printed.say("half", end="")
    await printed.shows("half")
    await printed.say(" and half", end="")
    await printed.shows("half and half")
    await printed.say("")
    await printed.say("next")
    await printed.shows("next")
    assert await printed.page.evaluate(rows) == ["half and half", "next"]
