"""The page of the metrics in a browser: charts are drawn in view, zoom to finer points, and rest after the end."""

from __future__ import annotations

import pytest
from tests.e2e import shell as shells
from tests.web.browser import conftest

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
    assert label == "loss: 600 points, marks: 0"
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
    await page.wait_for_selector("figure[data-name='layer/000/norm']", state="hidden")
    assert {"q=LOSS", "x=relative", "ranks=range", "log=yes"} <= set(page.url.partition("?")[2].split("&"))

    await page.wait_for_selector("figure[data-name='loss'] canvas")
    asked: list[str] = []
    browser.context.on("request", lambda request: asked.append(request.url))
    await page.wait_for_timeout(7000)
    assert asked == [], "a page of a job that has ended asks for nothing"
