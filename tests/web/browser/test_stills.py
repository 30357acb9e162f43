"""Every page with and without jobs: axe in both themes and two widths, and the accessibility tree as golden text.

Write the golden texts anew with OARLOCK_GOLDEN=write, and read the difference: it is what a screen reader would tell.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from starlette.routing import compile_path
from tests.web.browser import conftest, stills

from oarlock.web import application

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.browser

GOLDEN = Path(__file__).parent / "golden"
WRITES = os.environ.get("OARLOCK_GOLDEN") == "write"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"]
CHECK = "(rules) => axe.run(document, { runOnly: rules, resultTypes: ['violations'] })"
VARYING = (
    (r"/tmp/\S+|/var/\S+/pytest\S*", "PLACE"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r"\boar_[\w-]{20,}", "TOKEN"),
    (r"\b[0-9a-f]{12}\b", "DIGEST"),
)


async def opened(
    chromium: conftest.Chromium, still: stills.Still, *, moving: bool = False, zone: str = "UTC"
) -> conftest.Watched:
    """Open a context of the browser, whose clock stands still as the server's does, unless `moving`."""
    size = {"width": 1280, "height": 800}
    watched = await chromium.open(still.url, viewport=size, timezone_id=zone, locale="en-GB", color_scheme="light")
    if not moving:
        await watched.context.clock.set_fixed_time(still.rig.clock.now)
    await watched.context.add_cookies(still.cookies)
    return watched


async def complete(page: Page) -> None:
    """Wait until the page has drawn all that is in view."""
    await page.wait_for_load_state("load")
    await conftest.until(
        page,
        "[...document.querySelectorAll('[data-section]')].every((one) => 'loaded' in one.dataset"
        " || one.getBoundingClientRect().top > innerHeight + 400)"
        " && [...document.querySelectorAll('figure[data-name]')].every((one) => one.querySelector('canvas')"
        " || one.getBoundingClientRect().top > innerHeight)",
    )


@pytest.mark.parametrize(("state", "name"), [(state, name) for state in stills.PAGES for name in stills.PAGES[state]])
async def test_a_page_keeps_nobody_out_and_a_screen_reader_is_told_the_same_as_before(
    chromium: conftest.Chromium, still: dict[str, stills.Still], state: str, name: str
) -> None:
    watched = await opened(chromium, still[state])
    if name == "missing":
        watched.expect(rf"status of 404 .* at {still[state].url}/nowhere$")
    page = await watched.page(stills.PAGES[state][name])
    await complete(page)
    told = await page.locator("body" if name == "home" else "main").aria_snapshot()
    found = await violations(page)
    await watched.context.close()
    assert not found, json.dumps(found, indent=1)
    compare(GOLDEN / f"{state}-{name}.txt", told)


@pytest.mark.parametrize("name", stills.ANSWERS)
async def test_the_answer_to_a_form_keeps_nobody_out_either(
    chromium: conftest.Chromium, answering: stills.Still, name: str
) -> None:
    path, typed, pressed = stills.ANSWERS[name]
    watched = await opened(chromium, answering)
    if name in stills.REFUSED:
        watched.expect(rf"status of 422 .* at {answering.url}{stills.REFUSED[name]}$")
    page = await watched.page(path)
    for field, text in typed.items():
        await page.locator(field).first.fill(text)
    if name in stills.IN_PLACE:
        await page.locator(pressed).first.click()
        await page.wait_for_selector(stills.IN_PLACE[name])
    else:
        async with page.expect_navigation():
            await page.locator(pressed).first.click()
    await complete(page)
    told = await page.locator("main").aria_snapshot()
    found = await violations(page)
    await watched.context.close()
    assert not found, json.dumps(found, indent=1)
    compare(GOLDEN / f"answer-{name}.txt", told)


async def test_a_form_of_an_ended_session_is_kept(chromium: conftest.Chromium, answering: stills.Still) -> None:
    watched = await opened(chromium, answering)
    page = await watched.page("/users")
    await page.fill("input[name=user]", "typed-before")
    await watched.context.clear_cookies()
    watched.expect(rf"status of 401 .* at {answering.url}/(users|live)$")
    async with page.expect_navigation():
        await page.click("button[value=add]")
    assert await page.locator("main textarea[name=user]").input_value() == "typed-before"
    found = await violations(page)
    told = await page.locator("main").aria_snapshot()
    await watched.context.close()
    assert not found, json.dumps(found, indent=1)
    compare(GOLDEN / "answer-ended.txt", told)


def test_every_page_has_a_still() -> None:
    """A new page is added to the stills, or named there as something that is no page."""
    gets = [page.path for page in application.PAGES if page.method == "GET"]
    shown = [urlsplit(path).path for several in stills.PAGES.values() for path in several.values()]
    patterns = [(path, compile_path(path)[0]) for path in gets]
    found = {next((path for path, pattern in patterns if pattern.match(one)), "") for one in shown}
    assert set(gets) - found == stills.UNSHOWN.keys()


async def violations(page: Page) -> dict[str, list[Any]]:
    """Return what axe finds in both themes and two widths, and a page that scrolls sideways."""
    from axe_playwright_python import base

    await page.evaluate(base.AXE_FILE_PATH.read_text())
    found = {}
    for scheme, width in (("light", 1280), ("dark", 1280), ("dark", 360), ("light", 360)):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await page.set_viewport_size({"width": width, "height": 800})
        answer = await page.evaluate(CHECK, RULES)
        told = [(one["id"], one["nodes"][0]["html"][:200]) for one in answer["violations"]]
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        told += [("scrolls sideways", f"by {wide} px")] if wide > 0 else []
        if told:
            found[f"{scheme}, {width}"] = told
    return found


def compare(file: Path, told: str) -> None:
    for pattern, word in VARYING:
        told = re.sub(pattern, word, told)
    if WRITES:
        file.parent.mkdir(exist_ok=True)
        file.write_text(told + "\n")
    stored = file.read_text() if file.exists() else ""
    difference = list(difflib.unified_diff(stored.splitlines(), told.splitlines(), "stored", "now", lineterm="", n=1))
    assert not difference, "\n".join([*difference[:60], "If that is right, write it anew: OARLOCK_GOLDEN=write"])
