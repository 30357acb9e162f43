"""What an update must not move or lose: sections and rows that a reader has, and the content of a lost server.

How often a page asks is bounded, too: one request at a time, and pauses while the server fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.web.browser import conftest, stills, test_metrics, test_stills
from tests.web.browser.hearing import QUIET_MS, SHOWN, Open

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Page, Route

pytestmark = pytest.mark.browser

LOADED = "[...document.querySelectorAll('[data-section]')].map((one) => [one.dataset.section, 'loaded' in one.dataset])"
EVERYTHING = ["*"]


def sections(url: str) -> set[str]:
    return set(",".join(parse_qs(urlsplit(url).query).get("sections", [])).split(",")) - {""}


async def test_a_page_asks_once_at_a_time_and_again_for_what_came_meanwhile(opened: Open) -> None:
    go = asyncio.Event()

    async def hold(route: Route) -> None:
        await go.wait()
        await route.continue_()

    await opened.page.route("**/jobs", hold)
    for number in range(4):
        await opened.hear(number, number + 1, SHOWN)
        await opened.page.wait_for_timeout(QUIET_MS / 2)
    assert len(opened.asked) == 1, "the first answer is on its way"
    go.set()
    await opened.updated(2)


async def test_a_stream_that_opens_again_tells_whether_news_were_missed(opened: Open) -> None:
    await opened.told("open", 0)
    await opened.updated(0)
    await opened.told("open", 1)
    await opened.updated(1)


async def test_a_lost_stream_is_said_until_news_come(opened: Open) -> None:
    bar = opened.page.locator("#connection")
    await opened.told("lost")
    await bar.filter(has_text="reconnecting").wait_for()
    await opened.hear(0, 1, ["job:another"])
    await bar.wait_for(state="hidden")
    await opened.updated(0)


async def test_a_server_that_fails_changes_nothing_and_is_asked_at_most_twice_a_second(
    chromium: conftest.Chromium, opened: Open
) -> None:
    chromium.expect(r"status of 502 .* at \S*/jobs")
    await opened.page.evaluate("document.querySelector('#content h1').textContent = 'as of before'")
    refused = 0

    async def fail(route: Route) -> None:
        nonlocal refused
        refused += 1
        await route.fulfill(status=502, content_type="text/html", body="<main id='content'>Bad gateway</main>")

    await opened.page.route("**/jobs", fail)
    before = await opened.page.evaluate("performance.now()")
    await opened.hear(0, 1, SHOWN)
    await opened.page.locator("#connection").filter(has_text="reconnecting").wait_for()
    await opened.page.wait_for_timeout(2 * QUIET_MS)
    took_s = (await opened.page.evaluate("performance.now()") - before) / 1000
    assert await opened.page.locator("#content h1").text_content() == "as of before"
    assert 2 <= refused <= 2 * took_s + 2
    await opened.page.unroute("**/jobs")
    await opened.page.locator("#connection").wait_for(state="hidden")
    assert await opened.page.locator("#content h1").text_content() == "Jobs"


async def test_a_page_that_is_loaded_while_news_pass_hears_of_them_from_the_page_with_the_stream(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    """Its content is older than the stream of the browser, which tells no event twice."""

    async def older(route: Route) -> None:
        answer = await route.fetch()
        text = (await answer.text()).replace('data-seq="', 'data-seq="-', 1)
        await route.fulfill(response=answer, body=text)

    async with stills.serving(tmp_path, full=False) as still:
        await still.rig.submit("root", name="before")
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.context.new_page()
        async with page.expect_response("**/live"):
            await page.goto(still.url + "/jobs")
        await page.wait_for_timeout(QUIET_MS)
        other = await watched.context.new_page()
        await other.route("**/jobs", older, times=1)
        async with other.expect_request(lambda one: "oarlock-fragment" in one.headers):
            await other.goto(page.url)
        await watched.context.close()


async def test_rows_that_came_later_push_none_away(chromium: conftest.Chromium, tmp_path: Path) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        for number in range(3):
            await still.rig.submit("root", name=f"before-{number}")
            still.rig.clock.now += 1
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page("/jobs")
        one = Open(page)
        rows = "[...document.querySelectorAll('main tbody th a')].map((one) => one.textContent)"
        before = await page.evaluate(rows)
        assert before == [f"before-{number}" for number in (2, 1, 0)]
        await still.rig.submit("root", name="later")
        await page.locator("main a:has-text('1 new')").wait_for()
        assert await page.evaluate(rows) == before
        assert all("seen" in parse_qs(urlsplit(url).query) for url in one.asked)
        await watched.context.close()


PLACES = "[scrollY, ...[...document.querySelectorAll('main tbody tr')].map((one) => one.getBoundingClientRect().top)]"


async def test_updates_above_and_below_do_not_move_the_scroll_of_a_long_list(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    """Also in a browser that does not keep the place by itself."""
    async with stills.serving(tmp_path) as still:
        rig, listed = still.rig, []
        for number in range(90):
            listed.append(await rig.submit("root", name=f"waits-{number}"))
            rig.clock.now += 1
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page("/jobs")
        await page.evaluate("document.documentElement.style.overflowAnchor = 'none'")
        await page.evaluate("scrollTo(0, 1200)")
        await page.wait_for_timeout(200)
        before = await page.evaluate(PLACES)
        assert before[0] == 1200
        assert before[1] < 0 < 800 < before[-1], "there are rows above and below what is in view"
        for job in (listed[-1], listed[0], listed[45]):  # above, below, and in view
            await rig.launch(job)
            await page.wait_for_selector(f"tr:has-text('{job.name}'):has-text('DEPLOYING')", state="attached")
            assert await page.evaluate(PLACES) == before
        await rig.submit("root", name="later")
        await page.wait_for_selector("a:text-is('1 new job')", state="attached")
        assert await page.evaluate(PLACES) == before, "the announcement above the rows moves nothing"
        await watched.context.close()


async def scrolled(page: Page, place: str) -> None:
    await page.evaluate(f"scrollTo(0, {place})")
    await page.wait_for_timeout(200)


async def test_sections_out_of_view_are_not_made_again_and_keep_what_they_have(
    chromium: conftest.Chromium, still: dict[str, stills.Still]
) -> None:
    watched = await test_stills.opened(chromium, still["full"], moving=True)
    page = await watched.page("/jobs/runs")
    await page.set_viewport_size({"width": 1280, "height": 200})
    while not all(loaded for _, loaded in await page.evaluate(LOADED)):
        await page.mouse.wheel(0, 200)
        await page.wait_for_timeout(100)
    texts = "[...document.querySelectorAll('[data-section]')].map((one) => one.querySelectorAll('*').length > 2)"
    assert all(await page.evaluate(texts))
    await scrolled(page, "0")
    await page.wait_for_timeout(QUIET_MS)
    one = Open(page)
    await one.hear(0, 1, EVERYTHING)
    while not one.answers:
        await page.wait_for_timeout(50)
    named = [name for name, _ in await page.evaluate(LOADED)]
    assert sections(one.asked[0]) < set(named), "those far away are not asked for"
    await page.wait_for_timeout(200)
    assert all(loaded for _, loaded in await page.evaluate(LOADED))
    assert all(await page.evaluate(texts))
    await watched.context.close()


async def test_a_costly_section_is_made_now_and_then(
    chromium: conftest.Chromium, still: dict[str, stills.Still]
) -> None:
    watched = await test_stills.opened(chromium, still["full"], moving=True)
    page = await watched.page("/")
    await page.wait_for_selector("#part-day[data-loaded]")
    one = Open(page)
    await one.hear(0, 1, EVERYTHING)
    while not one.answers:
        await page.wait_for_timeout(50)
    assert all(not sections(url) for url in one.asked), "the day was made a moment ago"
    await page.wait_for_timeout(200)
    assert await page.locator("#part-day[data-loaded] table").count() == 1
    await watched.context.close()


async def test_a_chart_that_is_zoomed_stays_while_points_come(chromium: conftest.Chromium, tmp_path: Path) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        numbers = test_metrics.Numbers(still.rig, 20)
        job = await still.rig.launch(await still.rig.submit("root", name="runs"))
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page(f"/jobs/{job.id}/metrics?first=2&last=9")
        zoomed = "figure[data-name=loss] .plot[aria-label^='loss: 8 points']"
        await page.wait_for_selector(f"{zoomed} canvas")
        await page.evaluate("document.querySelector('figure[data-name=loss] canvas').mine = true")
        numbers.count = 30
        one = Open(page)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/metrics/numbers" in request.url else None)
        await one.hear(0, 1, EVERYTHING)
        while not one.answers:
            await page.wait_for_timeout(50)
        await page.wait_for_timeout(QUIET_MS)
        assert asked == []
        assert await page.locator(zoomed).count() == 1
        assert await page.evaluate("document.querySelector('figure[data-name=loss] canvas').mine")
        await page.click("#whole")
        await conftest.until(page, "!location.search.includes('first')")
        await page.wait_for_selector("figure[data-name=loss] .plot[aria-label^='loss: 30 points']")
        await watched.context.close()
