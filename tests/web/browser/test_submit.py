"""A job submitted in a real browser: the editor, its completions, the verdict while one types, code from a folder."""

from __future__ import annotations

import pytest
from tests.e2e import shell as shells
from tests.web.browser import conftest

pytestmark = pytest.mark.browser


async def test_a_job_is_typed_checked_and_submitted_by_keyboard(shell: shells.Shell, browser: conftest.Watched) -> None:
    page = await browser.page("/submit")
    text = page.locator("#text")
    await page.wait_for_selector("#numbers:visible")
    await text.fill("comand: python main.py\n")
    await page.wait_for_selector("#verdict:has-text('command')")
    assert "▶1" in await page.locator("#numbers").inner_text()
    await text.fill("command: python main.py\n")
    await page.wait_for_selector("#verdict:has-text('Now:')")
    await text.focus()
    await page.keyboard.press("Control+End")
    await page.keyboard.type("rol")
    await page.wait_for_selector("#offers li")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await page.keyboard.type("worker:")
    await page.keyboard.press("Enter")
    await page.keyboard.type("cou")
    await page.wait_for_selector("#offers li:has-text('count')")
    await page.keyboard.press("Control+Space")
    await page.keyboard.press("Enter")
    await page.keyboard.type("1")
    assert await text.input_value() == "command: python main.py\nroles:\n  worker:\n    count: 1"
    assert "The number of tasks." in await page.locator("#about").inner_text()
    folder = shell.write("browser/main.py", "print('from the browser')\n").parent
    shell.write("browser/.gitignore", "*.bin\n")
    shell.write("browser/large.bin", "x")
    await page.set_input_files("#folder", folder)
    await page.wait_for_selector("#sent:has-text('2 files')")
    assert "large.bin (.gitignore)" in await page.locator("#sent").inner_text()
    name = page.locator("input[name='field.name']")
    await name.fill("typed")
    await name.press("Tab")
    await page.wait_for_selector("#verdict:has-text('Now:')")
    await conftest.until(page, "document.getElementById('text').value.includes('name: typed')")
    await page.locator("button[value=submit]").press("Enter")
    await page.wait_for_selector("h1:has-text('typed')")
    await page.wait_for_selector(".head:has-text('COMPLETED')")
    assert "from the browser" in shell.do("logs", "typed").stdout


async def test_typed_text_is_kept_by_the_tab(shell: shells.Shell, browser: conftest.Watched) -> None:
    page = await browser.page("/submit")
    await page.locator("#text").fill("command: python kept.py\n")
    await page.goto(browser.url + "/jobs")
    await page.goto(browser.url + "/submit")
    assert await page.locator("#text").input_value() == "command: python kept.py\n"
