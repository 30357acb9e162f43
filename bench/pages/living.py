"""Open pages: their requests while nothing happens, their heap after many updates, and fifty of them at once."""

from __future__ import annotations

import asyncio
import time

import httpx

from bench import processes, table
from bench import server as servers
from bench.pages import stage

UPDATES, FEW = 3000, 100
IDLE_S = 60
PAGES, RATE, SECONDS = 50, 20, 20
PAUSE_S = 0.5

HURRIED = """
const pause = setTimeout;
window.setTimeout = (work, ms, ...rest) => pause(work, ms >= 500 && ms <= 1000 ? 0 : ms, ...rest);
const ask = fetch;
window.updates = 0;
window.fetch = async (...given) => {
  const answer = await ask(...given);
  updates += given[1]?.headers?.["Oarlock-Fragment"] ? 1 : 0;
  return answer;
};
"""
"""Before the page's scripts: no pause between two updates, and a count of them."""

DRIVEN = """async (wanted) => {
  const channel = new BroadcastChannel("oarlock-live");
  while (updates < wanted) {
    const before = updates;
    channel.postMessage("changed");
    for (let turn = 0; updates === before && turn < 200; turn++) await new Promise((done) => pause(done, 5));
  }
}"""


def idle() -> list[table.Row]:
    """Count the traffic of open pages in a minute without events."""
    rows = []
    with stage.server(200) as server, stage.browser() as browser:
        for path, seen in (("/jobs", "tbody tr"), ("/", "h1"), ("/cluster", "h1")):
            with browser.context(server) as context:
                visit = stage.Visit(context.new_page())
                visit.open(server.url + path, seen)
                visit.page.wait_for_timeout(5000)
                visit.forget()
                visit.page.wait_for_timeout(IDLE_S * 1000)
                detail = f"{visit.received_bytes / 1000:.2g} kB received"
                rows.append(
                    stage.row(f"requests of the open page {path} in an idle minute", visit.requests, "", 0, detail)
                )
    return rows


def heap() -> list[table.Row]:
    """Compare the JavaScript heap after many updates of a page with that after a few."""
    rows = []
    with stage.server(200) as server, stage.browser() as browser:
        server.run("run", "--detach", "--name", "runs", "--", "sleep", "3000", cwd=server.work)
        for path in ("/jobs", "/jobs/runs"):
            with browser.context(server) as context:
                context.add_init_script(HURRIED)
                visit = stage.Visit(context.new_page())
                visit.open(server.url + path, "h1")
                visit.page.evaluate(DRIVEN, FEW)
                few = visit.heap_mb()
                visit.page.evaluate(DRIVEN, UPDATES)
                many = visit.heap_mb()
                which = "the list of jobs" if path == "/jobs" else "a job page"
                what = f"JavaScript heap of {which} after {UPDATES:,} updates"
                detail = f"{few:.2f} and {many:.2f} MB, against {FEW} updates"
                rows.append(stage.row(what, many / few, "x", 1.2, detail))
        server.run("cancel", "runs")
    return rows


def together() -> list[table.Row]:
    """Open fifty pages, and change a job twenty times a second. The pages are played, without a browser's drawing."""
    with stage.server(200) as server:
        for number in range(3):
            server.run("run", "--detach", "--name", f"runs-{number}", "--", "sleep", "3000", cwd=server.work)
        rows = asyncio.run(_together(server))
        for number in range(3):
            server.run("cancel", f"runs-{number}")
    return rows


async def _together(server: servers.Server) -> list[table.Row]:
    with stage.session(server) as session:
        cookies = dict(session.cookies)
    alone = await _cpu(server, ())
    resting_mb = processes.memory_mb(server.pid)
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    headers = {
        "Origin": server.url,
        "Sec-Fetch-Site": "same-origin",
        "Oarlock-Fragment": "1",
        "Accept-Encoding": "gzip",
    }
    async with httpx.AsyncClient(
        base_url=server.url, cookies=cookies, headers=headers, limits=limits, timeout=120, trust_env=False
    ) as client:
        played = [_Played(client, ("/jobs", "/", "/jobs/runs-0", "/cluster")[number % 4]) for number in range(PAGES)]
        open_ones = [asyncio.create_task(one.live()) for one in played]
        await asyncio.gather(*(one.opened.wait() for one in played))
        both = await _cpu(server, played)
        memory = processes.memory_mb(server.pid) - resting_mb
        for one in open_ones:
            one.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
    late = [one for page in played for one in page.late]
    asked = sum(page.fetched for page in played)
    return [
        stage.row(
            f"{PAGES} open pages, memory of the server above idle",
            memory,
            "MB",
            25,
            f"after {SECONDS} s of {RATE} events/s",
        ),
        stage.row(
            f"{PAGES} open pages, processor time at {RATE} events/s",
            both - alone,
            "% of a core",
            15,
            f"more than the events alone ({alone:.0f} %); {asked / SECONDS:.0f} updates/s",
        ),
        stage.row(
            f"{PAGES} open pages, from the news to the updated page, p95",
            table.percentile(late, 0.95) if late else 0.0,
            "s",
            0.5,
            "a loaded machine; the pages are played, without a browser's drawing",
        ),
    ]


async def _cpu(server: servers.Server, played: tuple[_Played, ...] | list[_Played]) -> float:
    """Return the server's processor time in % of a core while a job is changed `RATE` times a second."""
    for one in played:
        one.late.clear()
        one.fetched = 0
    async with server.async_client() as client:
        before, began = processes.cpu_s(server.pid), time.perf_counter()
        for number in range(RATE * SECONDS):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            answer = await client.patch(f"/jobs/runs-{number % 3}", json={"priority": 50 + number % 7})
            answer.raise_for_status()
        took = time.perf_counter() - began
        return 100 * (processes.cpu_s(server.pid) - before) / took


class _Played:
    """A page as `live.js` plays it: it follows the news, and fetches itself again, at most twice a second."""

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self._client = client
        self._path = path
        self._news = asyncio.Event()
        self._since = 0.0
        self.late: list[float] = []
        self.fetched = 0
        self.opened = asyncio.Event()

    async def live(self) -> None:
        await asyncio.gather(self._follow(), self._fetch())

    async def _follow(self) -> None:
        async with self._client.stream("GET", "/live") as answer:
            async for line in answer.aiter_lines():
                self.opened.set()
                if line == "event: changed" and not self._news.is_set():
                    self._since = time.perf_counter()
                    self._news.set()

    async def _fetch(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(PAUSE_S)
            since = self._since
            self._news.clear()
            (await self._client.get(self._path)).raise_for_status()
            self.late.append(time.perf_counter() - since)
            self.fetched += 1
