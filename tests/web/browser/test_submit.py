"""A job submitted in a real browser: the editor, its completions, the verdict while one types, code from a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import yaml
from tests.e2e import shell as shells
from tests.web.browser import conftest

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

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
    loaded: list[str] = []
    page.on("request", lambda one: loaded.append(one.url) if "oarlock-page" not in one.headers else None)
    await page.locator("button[value=submit]").press("Enter")
    await page.wait_for_selector("h1:has-text('typed')")
    await page.wait_for_selector(".head:has-text('COMPLETED')")
    assert loaded.count(page.url) == 1
    assert "from the browser" in shell.do("logs", "typed").stdout


OLD = "command: python kept.py\nname: kept\n"


async def typed_before(browser: conftest.Watched, text: str = OLD) -> Page:
    """A page of the tab in which this text was typed at /submit."""
    page = await browser.page("/submit")
    await page.locator("#text").fill(text)
    await page.goto(browser.url + "/jobs")
    return page


async def test_typed_text_is_kept_by_the_tab_and_its_fields_are_shown(
    shell: shells.Shell, browser: conftest.Watched
) -> None:
    page = await typed_before(browser)
    await page.goto(browser.url + "/submit")
    text, name = page.locator("#text"), page.locator("input[name='field.name']")
    assert await text.input_value() == OLD
    await conftest.until(page, "document.querySelector('input[name=\"field.name\"]').value === 'kept'")
    await name.fill("other")
    await name.press("Tab")
    await conftest.until(page, "document.getElementById('text').value.includes('other')")
    assert await text.input_value() == OLD.replace("name: kept", "name: other")
    await page.goto(browser.url + "/jobs")
    await page.goto(browser.url + "/submit")
    assert "other" in await text.input_value(), "a change by a field is kept, too"
    await page.get_by_role("button", name="Take the example").click()
    await page.wait_for_url("**/submit?example=*")
    assert "other" not in await text.input_value()


async def test_a_field_is_written_alone_into_a_text_that_no_check_has_answered_yet(
    shell: shells.Shell, browser: conftest.Watched
) -> None:
    page = await browser.page("/submit?example=two-workers")
    await page.wait_for_selector("#numbers:visible")
    await page.locator("#text").fill("command: python b.py\nroles:\n  worker: {count: 5}\n")
    await page.evaluate(
        "for (const [name, value] of [['field.name', 'mine'], ['field.timeout', '2h']]) {"
        " const one = document.getElementById('submit').elements[name]; one.value = value;"
        " one.dispatchEvent(new Event('change', { bubbles: true })); }"
    )
    await conftest.until(page, "document.getElementById('text').value.includes('2h')")
    told = await page.locator("#text").input_value()
    assert yaml.safe_load(told) == {
        "command": "python b.py",
        "roles": {"worker": {"count": 5}},
        "name": "mine",
        "timeout": "2h",
    }


async def test_a_draft_stays_at_its_own_address(shell: shells.Shell, browser: conftest.Watched) -> None:
    shell.do("submit", str(shell.write("job.yaml", "command: python -c pass\nname: earlier\n")))
    shell.wait_phase("earlier", "COMPLETED")  # the name of an active job is left out
    page = await typed_before(browser)
    await page.goto(browser.url + "/submit?from=earlier")
    text = page.locator("#text")
    bad = await text.input_value() + "priority: many\n"
    assert "earlier" in bad
    await text.fill(bad)
    await page.locator("button[value=submit]").click()
    await page.wait_for_selector("#verdict:has-text('whole number')")
    assert await text.input_value() == bad
    browser.expect(rf"status of 422 .* at {browser.url}/submit$")
    async with page.expect_navigation():
        await page.evaluate("document.getElementById('submit').submit()")  # as after a login, without the script
    assert await text.input_value() == bad
    assert urlsplit(page.url).path == "/submit"


async def test_a_text_is_dropped_only_when_its_job_is_there(shell: shells.Shell, browser: conftest.Watched) -> None:
    page = await browser.page("/submit")
    text = page.locator("#text")
    await text.fill(OLD)
    await page.wait_for_selector("#verdict:has-text('Now:')")
    browser.expect(rf"net::ERR_CONNECTION_REFUSED at {browser.url}/submit$")
    await page.route("**/submit", lambda route: route.abort("connectionrefused"))
    await page.locator("button[value=submit]").click()
    await page.wait_for_selector("#verdict:has-text('does not answer')")
    assert await text.input_value() == OLD
    await page.unroute("**/submit")
    await page.reload()
    assert await text.input_value() == OLD
    await page.locator("button[value=submit]").click()
    await page.wait_for_selector("h1:has-text('kept')")
    await page.goto(browser.url + "/submit")
    assert await text.input_value() != OLD


async def test_a_page_from_before_an_upgrade_of_the_server_leads_to_its_job(
    shell: shells.Shell, browser: conftest.Watched
) -> None:
    """Its script was made for a redirection to the job."""

    async def earlier(route: Route) -> None:
        answer = await route.fetch()
        text = await answer.text()
        assert text.count("answer.status === 201") == 1
        await route.fulfill(response=answer, body=text.replace("answer.status === 201", "answer.redirected"))

    page = await browser.page("/jobs")
    await page.route("**/static/submit.*", earlier)
    await page.goto(browser.url + "/submit")
    await page.locator("#text").fill(OLD)
    await page.wait_for_selector("#verdict:has-text('Now:')")
    await page.locator("button[value=submit]").click()
    await page.locator("#verdict a:text-is('kept')").click()
    await page.wait_for_selector("h1:has-text('kept')")
