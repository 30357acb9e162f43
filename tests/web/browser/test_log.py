"""The page of a log in a browser: it follows, lets go, loads what lies before, and loses no line with its server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.api import rig as rigs
from tests.e2e import shell as shells
from tests.web.browser import conftest, stills, test_stills

from oarlock.client import places
from oarlock.spec import events, intents

if TYPE_CHECKING:
    from playwright.async_api import Route

pytestmark = pytest.mark.browser

TALKING = """
import sys, time
for number in range(3000):  # five minutes, if it is not canceled before
    print(f"line {number}", flush=True)
    sys.stderr.write(f"\\r{number} it/s")
    sys.stderr.flush()
    time.sleep(0.1)
"""
MUCH = """
for number in range(20_000):
    print(f"line {number}" + (" a rare word" if number == 4321 else ""))
"""
SEEN = "[...document.querySelectorAll('#lines li:not(.open) code')].map((one) => one.textContent)"
TOP = "document.getElementById('log').scrollTop"


async def test_a_log_is_followed_until_the_reader_scrolls(shell: shells.Shell, browser: conftest.Watched) -> None:
    shell.write("talk.py", TALKING)
    job = shell.do("run", "--detach", "--name", "talks", "--", "python", "talk.py").stdout.strip()
    page = await browser.page(f"/jobs/{job}/log")
    await page.wait_for_selector("#lines li:has-text('line 60')")
    assert await page.locator("#follow").get_attribute("aria-pressed") == "true"
    assert await page.locator("#lines li.err").count() == 1, "a progress bar is one line"
    await page.evaluate("document.getElementById('log').scrollTop = 0")
    await page.wait_for_selector("#follow[aria-pressed='false']")
    last = int((await page.evaluate(SEEN))[-1].split()[-1])
    await page.wait_for_selector(f"#lines li:has-text('line {last + 20}')", state="attached")
    assert await page.evaluate(TOP) == 0, "an update moves no scroll"
    await page.click("#follow")
    await conftest.until(page, f"{TOP} > 0")

    browser.expect(conftest.LOST)
    left = places.read(Path(shell.env["OARLOCK_HOME"]))
    assert left is not None
    os.kill(left.pid, signal.SIGKILL)
    for bar in ("#connection", "#log-connection"):
        await page.wait_for_selector(f"{bar}:has-text('reconnecting')")
    shell.do("up", "--detach", "--port", browser.url.rpartition(":")[2])
    for bar in ("#connection", "#log-connection"):
        await page.wait_for_selector(bar, state="hidden")
    last = int((await page.evaluate(SEEN))[-1].split()[-1])
    await page.wait_for_selector(f"#lines li:has-text('line {last + 10}')", state="attached")
    shell.do("cancel", job)
    await page.wait_for_selector("#lines[data-poll='0']", state="attached")
    seen = [one for one in await page.evaluate(SEEN) if one.startswith("line")]
    stored = [one for one in shell.do("logs", job).stdout.splitlines() if one.startswith("line")]
    assert seen == stored, "no line is lost or doubled"


async def test_the_first_line_takes_the_place_of_the_note_that_there_is_none(
    shell: shells.Shell, browser: conftest.Watched, tmp_path: Path
) -> None:
    shell.write("grow.py", GROWING.replace("not number or ", ""))
    job = shell.do("run", "--detach", "--", "python", "grow.py", str(tmp_path)).stdout.strip()
    page = await browser.page(f"/jobs/{job}/log")
    await page.wait_for_selector("p.empty:has-text('will appear here')")
    (tmp_path / "go-0").touch()
    await page.wait_for_selector("#lines li:has-text('line 999')")
    assert not await page.locator("p.empty").is_visible()
    shell.do("cancel", job)


TOLD = """[...document.querySelectorAll('#lines li:not(.open)')].reduce(
    (sum, one) => sum + Number((one.querySelector('b')?.textContent ?? '×1').slice(1)), 0)"""
FOLDED = """[...document.querySelectorAll('#lines li:not(.open)')].map(
    (one) => [one.querySelector('code').textContent, one.querySelector('b')?.title ?? '']
)"""


async def test_equal_lines_of_ranks_are_one_row_although_they_come_one_after_the_other(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        rig = still.rig
        job = await rig.launch(await rig.submit("root", name="alike", roles={"worker": {"count": 3}}))
        watched = await test_stills.opened(chromium, still, moving=True)
        page, apart = await watched.page("/jobs/alike/log"), await watched.page("/jobs/alike/log?apart=yes")
        sizes, said = [0, 0, 0], 0

        async def say(rank: int, *lines: str, late_s: float = 0.0) -> None:
            """Let a rank print, and wait until both pages have its lines."""
            nonlocal said
            data = "".join(f"{one}\n" for one in lines).encode()
            key = rigs.key_of(job, index=rank)
            await rig.logs.append(key, "stdout.0", sizes[rank], data, at=rig.clock.now + late_s)
            sizes[rank] += len(data)
            said += len(lines)
            for one in (page, apart):
                await conftest.until(one, f"{TOLD} === {said}")

        red = "\033[31mloss\033[0m 0.5"
        await say(0, "step 0", red)
        await say(1, "step 0", red, "step 1")
        await say(2, "step 0", red, "step 1", "only here", "step 2")
        await say(0, "step 1", "step 2", "loss 0.5")  # without the colour it is another line
        await say(1, "step 2", late_s=60)
        assert await page.evaluate(FOLDED) == [
            ["step 0", "worker-0 to 2"],
            ["loss 0.5", "worker-0 to 2"],
            ["step 1", "worker-0 to 2"],
            ["only here", ""],
            ["step 2", "worker-0, worker-2"],
            ["loss 0.5", ""],
            ["step 2", ""],
        ]
        assert await apart.locator("#lines li").count() == said
        await watched.context.close()


EACH = """[...document.querySelectorAll('#lines li:not(.open)')].map((one) => [
    one.querySelector('b')?.title ?? one.id.split(':')[0], one.querySelector('code').textContent])"""


def _by_rank(rows: list[list[str]]) -> dict[int, list[int]]:
    """The numbers of the lines of each rank, in the order of the rows that count them."""
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for named, text in rows:
        for part in named.split(", "):
            first, _, last = part.removeprefix("worker-").partition(" to ")
            for rank in range(int(first), int(last or first) + 1):
                found[rank].append(int(text.split()[-1]))
    return found


async def test_no_line_is_lost_or_doubled_where_rows_of_several_ranks_are_cut(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        rig = still.rig
        job = await rig.launch(await rig.submit("root", name="alike", roles={"worker": {"count": 3}}))
        alike, several, each, sizes = 5100, 6900, 60, [0, 0, 0]

        async def say(rank: int, numbers: range) -> None:
            data = "".join(f"step {number}\n" for number in numbers).encode()
            await rig.logs.append(rigs.key_of(job, index=rank), "stdout.0", sizes[rank], data, at=rig.clock.now)
            sizes[rank] += len(data)

        for first in range(0, alike, each):  # a row of three ranks lies 120 lines apart
            for rank in range(3):
                await say(rank, range(first, first + each))
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page("/jobs/alike/log")
        await page.wait_for_selector(f"#lines li:has-text('step {alike - 1}')")
        await say(0, range(alike, several))  # so many rows that those of three ranks are cut
        await conftest.until(page, f"{COUNT} === 2000")
        for edge, wanted in (("0", 0), ("1e9", several - 1), ("0", 0)):
            shown = _by_rank(await page.evaluate(EACH))
            for _ in range(600):
                if wanted in shown[0]:
                    break
                await page.evaluate(f"document.getElementById('log').scrollTop = {edge}")
                await page.wait_for_timeout(100)
                shown = _by_rank(await page.evaluate(EACH))
                for numbers in shown.values():
                    assert numbers == [numbers[0] + at for at in range(len(numbers))], "in order, each once"
                assert await page.evaluate(COUNT) <= 5000
            assert wanted in shown[0], "the reader comes to each end"
        await watched.context.close()


async def test_a_reader_who_scrolls_while_an_answer_is_on_its_way_gets_the_lines_before(
    chromium: conftest.Chromium, tmp_path: Path
) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        rig = still.rig
        job = await rig.launch(await rig.submit("root", name="long"))
        text = "".join(f"step {number}\n" for number in range(3000)).encode()
        await rig.logs.append(rigs.key_of(job), "stdout.0", 0, text, at=rig.clock.now)
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page("/jobs/long/log")
        await page.wait_for_selector("#lines li:has-text('step 2999')")
        asked, scrolled = asyncio.Event(), asyncio.Event()

        async def hold(route: Route) -> None:
            asked.set()
            await scrolled.wait()
            await route.continue_()

        await page.route("**/log/lines**", hold)
        await asyncio.wait_for(asked.wait(), 60)
        await page.evaluate("document.getElementById('log').scrollTop = 0")
        await page.wait_for_selector("#follow[aria-pressed='false']")
        scrolled.set()
        await conftest.until(page, f"{COUNT} > 1000")
        await watched.context.close()


async def test_a_long_log_is_searched_and_read_from_any_line(shell: shells.Shell, browser: conftest.Watched) -> None:
    shell.write("much.py", MUCH)
    shell.do("run", "--name", "much", "--", "python", "much.py")
    page = await browser.page("/jobs/much/log")
    await page.wait_for_selector("#lines li:has-text('line 19999')")
    await page.evaluate("document.getElementById('log').scrollTop = 0")
    await conftest.until(page, "document.getElementById('lines').childElementCount > 1400")
    assert await page.evaluate(TOP) > 0, "lines above move nothing"
    await page.locator("[data-search]").fill("RARE word")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("p[role=status]:has-text('Line 1 of 1')")
    chosen = page.locator("#lines .chosen")
    assert await chosen.inner_text() == "47,531\nline 4321 a rare word".replace(
        "47,531", await chosen.locator("a").inner_text()
    )
    box = await chosen.bounding_box()
    assert box is not None
    assert 0 < box["y"] < 800, "the hit is in view"
    for _ in range(12):
        before = await page.evaluate("document.getElementById('lines').lastElementChild.id")
        await page.evaluate("document.getElementById('log').scrollTop = 1e9")
        await conftest.until(page, f"document.getElementById('lines').lastElementChild.id !== {before!r}")
    assert await page.evaluate("document.getElementById('lines').childElementCount") <= 5000
    texts = await page.evaluate(SEEN)
    numbers = [int(one.split()[1]) for one in texts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "in order, without a gap"
    await page.click("label:has-text('wrap')")
    assert "wrap=yes" in page.url
    link = await page.locator("#lines li a").nth(2500).get_attribute("href")
    other = await browser.page(str(link))
    assert await other.locator("#lines .chosen code").inner_text() == texts[2500]


GROWING = """
import pathlib, sys, time
said = 0
for number, lines in enumerate((1000, 3800, 4500)):
    for _ in range(6000):  # ten minutes at most
        if not number or (pathlib.Path(sys.argv[1]) / f"go-{number}").exists():
            break
        time.sleep(0.1)
    print("\\n".join(f"line {said + one}" for one in range(lines)), flush=True)
    said += lines
time.sleep(600)
"""
PLACE = """(() => {
    const top = document.getElementById("log").getBoundingClientRect().top;
    const row = [...document.querySelectorAll("#lines li")].find((one) => one.getBoundingClientRect().bottom > top + 8);
    return [row.querySelector("code").textContent, Math.round(row.getBoundingClientRect().top - top)];
})()"""
COUNT = "document.getElementById('lines').childElementCount"


@pytest.mark.parametrize("at", ["0", "20000"])
async def test_a_reader_keeps_the_place_while_a_full_page_grows(
    shell: shells.Shell, browser: conftest.Watched, tmp_path: Path, at: str
) -> None:
    shell.write("grow.py", GROWING)
    job = shell.do("run", "--detach", "--", "python", "grow.py", str(tmp_path)).stdout.strip()
    page = await browser.page(f"/jobs/{job}/log?task=worker-0")
    await page.wait_for_selector("#lines li:has-text('line 999')")
    (tmp_path / "go-1").touch()
    await page.wait_for_selector("#lines li:has-text('line 4799')")
    await page.evaluate(f"document.getElementById('log').scrollTop = {at}")
    await page.wait_for_selector("#follow[aria-pressed='false']")
    before = await page.evaluate(PLACE)
    if at == "0":  # the rows before the first are asked for, and those that come behind the last are not
        (tmp_path / "go-2").touch()
        while "line 9299" not in shell.do("logs", job).stdout:
            await page.wait_for_timeout(200)
    else:
        async with conftest.answered(page, "/log/lines", "line 5000"):
            (tmp_path / "go-2").touch()
    await page.wait_for_timeout(1000)
    assert await page.evaluate(PLACE) == before
    assert await page.evaluate(COUNT) <= 5000
    while not await page.locator("#lines li:has-text('line 9299')").count():
        await page.evaluate("document.getElementById('log').scrollTop = 1e9")
        await page.wait_for_timeout(200)
    assert await page.evaluate(COUNT) <= 5000
    shell.do("cancel", job)


async def test_the_head_of_a_log_follows_its_job(chromium: conftest.Chromium, tmp_path: Path) -> None:
    async with stills.serving(tmp_path, full=False) as still:
        rig = still.rig
        job = await rig.submit("root", name="resumed")
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page(f"/jobs/{job.id}/log")
        await page.wait_for_selector("h1:has-text('QUEUED')")
        await page.fill("[name=q]", "typed")
        job = await rig.launch(job)
        await page.wait_for_selector("h1:has-text('DEPLOYING')")
        await page.wait_for_selector("[name=task] option:has-text('worker-0')", state="attached")
        await rig.logs.append(rigs.key_of(job), "stdout.0", 0, b"the only line\n", at=rig.clock.now)
        await page.wait_for_selector("#lines li:has-text('the only line')")
        assert await page.get_attribute("#follow", "aria-pressed") == "true"
        await rig.happen(job.id, events.Intended(intent=intents.Intent.HALT, by="root"))
        await rig.end(job.id, code=143)
        await page.wait_for_selector("h1:has-text('HALTED')")
        await rig.happen(job.id, events.Intended(intent=intents.Intent.RUN, by="root"))
        await rig.launch(await rig.job(job.id))
        await page.wait_for_selector("[name=attempt] option:text-is('2')", state="attached")
        await rig.end(job.id, code=0)
        await page.wait_for_selector("h1:has-text('COMPLETED')")
        await page.wait_for_selector("#follow", state="hidden")
        assert await page.get_attribute("#follow", "aria-pressed") == "false"
        assert await page.evaluate(SEEN) == ["the only line"], "the lines are the script's own"
        assert await page.input_value("[name=q]") == "typed"
        assert "--follow" not in await page.locator("p.filter code").inner_text()
        await watched.context.close()
