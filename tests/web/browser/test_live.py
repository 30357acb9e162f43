"""Open pages that hear of news: which ones fetch themselves, when, and what a lost message costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.web.browser import conftest, stills, test_stills
from tests.web.browser.hearing import ELSEWHERE, QUIET_MS, SHOWN, Open

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.browser


async def test_a_page_that_is_opened_has_all_events_and_asks_for_nothing(opened: Open) -> None:
    await opened.updated(0)


async def test_a_page_fetches_itself_for_news_of_its_topics_alone(opened: Open) -> None:
    await opened.hear(0, 1, ELSEWHERE)
    await opened.updated(0)
    await opened.hear(1, 2, SHOWN)
    await opened.updated(1)


async def test_an_update_is_empty_where_nothing_has_changed(opened: Open) -> None:
    await opened.hear(0, 1, SHOWN)
    await opened.updated(1)
    await opened.hear(1, 2, SHOWN)
    await opened.updated(2)
    assert opened.answers == [200, 304]


async def test_a_page_that_has_the_content_of_its_mark_does_not_ask(opened: Open) -> None:
    await opened.hear(0, 1, SHOWN)
    await opened.updated(1)
    await opened.hear(1, 2, SHOWN, opened.tag)
    await opened.hear(2, 3, SHOWN, opened.tag)
    await opened.updated(1)
    await opened.hear(3, 4, SHOWN, '"another"')
    await opened.updated(2)


async def content(opened: Open, heading: str) -> str:
    """Return the page's present content with another heading, as an update has it."""
    main: str = await opened.page.evaluate("document.getElementById('content').outerHTML")
    before, rest = main.split("<h1>", 1)
    return f"{before}<h1>{heading}</h1>{rest.partition('</h1>')[2]}"


async def heading(opened: Open) -> str:
    return str(await opened.page.locator("#content h1").inner_text())


async def test_a_page_takes_the_content_that_comes_with_the_news(opened: Open) -> None:
    await opened.hear(0, 1, SHOWN)
    await opened.updated(1)
    await opened.hear(1, 2, SHOWN, '"two"', await content(opened, "Two"))
    await opened.page.wait_for_selector("#content h1:text-is('Two')")
    await opened.updated(1)
    await opened.hear(2, 3, SHOWN, '"two"')
    await opened.updated(1)
    await opened.hear(3, 3, [], '"three"', await content(opened, "Three, without an event"))
    await opened.page.wait_for_selector("#content h1:text-is('Three, without an event')")
    await opened.updated(1)
    await opened.hear(2, 4, SHOWN, '"two"')
    await opened.updated(2)


HINDRANCES = {
    "hidden": ("window.away = true", "window.away = false; document.dispatchEvent(new Event('visibilitychange'))"),
    "selected": (
        "getSelection().selectAllChildren(document.querySelector('#content h1'))",
        "getSelection().removeAllRanges()",
    ),
    "another address": ("history.replaceState(null, '', '?sort=name')", "0"),
    "a browser without the means": ("delete window.DecompressionStream", "0"),
    "a content that cannot be read": ("window.atob = () => 'no gzip'", "0"),
}


@pytest.mark.parametrize("what", HINDRANCES)
async def test_a_page_that_cannot_take_a_content_asks_once_it_can(opened: Open, what: str) -> None:
    before, after = HINDRANCES[what]
    await opened.hear(0, 1, SHOWN)
    await opened.updated(1)
    fresh = await content(opened, "Two")
    await opened.page.evaluate(before)
    await opened.hear(1, 2, SHOWN, '"two"', fresh)
    if after != "0":
        await opened.updated(1)
        assert await heading(opened) != "Two"
    await opened.page.evaluate(after)
    await opened.updated(2)
    assert await heading(opened) != "Two", "the server's own content is there"


async def test_a_page_whose_content_has_changed_without_an_event_asks(opened: Open) -> None:
    await opened.hear(0, 1, SHOWN)
    await opened.updated(1)
    await opened.hear(0, 0, [], opened.tag)
    await opened.updated(1)
    await opened.hear(0, 0, [], '"another"')
    await opened.updated(2)


async def test_a_page_that_has_missed_news_finds_the_gap(opened: Open) -> None:
    await opened.hear(0, 1, ELSEWHERE)
    await opened.hear(2, 3, ELSEWHERE)  # the message from 1 to 2 is lost, and may have named this page's topic
    await opened.updated(1)


async def test_many_news_are_two_updates_a_second_at_most(opened: Open) -> None:
    before = await opened.page.evaluate("performance.now()")
    for number in range(40):
        await opened.hear(number, number + 1, SHOWN)
        await opened.page.wait_for_timeout(25)
    took_s = (await opened.page.evaluate("performance.now()") - before) / 1000
    await opened.page.wait_for_timeout(QUIET_MS)
    assert 2 <= len(opened.answers) <= 2 * took_s + 2


async def test_a_hidden_page_asks_once_it_is_seen(opened: Open) -> None:
    await opened.page.evaluate("window.away = true")
    await opened.hear(0, 1, SHOWN)
    await opened.updated(0)
    await opened.page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    await opened.updated(1)


async def test_a_page_that_the_reader_comes_back_to_asks(opened: Open) -> None:
    """A browser may restore a page that was left as it was: the news have passed it by, and the server forgot it."""
    shown = "dispatchEvent(new PageTransitionEvent('pageshow', {{ persisted: {} }}))"
    await opened.page.evaluate(shown.format("false"))
    await opened.updated(0)
    await opened.page.evaluate(shown.format("true"))
    await opened.updated(1)


async def test_a_page_that_is_hidden_or_left_says_so_once(opened: Open) -> None:
    """The server makes the mark of a page that it knows with all news of it, also where nothing shows the page."""
    told: list[str] = []
    opened.page.on("request", lambda one: told.append(one.headers["oarlock-page"]) if "/live/left" in one.url else None)
    away = "window.away = {}; document.dispatchEvent(new Event('visibilitychange'))"
    await opened.page.evaluate(away.format("true"))
    await opened.page.wait_for_timeout(QUIET_MS)
    assert told == [], "it has fetched nothing yet, so the server does not know it"
    await opened.page.evaluate(away.format("false"))
    await opened.updated(1)
    for _ in range(2):
        await opened.page.evaluate(away.format("true"))
    await opened.page.wait_for_timeout(QUIET_MS)
    assert told == [opened.name]
    await opened.page.evaluate(away.format("false"))
    await opened.updated(2)
    # A browser does not tell of requests that a page makes while it is left, so the moment is only played.
    await opened.page.evaluate("dispatchEvent(new Event('pagehide'))")
    await opened.page.wait_for_timeout(QUIET_MS)
    assert told == [opened.name] * 2


OUTDATED = """document.querySelector("#content h1").textContent = "as of before" """
PRESENT = """document.querySelector("#content h1").textContent !== "as of before" """


async def test_an_update_leaves_an_open_menu_open(opened: Open) -> None:
    await opened.page.locator("#columns summary").click()
    await opened.page.evaluate(OUTDATED)
    await opened.hear(0, 1, SHOWN)
    await opened.updated(1)
    assert await opened.page.evaluate(PRESENT)
    assert await opened.page.locator("#columns").evaluate("(menu) => menu.open")


async def test_an_update_waits_for_the_end_of_a_selection(opened: Open) -> None:
    await opened.page.evaluate(f"{OUTDATED}; getSelection().selectAllChildren(document.querySelector('#content h1'))")
    await opened.hear(0, 1, SHOWN)
    place = "document.querySelector('#content h1').getBoundingClientRect().top"
    before = await opened.page.evaluate(place)
    await opened.page.wait_for_selector("#connection:has-text('Updates wait while text is selected')")
    assert await opened.page.evaluate(place) == before, "the bar moves nothing"
    await opened.updated(0)
    assert await opened.page.evaluate("getSelection().toString()") == "as of before"
    await opened.page.evaluate("getSelection().removeAllRanges()")
    await opened.updated(1)
    assert await opened.page.evaluate(PRESENT)
    await opened.page.wait_for_selector("#connection", state="hidden")


PATCHES = {
    "an attribute": ('<p class="a" title="b">x</p>', '<p class="c">x</p>'),
    "a text": ("<p>x</p><p>y</p>", "<p>x</p><p>z</p>"),
    "a new row": (
        "<table><tbody><tr><td>1</td></tr></tbody></table>",
        "<table><tbody><tr></tr><tr></tr></tbody></table>",
    ),
    "more bars": ('<svg><rect x="1"></rect></svg>', '<svg><rect x="2"></rect><rect x="3"></rect></svg>'),
    "another element": ("<p>x</p>", "<ul><li>x</li></ul>"),
    "nothing left": ("<p>x</p>", ""),
}


@pytest.mark.parametrize("what", PATCHES)
async def test_a_page_is_patched_to_what_was_fetched_and_keeps_what_is_equal(opened: Open, what: str) -> None:
    found = await opened.page.evaluate(
        """([before, after]) => {
            const main = document.getElementById("content");
            main.innerHTML = `<p id="same">same</p><div>${before}</div>`;
            const kept = main.querySelector("#same");
            const text = `<main><p id="same">same</p><div>${after}</div></main>`;
            const fresh = new DOMParser().parseFromString(text, "text/html");
            const drawn = () => [...main.querySelectorAll("rect")].every((one) => one instanceof SVGRectElement);
            oarlockPatch(main, fresh.querySelector("main"));
            return [main.innerHTML, main.querySelector("#same") === kept, drawn()];
        }""",
        PATCHES[what],
    )
    assert found == [f'<p id="same">same</p><div>{PATCHES[what][1]}</div>', True, True]


FIELDS = """(shape) => {
    const main = document.getElementById("content");
    const page = (value, checked, text, chosen, more = "") => `<main><form>${more}
        ${["typed", "left"].map((id) => `<input id="${id}" value="${value}">
            <input type="checkbox" id="${id}-tick" ${checked}>
            <textarea id="${id}-text">${text}</textarea>
            <select id="${id}-choice">${["x", "y", "z"].map((one) =>
                `<option ${one === chosen ? "selected" : ""}>${one}</option>`).join("")}</select>`).join("")}
        </form></main>`;
    const parsed = (text) => new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const all = (id) => [id, `${id}-text`, `${id}-choice`].map((one) => document.getElementById(one).value)
        .concat(document.getElementById(`${id}-tick`).checked);
    main.innerHTML = parsed(page("one", "", "one", "x")).innerHTML;
    document.getElementById("typed").value = "mine";
    document.getElementById("typed-text").value = "my text";
    document.getElementById("typed-choice").value = "z";
    document.getElementById("typed-tick").click();
    oarlockPatch(main, parsed(page("two", "", "two", "x", shape)));
    const first = [all("typed"), all("left")];
    oarlockPatch(main, parsed(page("two", "checked", "two", "y", shape)));
    return [...first, all("left")];
}"""


@pytest.mark.parametrize("shape", ["", "<p>one part more</p>"])
async def test_fields_keep_what_the_reader_entered_and_others_follow_the_server(opened: Open, shape: str) -> None:
    typed, left, later = await opened.page.evaluate(FIELDS, shape)
    assert typed == ["mine", "my text", "z", True]
    assert left == ["two", "two", "x", False]
    assert later == ["two", "two", "y", True]


async def test_rows_that_change_places_keep_their_ticks_and_the_focus(opened: Open) -> None:
    """If only the place of a row were patched, it would give the tick and the focus of one job to another."""
    found = await opened.page.evaluate(
        """() => {
            const main = document.getElementById("content");
            const rows = (names) => names.map((name) =>
                `<tr id="row-${name}"><td><input type="checkbox"></td><th><a href="/${name}">${name}</a></th></tr>`);
            const page = (...names) => `<main><table><tbody>${rows(names).join("")}</tbody></table></main>`;
            const parsed = (text) => new DOMParser().parseFromString(text, "text/html").querySelector("main");
            main.innerHTML = parsed(page("a", "b")).innerHTML;
            main.querySelector("#row-a input").checked = true;
            main.querySelector("#row-b a").focus();
            return [["b", "a"], ["c", "a", "b"]].map((names) => {
                oarlockPatch(main, parsed(page(...names)));
                const ticked = [...main.querySelectorAll("tr:has(:checked)")].map((one) => one.id);
                const rows = [...main.querySelectorAll("tr")].map((one) => one.id);
                return [rows, ticked, document.activeElement.textContent];
            });
        }"""
    )
    assert found == [[["row-b", "row-a"], ["row-a"], "b"], [["row-c", "row-a", "row-b"], ["row-a"], "b"]]


async def test_times_go_by_the_clock_of_the_server(chromium: conftest.Chromium, still: dict[str, stills.Still]) -> None:
    """The browser's clock is an hour ahead, and is set two hours back while the page is open."""
    watched = await test_stills.opened(chromium, still["full"])
    right = still["full"].rig.clock.now
    await watched.context.clock.set_fixed_time(right + 3600)
    page = await watched.page("/jobs")
    one = Open(page)
    told = await page.evaluate(
        """async () => {
            const text = await (await fetch(location.href)).text();
            const page = new DOMParser().parseFromString(text, "text/html");
            return [...page.querySelectorAll("main [data-form]")].map((one) => one.textContent);
        }"""
    )
    shown = """() => {
        const main = document.getElementById("content");
        oarlockTimes.settle(main);
        return [...main.querySelectorAll("[data-form]")].map((one) => one.textContent);
    }"""
    assert await page.evaluate(shown) == told
    await watched.context.clock.set_fixed_time(right - 3600)
    assert await page.evaluate(shown) != told
    await page.evaluate(
        """() => {
            const { settle } = oarlockTimes;
            oarlockTimes.settle = (root) => {
                settle(root);
                window.written = [...root.querySelectorAll("[data-form]")].map((one) => one.textContent);
            };
        }"""
    )
    await one.hear(0, 1, SHOWN)
    await one.updated(1)
    assert await page.evaluate("window.written") == told, "the update had the words of the clock that was set"
    assert await page.evaluate(shown) == told
    await watched.context.close()


async def test_a_page_asks_again_at_once_when_its_network_is_back(chromium: conftest.Chromium, tmp_path: Path) -> None:
    """The clock of the page stands, so that no pause ends by itself."""
    async with stills.serving(tmp_path, full=False) as still:
        context = (await chromium.open(still.url)).context
        chromium.expect(rf"net::ERR_FAILED at {still.url}/live$")
        await context.add_cookies(still.cookies)
        page = await context.new_page()
        await page.clock.install()
        await page.route("**/live", lambda route: route.abort())
        async with page.expect_response(lambda answer: "oarlock-fragment" in answer.request.headers):
            await page.goto(still.url + "/jobs")
        await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))
        await page.wait_for_timeout(QUIET_MS)
        await page.unroute("**/live")
        async with page.expect_response("**/live"):
            await page.evaluate("dispatchEvent(new Event('online'))")
        await context.close()


class Waited:
    """The pauses of an open page, in the time of its clock, which goes on only while no request is under way."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._under_way: set[object] = set()
        page.on("request", lambda request: self._under_way.add(request))
        page.on("requestfailed", lambda request: self._under_way.discard(request))
        page.on("requestfinished", lambda request: self._under_way.discard(request))
        page.on("response", lambda answer: self._under_way.discard(answer.request))  # a stream does not end

    async def until(self, expression: str, most_ms: int, step_ms: int = 100) -> int:
        waited_ms = 0
        while not await self.page.evaluate(expression) and waited_ms < most_ms:
            while self._under_way:
                await self.page.wait_for_timeout(20)
            await self.page.wait_for_timeout(20)  # for what follows the answer
            await self.page.clock.run_for(step_ms)
            waited_ms += step_ms
        return waited_ms


@pytest.mark.parametrize("path", ["/jobs/runs/metrics", "/compare?job=runs"])
async def test_a_page_whose_server_was_long_away_is_live_again_after_pauses_of_5_s_at_most(
    chromium: conftest.Chromium, still: dict[str, stills.Still], path: str
) -> None:
    """The clock of the page alone is counted: how long the server takes to answer is not its matter."""
    watched = await test_stills.opened(chromium, still["full"], moving=True)
    page = await watched.context.new_page()
    await page.clock.install()
    async with page.expect_response("**/live"):
        await page.goto(watched.url + path)
    waited = Waited(page)
    await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))
    watched.expect(rf"net::ERR_FAILED at {watched.url}/(live|jobs/runs/metrics|compare)")
    await page.context.route("**/*", lambda route: route.abort())
    await page.clock.run_for(41_000)  # the open stream falls silent
    lost = "!document.getElementById('connection').hidden"
    assert await waited.until(lost, 10_000) < 10_000
    tries: list[str] = []
    page.on("request", lambda request: tries.append(request.url) if request.url.endswith("/live") else None)
    while len(tries) < 140:  # so many that without a bound the pauses would be longer
        await waited.until("false", 5000, 5000)
    count = len(tries)
    while len(tries) == count:
        await waited.until("false", 100)
    await page.context.unroute("**/*")
    async with page.expect_response("**/live"):
        assert await waited.until(f"!({lost})", 10_000) <= 5000
        count, steps = len(tries), 0
        while len(tries) == count:
            await waited.until("false", 100)
            steps += 1
    assert steps <= 55, "a pause of 5 s, and a step or two"
    await watched.context.close()


async def test_a_stream_that_has_fallen_silent_is_opened_again(chromium: conftest.Chromium, tmp_path: Path) -> None:
    """A router or a proxy may drop a connection without a word: the page waits for a beat no longer than for two."""
    async with stills.serving(tmp_path, full=False) as still:
        context = (await chromium.open(still.url)).context
        await context.add_cookies(still.cookies)
        page = await context.new_page()
        await page.clock.install()
        async with page.expect_request("**/live"):
            await page.goto(still.url + "/jobs")
        async with page.expect_request("**/live"):
            for _ in range(50):
                await page.clock.run_for(1000)
        await context.close()
