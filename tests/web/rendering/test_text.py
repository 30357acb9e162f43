"""Users' text stays text on every page: hostile strings in every field that a user controls."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import html5lib
import httpx
import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.jobs import test_outlook
from tests.web import browsers
from tests.web.cluster import test_simulate

from oarlock.data import filekeys, storage
from oarlock.spec import events, jobs, refusals
from oarlock.web import application
from oarlock.web.access import visits
from oarlock.web.rendering import tables, templating, texts

TAGS = [
    "script",
    "img src=x onerror=alert(1)",
    "svg onload=alert(1)",
    "iframe src=//e",
    "a href=javascript:alert(1)",
    "b",
]
ENDS = ["</title>", "</textarea>", "</pre>", "</svg>", "</style>", "</script>", "-->", "<!--", "]]>", "<![CDATA["]
QUOTES = ['"', "'", "`", '" onfocus="alert(1)', "' autofocus '", '"><script>alert(1)</script>', "\\", '\\"', "&quot;"]
TEMPLATES = ["{{ 7 * 7 }}", "{% raw %}", "${7*7}", "#{7*7}", "<%= 7 %>", "{{ config }}", "{# x #}"]
CODES = ["&lt;b&gt;", "&#60;b&#62;", "%3Cscript%3E", "\\u003cscript\\u003e", "\\x3cb\\x3e", "＜script＞", "&amp;lt;"]
HIDDEN = [
    "\u202egnp.exe",
    "\u2066a\u2069",
    "\u200b",
    "a\u200db",
    "\ufeff",
    "\u00ad",
    "\u2028",
    "\x1b[31mred",
    "\x08",
    "\x7f",
]
SHEETS = ["=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("//e")', "\t=1"]
PATHS = ["../../etc/passwd", "//evil.example", "javascript:alert(1)", "data:text/html,x", "file:///etc", "%00", "C:\\x"]
MARKUP = ["hx-get=/x", "data-hx-get", "<hx-partial>", "<template>", "<form action=//e>", "<meta http-equiv=refresh>"]
LARGE = ["A" * 5000, "<" * 1000, "é" * 999, "\U0001f600", "漢字", "ا", "a" * 300 + "<b>"]
WRAPPED = [
    f"{left}{tag}{right}" for tag in TAGS for left, right in (("<", ">"), ("</", ">"), ('"><', ">"), ("<", "//"))
]
HOSTILE = [
    *ENDS, *QUOTES, *TEMPLATES, *CODES, *HIDDEN, *SHEETS, *PATHS, *MARKUP, *LARGE, *WRAPPED,
    *(f"x{one}y" for one in (*ENDS, *QUOTES)),
]  # fmt: skip
PLAIN = "plain"
TOGETHER = 8
"""Strings in one text: a page is made for each."""


async def planted(rig: browsers.WebRig, text: str) -> jobs.Job:
    """A job that has failed, with the text in every field that its owner or its processes control."""
    job = await rig.submit("ann", command="true", name=f"n{rig.clock.now:.0f}", max_restarts=0)
    job = await rig.launch(job)
    key = rigs.key_of(job)
    where = {"key": key}
    await rig.happen(
        job.id,
        events.TaskRegistered(**where, address="127.0.0.1"),
        events.TaskReported(**where, phase="PROCESSING", detail=text),
        events.StacksAsked(attempt=1, task="worker-0", message=text),
        events.StacksTaken(**where, request=1, stacks={"0": text}),
        events.CheckpointVisible(checkpoint_step=3, attempt=1, path=text),
    )
    await rig.logs.append(key, "stdout.0", 0, text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n", at=1.0)
    await rig.end(job.id, code=1, last_lines=(text,))

    place = {"job": job.id, "step": 3, "attempt": 1, "round": 1, "path": f"s3://{text}"}
    checkpoint = jobs.Checkpoint(**place, manifest_sha256="0", bytes=1, at=1.0)
    await rig.store.write(lambda tx: tx.add_checkpoint(checkpoint))

    async def series(job_id: str, names: list[str] | None = None, **_: object) -> list[storage.Series]:
        point = [storage.Point(step, 2.0, float(step)) for step in range(3)]
        return [storage.Series(task=text, process=0, name=text, points=tuple(point), count=3)]

    async def listed(job_id: str) -> list[str]:
        return [text]

    rig.metrics.series, rig.metrics.names = series, listed  # type: ignore[method-assign]
    found = await rig.store.read(lambda view: view.job(job.id))
    assert found is not None
    return found


def stored_with(job: jobs.Job, text: str) -> jobs.Job:
    """The job with the text in the fields that a submission would have refused today: an older server may have not."""
    spec = msgspec.structs.replace(job.spec, command=("python", text), env={text: text}, results=text)
    verdict = msgspec.structs.replace(job.attempts[0].verdict, message=text, hint=text, task=text)  # type: ignore[type-var]
    last = msgspec.structs.replace(job.attempts[0], verdict=verdict, no_restart=text, reason=text)
    told = {"name": text, "owner": "ann", "reason": text, "sent_from": text, "snapshot": "0" * 64}
    return msgspec.structs.replace(job, spec=spec, attempts=(last,), **told)


async def pages(rig: browsers.WebRig, text: str) -> list[str]:
    """Every page that shows the job."""
    job = await planted(rig, text)
    shown = stored_with(job, text)
    rig.store._state._jobs[job.id] = shown
    found = []
    async with rig.browser("ann") as browser:
        job_page = f"/jobs/{job.id}"
        for path in ("/", "/jobs", f"{job_page}?sections=all", f"/submit?from={job.id}", f"{job_page}/ranks/worker-0"):
            answer = await browser.get(path)
            assert answer.status_code == 200, rig.reports
            found.append(answer.text)
        found.append((await browser.get("/compare", params={"job": job.id, "name": text[:200], "q": "~none"})).text)
        answer = await browser.get("/jobs", params={"text": text[:200], "pool": text[:200], "name": text[:200]})
        found.append(answer.text)
        answer = await browser.post("/jobs", data={"action": "remove", "job": job.id}, headers=browsers.OURS)
        assert answer.status_code == 200
        found.append(answer.text)
        found.append((await browser.get("/jobs/" + "%3C" + text.encode("utf-8", "replace").hex())).text)
        assert (await browser.get("/jobs.csv")).status_code == 200
    await rig.store.write(lambda tx: tx.remove_jobs([job.id], at=1.0))
    return found


def test_there_are_a_hundred_hostile_strings() -> None:
    assert len(set(HOSTILE)) >= 100


async def test_hostile_text_makes_no_element_and_reads_as_sent(rig: browsers.WebRig) -> None:
    async def usual(text: str) -> list[str]:
        rig.clock.now += 60
        return await pages(rig, text)

    plain = [browsers.elements(page) for page in await usual(PLAIN)]
    for first in range(0, len(HOSTILE), TOGETHER):
        several = HOSTILE[first : first + TOGETHER]
        found = await usual(" ~ ".join(several))
        for page, expected in zip(found, plain, strict=True):
            assert browsers.elements(page) == expected, several
        read = browsers.text(found[2])
        unread = [one for one in several if texts.visible(one[:300]).strip() not in read]
        assert unread == [], several


FORMS = {
    "GET /": ("sections",),
    "GET /jobs": (
        "text",
        "pool",
        "owner",
        "name",
        "since",
        "until",
        "sort",
        "ascending",
        "phase",
        "after",
        "seen",
        "column",
    ),
    "GET /cluster": ("node", "in", "group", "colour", "span", "first"),
    "GET /pools": ("span",),
    "GET /usage": ("by", "span"),
    "GET /compare": ("job", "q", "name", "x", "best", "log", "first", "last", "from", "to", "smooth"),
    "GET /submit": ("from", "example"),
    "GET /users": ("user",),
    "GET /pools/edit": ("pool",),
    "GET /pools/remove": ("pool",),
    "POST /pools/remove": ("pool",),
    "GET /login": ("next",),
    "GET /jobs/{job}/log": (
        *("q", "task", "attempt", "stream", "since", "until", "line", "at", "back", "times", "exact", "wrap"),
        *("regex", "apart"),
    ),
    "GET /jobs/{job}/metrics": ("q", "x", "ranks", "name", "log", "first", "last", "from", "to", "smooth"),
    "GET /jobs/{job}": ("sections", "decision", "decisions", "ranks", "attempt"),
    "GET /jobs/{job}/ranks/{task}": ("attempt",),
    "POST /pools/edit": (
        "pool",
        "parent",
        "policy",
        "reserve",
        "limit",
        "share",
        "static",
        "version",
        "previewed",
        "action",
    ),
    "POST /users": ("user", "right", "note", "action", "sha256", "number", "sure"),
    "POST /simulate": ("workload", "nodes", "seed", "text", "policy", "node_mtbf_s"),
    "POST /submit": (
        "text",
        "field.name",
        "field.command",
        "field.env",
        "changed",
        "code",
        "source",
        "digest",
        "number",
        "action",
    ),
    "POST /jobs/{job}/set": ("priority", "pool", "min", "max"),
    "POST /jobs": ("action", "job", "sure"),
    "POST /jobs/{job}/again": ("key",),
    "POST /sessions": ("sha256",),
}
"""The fields that a reader types, or can put into an address, of each page."""
KEPT = {
    "POST /pools/edit": ("parent", "policy", "reserve", "limit", "share", "static"),
    "POST /users": ("user",),
    "POST /simulate": ("nodes", "seed"),
    "GET /jobs": ("text", "pool", "owner", "name"),
    "GET /cluster": ("node",),
    "GET /jobs/{job}/log": ("q",),
}
"""The fields with a text that the page shows again for editing."""
ASKING = {
    "GET /jobs/{job}": {"sections": "all", "attempt": ""},
    "POST /pools/edit": {"pool": "new", "action": "preview"},
    "POST /users": {"action": "add"},
    "POST /simulate": {"workload": "small-first"},
    "POST /submit": {"action": "check"},
}
OF_SESSIONS = ("POST /logout", "POST /login")
"""They end the session of the test, or begin another one."""
NOT_SHOWN = {tables.PARAMETER, "part"}
"""With these the answer is a table, or a part of a page."""
PER_PAGE = 12


async def filled(browser: httpx.AsyncClient, page: str, job: str, fields: dict[str, str]) -> str:
    method, _, path = page.partition(" ")
    path = path.format(job=job, task="worker-0")
    if method == "GET":
        answer = await browser.get(path, params=fields)
    else:
        answer = await browser.post(path, data=fields, headers=browsers.OURS)
    assert answer.status_code < 500, (page, fields)
    return answer.text


def values(page: str) -> dict[str, str]:
    """The texts of the fields of a page, by name."""
    tree = html5lib.parse(page, namespaceHTMLElements=False)
    return {one.get("name") or "": one.get("value") or "" for one in tree.iter("input")}


@pytest.mark.parametrize("page", FORMS)
async def test_hostile_text_that_is_typed_makes_no_element_and_comes_back_as_typed(
    rig: browsers.WebRig, page: str
) -> None:
    job = (await rig.submit("root", name="typed")).id
    async with rig.browser("root") as browser:
        allowed: set[str] = set()
        for text in ("", PLAIN, "a b", "9", "yes", "gpus=1", job):
            allowed |= set(browsers.elements(await filled(browser, page, job, dict.fromkeys(FORMS[page], text))))
            fields = {**dict.fromkeys(FORMS[page], text), **ASKING.get(page, {})}
            allowed |= set(browsers.elements(await filled(browser, page, job, fields)))
        for number in range(0, len(HOSTILE), PER_PAGE):
            text = " ~ ".join(HOSTILE[number : number + PER_PAGE])[:150].strip()
            fields = {**dict.fromkeys(FORMS[page], text), **ASKING.get(page, {})}
            for typed in (fields, {**fields, **dict.fromkeys(FORMS[page], text)}):
                answer = await filled(browser, page, job, typed)
                assert set(browsers.elements(answer)) <= allowed, typed
            kept = dict.fromkeys(KEPT.get(page, ()), text)
            shown = values(await filled(browser, page, job, {**ASKING.get(page, {}), **kept})) if kept else {}
            for name in kept:
                assert shown.get(name) in (texts.typed(text).unescape(), texts.visible(text)), name


async def test_every_field_that_a_page_reads_is_tried(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that a page reads, and FORMS lacks, would be tried with no hostile text."""
    read: set[str] = set()

    class Fields(dict[str, list[str]]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

    decoded = visits._decoded
    job = await rig.launch(await rig.submit("root", name="read"))
    missing = {}
    async with rig.browser("root") as browser:
        monkeypatch.setattr(visits, "_decoded", lambda raw: Fields(decoded(raw)))
        for page in application.PAGES:
            key = f"{page.method} {page.path}"
            if page.stream or page.script or key in OF_SESSIONS:
                continue
            read.clear()
            known = dict.fromkeys(FORMS.get(key, ()), "x")
            told = [
                await filled(browser, key, job.id, {**known, **more})
                for more in ({}, ASKING.get(key, {}), {"sections": "all"}, {"action": "cancel", "job": job.id})
            ]
            new = {one for one in read - set(known) - NOT_SHOWN if not one.startswith(("field.", "was."))}
            if new and (page.method == "POST" or any(text.startswith("<!doctype html>") for text in told)):
                missing[key] = new
    assert missing == {}


async def test_hostile_names_on_the_cluster_are_text(rig: browsers.WebRig) -> None:
    job = await test_outlook.fill(rig, "runs", 1)
    waits = await rig.submit("ann", name="waits", roles={"worker": {"gpus": 2}})
    seen: list[Any] = []
    async with rig.browser("ann") as browser:
        for first in (-PER_PAGE, *range(0, len(HOSTILE), PER_PAGE)):
            text = PLAIN if first < 0 else " ~ ".join(HOSTILE[first : first + PER_PAGE])
            refusal = refusals.Refusal(
                code=refusals.Code.NO_CAPACITY,
                message=text,
                holders=(refusals.Holder(job="", name=text, owner=text, pool=text, amount={"gpus": 1.0}),),
            )
            for one, more in ((job, {}), (waits, {"refusal": refusal})):
                told = {"name": text, "pool": text, **more}
                rig.store._state._jobs[one.id] = msgspec.structs.replace(rig.store._state._jobs[one.id], **told)
            await rig.happen(waits.id, events.Edited(priority=7))  # the forecast is made anew
            paths = ("/cluster", "/cluster?colour=pool&node=here", "/", "/pools", "/usage?by=pool", f"/jobs/{waits.id}")
            found = [(await browser.get(path)).text for path in paths]
            elements = [browsers.elements(page) for page in found]
            seen = seen or elements
            assert elements == seen, text
            assert texts.visible(text[:100]) in browsers.text(found[0])
            holders = found[-1][found[-1].index('data-table="holders"') :].partition("</table>")[0]
            assert texts.visible(text[:20]) in browsers.text(holders)


async def test_hostile_names_of_files_are_text(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="leaves"))
    await rig.end(job.id, code=0)
    place = Path(rig.services.about.home) / "files" / job.id / "worker-0" / "attempt-1"
    plain = None
    async with rig.browser("ann") as browser:
        for text in [PLAIN, *HOSTILE]:
            name = text.replace("/", "|").encode("utf-8", "replace")[:200].decode("utf-8", "ignore")
            await asyncio.to_thread(left, place, name)
            page = (await browser.get(f"/jobs/{job.id}?sections=files")).text
            plain = plain or browsers.elements(page)
            assert browsers.elements(page) == plain, text
            shown = texts.visible(filekeys.of(os.fsencode(name)))
            assert " ".join(shown.split()) in " ".join(browsers.text(page).split())


def left(place: Path, name: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / name).write_text("x")


async def test_hostile_text_in_the_file_of_a_simulation_is_text(rig: browsers.WebRig) -> None:
    job = await test_simulate.ended(rig)
    curves = {"devices": 1, "over": 1.0, "completion": ((1.0, 1.0),), "held": ((0.0, 1.0),), "useful": (), "bars": ()}
    seen: Any = None
    async with rig.browser("ann") as browser:
        for first in (-PER_PAGE, *range(0, len(HOSTILE), PER_PAGE)):
            text = PLAIN if first < 0 else " ~ ".join(HOSTILE[first : first + PER_PAGE])
            told = {"titles": (text, text), "lines": ((text, text),), "reports": ()}
            outcome = {**told, "curves": ({**curves, "run": text, "rows": (text,)},)}
            content = msgspec.json.encode(outcome).replace(b"\xed\xa0\x80", b"?")
            await asyncio.to_thread(shutil.rmtree, Path(rig.services.about.home) / "files" / job.id, True)
            await test_simulate.left(rig, job, content)
            page = (await browser.get(f"/simulate/{job.id}")).text
            assert "left no results" not in page
            seen = seen or browsers.elements(page)
            assert browsers.elements(page) == seen, text
            assert texts.visible(text[:60]) in browsers.text(page)


async def test_hostile_names_of_browsers_and_tokens_are_text(rig: browsers.WebRig) -> None:
    plain = None
    for text in [PLAIN, *(one for one in HOSTILE if one.isprintable() and one.isascii() and one.strip())]:
        async with rig.as_user("root") as http:
            answer = await http.post("/api/v1/users/vera/tokens", json={"note": text[:200]})
            assert answer.status_code == 201, answer.text
        async with rig.browser("vera", **{"User-Agent": text}) as browser:
            own = (await browser.get("/sessions")).text
            assert (await browser.post("/logout", headers=browsers.OURS)).status_code == 303
        async with rig.browser("root") as browser:
            listed = (await browser.get("/users?user=vera")).text
        async with rig.as_user("root") as http:
            digest = answer.json()["sha256"]
            assert (await http.delete(f"/api/v1/users/vera/tokens/{digest}")).status_code == 204
        found = [browsers.elements(own), browsers.elements(listed)]
        plain = plain or found
        assert found == plain, text
        assert text[:100] in browsers.text(own)
        assert text[:200] in browsers.text(listed)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain é 漢字", "plain é 漢字"),
        ("\u202eabc", "[U+202E]abc"),
        ("a\x00b\x1b", "a[U+0000]b[U+001B]"),
        ("\ud800", "[U+D800]"),
        ("a\tb\nc", "a\tb\nc"),
    ],
)
def test_hidden_characters_become_visible(given: str, shown: str) -> None:
    assert texts.visible(given) == shown


@pytest.mark.parametrize(
    ("given", "cell"),
    [
        ("=1", "'=1"),
        ("@a", "'@a"),
        ("-x", "'-x"),
        ("+1", "'+1"),
        ("\t=1", "'\t=1"),
        (-1.5, "-1.5"),
        ("a=1", "a=1"),
        (None, ""),
    ],
)
def test_no_cell_is_a_formula(given: object, cell: str) -> None:
    assert texts.cell(given) == cell


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        (" 10%\r 20%\r 30%", " 30%"),
        ("done\r", "done"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        ("a" * 3000, "a" * 2000 + "… (3,000 characters)"),
    ],
)
def test_a_line_of_a_log_reads_as_on_a_terminal(line: str, shown: str) -> None:
    assert templating.log_text(line) == shown
