"""The page that compares jobs in a browser: a line for each job, and a picture of a chart."""

from __future__ import annotations

import pytest
from tests.e2e import shell as shells
from tests.web.browser import conftest, test_metrics

pytestmark = pytest.mark.browser

NORMS = [f'figure[data-name="layer/00{number}/norm"]' for number in (0, 1)]
LINES = "[...document.querySelectorAll('figure[data-name=loss] .u-series:not(.bound) .u-label')].length - 1"


async def test_two_runs_side_by_side(shell: shells.Shell, browser: conftest.Watched) -> None:
    shell.write("measure.py", test_metrics.REPORTING)
    for name in ("first", "second"):
        shell.do("run", "--name", name, "--env", f"SEED={name}", "--", "python", "measure.py")
    page = await browser.page("/jobs")
    for box in await page.locator("tbody input[name=job]").all():
        await box.check()
    await page.click("button:text-is('Compare')")
    await page.wait_for_selector("h1:text-is('Compare')")
    assert await page.locator("tr:has-text('env.SEED') td").all_inner_texts() == ["second", "first"]
    await page.locator("figure[data-name=loss]").scroll_into_view_if_needed()
    await page.wait_for_selector("figure[data-name=loss] canvas")
    assert await page.evaluate(LINES) == 2
    label = await page.locator("figure[data-name=loss] .plot").get_attribute("aria-label")
    assert label == "loss: 1200 points"

    for norm in NORMS:
        await page.locator(norm).scroll_into_view_if_needed()
        await page.wait_for_selector(f"{norm} canvas")
    box = await page.locator(f"{NORMS[0]} .u-over").bounding_box()
    assert box is not None
    cursors = [f"document.querySelector('{norm} .u-legend .u-value').textContent" for norm in NORMS]
    for share, step in ((0.25, "1"), (0.75, "2")):  # both have two steps: the cursor of one moves that of the other
        await page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        await page.wait_for_timeout(500)
        assert [await page.evaluate(cursor) for cursor in cursors] == [step, step]

    async with page.expect_download() as saved:
        await page.click("figure[data-name=loss] button:text-is('PNG')")
    picture = await (await saved.value).path()
    assert picture.read_bytes()[:4] == b"\x89PNG"
    for axis, drawn in (("time", "canvas"), ("relative", "canvas"), ("epoch", ".plot:has-text('epoch')")):
        await page.select_option("select[name=x]", axis)
        await page.wait_for_selector(f"figure[data-name=loss] {drawn}")
    await page.click("a:has-text('Leave out') >> nth=0")
    await page.wait_for_selector("text=Add a second job")
