"""The two ways to work on a page: with the mouse, and by the keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

FOCUSED = "(one) => one === document.activeElement"
SHOWN = (
    "(one) => one.matches(':focus-visible') && getComputedStyle(one).outlineStyle !== 'none'"
    " && getComputedStyle(one).outlineWidth !== '0px'"
)
STOPS = 600
"""More stops of the Tab key than any page has."""


class Hand(Protocol):
    """`press` is for links and buttons, `tick` for boxes, `choose` for lists; `write` replaces the text of a field."""

    async def go(self, page: Page, title: str) -> None: ...

    async def press(self, page: Page, one: Locator) -> None: ...

    async def tick(self, page: Page, one: Locator) -> None: ...

    async def write(self, page: Page, one: Locator, text: str) -> None: ...

    async def choose(self, page: Page, one: Locator, option: str) -> None: ...

    async def open_row(self, page: Page, name: str) -> None: ...


class Mouse:
    async def go(self, page: Page, title: str) -> None:
        await page.click(f"nav a:text-is('{title}')")
        await page.wait_for_selector(f"h1:text-is('{title}')")

    async def press(self, page: Page, one: Locator) -> None:
        await one.click()

    async def tick(self, page: Page, one: Locator) -> None:
        await one.click()

    async def write(self, page: Page, one: Locator, text: str) -> None:
        await one.click(click_count=3)
        await page.keyboard.type(text)

    async def choose(self, page: Page, one: Locator, option: str) -> None:
        await one.select_option(option)

    async def open_row(self, page: Page, name: str) -> None:
        await page.click(f"tbody th a:text-is('{name}')")


class Keys:
    """Nothing but keys. Each stop that is used must be reached by Tab or by a key of the pages, and show its focus."""

    async def go(self, page: Page, title: str) -> None:
        key = await page.locator(f"nav a:text-is('{title}')").get_attribute("data-key")
        await self._leave_the_field(page)
        await page.keyboard.press("g")
        await page.keyboard.press(str(key))
        await page.wait_for_selector(f"h1:text-is('{title}')")

    async def press(self, page: Page, one: Locator) -> None:
        await self._reach(page, one)
        await page.keyboard.press("Enter")

    async def tick(self, page: Page, one: Locator) -> None:
        await self._reach(page, one)
        await page.keyboard.press("Space")

    async def write(self, page: Page, one: Locator, text: str) -> None:
        await self._reach(page, one)
        await page.keyboard.press("Control+a")
        await page.keyboard.type(text)

    async def choose(self, page: Page, one: Locator, option: str) -> None:
        await self._reach(page, one)
        await page.keyboard.type(option)
        assert await one.input_value() == option

    async def open_row(self, page: Page, name: str) -> None:
        link = page.locator(f"tbody th a:text-is('{name}')")
        await self._leave_the_field(page)
        for _ in range(STOPS):
            await page.keyboard.press("j")
            if await link.evaluate(FOCUSED):
                break
        assert await link.evaluate(SHOWN), f"the focus on {name} is not to be seen"
        await page.keyboard.press("Enter")

    async def _reach(self, page: Page, one: Locator) -> None:
        await one.wait_for()
        for _ in range(STOPS):
            if await one.evaluate(FOCUSED):
                assert await one.evaluate(SHOWN), f"the focus on {one} is not to be seen"
                return
            await page.keyboard.press("Tab")
        raise AssertionError(f"no Tab leads to {one}")

    async def _leave_the_field(self, page: Page) -> None:
        """Go to the skip link, which is the first stop of the page and no field: single keys work there."""
        if await page.evaluate("document.activeElement.matches('input, textarea, select')"):
            while await page.evaluate("document.activeElement.matches('input, textarea, select')"):
                await page.keyboard.press("Tab")
