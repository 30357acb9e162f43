"""Open pages: their requests while nothing happens, their heap after many updates, and fifty of them at once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx

from bench import processes, table
from bench import server as servers
from bench.pages import stage

UPDATES, FEW = stage.many(10_000, 200), stage.many(100, 20)
IDLE_S = stage.many(60, 6)
USERS, RUNNING, RATE, SECONDS = 10, 3, 20, stage.many(20, 5)
PAUSE_S = 0.5
ROUNDS = stage.many(5, 1)
_NAMES, _CHANGES = itertools.count(), itertools.count()
REST_S = 5.0

HURRIED = """
window.pause = setTimeout.bind(window);
window.setTimeout = (work, ms, ...rest) => pause(work, ms > 20 && ms <= 1000 ? 0 : ms, ...rest);
window.asked = fetch.bind(window);
window.updates = 0;
window.fetch = async (...given) => {
  delete given[1]?.headers?.["If-None-Match"];
  const answer = await asked(...given);
  updates += given[1]?.headers?.["Oarlock-Fragment"] ? 1 : 0;
  return answer;
};
"""
"""Before the page's scripts: no pause between two updates, each with its content, and a count of them."""

DRIVEN = """async (wanted) => {
  const channel = new BroadcastChannel("oarlock-live");
  while (updates < wanted) {
    const before = updates;
    channel.postMessage({ kind: "ended" });
    for (let turn = 0; updates === before && turn < 200; turn++) await new Promise((done) => pause(done, 5));
  }
}"""


def idle() -> list[table.Row]:
    """Measure the traffic of open pages in a minute without events, and of those that show a running job.

    No event tells a running job's progress: the server looks at its pages, which ask when it has changed.
    """
    rows = []
    with stage.server(200) as server, stage.browser() as browser:
        for path, seen in (("/jobs", "tbody tr"), ("/", "h1"), ("/cluster", "h1")):
            rows += _idle(server, browser, path, seen, f"the open page {path} in an idle minute", (0, 1))
        server.run("run", "--detach", "--name", "runs", "--", "sleep", "3000", cwd=server.work)
        for path in ("/jobs", "/", "/jobs/runs"):
            seen = ".phase:has-text('PROCESSING')"
            what = f"the open page {path} in a minute while a job runs, for its progress"
            rows += _idle(server, browser, path, seen, what, (None, None))
    return rows


def _idle(
    server: servers.Server,
    browser: stage.Browser,
    path: str,
    seen: str,
    what: str,
    reach: tuple[float | None, float | None],
) -> list[table.Row]:
    """Return the requests of the page and the kB that it has received, each against its goal."""
    with browser.context(server) as context:
        visit = stage.Visit(context.new_page())
        visit.open(server.url + path, seen)
        visit.page.wait_for_timeout(8000)  # a page with a running job asks once after 5 s
        visit.forget()
        visit.page.wait_for_timeout(IDLE_S * 1000)
        return [
            stage.row(f"requests of {what}", visit.requests, "", reach[0]),
            stage.row(f"received by {what}", visit.received_bytes / 1000, "kB", reach[1]),
        ]


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
                began = time.perf_counter()
                visit.page.evaluate(DRIVEN, UPDATES)
                each_ms = 1000 * (time.perf_counter() - began) / (UPDATES - FEW)
                many = visit.heap_mb()
                which = "the list of jobs" if path == "/jobs" else "a job page"
                what = f"JavaScript heap of {which} after {UPDATES:,} updates"
                detail = f"{few:.2f} and {many:.2f} MB, against {FEW} updates; {each_ms:.0f} ms for each"
                rows.append(stage.row(what, many / few, "x", 1.2, detail))
    return rows


def together() -> list[table.Row]:
    """Open fifty pages, each in a browser of its own, of ten users, and change jobs twenty times a second.

    The pages are played, without drawing.
    """
    with stage.server(200) as server:
        for number in range(RUNNING):
            server.run("run", "--detach", "--name", f"runs-{number}", "--", "sleep", "3000", cwd=server.work)
        return asyncio.run(_together(server))


async def _together(server: servers.Server) -> list[table.Row]:
    tokens = [await _token(server, number) for number in range(USERS)]
    alone, rounds = [await _change(server, [])], []
    for _ in range(ROUNDS):
        rounds.append(await _measure_open_pages(server, tokens))
        await asyncio.sleep(REST_S)
        alone.append(await _change(server, []))
    costs = [
        one.both.cpu - (before.cpu + after.cpu) / 2
        for one, (before, after) in zip(rounds, itertools.pairwise(alone), strict=True)
    ]
    seconds = sum(one.both.seconds for one in rounds)
    late = [each for one in rounds for each in one.late]
    played = [page for one in rounds for page in one.played]
    kept = f"{table.median([one.both.rate for one in rounds]):.0f} events/s"
    asked, same = sum(page.fetched for page in played), sum(page.same for page in played)
    unasked, taken = sum(page.unasked for page in played), sum(page.taken for page in played)
    name = f"{len(rounds[0].played)} open pages of {USERS} users"
    return [
        stage.row(
            f"{name}, memory of the server above idle", rounds[0].memory_mb, "MB", 25, f"after {SECONDS} s of {kept}"
        ),
        stage.row(
            f"{name}, processor time at {RATE} events/s",
            table.median(costs),
            "% of a core",
            15,
            f"{table.spread(costs, '%')}, more than the events alone in turn, which cost "
            f"{min(one.cpu for one in alone):.0f} to {max(one.cpu for one in alone):.0f} %; {kept}, "
            f"{taken / seconds:.0f} updates/s came with the news, {asked / seconds:.0f} were asked for, "
            f"{same} of all these without a change; {unasked / seconds:.0f} pages/s had the content already; "
            f"without events {table.median([one.idle_cpu for one in rounds]):.1f} %",
        ),
        stage.row(
            f"{name}, from an event to the updated page, p95",
            table.percentile(late, 0.95) if late else 0.0,
            "s",
            0.5,
            f"median {table.median(late) if late else 0.0:.2g} s; the pages are played, without a browser's drawing",
        ),
    ]


class _Round(NamedTuple):
    """What the pages of all users have cost while they were open."""

    played: list[_Played]
    idle_cpu: float
    both: _Cost
    memory_mb: float
    late: list[float]


async def _measure_open_pages(server: servers.Server, tokens: list[str]) -> _Round:
    """Open the pages, change jobs, and close them."""
    await asyncio.sleep(REST_S)
    resting_mb = processes.memory_mb(server.pid)
    async with contextlib.AsyncExitStack() as stack:
        first, second = await _ids(server)
        paths = ("/jobs", "/", f"/jobs/{first}", "/cluster", f"/jobs/{second}")  # links name jobs by their ids
        played = [
            _Played(await stack.enter_async_context(_browser(server, token)), path)
            for token in tokens
            for path in paths
        ]
        following = [asyncio.create_task(client.follow()) for client in played]
        await asyncio.gather(*(one.opened.wait() for one in played))
        await asyncio.sleep(REST_S)
        idle_cpu = await _spent(server, IDLE_S / 4)
        both = await _change(server, played)
        late = [each for page in played for each in page.late(both.events)]
        memory_mb = processes.memory_mb(server.pid) - resting_mb
        for one in following:
            one.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    return _Round(played, idle_cpu, both, memory_mb, late)


async def _ids(server: servers.Server) -> list[str]:
    async with server.async_client() as client:
        found = [await client.get(f"/jobs/runs-{number}") for number in range(2)]
    return [one.raise_for_status().json()["id"] for one in found]


class _Event(NamedTuple):
    """A line of the event log, and when its request was answered."""

    seq: int
    job: str
    at: float


class _Cost(NamedTuple):
    """The server's processor time in % of a core, and the events that it took."""

    cpu: float
    seconds: float
    events: list[_Event]

    @property
    def rate(self) -> float:
        return len(self.events) / self.seconds


async def _change(server: servers.Server, played: list[_Played]) -> _Cost:
    """Change a job `RATE` times a second, or as often as the machine lets us."""
    for one in played:
        one.forget()
    answered: list[float] = []
    async with server.async_client() as client:
        start = (await client.get("/server")).raise_for_status().json()["seq"]
        ids = [(await client.get(f"/jobs/runs-{number}")).raise_for_status().json()["id"] for number in range(RUNNING)]
        before, began = processes.cpu_s(server.pid), time.perf_counter()
        for number in range(RATE * SECONDS):
            if time.perf_counter() - began > SECONDS:
                break
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            job = ids[number % RUNNING]
            (await client.patch(f"/jobs/{job}", json={"priority": next(_CHANGES) % 97})).raise_for_status()
            answered.append(time.perf_counter())
        seconds = time.perf_counter() - began
        cost = 100 * (processes.cpu_s(server.pid) - before) / seconds
        await asyncio.sleep(2 * PAUSE_S)
        log = (await client.get("/events", params={"after": start})).raise_for_status().json()["items"]
    changes = [(one["seq"], one["job"]) for one in log if one["kind"] == "edited"]
    return _Cost(cost, seconds, [_Event(*one, at) for one, at in zip(changes, answered, strict=True)])


async def _spent(server: servers.Server, seconds: float) -> float:
    """Return the server's processor time in % of a core while nothing happens."""
    before, began = processes.cpu_s(server.pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return 100 * (processes.cpu_s(server.pid) - before) / (time.perf_counter() - began)


async def _token(server: servers.Server, number: int) -> str:
    """Return the token of a new user, who is an administrator and so sees all jobs."""
    async with server.async_client() as client:
        (await client.post("/users", json={"name": f"user-{number}", "right": "admin"})).raise_for_status()
        made = (await client.post(f"/users/user-{number}/tokens", json={})).raise_for_status()
    return str(made.json()["token"])


@contextlib.asynccontextmanager
async def _browser(server: servers.Server, token: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a browser with a session of its own."""
    headers = {"Origin": server.url, "Sec-Fetch-Site": "same-origin", "Accept-Encoding": "gzip"}
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, limits=limits, timeout=120, trust_env=False
    ) as browser:
        if (await browser.post("/login", data={"secret": token})).status_code != 303:
            raise RuntimeError("no session")
        yield browser


class _Played:
    """A page as `live.js` plays it, alone in its browser."""

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self._client = client
        self._path = path
        self._news = asyncio.Event()
        self._topics: set[str] = set()
        self._seen = self._told = 0
        self._asked, self._fetching = 0.0, False
        self._tag = ""
        self._name = f"{next(_NAMES):08d}"
        self._updates: list[tuple[int, float]] = []  # the last event of each, and when it was there
        self.fetched = self.same = self.unasked = self.taken = 0
        self.opened = asyncio.Event()

    def forget(self) -> None:
        self._updates.clear()
        self.fetched = self.same = self.unasked = self.taken = 0

    def late(self, events: list[_Event]) -> Iterator[float]:
        """Yield for each event that the page shows the seconds until the page was up to it."""
        mine = {one.removeprefix("job:") for one in self._topics if one.startswith("job:")}
        for seq, job, at in events:
            if not mine or job in mine:
                yield max(0.0, next((there for had, there in self._updates if had >= seq), time.perf_counter()) - at)

    async def follow(self) -> None:
        page = (await self._client.get(self._path)).raise_for_status().text
        self._seen = int(page.partition('data-seq="')[2].partition('"')[0])
        self._topics = set(page.partition('data-topics="')[2].partition('"')[0].split())
        await asyncio.gather(self._listen(), self._fetch())

    async def _listen(self) -> None:
        async with self._client.stream("GET", "/live") as answer:
            kind = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                kind = value if name == "event" else kind
                if name == "data" and kind in ("open", "changed"):
                    self._hear(kind, json.loads(value))

    def _hear(self, kind: str, told: dict[str, Any]) -> None:
        self.opened.set()
        shown = self._topics & {*told.get("topics", ())}
        mark = told.get("marks", {}).get(self._name, "")
        if told["seq"] != self._seen if kind == "open" else told["seq"] > self._seen:
            if kind == "changed" and self._tag and mark == self._tag:
                self._seen = told["seq"]
                self.unasked += 1
                self._updates.append((self._seen, time.perf_counter()))
            elif self._tag and self._fits(packed := told.get("contents", {}).get(mark, "")):
                gzip.decompress(base64.b64decode(packed))
                self._asked, self._tag, self._seen = time.perf_counter(), mark, told["seq"]
                self.taken += 1
                self._updates.append((self._seen, self._asked))
            elif kind == "open" or told["after"] > self._seen or shown:
                self._told = told["seq"]
                self._news.set()
            else:
                self._seen = told["seq"]

    def _fits(self, packed: str) -> bool:
        """Return whether the page takes a content that came with the news."""
        free = not self._fetching and not self._news.is_set()
        return bool(packed) and free and time.perf_counter() - self._asked > PAUSE_S / 2

    async def _fetch(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(max(0.0, self._asked + PAUSE_S - time.perf_counter()))
            self._news.clear()
            self._fetching, self._asked = True, time.perf_counter()
            headers = {
                "Oarlock-Fragment": "1",
                "Oarlock-Page": self._name,
                "If-None-Match": self._tag,
                "Oarlock-Seq": str(self._told),
            }
            answer = await self._client.get(self._path, headers=headers)
            if answer.status_code != 304:
                answer.raise_for_status()
            self._tag = answer.headers["etag"]
            self._seen = int(answer.headers["oarlock-seq"])
            self._updates.append((self._seen, time.perf_counter()))
            self.fetched += 1
            self.same += answer.status_code == 304
            self._fetching = False
