"""Sessions and live pages in a real browser: login links of other sites, twelve pages at once, the end of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e import shell as shells
from tests.web.browser import conftest, stills, test_stills

pytestmark = pytest.mark.browser


async def test_twelve_pages_of_one_browser_are_all_live(shell: shells.Shell, browser: conftest.Watched) -> None:
    pages = [await browser.page("/jobs") for _ in range(12)]
    shell.do("run", "--detach", "--name", "for-all", "--", "true")
    await see_new(pages, "for-all")


async def see_new(pages: list[Any], name: str) -> None:
    """Wait until each page announces a new job, or has it as a row, since it was opened anew with a new server."""
    row = f"tbody tr:has-text('{name}')"
    for page in pages:
        await page.wait_for_selector(f"a:text-is('1 new job'), {row}")
    if await (announced := pages[-1].locator("a:text-is('1 new job')")).count():
        await announced.click()
    await pages[-1].wait_for_selector(row)


@pytest.mark.parametrize("elsewhere", ["//other.invalid/", "/%09/other.invalid/", "/\\other.invalid/", "//["])
async def test_a_login_link_leads_to_no_other_site(browser: conftest.Watched, elsewhere: str) -> None:
    page = await browser.page(f"/login#code=x&next={elsewhere}")
    await page.wait_for_url(browser.url + "/")


async def test_a_link_of_another_site_keeps_the_session(browser: conftest.Watched) -> None:
    page = await browser.context.new_page()
    page.set_default_timeout(conftest.PATIENCE_MS)
    await page.set_content(f"<a href='{browser.url}/login#code=x'>look here</a>")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    await page.click("a")
    await page.wait_for_selector("h1:text-is('Home')")
    assert "POST" in asked, "the link has brought no cookie, so the page had a form"


async def test_every_page_says_that_the_session_has_ended(browser: conftest.Watched) -> None:
    *pages, last = [await browser.page("/jobs") for _ in range(4)]
    browser.expect(r"status of 401 ")
    await last.click("form[action='/logout'] button")
    for page in pages:
        await page.wait_for_selector("#connection:has-text('The session has ended')")
    asked: list[str] = []
    browser.context.on("request", lambda request: asked.append(request.url))
    await last.wait_for_timeout(5000)
    assert asked == [], "no page asks again"
    for page in pages:
        assert "The session has ended" in await page.locator("#connection").inner_text()


async def test_a_session_is_ended_and_a_token_is_made_and_revoked(chromium: conftest.Chromium, tmp_path: Path) -> None:
    async with stills.serving(tmp_path, full=False) as still, still.rig.browser("root") as other:
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page("/sessions")
        assert (await other.get("/jobs")).status_code == 200
        rows = page.locator("tbody tr")
        assert await rows.count() == 2
        await rows.filter(has_not_text="this one").get_by_role("button", name="End").click()
        await rows.nth(1).wait_for(state="detached")
        assert (await other.get("/jobs")).headers["location"] == "/login?next=%2Fjobs"

        await page.goto(still.url + "/users?user=ann")
        await page.fill("input[name=note]", "of the laptop")
        await page.click("button[value=token]")
        token = await page.locator("[data-copy]").inner_text()
        async with httpx.AsyncClient(base_url=still.url, headers={"Authorization": f"Bearer {token}"}) as program:
            assert (await program.get("/api/v1/jobs")).status_code == 200
            await page.locator("tr:has-text('of the laptop') button[value=revoke]").click()
            await page.wait_for_selector("h1:text-is('Revoke a token of ann?')")
            assert (await program.get("/api/v1/jobs")).status_code == 200, "it is asked first"
            await page.click("button.danger")
            await page.wait_for_selector("h2:text-is('Tokens of ann')")
            assert not await page.locator("tr:has-text('of the laptop')").count()
            assert (await program.get("/api/v1/jobs")).status_code == 401

        await page.goto(still.url + "/sessions")
        await rows.filter(has_text="this one").get_by_role("button", name="End").click()
        await page.wait_for_selector("h1:text-is('Log in')")
        await watched.context.close()
