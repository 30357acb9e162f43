"""Pages of much: a log of a million lines, a thousand metrics, ten compared jobs, a thousand nodes, a long queue."""

from __future__ import annotations

import itertools
import time

from bench import processes, table
from bench import server as servers
from bench.pages import stage

RANKS, LINES = 8, stage.many(125_000, 100_000)
NAMES = stage.many(1_000, 100)
JOBS, METRICS, STEPS = stage.many(10, 3), 10, stage.many(10_000, 500)
NODES, GPUS, HOLDING = stage.many(1_000, 100), 8, stage.many(50, 5)
CHANGES, SETTLE_MS = stage.many(5, 2), 3000
WAITING, KEYS = stage.many(1_000, 30), stage.many(60, 4)
RATE, FOLLOWED_S = 2_000, stage.many(60, 10)
LEAST_AGES = 20
SPEAKING = f"""
import os, time
rank, began = os.environ["RANK"], time.time()
for number in range({RATE // 8 * (FOLLOWED_S + 300)}):
    late = began + number * {8 / RATE} - time.time()
    if late > 0:
        time.sleep(late)
    print(f"{{time.time():.3f}} rank {{rank}} step {{number}} loss 0.12345 accuracy 0.67890", flush=True)
"""
AGES = """() => {
  tasks.length = 0;
  window.ages = [];
  setInterval(() => {
    const said = document.querySelector("#lines li:last-child code")?.textContent.split(" ")[0];
    ages.push(Date.now() / 1000 - Number(said));
  }, 100);
}"""
SHOWN = """() => {
  window.shown = [];
  let pressed = 0;
  document.getElementById("text").addEventListener("keydown", ({ timeStamp }) => (pressed = timeStamp));
  new MutationObserver(() => requestAnimationFrame(() => requestAnimationFrame((now) => {
    if (pressed) shown.push(now - pressed);
    pressed = 0;
  }))).observe(document.getElementById("verdict"), { attributes: true, childList: true, subtree: true });
}"""
"""The ms from each key to the frame after the one with its verdict: the page writes the verdict also where it stays."""

TALKING = f"""
import os, sys
rank = os.environ["RANK"]
for number in range({LINES}):
    sys.stdout.write(f"rank {{rank}} step {{number}} loss 0.12345 accuracy 0.67890 of this and that\\n")
    if rank == "3" and number == 98_765:
        sys.stdout.write("a rare word\\n")
"""
MEASURING = """
import sys
from oarlock import train
names, steps = int(sys.argv[1]), int(sys.argv[2])
train.init()
with train.Session(total_steps=steps) as session:
    for step in session.steps():
        session.log(**{f"group-{number // 50}/metric-{number}": number + 1.0 / step for number in range(names)})
"""


def log() -> list[table.Row]:
    """Open a log of a million lines at its end, at a line, and at the first hit of a rare word."""
    count = RANKS * LINES
    with stage.server() as server, stage.browser() as browser, browser.context(server) as context:
        (server.work / "talk.py").write_text(TALKING)
        flags = ("--workers", str(RANKS), "--cpus", "0.1")
        server.run("run", "--detach", "--name", "talks", *flags, "--", "python", "talk.py", cwd=server.work)
        server.wait_for("talks")
        visit = stage.Visit(context.new_page())
        path = f"{server.url}/jobs/talks/log"
        rows = []
        visit.open(f"{path}?q=a+rare+word", "#lines .chosen")
        line = visit.page.locator("#lines .chosen").get_attribute("id") or ""
        for what, query, seen, reach in (
            ("its end", "", "#lines li >> nth=-1", 0.5),
            ("a line in its middle", f"?line={line}", "#lines .chosen", 0.3),
            ("the first hit of a rare word", "?q=a+rare+word", "#lines .chosen:has-text('a rare word')", 2.0),
        ):
            taken, costs = [], []
            for _ in range(3):
                before = processes.cpu_s(server.pid)
                taken.append(visit.open(path + query, seen))
                costs.append(processes.cpu_s(server.pid) - before)
            times = visit.times()
            cost = f"server {1000 * table.median(costs):.0f} ms of processor time"
            detail = f"{table.spread(taken)}; {cost}; {times['elements']:,} elements"
            rows.append(stage.row(f"log of {count:,} lines, {what}", table.median(taken), "s", reach, detail))
        rows.append(
            stage.row(
                f"log of {count:,} lines, rows in the document", visit.page.locator("#lines li").count(), "", 5000
            )
        )
    return rows


def follow() -> list[table.Row]:
    """Follow the log of eight ranks that print two thousand lines a second, and look how old its newest line is."""
    with stage.server() as server, stage.browser() as browser, browser.context(server) as context:
        (server.work / "speak.py").write_text(SPEAKING)
        flags = ("--workers", str(RANKS), "--cpus", "0.1")
        server.run("run", "--detach", "--name", "speaks", *flags, "--", "python", "speak.py", cwd=server.work)
        visit = stage.Visit(context.new_page())
        visit.open(f"{server.url}/jobs/speaks/log", "#lines li >> nth=400")
        visit.page.wait_for_timeout(5000)  # all ranks print
        before = processes.cpu_s(server.pid)
        visit.page.evaluate(AGES)
        visit.forget()
        visit.page.wait_for_timeout(FOLLOWED_S * 1000)
        ages: list[float] = visit.page.evaluate("ages")
        times, cost = visit.times(), processes.cpu_s(server.pid) - before
        if len(ages) < LEAST_AGES or visit.page.get_attribute("#follow", "aria-pressed") != "true":
            raise RuntimeError("the page has not followed")
        server.run("cancel", "speaks")
        what = f"log of {RANKS} ranks with {RATE:,} lines/s together, followed for {FOLLOWED_S} s"
        detail = f"median {table.median(ages):.2g} s; server {100 * cost / FOLLOWED_S:.0f} % of a core; "
        detail += f"{visit.requests} requests, {visit.wire_bytes / 1e6:.1f} MB on the wire"
        tasks = f"long tasks {times['tasks'] / FOLLOWED_S:.0f} ms in a second; {times['elements']:,} elements"
        return [
            stage.row(f"{what}, age of the newest line, greatest", max(ages), "s", 1, detail),
            stage.row(f"{what}, longest task", times["longest"], "ms", 100, tasks),
        ]


def metrics() -> list[table.Row]:
    """Open the metrics of a job with a thousand names, and the comparison of ten jobs."""
    with stage.server() as server, stage.browser() as browser, browser.context(server) as context:
        (server.work / "measure.py").write_text(MEASURING)
        _measure(server, "names", NAMES, 50)
        for number in range(JOBS):
            _measure(server, f"run-{number}", METRICS, STEPS)
        visit = stage.Visit(context.new_page())
        taken = visit.open(f"{server.url}/jobs/names/metrics", "figure[data-name] canvas")
        times = visit.times()
        detail = (
            f"longest task {times['longest']:.0f} ms; {times['elements']:,} elements; {visit.wire_bytes / 1000:.0f} kB"
        )
        rows = [stage.row(f"{NAMES:,} metrics of one job, first chart", taken, "s", 1, detail)]
        visit.forget()
        query = "&".join(f"job=run-{number}" for number in range(JOBS))
        began = time.perf_counter()
        visit.open(f"{server.url}/compare?{query}", "figure[data-name] canvas >> nth=3")
        taken = time.perf_counter() - began
        times = visit.times()
        what = f"{JOBS} jobs x {METRICS} metrics x {STEPS:,} steps compared"
        rows.append(
            stage.row(
                f"{what}, charts in view", taken, "s", 2, f"{visit.wire_bytes / 1000:.0f} kB, {visit.requests} requests"
            )
        )
        rows.append(stage.row(f"{what}, longest task", times["longest"], "ms", 200))
    return rows


def _measure(server: servers.Server, name: str, names: int, steps: int) -> None:
    server.run("run", "--name", name, "--", "python", "measure.py", str(names), str(steps), cwd=server.work)


def nodes() -> list[table.Row]:
    """Open the map of a thousand nodes with eight devices each, and change it.

    The page draws the first nodes alone, and its rows say how many.
    """
    flags = ("--virtual-nodes", str(NODES), "--virtual-gpus", str(GPUS))
    with stage.server(0, *flags) as server, stage.browser() as browser, browser.context(server) as context:
        for number in range(HOLDING):
            server.run(
                "run", "--detach", "--name", f"holds-{number}", "--gpus", "8", "--", "sleep", "3000", cwd=server.work
            )
        visit = stage.Visit(context.new_page())
        before = processes.cpu_s(server.pid)
        taken = visit.open(f"{server.url}/cluster", "table.map tr")
        cost = processes.cpu_s(server.pid) - before
        times = visit.times()
        drawn = visit.page.locator("table.map tbody tr").count()
        detail = f"{visit.wire_bytes / 1000:.0f} kB; {times['elements']:,} elements; "
        detail += f"server {1000 * cost:.0f} ms; long tasks {times['tasks']:.0f} ms"
        what = f"map of {NODES:,} nodes x {GPUS}, of which the first {drawn} are drawn"
        changes = [_change(visit, server, f"more-{number}") for number in range(CHANGES)]
        return [
            stage.row(what, taken, "s", 1, detail),
            stage.row(
                f"{what}, main thread for one change",
                table.median([busy for busy, _ in changes]),
                "ms",
                100,
                f"processor time; its longest task {table.median([longest for _, longest in changes]):.0f} ms",
            ),
        ]


def _change(visit: stage.Visit, server: servers.Server, name: str) -> tuple[float, float]:
    """Start a job, and return the processor time of the page until it is quiet again, for each update, and the longest
    task, in ms.
    """
    visit.page.wait_for_timeout(SETTLE_MS)
    visit.page.evaluate("tasks.length = 0")
    visit.forget()
    before = visit.busy_ms()
    server.run("run", "--detach", "--name", name, "--gpus", "8", "--", "sleep", "3000", cwd=server.work)
    visit.page.wait_for_selector(f"tbody a:text-is('{name}')")
    visit.page.wait_for_timeout(SETTLE_MS)
    return (visit.busy_ms() - before) / max(1, visit.requests), visit.times()["longest"]


def verdicts() -> list[table.Row]:
    """Type in the editor while a thousand jobs wait, and wait until the verdict after the last key is drawn."""
    with stage.server() as server, stage.browser() as browser, browser.context(server) as context:
        with server.client() as client:
            for number in range(WAITING):
                spec = {
                    "command": "true",
                    "name": f"waits-{number}",
                    "roles": {"worker": {"cpus": 1.5}},
                    "priority": number % 90,
                }
                client.post("/jobs", json={"spec": spec}).raise_for_status()
        visit = stage.Visit(context.new_page())
        visit.open(f"{server.url}/submit", "#verdict p")
        with visit.page.expect_response(lambda answer: answer.request.method == "POST") as answered:
            visit.page.fill("#text", "command: 'true'\nname: a")  # the caret is at its end
        answered.value.finished()
        visit.page.wait_for_timeout(SETTLE_MS)  # its verdict is written
        visit.page.evaluate(SHOWN)
        for number, key in enumerate(itertools.islice(itertools.cycle("bcdefgh"), KEYS), 1):
            visit.page.press("#text", key)
            visit.page.wait_for_function("number => shown.length >= number", arg=number)
        taken = [ms / 1000 for ms in visit.page.evaluate("shown")]
        if len(taken) != KEYS or not visit.page.get_attribute("#verdict", "data-when"):
            raise RuntimeError("the verdicts have not followed the keys")
        detail = f"until its words are drawn; {table.spread(taken)}"
        return [
            stage.row(
                f"verdict after the last key, {WAITING:,} jobs wait, p95",
                table.percentile(taken, 0.95),
                "s",
                0.7,
                detail,
            )
        ]
