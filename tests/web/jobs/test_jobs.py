"""The list of jobs: chosen columns, new jobs that are announced, and pages by phase that leave no job out."""

from __future__ import annotations

import csv
import datetime as dt
import html
import io
import re
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.spec import events, intents, phases, summaries
from oarlock.web.pages.jobs import jobs as listed
from oarlock.web.rendering import jobrows


def names(page: str) -> list[str]:
    return re.findall(r'<tr id="row-[^"]+">.*?<th scope="row"><a [^>]*>([^<]*)</a>', page, flags=re.DOTALL)


async def test_new_jobs_are_announced_and_push_no_row_away(rig: browsers.WebRig) -> None:
    await rig.submit("ann", name="old")
    rig.clock.now += 1
    async with rig.browser("ann") as browser:
        opened = (await browser.get("/jobs")).text
        (seen,) = re.findall(r'data-seen="([^"]+)"', opened)
        rig.clock.now += 1
        await rig.submit("ann", name="new")
        await rig.submit("ann", name="other-pool")
        fresh = (await browser.get("/jobs", params={"seen": seen})).text
        browsers.elements(fresh)
        assert names(fresh) == ["old"]
        assert "2 new jobs" in browsers.text(fresh)
        assert "1 of 3 jobs" in browsers.text(fresh)
        searched = (await browser.get("/jobs", params={"seen": seen, "text": "new"})).text
        assert "1 new job<" in searched
        assert sorted(names((await browser.get("/jobs")).text)) == ["new", "old", "other-pool"]
        for nonsense in ("x", "-1", "9" * 400, "1.2.3", "nan"):
            assert "new job" not in (await browser.get("/jobs", params={"seen": nonsense})).text


async def test_the_columns_of_the_address(rig: browsers.WebRig) -> None:
    await rig.submit("ann", name="train", command="python train.py", priority=77)
    async with rig.browser("ann") as browser:
        usual = (await browser.get("/jobs")).text
        assert "python train.py" not in usual
        chosen = (await browser.get("/jobs", params={"column": ["command", "priority", "nonsense"]})).text
        browsers.elements(chosen)
        assert ("python train.py" in chosen, ">77</td>" in chosen) == (True, True)
        heads = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', chosen)
        assert heads == ["Phase", "Name", "Command", "Priority"]
        assert "column=command" in chosen, "the links of the page keep the columns"
        every = (await browser.get("/jobs", params={"column": list(jobrows.COLUMNS)})).text
        browsers.elements(every)


async def test_a_page_by_phase_leaves_no_job_out(rig: browsers.WebRig) -> None:
    made = []
    for number in range(3):
        rig.clock.now += 1
        made.append(await rig.launch(await rig.submit("ann", name=f"n{number}")))
    async with rig.as_user("ann") as http:
        asked = {"sort": "phase", "limit": 1}
        first = (await http.get("/api/v1/jobs", params=asked)).json()
        assert first["items"][0]["name"] == "n2"
        await rig.end(made[2].id)
        rest = (await http.get("/api/v1/jobs", params={**asked, "limit": 3, "after": first["next"]})).json()
        assert [one["name"] for one in rest["items"]][:2] == ["n1", "n0"]
        bad = await http.get("/api/v1/jobs", params={**asked, "after": f"{made[0].id}:NONSENSE"})
        assert bad.status_code == 422


async def test_tabs_that_show_the_same_jobs_have_one_address(rig: browsers.WebRig) -> None:
    await rig.submit("ann", name="old")
    async with rig.browser("ann") as browser:
        seen = []
        for _ in range(2):
            rig.clock.now += 60
            seen += re.findall(r'data-seen="([^"]+)"', (await browser.get("/jobs")).text)
        assert len(seen) == 2
        assert seen[0] == seen[1]
        await rig.submit("ann", name="new")
        later = (await browser.get("/jobs", params={"seen": seen[0]})).text
        assert re.findall(r">old</a>|>new</a>|1 new job", later) == ["1 new job", ">old</a>"]


async def test_a_list_after_a_removed_job_leads_to_its_first_page(rig: browsers.WebRig) -> None:
    kept, gone = [await rig.submit("ann", name=name, max_restarts=0) for name in ("kept", "gone")]
    await rig.end((await rig.launch(gone)).id)
    async with rig.browser("ann") as browser:
        filtered = {"pool": "default", "sort": "name", "phase": "QUEUED"}
        await browser.post("/jobs", data={"action": "remove", "job": gone.id, "sure": "yes"}, headers=browsers.OURS)
        for headers in ({}, {"Oarlock-Fragment": "1"}):
            answer = await browser.get("/jobs", params={**filtered, "after": gone.id}, headers=headers)
            assert answer.status_code == 410
            (link,) = re.findall(r'<a href="([^"]+)">First page of this list', answer.text)
            assert parse_qs(urlsplit(html.unescape(link)).query) == {name: [one] for name, one in filtered.items()}
        assert names((await browser.get(html.unescape(link))).text) == [kept.name]


async def test_a_row_shows_the_present_facts(rig: browsers.WebRig) -> None:
    job = await rig.submit("ann", name="mine")
    address = "/jobs?column=priority&column=age&column=where"
    async with rig.browser("ann") as browser:

        async def row(address: str = address) -> str:
            page = (await browser.get(address)).text
            return page.partition("<tbody>")[2].partition("</tbody>")[0]

        seen = [await row(), await row("/jobs")]
        rig.clock.now += 300
        seen.append(await row())
        await rig.happen(job.id, events.Edited(priority=77))
        seen.append(await row())
        await rig.launch(job)
        seen.append(await row())
        assert len(set(seen)) == 5, "each time another row"
        assert await row() == seen[-1]
        assert all(word in seen[-1] for word in ("5m", "77", "DEPLOYING"))


def test_the_question_says_what_is_lost_and_what_becomes_free() -> None:
    def job(**more: Any) -> summaries.Summary:
        return summaries.Summary(
            id="j-1", name="one", owner="ann", pool="default", phase=phases.Phase.PROCESSING, phase_at=1.0,
            created_at=0.0, command="true", tasks={"worker": 1}, **more,
        )  # fmt: skip

    reading = summaries.Reading(step=1500)
    losses = [
        (None, None, "It has made no progress yet."),
        (None, 700, "It has told of no step since it began again; its checkpoint of step 700 stays."),
        (reading, None, "1,500 steps since the last checkpoint are lost; it has no checkpoint."),
        (reading, 700, "800 steps since the last checkpoint are lost; its checkpoint of step 700 stays."),
    ]
    for told, checkpoint, words in losses:
        assert listed.lost_by("cancel", job(reading=told), checkpoint) == words
    lost = "steps since the last checkpoint, if it saves none when it is told to stop;"
    others = [
        ("halt", None, f"1,500 {lost} it has no checkpoint yet."),
        ("halt", 700, f"800 {lost} its checkpoint of step 700 stays."),
        ("resume", None, "It has no checkpoint: it starts again from its first step."),
        ("resume", 700, "Nothing: it goes on from its checkpoint of step 700."),
    ]
    for action, checkpoint, words in others:
        assert listed.lost_by(action, job(reading=reading), checkpoint) == words
    two = (summaries.Place("n1", (0, 3)), summaries.Place("n2", (1,)))
    many = tuple(summaries.Place(f"n{number}", (0,)) for number in range(64))
    freed = [
        (job(gpus=2.0), "Nothing: it holds nothing."),
        (job(gpus=3.0, places=two, nodes=2), "3 GPUs: n1 (0, 3), n2 (1)."),
        (job(gpus=0.5, places=two[1:], nodes=1), "0.5 GPU: n2 (1)."),
        (job(places=(summaries.Place("n1", ()),), nodes=1), "CPUs and memory on n1."),
        (job(gpus=90.0, places=many, nodes=90), "90 GPUs: n0 (0), n1 (0), n2 (0), n3 (0) and 86 more nodes."),
    ]
    for one, words in freed:
        assert listed.freed_by(one) == words


@pytest.mark.parametrize("action", ["cancel", "halt"])
async def test_the_page_asks_before_a_job_is_stopped(rig: browsers.WebRig, action: str) -> None:
    job = await test_outlook.fill(rig, "mine", 2)
    async with rig.browser("ann") as browser:
        asked = await browser.post("/jobs", data={"action": action, "job": job.id}, headers=browsers.OURS)
        assert "2 GPUs: here (0, 1)." in browsers.text(asked.text)
        assert (await rig.job(job.id)).intent is intents.Intent.RUN, "nothing has happened"
        told = {"action": action, "job": job.id, "sure": "yes"}
        assert (await browser.post("/jobs", data=told, headers=browsers.OURS)).status_code == 303
    assert (await rig.job(job.id)).intent is not intents.Intent.RUN


async def test_an_action_on_many_jobs_tells_each_result_and_leads_back_to_the_list(rig: browsers.WebRig) -> None:
    made = [await rig.submit("ann", name=name) for name in ("first", "second", "third")]
    await rig.end((await rig.launch(made[1])).id)
    async with rig.browser("ann") as browser:
        address = "/jobs?pool=default&sort=name&column=gpus"

        def target(page: str) -> str:
            (found,) = re.findall(r'<form method="post" action="(/jobs\?[^"]*)"', page)
            return html.unescape(found)

        there = target((await browser.get(address)).text)
        form = {"action": "halt", "job": [made[0].id, "nowhere", made[1].id], "sure": "yes"}
        failed = await browser.post(there, data=form, headers=browsers.OURS)
        browsers.elements(failed.text)
        assert failed.status_code == 404
        rows = [browsers.text(row).split() for row in re.findall(r'<tr><th scope="row">.*?</tr>', failed.text)]
        assert [row[0] for row in rows] == ["firsthalted", "nowhereThere", "secondsecond"], rows
        assert "2 of 3 jobs were not halted." in browsers.text(failed.text)
        asked = await browser.post(there, data={"action": "halt", "job": made[2].id}, headers=browsers.OURS)
        browsers.elements(asked.text)
        told = {"action": "halt", "job": made[2].id, "sure": "yes"}
        done = await browser.post(target(asked.text), data=told, headers=browsers.OURS)
        assert (done.status_code, done.headers["location"]) == (303, address)
        for page in (failed.text, asked.text):
            assert f'href="{html.escape(address)}">Back to the jobs' in page
        told = {"action": "resume", "job": made[0].id}
        done = await browser.post("/jobs?next=//evil.example&pool=a%26b", data=told, headers=browsers.OURS)
        assert done.headers["location"] == "/jobs?pool=a%26b"


async def test_the_page_asks_before_a_job_starts_again_from_its_first_step(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with a checkpoint goes on from there, and one that has never run loses nothing: both resume at once."""
    ran = await rig.launch(await rig.submit("ann", name="ran"))
    never = await rig.submit("ann", name="never")
    for one in (ran, never):
        await rig.happen(one.id, events.Intended(intent=intents.Intent.HALT, by="ann"))
    await rig.end(ran.id, code=143)
    async with rig.browser("ann") as browser:

        async def resumed(job: str) -> int:
            answer = await browser.post("/jobs", data={"action": "resume", "job": job}, headers=browsers.OURS)
            assert ("starts again from its first step" in answer.text) == (answer.status_code == 200)
            return answer.status_code

        assert await resumed(never.id) == 303
        assert await resumed(ran.id) == 200
        assert (await rig.job(ran.id)).phase is phases.Phase.HALTED

        async def checkpoint(visit: object, job: str) -> int:
            return 7

        monkeypatch.setattr(listed, "_last_step", checkpoint)
        assert await resumed(ran.id) == 303


async def test_a_date_without_a_zone_is_utc_wherever_the_server_runs(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, age in (("early", 7200.0), ("late", 600.0)):
        rig.clock.now -= age
        await rig.submit("ann", name=name)
        rig.clock.now += age
    since = f"{dt.datetime.fromtimestamp(rig.clock.now - 3600, dt.UTC):%Y-%m-%dT%H:%M}"
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        async with rig.browser("ann") as browser:
            assert names((await browser.get("/jobs", params={"since": since})).text) == ["late"]
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_jobs_are_filtered_by_time_and_name_and_the_form_keeps_both(rig: browsers.WebRig) -> None:
    for name, age in (("early", 7200.0), ("late", 600.0), ("late-too", 60.0)):
        rig.clock.now -= age
        await rig.submit("ann", name=name)
        rig.clock.now += age
    async with rig.browser("ann") as browser:

        async def found(**asked: str) -> list[str]:
            page = (await browser.get("/jobs", params=asked)).text
            browsers.elements(page)
            form = dict(re.findall(r'<input (?:type="search" )?name="(\w+)" value="([^"]*)"', page))
            assert {name: form.get(name) for name in asked} == asked, "Show keeps them"
            return names(page)

        assert await found(since="1h") == ["late-too", "late"]
        assert await found(until="5m") == ["late", "early"]
        assert await found(since="1h", until="5m") == ["late"]
        assert await found(name="late", since="3h") == ["late"]
        assert await found(since="30s") == []
        assert "No job matches" in (await browser.get("/jobs?since=30s")).text
        sheet = (await browser.get("/jobs.csv?since=1h&until=5m")).text.splitlines()
        assert [line.split(",")[1] for line in sheet[1:]] == ["late"]
        assert (await browser.get("/jobs?since=yesterday")).status_code == 422
        opened = (await browser.get("/jobs?since=1h")).text
        (seen,) = re.findall(r'data-seen="([^"]+)"', opened)
        rig.clock.now += 1
        await rig.submit("ann", name="new")
        fresh = (await browser.get("/jobs", params={"since": "1h", "seen": seen})).text
        assert (names(fresh), "1 new job" in browsers.text(fresh)) == (["late-too", "late"], True)


async def test_no_cell_of_the_file_of_jobs_is_a_formula(rig: browsers.WebRig) -> None:
    job = await rig.submit("ann", name="plain", command="=1+1")
    rig.store._state._jobs[job.id] = msgspec.structs.replace(rig.store._state._jobs[job.id], name="@name", pool="-pool")
    async with rig.browser("ann") as browser:
        (row,) = list(csv.reader(io.StringIO((await browser.get("/jobs.csv")).text)))[1:]
    assert {"'@name", "'-pool"} <= {*row}, "a formula would begin with another sign"
    assert not [cell for cell in row if cell.startswith(("=", "+", "-", "@"))]


async def test_each_action_shows_its_command(rig: browsers.WebRig) -> None:
    ended = await rig.end((await rig.launch(await rig.submit("ann", name="ended"))).id)
    async with rig.browser("ann") as browser:
        listed_page = browsers.text((await browser.get("/jobs")).text)
        assert all(f"oarlock {verb} JOB..." in listed_page for verb in ("halt", "resume", "cancel", "rm"))
        page = browsers.text((await browser.get(f"/jobs/{ended.id}")).text)
        assert f"oarlock submit --again {ended.id}" in page
        assert f"oarlock submit job.yaml --again {ended.id}" in page
        digest = re.findall(r'name="sha256" value="([0-9a-f]{64})"', (await browser.get("/sessions")).text)[0]
        assert f"oarlock sessions end {digest[:12]}" in (await browser.get("/sessions")).text
