"""A simulation in a real browser: started on the page, run by the scheduler, drawn when it has ended."""

from __future__ import annotations

import pytest
from tests.web.browser import conftest

pytestmark = pytest.mark.browser


async def test_a_simulation_is_started_and_drawn(browser: conftest.Watched) -> None:
    page = await browser.page("/simulate")
    await page.select_option("select[name=workload]", "small-first")
    await page.click("button.primary")
    await page.wait_for_selector("h2:text-is('Figures')", timeout=120_000)
    assert await page.locator("svg polyline").count() == 2 + 2 * 2
    assert "time to the end, mean" in await page.locator("main").inner_text()
