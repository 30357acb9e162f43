"""One story in a real browser: a link logs in, a job appears, runs, is canceled; the server dies and comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import shell as shells
from tests.web.browser import conftest

from oarlock.client import places

pytestmark = pytest.mark.browser

SCRIPT = """
import time
print("first line", flush=True)
for _ in range(3000):  # five minutes, if it is not canceled before
    time.sleep(0.1)
"""


REPORTING = """
from oarlock import train
train.init()
with train.Session(total_steps=600) as session:
    for step in session.steps():
        layers = {f"layer/{number:03d}/norm": float(step) for number in range(300)} if step < 3 else {}
        session.log(loss=1000.0 if step == 333 else 1.0 / step, **layers)
"""
"""A script that reports 300 metrics, one of them with a spike at step 333."""


async def test_a_job_appears_runs_and_is_canceled_on_pages_that_nobody_reloads(
    shell: shells.Shell, browser: conftest.Watched
) -> None:
    listed, home = await browser.page("/jobs"), await browser.page("/")
    await listed.locator("[data-search]").fill("typed text")
    shell.write("train.py", SCRIPT)
    job = shell.do("run", "--detach", "--name", "tale", "--", "python", "train.py").stdout.strip()
    await listed.wait_for_selector("tbody tr:has-text('tale')")
    await home.wait_for_selector("section:has(#running) tr:has-text('tale')")
    assert await listed.locator("[data-search]").input_value() == "typed text", "an update moves no typed text"
    page = await browser.page(f"/jobs/{job}")
    await page.wait_for_selector(".head:has-text('PROCESSING')")
    await page.locator("#log").scroll_into_view_if_needed()
    await page.wait_for_selector("pre.log:has-text('first line')")
    await page.evaluate("scrollTo(0, 0)")
    await page.click("button:text-is('Cancel')")
    await page.wait_for_selector("td:has-text('has made no progress')")
    await page.click("button:text-is('Cancel')")
    await page.wait_for_selector(".head:has-text('CANCELED')")
    await listed.wait_for_selector("tbody tr:has-text('CANCELED')")


async def test_pages_outlive_a_server_that_is_killed(shell: shells.Shell, browser: conftest.Watched) -> None:
    pages = [await browser.page("/jobs") for _ in range(3)]
    browser.lost = True
    left = places.read(Path(shell.env["OARLOCK_HOME"]))
    assert left is not None
    os.kill(left.pid, signal.SIGKILL)
    for page in pages:
        await page.wait_for_selector("#connection:has-text('reconnecting')")
        assert await page.locator("h1").inner_text() == "Jobs", "the content stays"
    shell.do("up", "--detach", "--port", browser.url.rpartition(":")[2])
    for page in pages:
        await page.wait_for_selector("#connection", state="hidden")
    shell.do("run", "--detach", "--name", "after", "--", "true")
    await see_new(pages, "after")


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
    browser.lost = True  # a refused page is noted on the console
    await last.click("form[action='/logout'] button")
    for page in pages:
        await page.wait_for_selector("#connection:has-text('The session has ended')")
    asked: list[str] = []
    browser.context.on("request", lambda request: asked.append(request.url))
    await last.wait_for_timeout(5000)
    assert asked == [], "no page asks again"
    for page in pages:
        assert "The session has ended" in await page.locator("#connection").inner_text()
