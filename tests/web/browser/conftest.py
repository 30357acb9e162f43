"""A real browser before a real server: the system's Chromium, or the program that OARLOCK_BROWSER names.

One browser serves all tests. Each test has contexts of its own: cookies, cache and storage. So all tests share a loop.
Every page of every context is watched: an error on the console, a broken content policy, or a request to another host
fails the test. One that a test brings about by purpose is expected by its text and address.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
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
LOST = r"(net::ERR_|status of 503)(?!.* at \S*/static/)"
"""Said where a server is killed and starts again, but for files of pages, which a page has before that."""
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
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
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
    """A context of the browser for the pages of the server at `url`, and the faults of these pages."""

    def __init__(self, context: BrowserContext, url: str, expected: list[str]) -> None:
        self.context = context
        self.url = url
        self.faults: list[str] = []
        self._hosts = {urlsplit(url).netloc}
        self._expected = expected
        context.on("request", lambda request: self._asked(request.url))
        context.on("console", lambda message: self._said(message.type, message.text, message.location["url"]))
        context.on("weberror", lambda error: self.faults.append(str(error.error)))

    def allow(self, url: str) -> None:
        """Let pages ask another host, too."""
        self._hosts.add(urlsplit(url).netloc)

    def expect(self, message: str) -> None:
        """Let the console say what the test brings about: a pattern of `TEXT at ADDRESS`."""
        self._expected.append(message)

    async def page(self, path: str) -> Page:
        page = await self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        await page.goto(self.url + path)
        return page

    def _asked(self, url: str) -> None:
        if urlsplit(url).netloc not in self._hosts:
            self.faults.append(f"a request to {url}")

    def _said(self, kind: str, text: str, url: str) -> None:
        told = f"{text} at {url}"
        if kind in ("error", "warning") and not any(re.search(one, told) for one in (ELSEWHERE, *self._expected)):
            self.faults.append(f"{kind}: {told}")


class Chromium:
    """The browser as one test has it. The faults of all its contexts fail the test in the end."""

    def __init__(self, program: Browser) -> None:
        self.version = program.version
        self._program = program
        self._opened: list[Watched] = []
        self._expected: list[str] = []

    async def open(self, url: str, **settings: Any) -> Watched:
        """Open a context for the pages of the server at `url`."""
        watched = Watched(await self._program.new_context(**settings), url, self._expected)
        self._opened.append(watched)
        return watched

    def expect(self, message: str) -> None:
        """Let the console of each context say what the test brings about: a pattern of `TEXT at ADDRESS`."""
        self._expected.append(message)

    async def close(self) -> list[str]:
        """Close all contexts; return the faults of their pages."""
        for one in self._opened:
            await one.context.close()
        return [fault for one in self._opened for fault in one.faults]


@pytest_asyncio.fixture(loop_scope="session")
async def chromium(program: Browser) -> AsyncIterator[Chromium]:
    made = Chromium(program)
    yield made
    assert await made.close() == []


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
async def browser(chromium: Chromium, shell: shells.Shell, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    """A context that is logged in by a link. A test may give its settings by `indirect`."""
    settings = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    link = shell.do("ui", "--print").stdout.strip()  # only now: it is good for a minute
    watched = await chromium.open(link.partition("/login#")[0], **settings)
    page = await watched.page(link.removeprefix(watched.url))
    if settings.get("java_script_enabled") is False:
        await page.fill("input[name=secret]", parse_qs(urlsplit(link).fragment)["code"][0])
        await page.click("#login button")
    await page.wait_for_selector("h1:text-is('Home')")
    await page.close()
    yield watched


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
async def opened(chromium: Chromium, tmp_path: Path) -> AsyncIterator[hearing.Open]:
    async with stills.serving(tmp_path, full=False) as still:
        context = (await chromium.open(still.url)).context
        await context.add_cookies(still.cookies)
        await context.add_init_script(hearing.AWAY)
        page = await context.new_page()
        one = hearing.Open(page)
        async with page.expect_request("**/live"):
            await page.goto(still.url + "/jobs")
        await page.wait_for_timeout(hearing.QUIET_MS)
        yield one
        await context.close()
