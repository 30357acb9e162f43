"""The first and the next visit of the list of jobs and of a job's page, beside TensorBoard in the same browser."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench import server as servers
from bench import table
from bench.pages import stage

STORED, RUNS = 10_000, 3
SETTLE_MS = 3000
SCRIPT = """
from oarlock import train
train.init()
with train.Session(total_steps=1000) as session:
    for step in session.steps():
        session.log(loss=1.0 / step, accuracy=1 - 1.0 / step, rate=0.1, norm=float(step % 7))
"""
EVENTS = """
import sys
from torch.utils.tensorboard import SummaryWriter
for run in ("a", "b"):
    writer = SummaryWriter(f"{sys.argv[1]}/{run}")
    for step in range(1, 1001):
        for name, value in (("loss", 1 / step), ("accuracy", 1 - 1 / step), ("rate", 0.1), ("norm", step % 7)):
            writer.add_scalar(name, value, step)
    writer.close()
"""
Figures = dict[str, float]


def run() -> list[table.Row]:
    with stage.server(STORED) as server, tensorboard() as other, stage.browser() as browser:
        (server.work / "train.py").write_text(SCRIPT)
        server.run("run", "--name", "charts", "--", "python", "train.py", cwd=server.work)
        listed, job, theirs = [], [], []
        for _ in range(RUNS):
            theirs.append(_visits(browser, None, other, "text=loss", 1)[0])
            listed.append(_visits(browser, server, f"{server.url}/jobs", "tbody tr:nth-child(100)", 2))
            job.append(_visits(browser, server, f"{server.url}/jobs/charts", "#metrics", 2))
    detail = f"{_median(theirs, 'requests'):.0f} requests; 2 runs of 4 metrics"
    return [
        *_rows(f"list of {STORED:,} jobs", listed, theirs, 60, 15),
        *_rows("job page with 4 charts", job, theirs, 130, 40),
        stage.row("TensorBoard, first visit", _median(theirs, "kb"), "kB", detail=detail),
    ]


def _rows(
    name: str, taken: list[list[Figures]], theirs: list[Figures], first_kb: float, next_kb: float
) -> Iterator[table.Row]:
    first, later = [one[0] for one in taken], [one[1] for one in taken]
    requests = f"on the wire; {_median(first, 'requests'):.0f} requests, {_median(first, 'elements'):.0f} elements"
    yield stage.row(f"{name}, first visit", _median(first, "kb"), "kB", first_kb, requests)
    requests = f"{_median(later, 'requests'):.0f} requests"
    yield stage.row(f"{name}, next visit", _median(later, "kb"), "kB", next_kb, requests)
    for what, key, reach in (("first contentful paint", "paint", 0.2), ("long tasks while loading", "tasks", 0.1)):
        ratio = _median(first, key) / max(1.0, _median(theirs, key))
        detail = f"{_median(first, key):.0f} ms and {_median(theirs, key):.0f} ms, medians of {RUNS}"
        yield stage.row(f"{name}, {what}, against TensorBoard", ratio, "x", reach, detail)


def _visits(browser: stage.Browser, server: servers.Server | None, url: str, seen: str, count: int) -> list[Figures]:
    """Return the figures of a cold visit, and of the next ones of the same browser, charts included."""
    found = []
    with browser.context(server) as context:
        for _ in range(count):
            visit = stage.Visit(context.new_page())
            visit.open(url, seen)
            if seen == "#metrics":
                visit.page.locator(seen).scroll_into_view_if_needed()
                visit.page.wait_for_selector("#part-metrics figure >> nth=3")
            visit.page.wait_for_timeout(SETTLE_MS)
            found.append({**visit.times(), "kb": visit.wire_bytes / 1000, "requests": visit.requests})
            visit.page.close()
    return found


def _median(found: list[Figures], key: str) -> float:
    return table.median([one[key] for one in found])


@contextlib.contextmanager
def tensorboard() -> Iterator[str]:
    """Yield the address of a TensorBoard with two runs of four metrics."""
    folder = Path(tempfile.mkdtemp(prefix="oarlock-bench-"))
    subprocess.run([sys.executable, "-c", EVENTS, str(folder)], check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", port]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, deadline = f"http://127.0.0.1:{port}/", time.monotonic() + 180
    try:
        while not _has_both(url):
            if time.monotonic() > deadline:
                raise RuntimeError("TensorBoard has not started")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _has_both(url: str) -> bool:
    try:
        return len(httpx.get(f"{url}data/runs", trust_env=False, timeout=30).json()) == 2
    except (httpx.TransportError, ValueError):
        return False
