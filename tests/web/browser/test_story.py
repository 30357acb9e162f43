"""One story in a real browser, once with the mouse and once by the keyboard alone, against a server that is killed.

The pages stay open from the beginning to the end, and none of them is loaded anew when the server comes back.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e import shell as shells
from tests.web.browser import conftest, hands

if TYPE_CHECKING:
    from playwright.async_api import Request

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-digits"
NODES = ("--virtual-nodes", "4", "--virtual-gpus", "4")
LIGHT = ("--no-snapshot", "--detach", "--framework", "plain", "--cpus", "0.1", "--grace", "1s", "--max-restarts", "0")
TWO = ("--framework", "torch", "--workers", "2")
TALKING = """
import time
for number in range(3000):  # five minutes, if it is not canceled before
    print(f"line {number}", flush=True)
    time.sleep(0.1)
"""
HANGING = """
import os, time
def waits_for_data():
    time.sleep(240)
def waits_for_the_others():
    time.sleep(240)
print("begins", flush=True)
waits_for_data() if os.environ["OARLOCK_INDEX"] == "1" else waits_for_the_others()
"""
FALLING = """
import os, pathlib, sys, time
place = pathlib.Path(sys.argv[1]) / os.environ["OARLOCK_INDEX"]
place.with_suffix(".part").write_text(str(os.getpid()))
place.with_suffix(".part").rename(place)
time.sleep(240)
"""
STARTS_MS = 600_000
CHART = "figure[data-name=loss] .plot"
SEEN = "[...document.querySelectorAll('#lines li:not(.open) code')].map((one) => one.textContent)"
BORN = "performance.timeOrigin"
CONNECTED = "document.getElementById('connection').hidden"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[shells.Shell]:
    one = shells.Shell(tmp_path_factory.mktemp("user"))
    one.do("up", "--detach", *NODES)
    shutil.copytree(EXAMPLE, one.work / "digits")
    file = one.work / "digits" / "oarlock.yaml"
    file.write_text(file.read_text().replace("--epochs 20", "--epochs 2000"))  # it is canceled long before
    for name, text in (("talk.py", TALKING), ("hang.py", HANGING), ("fall.py", FALLING)):
        one.write(name, text)
    yield one
    one.do("down", code=None)


LONGEST_MS = 5000
"""Once its server is back, a page has asked it by then."""
WAITS = """
window.waits = [];
window.planned = setTimeout.bind(window);
window.setTimeout = (work, ms = 0, ...rest) => {
  if (ms <= 30000) waits.push(ms); // longer ones watch over an open stream
  return planned(work, ms, ...rest);
};
"""
"""Before a page's scripts: a record of how long the page means to wait, which a slow machine does not change."""


class Story:
    """The steps, in their order; each leaves what the next one needs."""

    def __init__(self, shell: shells.Shell, browser: conftest.Watched, hand: hands.Hand, teller: str) -> None:
        self.shell, self.browser, self.hand, self.teller = shell, browser, hand, teller

    def named(self, word: str) -> str:
        return f"{word}-{self.teller}"

    def start(self, word: str, *flags: str, command: tuple[str, ...]) -> str:
        return self.shell.do("run", *LIGHT, "--name", self.named(word), *flags, "--", *command).stdout.strip()

    def path(self, name: str) -> str:
        return str(self.shell.work / name)

    async def begins(self) -> None:
        self.start("first", command=("true",))  # an empty list would show the next jobs at once, and announce none
        await self.browser.context.add_init_script(WAITS)
        self.home, self.listed = await self.browser.page("/"), await self.browser.page("/jobs")
        self.page = await self.browser.page("/")
        for one in (self.home, self.listed, self.page):
            one.set_default_timeout(STARTS_MS)

    async def a_job_appears_progresses_and_charts(self) -> None:
        name, page, hand = self.named("digits"), self.page, self.hand
        self.start("hangs", *TWO, "--hang-timeout", "15s", command=("python", self.path("hang.py")))
        self.digits = self.shell.do("submit", self.path("digits/oarlock.yaml"), "--name", name).stdout.strip()
        await self.home.wait_for_selector(f"section:has(#running) tr:has-text('{name}') svg.progress")
        await self.bring_into_the_list(name)
        await hand.go(page, "Jobs")
        await hand.open_row(page, name)
        await page.wait_for_selector(".head .phase:has-text('PROCESSING')")
        await page.wait_for_selector("main dl.facts svg.progress")
        await page.locator("#part-metrics").scroll_into_view_if_needed()
        await hand.press(page, page.locator("a:text-is('All metrics')"))
        await page.wait_for_selector("figure[data-name=loss] canvas")
        await self.return_to("digits")
        await hand.press(page, page.locator("button:text-is('Halt')"))
        await page.wait_for_selector("h1:text-is('Halt 1 job?')")
        assert re.search("since the last checkpoint", await page.locator("td").first.inner_text()), "what may be lost"
        await hand.press(page, page.locator("button.danger"))
        await page.wait_for_selector(".head .phase:has-text('HALTED')")

    async def bring_into_the_list(self, name: str) -> None:
        """Follow the announcement in the open list, which pushes no row away by itself, to the new jobs."""
        row = self.listed.locator(f"tbody th a:text-is('{name}')")
        announced = self.listed.get_by_role("status").locator("a", has_text="new job")
        await announced.wait_for()
        assert not await row.count()
        await self.hand.press(self.listed, announced)
        await row.wait_for()

    async def return_to(self, word: str) -> None:
        await self.hand.go(self.page, "Jobs")
        await self.hand.open_row(self.page, self.named(word))
        await self.page.wait_for_selector(f"h1:text-is('{self.named(word)}')")

    async def a_killed_rank_is_blamed(self) -> None:
        name, page, pids = self.named("falls"), self.page, self.shell.work / self.teller
        pids.mkdir()
        self.start("falls", *TWO, command=("python", self.path("fall.py"), str(pids)))
        await self.return_to("falls")
        await page.wait_for_selector(".head .phase:has-text('PROCESSING')")
        pid = self.shell.wait_file(pids / "1")
        os.kill(int(pid), signal.SIGKILL)
        await page.wait_for_selector(".head .phase:has-text('FAILED')")
        await page.wait_for_selector("section:has(#end-1) a:has-text('worker-1')")
        await self.home.wait_for_selector(f"section:has(#failures) tr:has-text('{name}'):has-text('worker-1')")

    async def a_hang_shows_its_stacks(self) -> None:
        page, hand = self.page, self.hand
        await self.return_to("hangs")
        await page.wait_for_selector("section:has(#end-1):has-text('hang')")
        odd = page.locator("summary:has-text('worker-1'):has-text('waits_for_data')")
        await hand.press(page, odd)
        await page.wait_for_selector("details[open] pre:has-text('waits_for_data')")

    async def a_job_resumes(self) -> None:
        page, hand = self.page, self.hand
        self.talks = self.start("talks", command=("python", self.path("talk.py")))
        self.log = await self.browser.page(f"/jobs/{self.talks}/log")
        await self.log.wait_for_selector("#lines li:has-text('line 10')")
        await self.return_to("digits")
        await hand.press(page, page.locator("button:text-is('Resume')"))
        await page.wait_for_selector(".head .phase:has-text('PROCESSING')")
        await page.wait_for_selector("table[data-table=attempts] tbody tr >> nth=1")

    async def the_server_is_killed(self) -> None:
        """Every page that follows events says so, comes back by itself, and shows what happens then."""
        paths = ("/cluster", "/pools", f"/jobs/{self.digits}/metrics", f"/compare?job={self.digits}")
        others = [await self.browser.page(path) for path in paths]
        for one in others[2:]:
            await one.wait_for_selector(f"{CHART}[aria-label]")
        pages = [self.home, self.listed, self.page, self.log, *others]
        born = [await one.evaluate(BORN) for one in pages]
        lost: list[Request] = []
        begun: set[Request] = set()
        for one in pages:
            one.on("request", lambda asked: begun.add(asked))
            one.on("requestfailed", lambda asked: lost.append(asked) if "CONNECTION" in asked.failure else None)
            await one.evaluate("waits.length = 0")
        self.browser.expect(conftest.LOST)
        os.kill(self.shell.server_pid(), signal.SIGKILL)
        for one in pages:
            await one.wait_for_selector("#connection:has-text('reconnecting')")
            assert await one.locator("h1").is_visible(), "the content stays"
        self.shell.do("up", "--detach", "--port", self.browser.url.rpartition(":")[2], *NODES)
        for one in pages:
            await one.evaluate("0")  # after this, what is asked of the new server is counted
        begun.clear()
        ready = time.monotonic()
        for one in pages:
            await conftest.until(one, CONNECTED)
        self.back_s = time.monotonic() - ready
        longest_ms = [await one.evaluate("Math.max(...waits)") for one in pages]
        assert max(longest_ms) <= LONGEST_MS, "a page means to wait for longer before it asks again"
        assert begun.isdisjoint(lost), (
            "the first attempt that begins once the server is there finds it: no wait follows"
        )
        last = int((await self.log.evaluate(SEEN))[-1].split()[-1])
        await self.log.wait_for_selector(f"#lines li:has-text('line {last + 10}')", state="attached")
        for one in others[2:]:
            label = await one.locator(CHART).get_attribute("aria-label")
            await one.wait_for_selector(f'{CHART}:not([aria-label="{label}"])')  # it has more points
        assert [await one.evaluate(BORN) for one in pages] == born, "a page was loaded anew"
        for one in others:
            await one.close()

    async def a_dangerous_action_asks_first(self) -> None:
        page, hand = self.page, self.hand
        await hand.press(page, page.locator("button:text-is('Cancel')"))
        await page.wait_for_selector("h1:text-is('Cancel 1 job?')")
        assert re.search("step|no progress", await page.locator("td").first.inner_text()), "what is lost"
        await hand.press(page, page.locator("button.danger"))
        await page.wait_for_selector(".head .phase:has-text('CANCELED')")

    async def no_line_is_lost_or_doubled(self) -> None:
        self.shell.do("cancel", self.talks)
        await self.log.wait_for_selector("#lines[data-poll='0']", state="attached")
        seen = [one for one in await self.log.evaluate(SEEN) if one.startswith("line")]
        told = self.shell.do("logs", self.talks).stdout.splitlines()
        stored = [one for one in told if one.startswith("line")]
        assert len(seen) >= min(len(stored), 1000)
        assert seen == stored[-len(seen) :]
        await self.log.close()

    async def another_run_is_submitted(self) -> None:
        page, hand = self.page, self.hand
        await self.return_to("digits")
        await hand.press(page, page.locator("a:text-is('Edit and run again')"))
        await page.wait_for_selector("#numbers:visible")
        name = self.named("shorter")
        await hand.write(page, page.locator("input[name='field.name']"), name)
        await hand.write(page, page.locator("input[name='field.command']"), "python train.py --epochs 2")
        await hand.write(page, page.locator("input[name='field.roles.worker.count']"), "1")
        submit = page.locator("button.primary")
        await page.wait_for_selector("#verdict:has-text('Now:')")
        await hand.press(page, submit)
        await page.wait_for_selector(f"h1:text-is('{name}')")
        assert ", 1 w" in await page.locator("main dl.facts").inner_text(), "the field that was written last counts"
        await page.wait_for_selector(".head .phase:has-text('COMPLETED')")

    async def two_runs_are_compared(self) -> None:
        page, hand = self.page, self.hand
        await hand.go(page, "Jobs")
        for word in ("digits", "shorter"):
            await hand.tick(page, page.locator(f"tr:has(a:text-is('{self.named(word)}')) input[name=job]"))
        await hand.press(page, page.locator("button:text-is('Compare')"))
        await page.wait_for_selector("h1:text-is('Compare')")
        assert await page.locator("tr:has-text('command') td").all_inner_texts() == [
            "python train.py --epochs 2",
            "python train.py --epochs 2000",
        ]
        await page.locator("figure[data-name=loss]").scroll_into_view_if_needed()
        await page.wait_for_selector("figure[data-name=loss] canvas")

    async def a_pool_is_changed_and_the_waiting_job_starts(self) -> None:
        page, hand, pool = self.page, self.hand, self.named("team")
        await hand.go(page, "Pools")
        await hand.press(page, page.locator("a:text-is('New pool')"))
        await hand.write(page, page.locator("input[name=pool]"), pool)
        await hand.write(page, page.locator("input[name=limit]"), "gpus=1")
        await hand.press(page, page.locator("button:text-is('Show the effects')"))
        await hand.press(page, page.locator("button:text-is('Apply')"))
        await page.wait_for_selector("h1:text-is('Pools')")
        for word in ("holds", "waits"):
            self.start(word, "--pool", pool, "--gpus", "1", command=("sleep", "240"))
        await self.return_to("waits")
        await page.wait_for_selector(f"section:has(#why):has-text('{pool}'):has-text('limit')")
        await hand.go(page, "Pools")
        await hand.press(page, page.locator(f"tr:has-text('{pool}') a:has-text('Change')"))
        await hand.write(page, page.locator("input[name=limit]"), "gpus=2")
        await hand.press(page, page.locator("button:text-is('Show the effects')"))
        await page.wait_for_selector(f"ul:has-text('{self.named('waits')}')")
        await hand.press(page, page.locator("button:text-is('Apply')"))
        await page.wait_for_selector("h1:text-is('Pools')")
        await self.return_to("waits")
        await page.wait_for_selector(".head .phase:has-text('PROCESSING')")
        self.shell.do("cancel", self.named("waits"), self.named("holds"))

    async def a_simulation_is_drawn(self) -> None:
        page, hand = self.page, self.hand
        await hand.go(page, "Simulate")
        await hand.choose(page, page.locator("select[name=workload]"), "small-first")
        await hand.press(page, page.locator("button.primary"))
        await page.wait_for_selector("h2:text-is('Figures')")
        assert await page.locator("svg polyline").count() == 2 + 2 * 2
        assert "time to the end, mean" in await page.locator("main").inner_text()

    async def the_browser_is_logged_out(self) -> None:
        self.browser.expect(r"status of 401 ")
        await self.hand.press(self.page, self.page.locator("form[action='/logout'] button"))
        await self.page.wait_for_selector("h1:text-is('Log in')")
        for one in (self.home, self.listed):
            await one.wait_for_selector("#connection:has-text('The session has ended')")


@pytest.mark.timeout(1800)  # five times torch is imported, which alone takes minutes on a machine with much to do
@pytest.mark.parametrize("hand", [hands.Mouse(), hands.Keys()], ids=["mouse", "keys"])
async def test_the_whole_story(
    shell: shells.Shell,
    browser: conftest.Watched,
    hand: hands.Hand,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    story = Story(shell, browser, hand, request.node.callspec.id)
    await story.begins()
    await story.a_job_appears_progresses_and_charts()
    await story.a_killed_rank_is_blamed()
    await story.a_hang_shows_its_stacks()
    await story.a_job_resumes()
    await story.the_server_is_killed()
    await story.a_dangerous_action_asks_first()
    await story.no_line_is_lost_or_doubled()
    await story.another_run_is_submitted()
    await story.two_runs_are_compared()
    await story.a_pool_is_changed_and_the_waiting_job_starts()
    await story.a_simulation_is_drawn()
    await story.the_browser_is_logged_out()
    record_property("seconds until every page was live again", story.back_s)
