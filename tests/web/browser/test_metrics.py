"""The page of the metrics in a browser: charts are drawn in view, zoom to finer points, and rest after the end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import shell as shells
from tests.web import browsers
from tests.web.browser import conftest, stills, test_stills

from oarlock.data import storage
from oarlock.spec import events, holdings, intents, jobs
from oarlock.web.drawing import curves

pytestmark = pytest.mark.browser

REPORTING = """
from oarlock import train
train.init()
with train.Session(total_steps=600) as session:
    for step in session.steps():
        layers = {f"layer/{number:03d}/norm": float(step) for number in range(300)} if step < 3 else {}
        session.log(loss=1000.0 if step == 333 else 1.0 / step, **layers)
"""
"""A script that reports 300 metrics, one of them with a spike at step 333."""
DRAWN = "document.querySelectorAll('.plot canvas').length"


async def test_charts_of_many_metrics(shell: shells.Shell, browser: conftest.Watched) -> None:
    shell.write("measure.py", REPORTING)
    shell.do("run", "--name", "measures", "--", "python", "measure.py")
    page = await browser.page("/jobs/measures/metrics")
    await page.wait_for_selector("figure[data-name='loss'] canvas")
    label = await page.locator("figure[data-name='loss'] .plot").get_attribute("aria-label")
    assert label == "loss: 600 points"
    assert await page.locator("figure").count() > 300
    assert await page.evaluate(DRAWN) < 60, "only those in view are drawn"
    await page.locator("figure[data-name='layer/299/norm']").scroll_into_view_if_needed()
    await page.wait_for_selector("figure[data-name='layer/299/norm'] canvas")
    assert await page.evaluate(DRAWN) < 60, "those far away are dropped"

    await page.evaluate("scrollTo(0, 0)")
    await page.wait_for_selector("figure[data-name='loss'] canvas")
    over = page.locator("figure[data-name='loss'] .u-over")
    box = await over.bounding_box()
    assert box is not None
    for share, act in ((0.5, page.mouse.down), (0.6, page.mouse.up)):
        await page.mouse.move(box["x"] + share * box["width"], box["y"] + 40, steps=5)
        await act()
    await page.wait_for_selector("#whole:not([hidden])")
    assert "first=3" in page.url
    await page.wait_for_selector("figure[data-name='loss'] .plot[aria-label^='loss: 6']")
    other = await browser.page(page.url.removeprefix(browser.url))
    await other.wait_for_selector("figure[data-name='loss'] .plot[aria-label^='loss: 6']")
    await page.click("#whole")
    await page.wait_for_selector("figure[data-name='loss'] .plot[aria-label^='loss: 600']")
    for field, value in (("x", "time"), ("x", "since"), ("x", "relative"), ("ranks", "range")):
        await page.select_option(f"select[name={field}]", value)
        await page.wait_for_selector("figure[data-name='loss'] canvas")
    await page.check("input[name=log]")
    await page.locator("[data-search]").fill("LOSS")
    await page.wait_for_selector("figure[data-name='layer/000/norm']", state="detached")
    await page.wait_for_selector("#count:has-text('1 of')")
    assert {"q=LOSS", "x=relative", "ranks=range", "log=yes"} <= set(page.url.partition("?")[2].split("&"))

    await page.wait_for_selector("figure[data-name='loss'] canvas")
    await page.locator("[data-search]").fill("")
    await page.wait_for_selector("figure[data-name='layer/000/norm']", state="attached")
    await page.wait_for_timeout(2000)
    asked: list[str] = []
    browser.context.on("request", lambda request: asked.append(request.url))
    await page.wait_for_timeout(7000)
    assert asked == [], "a page of a job that has ended asks for nothing"


class Numbers:
    """The numbers of a server in this process: a loss of so many steps for each job; step 30 is not a number."""

    def __init__(self, rig: browsers.WebRig, count: int = 0, ranks: int = 1) -> None:
        self.count, self._ranks = count, ranks
        self._begin = rig.clock.now
        rig.metrics.series, rig.metrics.names = self.series, self.names  # type: ignore[assignment, method-assign]

    async def names(self, job: str) -> list[str]:
        return ["loss"] if self.count else []

    async def series(self, job: str, wanted: list[str] | None = None, **asked: Any) -> list[storage.Series]:
        first, last = asked.get("steps", storage.ALL_STEPS)
        values = [math.nan if step == 30 else 10.0 / (1 + step) for step in range(self.count)]
        points = [storage.Point(step, self._begin + step, value) for step, value in enumerate(values)]
        shown = tuple(one for one in points if first <= one.step <= last)
        told = {"process": 0, "name": "loss", "points": shown, "count": len(shown)}
        return [storage.Series(task=f"worker-{rank}", **told) for rank in range(self._ranks)]


async def ran(rig: browsers.WebRig) -> jobs.Job:
    """A job with a restart, and with another number of workers in its second attempt."""
    job = await rig.launch(await rig.submit_elastic(name="grows"))
    rig.clock.now += 40
    await rig.happen(job.id, events.Intended(intent=intents.Intent.HALT, by="ann"))
    job = await rig.end(job.id, code=143)
    job = await rig.launch(await rig.happen(job.id, events.Intended(intent=intents.Intent.RUN, by="ann")))
    rig.clock.now += 20
    return await rig.happen(job.id, events.Reshaped(attempt=2, round=1, held=holdings.Resources(3000, 0, 0)))


@pytest.mark.parametrize("path", ["/jobs/{}/metrics", "/compare?job={}"])
async def test_charts_come_with_the_first_number_and_outlive_a_lost_server(
    chromium: conftest.Chromium, tmp_path: Path, path: str
) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        numbers = Numbers(still.rig)
        job = await still.rig.launch(await still.rig.submit("ann", name="begins"))
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page(path.format(job.id))
        await page.wait_for_selector(".empty:has-text('session.log')")
        numbers.count = 10
        await page.wait_for_selector("figure[data-name=loss] .plot[aria-label='loss: 10 points'] canvas")
        await page.wait_for_selector("#look select[name=x]")
        assert not await page.locator(".empty:has-text('session.log')").count()

        await page.fill("#look input[name=smooth]", "5")
        watched.expect(rf"net::ERR_FAILED at {still.url}/(live|jobs/|compare)")
        await page.context.route("**/*", lambda route: route.abort())
        await page.wait_for_selector("#connection:has-text('reconnecting')")
        assert await page.locator("figure[data-name=loss] canvas").is_visible(), "the content stays"
        numbers.count = 20
        await page.context.unroute("**/*")
        await page.wait_for_selector("figure[data-name=loss] .plot[aria-label='loss: 20 points']")
        await page.wait_for_selector("#connection", state="hidden")
        assert await page.locator("#look input[name=smooth]").input_value() == "5", "what was entered stays"

        watched.expect(r"status of 401 ")
        await page.context.clear_cookies()
        await page.wait_for_selector("#connection:has-text('The session has ended')")
        await page.context.close()


async def test_a_chart_that_fails_while_the_server_is_lost_is_drawn_once_it_is_back(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    """The job has ended, so that no refresh and no event would bring the page to ask."""
    async with stills.serving(tmp_path, full=False) as still:
        Numbers(still.rig, 10)
        job = await still.rig.end((await still.rig.launch(await still.rig.submit("ann", name="ended"))).id)
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page(f"/jobs/{job.id}/metrics")
        await page.wait_for_selector("figure[data-name=loss] canvas")
        watched.expect(rf"net::ERR_FAILED at {still.url}/jobs/")
        await page.context.route("**/jobs/**", lambda route: route.abort())
        await page.select_option("select[name=x]", "time")
        await page.wait_for_selector("#connection:has-text('reconnecting')")
        await page.context.unroute("**/jobs/**")
        await page.wait_for_selector("figure[data-name=loss] .u-legend :text-is('time')")
        await page.context.close()


async def test_restarts_resizes_and_steps_without_a_number_are_marked_beside_a_smooth_line(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        Numbers(still.rig, 100)
        job = await ran(still.rig)
        watched = await test_stills.opened(chromium, still, moving=True)
        marks = "1 restart, 1 change of the number of workers, 1 step without a number"
        for path in (f"/jobs/{job.id}/metrics", f"/compare?job={job.id}"):
            page = await watched.page(path)
            await page.wait_for_selector(f".plot[aria-label='loss: 100 points, {marks}']")
            for axis, told in (("time", marks), ("relative", marks.partition(", ")[2]), ("since", marks)):
                await page.select_option("select[name=x]", axis)
                await page.wait_for_selector(f".plot[aria-label='loss: 100 points, {told}']")
            await page.fill("input[name=smooth]", "20")
            await page.press("input[name=smooth]", "Tab")
            smooth = page.locator(".u-series .u-label", has_text="smoothed")
            await smooth.first.wait_for()
            raw = page.locator(".u-series:not(.bound) .u-label")
            assert await raw.count() == 1 + 2 * await smooth.count(), "the raw line stays"

            over = before = None
            while over is None or over != before:  # the chart is drawn again with the smooth line
                before, over = over, await page.locator("figure .u-over").bounding_box()
                await page.wait_for_timeout(50)
            for share, act in ((0.2, page.mouse.down), (0.4, page.mouse.up)):
                await page.mouse.move(over["x"] + share * over["width"], over["y"] + 40, steps=5)
                await act()
            await page.wait_for_selector("#whole:not([hidden])")
            assert {"smooth=20", "x=since"} < set(page.url.partition("?")[2].split("&"))
            assert all(f"&{name}=" in page.url for name in ("first", "last", "from", "to"))
            await page.wait_for_selector(".plot[aria-label^='loss: 20 points'], .plot[aria-label^='loss: 21 points']")
            label = await page.locator(".plot").get_attribute("aria-label")
            other = await watched.page(page.url.removeprefix(still.url))
            await other.wait_for_selector(f".plot[aria-label='{label}']")
            await page.click("#whole")
            await page.wait_for_selector(f".plot[aria-label='loss: 100 points, {marks}']")
            assert "from=" not in page.url
        await watched.context.close()


AXIS = "(() => { const [one] = uPlot.sync('metrics').plots; return one?.axes[0].stroke(one, 0); })()"
QUIET = "getComputedStyle(document.documentElement).getPropertyValue('--quiet').trim()"


async def test_charts_are_drawn_anew_in_another_theme(chromium: conftest.Chromium, tmp_path: Path) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        Numbers(still.rig, 10)
        job = await still.rig.end((await still.rig.launch(await still.rig.submit("ann", name="ended"))).id)
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page(f"/jobs/{job.id}/metrics")
        await page.wait_for_selector("figure[data-name=loss] canvas")
        light = await page.evaluate(AXIS)
        await page.emulate_media(color_scheme="dark")
        await conftest.until(page, f"{AXIS} === {QUIET} && {QUIET} !== '{light}'")
        await page.evaluate("document.documentElement.dataset.theme = 'light'")
        await conftest.until(page, f"{AXIS} === '{light}'")
        await watched.context.close()


async def test_ranks_that_have_no_line_are_told_in_words(
    chromium: conftest.Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MOST_LINES", 2)
    async with stills.serving(tmp_path, full=False) as still:
        Numbers(still.rig, 10, ranks=3)
        job = await still.rig.end((await still.rig.launch(await still.rig.submit("ann", name="ended"))).id)
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page(f"/jobs/{job.id}/metrics?ranks=lines")
        figure = page.locator("figure[data-name=loss]")
        await figure.get_by_text("1 rank has no line; mean and range are of all.").wait_for()
        await page.select_option("select[name=ranks]", "range")
        await figure.get_by_text("no line").wait_for(state="detached")
        await watched.context.close()
