"""A real browser before a real server: the system's Chromium, or the program that OARLOCK_BROWSER names.

One browser serves all tests. Each test has a context of its own: cookies, cache and storage. So all tests share a loop.
Every page that a test opens is watched: an error on the console, a broken content policy, or a request to another host
fails the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from tests.e2e import shell as shells
from tests.web.browser import hearing, stills

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page, Response

PROGRAM = os.environ.get("OARLOCK_BROWSER") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
FLAGS += ("--disable-sync", "--no-first-run", "--font-render-hinting=none")
FLAGS += ("--host-resolver-rules=MAP evil.example 127.0.0.1",)  # a foreign name for this machine
PATIENCE_MS = 120_000
ELSEWHERE = "net::ERR_NETWORK_CHANGED"
"""Said by Chromium where another program of this machine adds or removes a network interface. The pages ask again."""
FAMILIES = {"DejaVu Sans": ("sans-serif", "system-ui", "serif"), "DejaVu Sans Mono": ("monospace", "ui-monospace")}
FILES = [f"{name}{weight}.ttf" for name in ("DejaVuSans", "DejaVuSansMono") for weight in ("", "-Bold")]
PLACES = ("/usr/share/fonts/truetype/dejavu", "/usr/share/fonts/dejavu", "/usr/share/fonts/TTF")
FONTS = [Path(place, one) for place in PLACES if Path(place, FILES[0]).exists() for one in FILES]
"""The four fonts that the pages of these tests are drawn with, whichever others a machine has. Empty without them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    surroundings = {**os.environ, **_fonts(tmp_path_factory.mktemp("fonts"))}
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=PROGRAM, args=list(FLAGS), env=surroundings)
        yield made
        await made.close()


def _fonts(folder: Path) -> dict[str, str]:
    """Return the variable that gives a program the fonts of FONTS and no other."""
    if not FONTS:
        return {}
    (folder / "fonts").mkdir()
    for font in FONTS:
        (folder / "fonts" / font.name).symlink_to(font)
    alias = "<alias binding='same'><family>{}</family><prefer><family>{}</family></prefer></alias>"
    aliases = [alias.format(asked, given) for given, several in FAMILIES.items() for asked in several]
    places = f"<dir>{folder / 'fonts'}</dir><cachedir>{folder / 'cache'}</cachedir>"
    file = folder / "fonts.conf"
    file.write_text(f"<?xml version='1.0'?><fontconfig>{places}{''.join(aliases)}</fontconfig>")
    return {"FONTCONFIG_FILE": str(file)}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[shells.Shell]:
    one = shells.Shell(tmp_path_factory.mktemp("user"))
    one.do("up", "--detach")
    yield one
    one.do("down", code=None)


class Watched:
    """A context of the browser, and the faults of its pages. `lost` allows failed requests: the server was killed."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.faults: list[str] = []
        self.lost = False
        context.on("request", lambda request: self._asked(request.url))
        context.on("console", lambda message: self._said(message.type, message.text))
        context.on("weberror", lambda error: self.faults.append(str(error.error)))

    async def page(self, path: str) -> Page:
        page = await self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        await page.goto(self.url + path)
        return page

    def _asked(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.faults.append(f"a request to {url}")

    def _said(self, kind: str, text: str) -> None:
        network = re.search(r"Failed to load resource|net::ERR", text) if self.lost else re.search(ELSEWHERE, text)
        if kind in ("error", "warning") and not network:
            self.faults.append(f"{kind}: {text}")


async def until(page: Page, expression: str) -> None:
    """Wait until an expression holds. Playwright's own `wait_for_function` needs `eval`, which the pages forbid.

    The page may go to another address meanwhile.
    """
    while True:
        try:
            if await page.evaluate(expression):
                return
        except Exception as error:
            if "because of a navigation" not in str(error):
                raise
        await page.wait_for_timeout(50)


@contextlib.asynccontextmanager
async def answered(page: Page, address: str, text: str) -> AsyncIterator[None]:
    """Wait at the end of the block for an answer with this text, of a request with `address` in its address."""
    found = asyncio.Event()

    async def look(answer: Response) -> None:
        if address in answer.url and answer.ok and text in await answer.text():
            found.set()

    page.on("response", look)
    try:
        yield
        await found.wait()
    finally:
        page.remove_listener("response", look)


@pytest_asyncio.fixture(loop_scope="session")
async def browser(chromium: Browser, shell: shells.Shell, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    """A context that is logged in by a link. A test may give its settings by `indirect`."""
    settings = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = await chromium.new_context(**settings)
    link = shell.do("ui", "--print").stdout.strip()  # only now: it is good for a minute
    watched = Watched(context, link.partition("/login#")[0])
    page = await watched.page(link.removeprefix(watched.url))
    if settings.get("java_script_enabled") is False:
        await page.fill("input[name=secret]", parse_qs(urlsplit(link).fragment)["code"][0])
        await page.click("#login button")
    await page.wait_for_selector("h1:text-is('Home')")
    await page.close()
    yield watched
    await context.close()
    assert watched.faults == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def still(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, stills.Still]]:
    """Servers that stand still: without jobs, with some, and with a large job and a simulation."""
    async with (
        stills.serving(tmp_path_factory.mktemp("empty")) as empty,
        stills.serving(tmp_path_factory.mktemp("full"), full=True) as full,
        stills.serving(tmp_path_factory.mktemp("more"), more=True) as more,
    ):
        yield {"empty": empty, "full": full, "more": more}


@pytest_asyncio.fixture(loop_scope="session")
async def answering(tmp_path: Path) -> AsyncIterator[stills.Still]:
    """A server with some jobs that stands still and belongs to one test, which may change what is there."""
    async with stills.serving(tmp_path, full=True) as full:
        yield full


@pytest_asyncio.fixture(loop_scope="session")
async def opened(chromium: Browser, tmp_path: Path) -> AsyncIterator[hearing.Open]:
    async with stills.serving(tmp_path, full=False) as still:
        context: BrowserContext = await chromium.new_context()
        await context.add_cookies(still.cookies)
        await context.add_init_script(hearing.AWAY)
        watched = Watched(context, still.url)
        watched.lost = True  # a test may let requests fail
        page = await context.new_page()
        one = hearing.Open(page)
        async with page.expect_request("**/live"):
            await page.goto(still.url + "/jobs")
        await page.wait_for_timeout(hearing.QUIET_MS)
        yield one
        await context.close()
    assert watched.faults == []
