"""The room that pages take: the home page in one screen, the rows of the list, and content that stays where it is."""

from __future__ import annotations

import pytest
from tests.api import rig as rigs
from tests.web.browser import conftest, stills, test_stills

from oarlock.spec.cluster import nodes, pools

pytestmark = pytest.mark.browser

MOST_SHIFT = 0.02
LEAST_ROWS = 18
WATCH = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize("state", stills.PAGES)
async def test_the_home_page_needs_no_scrolling(
    chromium: conftest.Chromium, still: dict[str, stills.Still], state: str
) -> None:
    watched = await test_stills.opened(chromium, still[state])
    page = await watched.page("/")
    await test_stills.complete(page)
    hidden = await page.evaluate("document.documentElement.scrollHeight - innerHeight")
    await watched.context.close()
    assert hidden <= 0, f"{hidden} px stand below the screen of 1280 x 800"


async def test_the_home_page_of_a_busy_cluster_needs_no_scrolling_either(
    chromium: conftest.Chromium, answering: stills.Still
) -> None:
    rig = answering.rig
    for number in range(200):
        devices = (nodes.Device(index=0, type=f"type-{number % 6}"),)
        lost = nodes.Node(name=f"lost-{number}", capacity=rigs.NODE.capacity, devices=devices, ready=False)
        await rig.store.write(lambda tx, one=lost: tx.put_node(one))
    for number in range(10):
        pool = pools.Pool(name=f"pool-{number}", parent="research")
        await rig.store.write(lambda tx, one=pool: tx.put_pool(one))
    for number in range(12):
        await rig.submit("bob", name=f"waits-for-long-{number}", timeout="1h", roles={"worker": {"gpus": 2}})
    for number in range(8):
        await rig.launch(await rig.submit("ann", name=f"trains-for-long-{number}"))
        failed = await rig.launch(await rig.submit("ann", name=f"failed-{number}", max_restarts=0))
        await rig.end(failed.id, code=3, last_lines=("Traceback: " + "a long line " * 20,))
    rig.problems["leader"] = "there is no leader yet"
    watched = await test_stills.opened(chromium, answering)
    page = await watched.page("/")
    await test_stills.complete(page)
    told = await page.locator("main").inner_text()
    hidden = await page.evaluate("document.documentElement.scrollHeight - innerHeight")
    await page.set_viewport_size({"width": 360, "height": 800})
    sideways = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    await watched.context.close()
    assert "200 nodes are not ready: lost-0, lost-1, lost-10 and 197 more" in told
    assert hidden <= 0, f"{hidden} px stand below the screen of 1280 x 800"
    assert sideways <= 0


@pytest.mark.parametrize("density", ["compact", "comfortable"])
async def test_the_list_shows_enough_rows(
    chromium: conftest.Chromium, still: dict[str, stills.Still], density: str
) -> None:
    """The list has fewer jobs than that here: the rows that would have room below its first one are counted."""
    watched = await test_stills.opened(chromium, still["full"])
    await watched.context.add_init_script(f"try {{ localStorage.density = '{density}'; }} catch {{ }}")
    page = await watched.page("/jobs")
    await test_stills.complete(page)
    top, height = await page.evaluate(
        "(() => { const rows = [...document.querySelectorAll('tbody tr')].map((one) => one.getBoundingClientRect());"
        " return [rows[0].top, (rows.at(-1).bottom - rows[0].top) / rows.length]; })()"
    )
    await watched.context.close()
    assert (800 - top) / height >= LEAST_ROWS, f"the first row stands at {top} px, a row takes {height} px"


@pytest.mark.parametrize("name", ["home", "jobs", "job-runs", "job-failed", "metrics", "cluster", "pools", "log"])
async def test_a_page_stays_where_it_is_while_it_loads(
    chromium: conftest.Chromium, still: dict[str, stills.Still], name: str
) -> None:
    watched = await test_stills.opened(chromium, still["full"])
    await watched.context.add_init_script(WATCH)
    page = await watched.page(stills.FULL[name])
    await test_stills.complete(page)
    await page.wait_for_timeout(300)  # updates are at most twice a second, and a shift is told with the next frame
    shifted = await page.evaluate("window.shifted")
    await watched.context.close()
    assert shifted <= MOST_SHIFT


BROKEN = """() => [...document.querySelectorAll("main tbody th, main tbody td")].flatMap((cell) => {
  const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = text.nextNode(); node; node = text.nextNode()) {
    for (const { 0: word, index } of node.data.matchAll(/[a-zA-Z]+/g)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (new Set([...range.getClientRects()].map((one) => one.top)).size > 1) found.push(word);
    }
  }
  return found;
})"""
LENGTHEN = """() => {
  const name = document.querySelector("[data-table=waiting] tbody th a");
  name.textContent = "n".repeat(200);
  return [name.closest("th").getBoundingClientRect().width, document.documentElement.scrollWidth - innerWidth];
}"""


@pytest.mark.parametrize("width", [1280, 360])
async def test_a_word_of_a_table_is_broken_only_where_it_is_very_long(
    chromium: conftest.Chromium, still: dict[str, stills.Still], width: int
) -> None:
    watched = await test_stills.opened(chromium, still["full"])
    page = await watched.page("/")
    await page.set_viewport_size({"width": width, "height": 800})
    await test_stills.complete(page)
    broken = await page.evaluate(BROKEN)
    wide, sideways = await page.evaluate(LENGTHEN)
    await watched.context.close()
    assert broken == []
    assert wide <= 200, "a long name takes no more room than its column has"
    assert sideways <= 0
