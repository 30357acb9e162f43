"""Tables as CSV: every table of every page has its link, and the file has the cells of the page."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from pathlib import Path
from urllib.parse import unquote, urljoin
from xml.etree import ElementTree as ET

import html5lib
import pytest
from tests.web import browsers
from tests.web.browser import stills
from tests.web.cluster import test_simulate

from oarlock.spec.cluster import pools
from oarlock.web.pages import home
from oarlock.web.pages.administration import users
from oarlock.web.pages.jobs import jobsections
from oarlock.web.rendering import tables, templating

OWN = {"/jobs": "/jobs.csv", "/compare": "/compare.csv"}
"""Pages whose tables have a file of their own: it has more than the page."""
ASKED = ("/?sections=day", "/jobs/runs?sections=all", "/jobs/fails?sections=all", "/jobs/waits?sections=all")


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def plain(text: str) -> str:
    return " ".join(text.replace(";", " ").split())


def walked(one: ET.Element) -> list[str]:
    if one.tag.rpartition("}")[2] in ("svg", "form", "button"):
        inner = [one.get("aria-label") or ""]
    elif one.tag in ("time", "data"):
        inner = [one.get("datetime") or one.get("value") or ""]
    elif one.get("aria-hidden") == "true":
        inner = []
    else:
        inner = [one.text or "", *(text for child in one for text in [*walked(child), child.tail or ""])]
    return ["\n", *inner] if one.tag == "p" else inner


def cells(table: ET.Element) -> list[list[str]]:
    found = [[cell for cell in row if cell.tag in ("td", "th")] for row in table.iter("tr")]
    kept = [place for place, cell in enumerate(found[0]) if cell.get("class") not in ("act", "drawn")]
    return [[" ".join("".join(walked(row[place])).split()) for place in kept if place < len(row)] for row in found]


async def test_every_table_of_every_page_downloads_with_the_cells_of_the_page(
    rig: browsers.WebRig, tmp_path: Path
) -> None:
    await stills._fill(rig)
    simulation = await test_simulate.ended(rig)
    await test_simulate.left(rig, simulation, await asyncio.to_thread(test_simulate.recorded, tmp_path))
    seen = set()
    async with rig.browser("root") as browser:
        for path in (*stills.FULL.values(), *ASKED, f"/simulate/{simulation.id}"):
            page = (await browser.get(path)).text
            links = {urljoin(path, one) for one in browsers.links(page) if one.startswith("?") or ".csv" in one}
            for table in html5lib.parse(page, namespaceHTMLElements=False).iter("table"):
                name = table.get("data-table")
                assert name, path
                bare = path.partition("?")[0]
                if bare in OWN:
                    assert any(one.partition("?")[0] == OWN[bare] for one in links), path
                    continue
                (link,) = [one for one in links if re.search(rf"[?&]csv={re.escape(name)}$", one)]
                answer = await browser.get(link)
                assert answer.status_code == 200, link
                assert answer.headers["content-type"].startswith("text/csv")
                assert answer.headers["content-disposition"] == f'attachment; filename="{name}.csv"'
                told = [[plain(cell.lstrip("'")) for cell in row] for row in rows(answer.text)]
                expected = [[plain(cell) for cell in row] for row in cells(table)]
                assert told == expected, link
                seen.add(name)
    assert seen >= {"running", "waiting", "failures", "devices", "day", "pools", "jobs", "ranks", "decisions", "events"}
    assert seen >= {"attempts", "timeline", "variables", "metrics", "usage", "fields", "users", "tokens", "sessions"}
    assert seen >= {"simulations", "figures", "group-h100", "use"}


async def test_every_table_of_an_answer_to_a_form_downloads_with_the_cells_of_the_page(rig: browsers.WebRig) -> None:
    """Also where the answer has no address: there the link has the file."""
    await stills._fill(rig)
    await test_simulate.ended(rig)
    runs, fails = [job.id for job in await rig.store.read(lambda view: [view.find(one) for one in ("runs", "fails")])]
    token = (await rig.store.read(lambda view: view.tokens("bob")))[0].sha256
    forms: list[tuple[str, dict[str, str | list[str]], set[str]]] = [
        ("/jobs", {"action": "halt", "job": [runs, fails]}, {"lost"}),
        ("/jobs?phase=FAILED&text=%3C", {"action": "cancel", "job": runs}, {"lost"}),
        ("/jobs", {"action": "remove", "job": fails}, {"lost"}),
        ("/jobs?phase=FAILED", {"action": "halt", "job": ["=nowhere", fails], "sure": "yes"}, {"results"}),
        ("/users", {"action": "add", "user": "=1+1"}, {"users"}),
        ("/users", {"action": "token", "user": "bob", "note": "=laptop", "number": "1"}, {"users", "tokens"}),
        ("/users", {"action": "token", "user": "bob", "note": "", "number": "1"}, {"users", "tokens"}),
        ("/users", {"action": "revoke", "user": "bob", "sha256": token}, set()),
        ("/submit", {"action": "check", "text": "command: true"}, {"fields"}),
        ("/simulate", {"workload": "nonsense"}, {"simulations"}),
    ]
    async with rig.browser("root") as browser:
        for path, form, names in forms:
            page = (await browser.post(path, data=form, headers=browsers.OURS)).text
            browsers.elements(page)
            links = [one for one in browsers.links(page) if one.startswith("data:") or "csv=" in one]
            found = {}
            for table in html5lib.parse(page, namespaceHTMLElements=False).iter("table"):
                name = str(table.get("data-table"))
                (link,) = [one for one in links if one.startswith("data:") or one.endswith(f"csv={name}")]
                if link.startswith("data:"):
                    media, _, text = link.partition(",")
                    assert media == "data:text/csv;charset=utf-8"
                    assert f'download="{name}.csv"' in page
                    found[name] = unquote(text)
                else:
                    answer = await browser.get(urljoin(path, link))
                    assert answer.status_code == 200, (path, link)
                    found[name] = answer.text
                told = [[plain(cell.lstrip("'")) for cell in row] for row in rows(found[name])]
                expected = [[plain(cell.lstrip("'")) for cell in row] for row in cells(table)]
                assert told == expected, (path, form)
            assert found.keys() == names, (path, form)
            assert not any(cell.startswith("=") for text in found.values() for row in rows(text) for cell in row)


def test_every_table_of_the_templates_has_a_name_and_a_link() -> None:
    without = {"jobs/jobs.html", "jobs/compare.html"}  # lists with their own files
    for file in sorted(templating.FOLDER.rglob("*.html")):
        text = file.read_text()
        named = re.findall(r'<table data-table="([^"]+)"', text)
        assert len(named) == text.count("<table"), file
        if str(file.relative_to(templating.FOLDER)) not in without:
            assert len(re.findall(r"\{\{ csv(_carried)?\(", text)) == len(named), file


async def test_a_file_has_the_rows_that_its_page_leaves_out(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = {"SHOWN": 1, "WAITING": 1, "FAILED": 1, "POOLS": 1, "TYPES": 0, "OWN": 1, "LARGEST_PAGE": 1}
    for name, most in bounds.items():
        monkeypatch.setattr(home, name, most)
    for name in ("EVENTS", "DECISIONS"):
        monkeypatch.setattr(jobsections, name, 1)
    monkeypatch.setattr(users, "MOST_USERS", 1)
    for name in ("runs-a", "runs-b"):
        await rig.launch(await rig.submit("ann", name=name))
    for name in ("waits-a", "waits-b"):
        await rig.submit("ann", name=name, roles={"worker": {"gpus": 2}})
    for name in ("fails-a", "fails-b"):
        failed = await rig.end((await rig.launch(await rig.submit("ann", name=name, max_restarts=0))).id, code=1)
    for number in range(2):
        await rig.store.write(lambda tx, number=number: tx.put_pool(pools.Pool(name=f"pool-{number}")))
    wanted = {
        "/?csv=running": {"runs-a", "runs-b"},
        "/?csv=waiting": {"waits-a", "waits-b"},
        "/?csv=failures": {"fails-a", "fails-b"},
        "/?csv=pools": {"pool-0", "pool-1", "default"},
        "/?csv=devices": {"h100", "CPUs"},
        "/?sections=day&csv=day": {"h100"},
        f"/jobs/{failed.id}?sections=events&csv=events": {"submitted", "admitted", "task_exited"},
        "/users?csv=users": {"ann", "bob", "root"},
    }
    async with rig.browser("root") as browser:
        for path, names in wanted.items():
            page = await browser.get(re.sub("[?&]csv=.*", "", path))
            file = rows((await browser.get(path)).text)
            assert names <= {cell for row in file for cell in row}, path
            if path.startswith("/?csv"):
                assert not all(f">{name}<" in page.text for name in names), f"{path}: the page leaves some out"
        monkeypatch.setattr(tables, "FILE_ROWS", 1)
        cut = rows((await browser.get("/?csv=failures")).text)
        assert [row[0] for row in cut] == ["Job", "fails-b", "cut after 1 rows"]


async def test_an_unknown_table_is_not_found(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        for path in ("/pools?csv=nothing", "/simulate?csv=%3Cscript%3E", "/?csv=day"):
            answer = await browser.get(path)
            assert answer.status_code == 404
            assert "no such table" in browsers.text(answer.text)


async def test_a_table_is_refused_to_those_who_may_not_see_its_page(rig: browsers.WebRig) -> None:
    job = await rig.submit("ann", name="hers")
    async with rig.browser("bob") as browser:
        assert (await browser.get("/users?csv=users")).status_code == 403
        assert (await browser.get(f"/jobs/{job.id}?sections=events&csv=events")).status_code == 404


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("=1+1", "'=1+1"),
        ("<b>@</b>sum", "'@sum"),
        ("-x", "'-x"),
        ("-1.5", "-1.5"),
        ("+1", "'+1"),
        ('<data value="1234.5678">1,234.57</data>', "1234.5678"),
        ('<time datetime="2026-01-31T12:00:00.0Z">3m ago</time>', "2026-01-31T12:00:00.0Z"),
        ("<p>one &amp; two</p>\n<p>three</p>", "one & two; three"),
        ('<svg role="img" aria-label="half"><rect/><title>x</title></svg> used', "half used"),
        ("a<form><button>End</button></form>", "a"),
        ("<span aria-hidden='true'>x<span>y</span></span> word", "word"),
        ("a &lt;table data-table='two'&gt;\n b", "a <table data-table='two'> b"),
    ],
)
def test_a_cell(cell: str, told: str) -> None:
    head = '<tr><th class="act">Action</th><th>Name</th></tr>'
    table = f'<table data-table="two">{head}<tr><td>go</td><td>{cell}</td></tr></table>'
    page = f'<table data-table="one"><tr><td>1</td></tr></table>{table}'
    text = tables.sheet(page, "two")
    assert text is not None
    assert rows(text) == [["Name"], [told]]
