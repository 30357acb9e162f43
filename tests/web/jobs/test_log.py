"""The page of a log: where it opens, what a terminal would show, equal lines of ranks, and hits."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.api import rig as rigs
from tests.cli import typed
from tests.web import browsers
from tests.web.browser import stills
from tests.web.rendering import test_text

from oarlock.api.jobs import capabilities
from oarlock.cli.verbs.results import logs as printing
from oarlock.spec import attempts, jobs, tasklogs
from oarlock.web.drawing import folding, terminal
from oarlock.web.pages.jobs import log


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", [("plain", "")]),
        ("", []),
        ("\x1b[31mred\x1b[0m and not", [("red", "f1"), (" and not", "")]),
        ("\x1b[1;92mbold\x1b[22m green\x1b[39m x", [("bold", "f2 bold"), (" green", "f2"), (" x", "")]),
        ("\x1b[30;47mblack on white", [("black on white", "f7 g7")]),
        ("\x1b[38;5;196mred\x1b[48;5;21m blue ground\x1b[49m", [("red", "f1"), (" blue ground", "f1 g4")]),
        ("\x1b[38;2;10;200;20mgreen", [("green", "f2")]),
        ("\x1b[38;2;1mbroken", [("broken", "")]),
        ("\x1b[38;5mbroken", [("broken", "")]),
        ("\x1b[999999999999999999999999mx", [("x", "")]),
        ("\x1b[" + "1" * 5000 + "mx", [("x", "")]),
        ("\x1b[" + "1;" * 5000 + "mx", [("x", "bold")]),
        (" 10%\r 20%\r 30%", [(" 30%", "")]),
        ("done\r", [("done", "")]),
        ("a long line\rshort", [("short", ""), ("g line", "")]),
        ("a long line\r\x1b[Kshort", [("short", "")]),
        ("a long line\rshort\r\x1b[32mno", [("no", "f2"), ("ort", ""), ("g line", "")]),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", [("link", "")]),
        ("\x1b[2J\x1b[5Cx", [("x", "")]),
        ("a" * 5001, [("a" * 5000 + "… (5,001 characters)", "")]),
        ("\x1b[31m" + "a" * 5001, [("a" * 5000, "f1"), ("… (5,001 characters)", "")]),
    ],
)
def test_a_line_as_a_terminal_shows_it(line: str, shown: list[tuple[str, str]]) -> None:
    got = [(run.text, run.classes) for run in terminal.runs(line)]
    merged: list[tuple[str, str]] = []
    for text, classes in shown:  # neighbours of one style are one run
        if merged and merged[-1][1] == classes:
            merged[-1] = (merged[-1][0] + text, classes)
        else:
            merged.append((text, classes))
    assert got == merged


def test_a_progress_bar_of_64_kib_is_one_short_line() -> None:
    line = "".join(f"\r\x1b[32m{number:5d}/9999\x1b[0m it" for number in range(3000))
    assert [run.text for run in terminal.runs(line)] == [" 2999/9999", " it"]


def line(told: str, at: float = 1.0, *, partial: bool = False, offset: int = 0) -> tasklogs.Line:
    """A line from `RANK text`."""
    rank, _, text = told.partition(" ")
    key: dict[str, Any] = {"task": f"worker-{rank}", "attempt": 1, "incarnation": 1, "stream": "stdout.0"}
    return tasklogs.Line(**key, offset=offset, at=at, text=text, partial=partial)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (["0 a", "1 a", "2 a"], ["a x3"]),
        (["0 a", "0 b", "1 a", "1 b"], ["a x2", "b x2"]),
        (["0 a", "1 b", "1 a", "0 b"], ["a", "b x2", "a"]),
        (["0 a", "0 a"], ["a", "a"]),
        (["0 a", "0 a", "1 a", "1 a"], ["a x2", "a x2"]),
        (["0 a", "1 a", "0 a", "1 a"], ["a x2", "a x2"]),
        (["0 ", "1 "], ["", ""]),
        (["0 a", "1 A"], ["a", "A"]),
    ],
)
def test_equal_lines_of_ranks_fold_and_each_rank_keeps_its_order(told: list[str], expected: list[str]) -> None:
    rows = folding.rows([line(one, offset=number) for number, one in enumerate(told)])
    assert [row.line.text + (f" x{1 + len(row.others)}" if row.others else "") for row in rows] == expected
    assert sum(len(row.addresses) for row in rows) == len(told)
    apart = folding.rows([line(one, offset=number) for number, one in enumerate(told)], fold=False)
    assert len(apart) == len(told)


def test_lines_that_are_far_from_each_other_do_not_fold() -> None:
    assert len(folding.rows([line("0 a", 1.0), line("1 a", 60.0)])) == 2
    between = [line(f"2 {number}", offset=number) for number in range(folding.NEAR_ROWS)]
    assert len(folding.rows([line("0 a"), *between, line("1 a")])) == 2 + len(between)


def test_a_line_without_an_end_is_a_row_of_its_own_which_comes_again() -> None:
    several = [line("0 a", partial=True), line("1 a"), line("2 a", partial=True)]
    found = folding.rows(several, unended=[0, 2])
    assert [(row.line.task, row.open, row.others) for row in found] == [
        ("worker-0", True, []),
        ("worker-1", False, []),
        ("worker-2", True, []),
    ]


def test_a_line_that_is_redrawn_for_long_is_one_row() -> None:
    pieces = [line("0 \r 10%", partial=True), line("0 \r 20%", partial=True, offset=9), line("0 \r 30%", offset=18)]
    assert [row.line.text for row in folding.rows(pieces)] == ["\r 30%"]
    pieces = [line("0 one", partial=True), line("0 two", offset=9)]
    assert [row.line.text for row in folding.rows(pieces)] == ["one", "two"]
    pieces = [line("0 one", partial=True), line("0 two\r", offset=9)]
    assert [row.line.text for row in folding.rows(pieces)] == ["one", "two\r"]


def test_a_line_with_a_colour_for_each_letter_has_few_runs() -> None:
    shown = terminal.runs("".join(f"\x1b[3{1 + number % 6}ma" for number in range(650)))
    assert (len(shown), "".join(run.text for run in shown)) == (terminal.MOST_RUNS, "a" * 650)


async def logged(
    rig: browsers.WebRig, workers: int = 1, lines: int = 40, end: int | None = None, name: str = "train"
) -> jobs.Job:
    job = await rig.submit("ann", name=name, max_restarts=0, roles={"worker": {"count": workers}})
    job = await rig.launch(job)
    for index in range(workers):
        text = "".join(f"step {number} of {index}\n" for number in range(lines)).encode()
        await rig.logs.append(rigs.key_of(job, index), "stdout.0", 0, text + b"everybody\n", at=2.0 + index)
    if end is not None:
        await rig.end(job.id, code=end)
    return job


def ids(page: str) -> list[str]:
    return re.findall(r'<li id="([^"]+)"', page)


async def test_the_page_opens_at_the_end_and_its_parts_lead_through_the_whole_log(rig: browsers.WebRig) -> None:
    job = await logged(rig, lines=2500)
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/log")).text
        browsers.elements(page)
        found = ids(page)
        assert len(found) == 1000
        assert ("everybody" in page, "step 2499 of 0" in page, 'data-poll="500"' in page) == (True, True, True)
        before = re.findall(r'data-before="([^"]+)"', page)[0]
        for _ in range(3):
            answer = await browser.get(f"/jobs/{job.id}/log/lines", params={"place": before, "before": "900"})
            found = [*ids(answer.text), *found]
            before = re.findall(r'data-before="([^"]+)"', answer.text)[0]
        assert (len(found), len(set(found))) == (2501, 2501)
        start = await browser.get(f"/jobs/{job.id}/log", params={"at": "start"})
        assert ids(start.text) == found[:1000]


async def test_a_failed_job_s_log_opens_at_the_last_line_of_the_rank_to_blame(rig: browsers.WebRig) -> None:
    job = await logged(rig, workers=3, end=1)
    shown = await rig.store.read(lambda view: view.job(job.id))
    assert shown is not None
    blamed = shown.attempts[-1].verdict.task
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/log")).text
        assert f"Opened at the last line of {blamed}" in browsers.text(page)
        chosen = re.findall(r'<li id="([^"]+)" class="chosen"', page)
        assert [one.partition(":")[0] for one in chosen] == [blamed]
        assert 'data-poll="0"' in page
        for other in ("?at=end", "?task=worker-1", "?q=step"):
            page = browsers.text((await browser.get(f"/jobs/{job.id}/log{other}")).text)
            assert "Opened at" not in page


async def test_a_line_s_link_leads_to_the_line_with_its_filters(rig: browsers.WebRig) -> None:
    job = await logged(rig, workers=2)
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/log?task=worker-1&wrap=yes")).text
        assert "of 0" not in page
        links = [one for one in browsers.links(page) if "&line=" in one.replace("&amp;", "&")]
        assert len(links) >= 41
        path, _, target = links[7].partition("#")
        again = (await browser.get(path)).text
        assert re.findall(r'<li id="([^"]+)" class="chosen"', again) == [target]
        assert ids(again) == ids(page)


async def test_hits_are_counted_and_lead_to_each_other(rig: browsers.WebRig) -> None:
    job = await logged(rig, workers=2)
    async with rig.browser("ann") as browser:
        path, seen = f"/jobs/{job.id}/log?q=STEP+1", list[str]()
        while path:
            page = (await browser.get(path)).text
            browsers.elements(page)
            assert f"Line {len(seen) + 1} of 22" in browsers.text(page)
            assert "<mark>step 1</mark>" in page
            (chosen,) = re.findall(r'<li id="([^"]+)" class="chosen"', page)
            seen.append(chosen)
            (path,) = re.findall(r'<a id="next"[^>]*href="([^"#]+)', page) or [""]
            path = path.replace("&amp;", "&")
        assert (len(seen), len(set(seen))) == (22, 22)
        assert re.findall(r'<a id="previous"[^>]*#([^"]+)"', page) == [seen[-2]]
        for query, told in (
            ("q=STEP&exact=yes", "No line"),
            ("q=^step+1$&regex=yes", "No line"),
            ("q=(&regex=yes", "not valid"),
        ):
            assert told in browsers.text((await browser.get(f"/jobs/{job.id}/log?{query}")).text)


async def test_a_browser_that_leaves_ends_the_search_of_its_page(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await rig.launch(await rig.submit("ann", name="train"))
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any, **__: Any) -> tasklogs.LogHits:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("unreachable")

    monkeypatch.setattr(rig.logs, "search", endless)
    async with rig.browser("ann") as browser:
        request = browser.build_request("GET", f"/jobs/{job.id}/log", params={"q": "rare"})
    scope = {
        "type": "http",
        "method": "GET",
        "path": request.url.path,
        "query_string": request.url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 5),
    }
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        if (message := next(asked, None)) is not None:
            return message
        await began.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    await asyncio.wait_for(rig.app(scope, receive, send), 200)
    assert ended.is_set()


async def test_the_whole_log_as_a_file(rig: browsers.WebRig) -> None:
    job = await logged(rig, workers=2, lines=3)
    async with rig.browser("ann") as browser:
        answer = await browser.get(f"/jobs/{job.id}/log.txt", params={"task": "worker-1"})
        assert answer.text == "step 0 of 1\nstep 1 of 1\nstep 2 of 1\neverybody\n"
        assert 'filename="train.log"' in answer.headers["content-disposition"]
        both = (await browser.get(f"/jobs/{job.id}/log.txt")).text.splitlines()
        assert (both[0], both[-1], len(both)) == ("worker-0 | step 0 of 0", "worker-1 | everybody", 8)


@pytest.mark.parametrize(
    "query",
    [
        "task=worker",
        "task=../x",
        "attempt=x",
        "attempt=99999999999999",
        "line=x",
        "line=worker-0:1:1:stdout.0:9999",
        "since=soon",
    ],
)
async def test_an_address_that_leads_nowhere_says_so(rig: browsers.WebRig, query: str) -> None:
    job = await logged(rig)
    async with rig.browser("ann") as browser:
        answer = await browser.get(f"/jobs/{job.id}/log?{query}")
        assert answer.status_code in (404, 422)
        browsers.elements(answer.text)


async def test_hostile_lines_stay_text(rig: browsers.WebRig) -> None:
    async def shown(texts: list[str]) -> tuple[dict[str, int], str]:
        rig.clock.now += 60
        job = await logged(rig, lines=0, name=f"train-{rig.clock.now:.0f}")
        body = "\n".join(texts).encode("utf-8", "replace")
        await rig.logs.append(rigs.key_of(job), "stdout.0", 10, body + b"\n", at=3.0)
        async with rig.browser("ann") as browser:
            page = (await browser.get(f"/jobs/{job.id}/log", params={"q": texts[0][:200]})).text
        counted = browsers.elements(page)
        return {one: count for one, count in counted.items() if one not in ("span class", "mark ")}, page

    several = [one.replace("\u2028", "").strip("\n") for one in test_text.HOSTILE if one.isprintable()]
    plain, _ = await shown(["plain"] * len(several))
    hostile, page = await shown(several)
    assert {one.removesuffix(" class") for one in hostile} <= {one.removesuffix(" class") for one in plain}
    read = browsers.text(page)
    assert [one for one in several if one[:300] not in read] == []


async def test_a_task_of_an_attempt_is_found_by_its_key() -> None:
    key = attempts.TaskKey("j-1", 2, "worker", 3, 1)
    told = tasklogs.Line(
        task=f"{key.role}-{key.index}", attempt=2, incarnation=1, stream="stderr.0", offset=7, at=1.0, text=""
    )
    assert folding.address(told) == "worker-3:2:1:stderr.0:7"


async def test_the_links_of_a_page_lead_through_the_whole_log_also_with_an_open_line(rig: browsers.WebRig) -> None:
    job = await logged(rig, lines=2500)
    key = rigs.key_of(job)
    await rig.logs.append(key, "stdout.0", await rig.logs.length(key, "stdout.0"), b"Epoch 9: 45%", at=9.0)
    async with rig.browser("ann") as browser:
        for name, start in (("later", "start"), ("earlier", "end")):
            path, seen = f"/jobs/{job.id}/log?at={start}", list[str]()
            while path:
                page = (await browser.get(path)).text
                seen += ids(page)
                (path,) = re.findall(f'<a id="{name}" href="([^"]+)"', page) or [""]
                path = path.replace("&amp;", "&")
            assert (len(seen), len(set(seen))) == (2502, 2502)
        first = (await browser.get(f"/jobs/{job.id}/log?line={key.role}-0:1:1:stdout.0:0")).text
        assert "Epoch 9" not in first
        end = (await browser.get(f"/jobs/{job.id}/log?q=step+7&at=end")).text
        assert "Epoch 9" in end


async def test_a_long_number_is_no_failure_of_the_page(rig: browsers.WebRig) -> None:
    job = await logged(rig)
    async with rig.browser("ann") as browser:
        answer = await browser.get(f"/jobs/{job.id}/log/lines", params={"before": "9" * 5000})
        assert (answer.status_code, len(ids(answer.text))) == (200, 41)


@pytest.mark.parametrize("query", ["task=worker-99", "attempt=7"])
async def test_a_file_of_a_task_that_is_not_there_is_not_found(rig: browsers.WebRig, query: str) -> None:
    job = await logged(rig)
    async with rig.browser("ann") as browser:
        assert (await browser.get(f"/jobs/{job.id}/log.txt?{query}")).status_code == 404


async def test_a_page_of_very_long_lines_cuts_them_and_marks_hits(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOST_CHARACTERS", 10_000)
    job = await rig.launch(await rig.submit("ann", name="long"))
    text = b"".join(b"Hit%d " % number + b"x" * 4000 + b"\n" for number in range(20))
    await rig.logs.append(rigs.key_of(job), "stdout.0", 0, text, at=3.0)
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/log?q=hIT")).text
    assert page.count("<mark>Hit</mark>") == 20
    assert (page.count("x" * 4000), page.count("characters)")) == (3, 17)


async def test_without_re2_the_page_says_how_to_install_it(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.submit("ann", name="mine")
    monkeypatch.setitem(sys.modules, "re2", None)
    async with rig.browser("ann") as browser:
        assert (await browser.get("/jobs/mine/log?q=Loss")).status_code == 200
        refused = browsers.text((await browser.get("/jobs/mine/log?q=Loss&regex=yes")).text)
    assert "searches for plain text only" in refused
    assert "[regex]'" in refused


async def test_expressions_are_offered_where_the_server_takes_them(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tasklogs.EXPRESSIONS in capabilities.told(capabilities.LOCAL, {})
    await rig.submit("ann", name="mine")
    async with rig.browser("ann") as browser:
        assert 'name="regex"' in (await browser.get("/jobs/mine/log")).text
        others = [one for one in rig.services.about.capabilities if one != tasklogs.EXPRESSIONS]
        rig.tell(capabilities=tuple(others))
    async with rig.browser("ann") as browser:
        page = (await browser.get("/jobs/mine/log")).text
        browsers.elements(page)
        assert 'name="regex"' not in page
    monkeypatch.setitem(sys.modules, "re2", None)
    assert tasklogs.EXPRESSIONS not in capabilities.told(capabilities.LOCAL, {})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "--follow"),
        ({"task": "worker-3", "attempt": "2"}, "--role worker --index 3 --attempt 2 --follow"),
        ({"stream": "stderr"}, "--stream stderr --follow"),
        ({"since": "10m", "until": "2026-01-31T12:00"}, "--since 10m --until 2026-01-31T12:00:00+00:00 --follow"),
        ({"since": "2026-01-31T12:00+01:00"}, "--since 2026-01-31T12:00+01:00 --follow"),
        ({"q": "out of 'memory'"}, """--search='out of '"'"'memory'"'"'' --ignore-case"""),
        ({"q": "-5.*", "regex": "yes", "exact": "yes"}, "'--search=-5.*' --regex"),
    ],
)
async def test_the_command_prints_what_the_page_shows(rig: browsers.WebRig, asked: dict[str, str], words: str) -> None:
    job = await rig.launch(await rig.submit("ann", name="train"))
    chosen = {**dict.fromkeys((*log.FILTERS, "q", *log.FLAGS), ""), **asked}
    told = shlex.split(log._command(job, chosen))
    assert told == shlex.split(f"oarlock logs {job.id} {words}")
    context = printing.logs.make_context("logs", told[2:])
    assert context.params["search"] == asked.get("q")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("", "--role worker --index 0 --follow"),
        ("&at=end", "--role worker --index 0 --follow"),
        ("&at=start", "--role worker --index 0 --at start --before 0 --after 1000"),
        ("&line={line}", "--role worker --index 0 --at {line} --before 250 --after 250"),
        ("&line={line}&q=step", "--role worker --index 0 --at {line} --before 250 --after 250"),
        ("&at={line}&back=yes", "--role worker --index 0 --at {line} --before 1000 --after 0"),
    ],
)
async def test_the_command_of_a_part_prints_the_lines_of_its_page(tmp_path: Path, asked: str, words: str) -> None:
    async with stills.serving(tmp_path) as still:
        rig = still.rig
        job = await rig.launch(await rig.submit("root", name="long", roles={"worker": {"count": 2}}))
        for rank, text in ((0, "step"), (1, "of another rank")):
            data = b"".join(f"{text} {number}\n".encode() for number in range(1300))
            await rig.logs.append(rigs.key_of(job, index=rank), "stdout.0", 0, data, at=rig.clock.now)
        line = f"worker-0:1:1:stdout.0:{len(''.join(f'step {number}x' for number in range(600)))}"
        async with rig.browser("root") as browser:
            page = (await browser.get(f"/jobs/long/log?task=worker-0{asked.format(line=line)}")).text
        shown = html.unescape(page.partition('id="places"')[2].partition("<code")[2].partition("</code>")[0])
        told = shlex.split(shown.partition(">")[2])
        assert told == shlex.split(f"oarlock logs {job.id} {words.format(line=line)}")
        env = {"OARLOCK_SERVER": still.url, "OARLOCK_TOKEN": rig.tokens["root"]}
        printed = await asyncio.to_thread(typed.run, *(one for one in told[1:] if one != "--follow"), env=env)
    assert printed.returncode == 0, printed.stderr
    lines = [re.sub("<.*?>", "", one) for one in re.findall(r"<code>(.*?)</code></li>", page)]
    assert len(lines) in (log.SHOWN, 2 * log.AROUND, 600)
    told = printed.stdout.splitlines()
    assert (told if "--at" in words else told[-log.SHOWN :]) == lines


async def test_a_date_without_a_zone_is_utc_wherever_the_server_runs(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of one address see the same lines. The page's script names the browser's zone in what is typed."""
    job = await rig.launch(await rig.submit("ann", name="speaks"))
    noon = 1_769_860_800.0  # 2026-01-31 12:00 UTC
    await rig.logs.append(rigs.key_of(job), "stdout.0", 0, b"before noon\n", at=noon - 60)
    await rig.logs.append(rigs.key_of(job), "stdout.0", 12, b"after noon\n", at=noon + 60)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        async with rig.browser("ann") as browser:
            for since in ("2026-01-31T12:00", "2026-01-31T21:00+09:00", "2026-01-31T12:00Z"):
                page = (await browser.get(f"/jobs/{job.id}/log", params={"since": since})).text
                assert "after noon" in page, since
                assert "before noon" not in page, since
    finally:
        monkeypatch.undo()
        time.tzset()
