"""A server with much in it, and a browser whose traffic is counted, as the figures of the pages need them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from bench import server as servers
from bench import table
from oarlock.lifecycle import stepping
from oarlock.spec import attempts, events, holdings, jobfile, jobs, phases, roles
from oarlock.store import stores
from oarlock.store.sql import database

if TYPE_CHECKING:
    from playwright import sync_api as playwright

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
FLAGS += ("--disable-sync", "--no-first-run", "--font-render-hinting=none", "--js-flags=--expose-gc")
WORKER, CPU = roles.RoleName.WORKER, holdings.Resources(1000, 0, 0)
PATIENCE_MS = 180_000
SHORT = os.environ.get("BENCH_SHORT") == "1"
"""Whether the benches only show that they run to their ends: with less of everything, so that no figure counts."""
END_S = 60.0
WATCH = """
window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
  .observe({ type: "longtask", buffered: true });
"""
TIMES = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
  tasks: tasks.reduce((sum, one) => sum + one, 0), longest: Math.max(0, ...tasks),
  elements: document.getElementsByTagName("*").length,
})"""


def many(count: int, few: int) -> int:
    """Return the count, or the small one of a short run."""
    return few if SHORT else count


@contextlib.contextmanager
def server(stored: int = 0, *flags: str, ranks: int = 0) -> Iterator[servers.Server]:
    """Yield a server with so many ended jobs, and one of so many workers (`ranks`). All jobs end with it."""
    with servers.server(*flags) as one:
        if stored:
            one.run("down")
            asyncio.run(_fill(f"sqlite:///{one.home / 'oarlock.db'}", stored, ranks))
            one.start(*flags)
        try:
            yield one
        finally:
            _end_all(one)


def _end_all(server: servers.Server) -> None:
    """Cancel all jobs, which would outlive their server, and wait for their ends."""
    active = [("phase", str(phase)) for phase in phases.NOT_OVER]
    deadline = time.monotonic() + END_S
    with server.client() as client:
        while time.monotonic() < deadline:
            left = client.get("/summaries", params=[*active, ("limit", "1000")]).raise_for_status().json()["items"]
            if not left:
                return
            for job in left:
                client.put(f"/jobs/{job['id']}/intent", json={"intent": "cancel"})
            time.sleep(1.0)


async def _fill(url: str, count: int, ranks: int = 0) -> None:
    store, now = database.open_store(url), time.time()

    def add(begin: int) -> Callable[[stores.Transaction], None]:
        def change(tx: stores.Transaction) -> None:
            for number in range(begin, min(begin + 200, count)):
                tx.add_job(_job(number, now - count + number), at=now)

        return change

    try:
        for begin in range(0, count, 200):
            await store.write(add(begin))
        if ranks:
            await store.write(lambda tx: tx.add_job(_gang(ranks, now), at=now))
    finally:
        await store.close()


def _job(number: int, at: float) -> jobs.Job:
    phase = (phases.Phase.COMPLETED, phases.Phase.FAILED, phases.Phase.CANCELED)[number % 3]
    spec = jobfile.JobSpec(command=f"python train.py --seed {number}", priority=number % 100)
    name = f"{('digits', 'resnet', 'bert')[number % 3]}-{number}"
    return jobs.Job(
        id=f"j-{number:016d}",
        name=name,
        owner="admin",
        spec=spec,
        created_at=at,
        shell={},
        phase=phase,
        phase_at=at + 60,
        ended_at=at + 60,
    )


def _gang(ranks: int, at: float) -> jobs.Job:
    """Return a job of many workers that has run and completed."""
    workers = jobfile.Role(count=ranks, cpus=1.0)
    job = msgspec.structs.replace(_job(0, at), id="j-ranks", name="ranks", phase=phases.Phase.QUEUED, ended_at=None)
    job = msgspec.structs.replace(job, spec=jobfile.JobSpec(command="python train.py", roles={WORKER: workers}))
    held = tuple(
        holdings.Holding(
            job=job.id,
            attempt=1,
            role=WORKER,
            index=index,
            node=f"node-{index // 8}",
            amount=CPU,
            ports=(20000 + index,),
        )
        for index in range(ranks)
    )
    job = stepping.step(job, events.Admitted(attempt=1, holdings=held), at)
    job = stepping.step(job, events.Launched(attempt=1), at)
    ended = attempts.Exit(code=0, cause=attempts.Cause.SUCCEEDED, at=at)
    progress = attempts.Progress(at=at, step=1000, total_steps=1000, loss=0.1)
    first = job.attempts[0]
    done = {"phase": phases.TaskPhase.SUCCEEDED, "exit": ended, "progress": progress, "gone": True}
    tasks = tuple(msgspec.structs.replace(task, **done) for task in first.tasks)
    job = msgspec.structs.replace(job, attempts=(msgspec.structs.replace(first, tasks=tasks),))
    stop = events.StopDecided(attempt=1, cause=attempts.Cause.SUCCEEDED, message="")
    return stepping.step(stepping.step(job, stop, at), events.Released(attempt=1), at)


@contextlib.contextmanager
def session(server: servers.Server) -> Iterator[httpx.Client]:
    """Yield a browser without an engine that is logged in."""
    headers = {"Accept-Encoding": "gzip"}
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False, headers=headers) as made:
        ours = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        answer = made.post("/login", data={"secret": server.token}, headers=ours)
        if answer.status_code != 303:
            raise RuntimeError(f"no session: {answer.status_code}")
        yield made


class Visit:
    """The traffic and the times of one page. Bytes are those on the wire, headers included."""

    def __init__(self, page: playwright.Page) -> None:
        self.page = page
        self.requests = self.wire_bytes = self.received_bytes = 0
        self._cdp = page.context.new_cdp_session(page)
        self._cdp.send("Network.enable")
        self._cdp.on("Network.requestWillBeSent", self._asked)
        self._cdp.on("Network.loadingFinished", self._loaded)
        self._cdp.on("Network.dataReceived", self._heard)

    def _asked(self, event: dict[str, Any]) -> None:
        self.requests += not event["request"]["url"].startswith(("data:", "blob:"))

    def _loaded(self, event: dict[str, Any]) -> None:
        self.wire_bytes += int(event["encodedDataLength"])

    def _heard(self, event: dict[str, Any]) -> None:
        self.received_bytes += int(event["dataLength"])

    def forget(self) -> None:
        self.requests = self.wire_bytes = self.received_bytes = 0

    def open(self, url: str, seen: str) -> float:
        """Open an address, and return the seconds until `seen` is on it."""
        began = time.perf_counter()
        self.page.goto(url)
        self.page.wait_for_selector(seen)
        return time.perf_counter() - began

    def times(self) -> dict[str, float]:
        """Return paint, long tasks together, the longest one (ms), and the number of elements."""
        found: dict[str, float] = self.page.evaluate(TIMES)
        return found

    def busy_ms(self) -> float:
        """Return the processor time of the page's main thread so far."""
        self._cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
        metrics = {one["name"]: one["value"] for one in self._cdp.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(metrics["TaskDuration"])

    def heap_mb(self) -> float:
        """Return the size of the JavaScript heap after a collection."""
        self._cdp.send("HeapProfiler.enable")
        for _ in range(2):
            self._cdp.send("HeapProfiler.collectGarbage")
        self._cdp.send("Performance.enable")
        metrics = {one["name"]: one["value"] for one in self._cdp.send("Performance.getMetrics")["metrics"]}
        return float(metrics["JSHeapUsedSize"]) / 1e6


class Browser:
    """One Chromium. A context has a cache and cookies of its own, so that a first visit is cold."""

    def __init__(self, chromium: playwright.Browser) -> None:
        self._chromium = chromium

    @contextlib.contextmanager
    def context(self, server: servers.Server | None = None, **settings: Any) -> Iterator[playwright.BrowserContext]:
        made = self._chromium.new_context(viewport={"width": 1280, "height": 800}, **settings)
        made.set_default_timeout(PATIENCE_MS)
        made.add_init_script(WATCH)
        if server is not None:
            with session(server) as told:
                made.add_cookies(
                    [{"name": one.name, "value": one.value or "", "url": server.url} for one in told.cookies.jar]
                )
        yield made
        made.close()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    from playwright import sync_api  # only benches of pages need it

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_api.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=program, args=list(FLAGS))
        yield Browser(chromium)
        chromium.close()


def row(what: str, value: float, unit: str, reach: float | None = None, detail: str = "") -> table.Row:
    return table.Row("pages", what, value, unit, reach, detail=detail)
