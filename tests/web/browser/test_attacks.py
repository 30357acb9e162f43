"""Attacks in a real browser: pages of other sites, another name of the server, and hostile text where scripts draw."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import pytest_asyncio
from tests.api.jobs import test_outlook
from tests.web.browser import conftest, stills, test_stills
from tests.web.cluster import test_simulate
from tests.web.rendering import test_text

from oarlock.api import application as api
from oarlock.spec import refusals
from oarlock.web import application

pytestmark = pytest.mark.browser

ROUTES = [*application.PAGES, *api.TABLE]
UNSAFE = [(one.method, re.sub(r"{.*?}", "{job}", one.path)) for one in ROUTES if one.method != "GET"]
EVIL = "evil.example"
ATTACK = """async ([site, paths, fields]) => {
  const found = [];
  for (const path of paths) {
    const body = new URLSearchParams(fields);
    const asked = { method: "POST", body, mode: "no-cors", credentials: "include" };
    found.push(await fetch(site + path, asked).then((answer) => answer.type, () => "refused"));
    const form = document.createElement("form");
    const frame = Object.assign(document.createElement("iframe"), { name: "frame" + found.length });
    Object.assign(form, { method: "post", action: site + path, target: frame.name });
    for (const [name, value] of Object.entries(fields)) {
      form.append(Object.assign(document.createElement("input"), { name, value }));
    }
    document.body.append(frame, form);
    const loaded = new Promise((done) => (frame.onload = done));
    form.submit();
    await loaded;
  }
  return found;
}"""
IMAGE = "<img src=x onerror=alert(1)>"
MADE = """() => [...document.querySelectorAll("script:not([src]), img, iframe, [onerror], [onload], [onfocus]")]
  .map((one) => one.outerHTML.slice(0, 200))"""


@pytest_asyncio.fixture(loop_scope="session")
async def attacked(tmp_path: Path) -> AsyncIterator[stills.Still]:
    async with stills.serving(tmp_path, full=False) as still:
        yield still


@pytest_asyncio.fixture(loop_scope="session")
async def other_port() -> AsyncIterator[int]:
    """Another site: a server that answers every request with an empty page."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\nConnection: close\r\n\r\n")
        writer.write(b"<!doctype html>")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_no_page_of_another_site_does_anything(
    chromium: conftest.Chromium, attacked: stills.Still, other_port: int, name: str
) -> None:
    rig = attacked.rig
    job = await rig.submit("root", name="victim")
    (session,) = await rig.store.read(lambda view: view.sessions("root"))
    before = await rig.store.read(lambda view: (view.job(job.id), view.last_seq(), view.users()))
    watched, site = await chromium.open(attacked.url), f"http://{name}:{other_port}"
    context = watched.context
    watched.allow(site)
    watched.expect(
        rf"(status of 40[135]|net::ERR_BLOCKED_BY_RESPONSE).* at ({attacked.url}|chrome-error:/)/|frame-ancestors"
    )
    await context.add_cookies(attacked.cookies)
    page = await context.new_page()
    await page.goto(site + "/")
    fields = {"action": "cancel", "sure": "yes", "job": job.id, "sha256": session.sha256, "pool": "new", "user": "eve"}
    fields |= {"text": "command: 'true'", "workload": "small-first", "priority": "60"}
    paths = [path.format(job=job.id) for method, path in UNSAFE if method == "POST"]
    await page.evaluate(ATTACK, [attacked.url, paths, fields])
    own = await context.new_page()
    await own.goto(attacked.url + "/jobs/victim")
    assert await own.locator("h1").inner_text() == "victim", "the browser is logged in all the same"
    await context.close()
    assert await rig.store.read(lambda view: (view.job(job.id), view.last_seq(), view.users())) == before
    assert [one.sha256 for one in await rig.store.read(lambda view: view.sessions("root"))] == [session.sha256]


REBOUND = """async (asked) => {
  const found = {};
  for (const [method, path] of asked) found[`${method} ${path}`] = (await fetch(path, { method })).status;
  return found;
}"""


async def test_a_rebound_name_gets_nothing(chromium: conftest.Chromium, attacked: stills.Still) -> None:
    """The attacker's name has become that of this machine, so each request has the origin that it asks."""
    site = f"http://{EVIL}:{urlsplit(attacked.url).port}"
    watched = await chromium.open(site)
    watched.expect(rf"(status of 403|Cross-Origin-Opener-Policy header has been ignored).* at {site}/")
    context = watched.context
    page = await context.new_page()
    await page.goto(site + "/")  # its content policy lets the refused page ask its own origin
    safe = [("GET", path) for path in ("/", "/login", "/jobs", "/live", "/api/v1/jobs", "/healthz")]
    statuses = await page.evaluate(REBOUND, [*safe, *UNSAFE])
    await context.close()
    assert len(statuses) == len(safe) + len({*UNSAFE})
    assert [asked for asked, status in statuses.items() if status != 403] == []


async def test_hostile_text_that_scripts_draw_stays_text(chromium: conftest.Chromium, attacked: stills.Still) -> None:
    """Names of metrics, log lines and stacks are drawn by scripts, too: charts, completions, updates, the log."""
    rig: Any = attacked.rig
    texts = list(dict.fromkeys(one[:200] for one in test_text.HOSTILE if one.isprintable()))
    assert len(texts) >= 100
    job = await test_text.planted(rig, " ~ ".join(texts)[:4000])
    rig.store._state._jobs[job.id] = test_text.stored_with(job, texts[0] + test_text.WRAPPED[4])

    async def listed(job_id: str) -> list[str]:
        return texts

    rig.metrics.names = listed
    watched = await test_stills.opened(chromium, attacked)
    ran: list[str] = []
    for path in ("?sections=all", "/log", "/metrics", f"/metrics?name={test_text.WRAPPED[0]}", "/ranks/worker-0"):
        page = await watched.page(f"/jobs/{job.id}{path}")
        page.on("dialog", lambda dialog: ran.append(dialog.message))
        await test_stills.complete(page)
        assert await page.evaluate(MADE) == [], path
        assert ran == []
        await page.close()
    page = await watched.page(f"/submit?from={job.id}")
    await page.wait_for_selector("#numbers:visible")
    assert await page.evaluate(MADE) == []
    page = await watched.page("/jobs")
    await page.wait_for_selector(f"tbody a[href='/jobs/{job.id}']")
    assert await page.evaluate(MADE) == []
    await watched.context.close()


async def test_hostile_text_on_pages_of_several_jobs_stays_text(
    chromium: conftest.Chromium, attacked: stills.Still
) -> None:
    rig: Any = attacked.rig
    text = " ~ ".join(dict.fromkeys([IMAGE, *(one[:200] for one in test_text.HOSTILE if one.isprintable())]))[:4000]
    running = await test_outlook.fill(rig, "runs", 1)
    waits = await rig.submit("ann", name="waits", roles={"worker": {"gpus": 2}})
    failed = await test_text.planted(rig, text)
    holder = refusals.Holder(job="", name=text, owner=text, pool=text, amount={"gpus": 1.0})
    refusal = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message=text, holders=(holder,))
    jobs = rig.store._state._jobs
    jobs[running.id] = msgspec.structs.replace(jobs[running.id], name=text, pool=text)
    jobs[waits.id] = msgspec.structs.replace(jobs[waits.id], name=text, pool=text, refusal=refusal)
    jobs[failed.id] = test_text.stored_with(failed, text)
    simulation = await test_simulate.ended(rig)
    curves = {"devices": 1, "over": 1.0, "completion": ((1.0, 1.0),), "held": ((0.0, 1.0),), "useful": (), "bars": ()}
    outcome = {"titles": (text, text), "lines": ((text, text),), "reports": ()}
    outcome["curves"] = ({**curves, "run": text, "rows": (text,)},)
    await test_simulate.left(rig, simulation, msgspec.json.encode(outcome))
    watched = await test_stills.opened(chromium, attacked)
    ran: list[str] = []
    compared = f"/compare?job={failed.id}&job={running.id}&name={test_text.WRAPPED[0]}"
    for path in ("/", "/cluster", "/cluster?colour=pool&node=here", "/pools", compared, f"/simulate/{simulation.id}"):
        page = await watched.context.new_page()
        page.on("dialog", lambda dialog: ran.append(dialog.message))
        await page.goto(watched.url + path)
        await test_stills.complete(page)
        assert IMAGE in (await page.locator("main").text_content() or ""), f"{path} shows the text"
        assert await page.evaluate(MADE) == [], path
        assert ran == []
        await page.close()
    await watched.context.close()
