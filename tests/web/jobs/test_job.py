"""The page of a job: sections that come when the reader does, ranks as a grid, one rank's page, running again."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.data import storage
from oarlock.display.jobs import stragglers
from oarlock.spec import attempts, events, jobs, phases, refusals, roles
from oarlock.web.pages.jobs import job as jobpage
from oarlock.web.pages.jobs import jobsections

RANKS = 512


def task(index: int, step_s: float | None = None, sync_s: float | None = None, role: str = "worker") -> attempts.Task:
    told = attempts.Progress(step=7, at=1.0, step_s=step_s, sync_s=sync_s) if step_s is not None else None
    return attempts.Task(role=role, index=index, phase=phases.TaskPhase.PROCESSING, node="here", progress=told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([task(0, 1.0, 0.5), task(1, 1.0, 0.5), task(2, 1.0, 0.1)], "worker-2"),
        ([task(0, 1.0, 0.1), task(1, 1.0, 0.5)], "worker-0"),
        ([task(0, 1.0, 0.5), task(1, 1.0, 0.45)], None),
        ([task(0, 1.0), task(1, 3.0)], "worker-1"),
        ([task(0, 1.0)], None),
        ([task(0), task(1)], None),
        ([task(0, 1.0), task(1, 1.0), task(0, 9.0, role="evaluator")], None),
    ],
)
def test_the_rank_that_the_others_wait_for(ranks: list[attempts.Task], name: str | None) -> None:
    found = stragglers.find(ranks)
    assert (found.task if found is not None else None) == name


async def changed(rig: browsers.WebRig, job: jobs.Job, **fields: object) -> jobs.Job:
    """The job with a record that no simulation of these tests would reach."""
    made = msgspec.structs.replace(job, **fields)
    rig.store._state._jobs[job.id] = made
    return made


async def with_ranks(rig: browsers.WebRig, count: int) -> jobs.Job:
    job = await rig.launch(await rig.submit("ann", name="wide"))
    tasks = tuple(task(index, 1.0, 0.1 if index == 3 else 0.6) for index in range(count))
    return await changed(rig, job, attempts=(msgspec.structs.replace(job.attempts[0], tasks=tasks),))


async def test_sections_come_when_they_are_asked_for(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="train", env={"SEED": "seven"}))
    names = [one.name for one in jobsections.SECTIONS]
    async with rig.browser("ann") as browser:

        async def loaded(query: str) -> list[str]:
            page = (await browser.get(f"/jobs/{job.id}{query}")).text
            browsers.elements(page)
            return [name for name in names if f'data-section="{name}" data-loaded' in page]

        assert await loaded("") == []
        assert await loaded("?sections=ranks,file") == ["ranks", "file"]
        assert await loaded("?sections=all") == names
        assert await loaded("?sections=nonsense") == []
        page = (await browser.get(f"/jobs/{job.id}")).text
        leading = [one for one in browsers.links(page) if "sections=" in one]
        assert len(leading) == len(names) + 1, "a link for each, without scripts, and the report"
        whole = browsers.text((await browser.get(f"/jobs/{job.id}?sections=all")).text)
        assert "seven" in whole
        saved = await browser.get(f"/jobs/{job.id}/job.yaml")
        assert msgspec.yaml.decode(saved.content)["env"] == {"SEED": "seven"}


async def test_many_ranks_are_a_grid_and_the_straggler_is_named(rig: browsers.WebRig) -> None:
    job = await with_ranks(rig, RANKS)
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}?sections=ranks")).text
        browsers.elements(page)
        cells = [one for one in browsers.links(page) if "/ranks/worker-" in one]
        assert len(cells) == RANKS
        assert "worker-3 is the slowest rank" in page
        assert "60% of it synchronising" in page
        rows = (await browser.get(f"/jobs/{job.id}?sections=ranks&ranks=table")).text
        assert rows.count(">60%</td>") == RANKS - 1
        assert "worker-3 is the slowest" in (await browser.get(cells[3])).text
        assert "worker-3 is the slowest" not in (await browser.get(cells[4])).text
        assert (await browser.get(f"/jobs/{job.id}/ranks/worker-{RANKS}")).status_code == 404


async def told(rig: browsers.WebRig, patch: pytest.MonkeyPatch, ranks: int, names: list[str]) -> list[tuple[int, int]]:
    """Let a job's ranks have reported these names. Return the numbers of names and points of each look, as it comes."""
    asked: list[tuple[int, int]] = []

    async def series(job_id: str, wanted: list[str] | None = None, **look: Any) -> list[storage.Series]:
        shown, most = wanted or names, min(look["points"], 10_000)
        asked.append((len(shown), most))
        points = tuple(storage.Point(step, 100.0 + step, 1.0 / (step + 1)) for step in range(most))
        return [
            storage.Series(task=f"worker-{rank}", process=0, name=name, points=points, count=most)
            for rank in range(min(ranks, look["ranks"] or ranks))
            for name in shown
        ]

    async def named(job_id: str) -> list[str]:
        return names

    patch.setattr(rig.metrics, "series", series)
    patch.setattr(rig.metrics, "names", named)
    return asked


@pytest.mark.parametrize(
    ("ranks", "names", "charts", "lines", "points"),
    [
        (1, 30, 24, 24, 200),
        (8, 4, 4, 32, 200),
        (9, 4, 4, 4, 200),
        (RANKS, 1, 1, 1, 195),
        (RANKS, 4, 4, 4, 48),
        (RANKS, 30, 7, 7, 27),
        (10_000, 30, 1, 1, 10),
    ],
)
async def test_the_metrics_of_hundreds_of_ranks_are_few_lines(
    rig: browsers.WebRig,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    names: int,
    charts: int,
    lines: int,
    points: int,
) -> None:
    job = await rig.launch(await rig.submit("ann", name="wide"))
    worker = msgspec.structs.replace(job.spec.roles[roles.RoleName.WORKER], count=ranks)
    spec = msgspec.structs.replace(job.spec, roles={roles.RoleName.WORKER: worker})
    await changed(rig, job, spec=spec)
    asked = await told(rig, monkeypatch, ranks, [f"name-{number:02d}" for number in range(names)])
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}?sections=metrics")).text
    browsers.elements(page)
    assert (page.count("<figure"), page.count("<polyline")) == (charts, lines)
    assert asked == [(charts, points)]
    assert ranks * charts * points <= jobsections.MOST_POINTS
    assert (f": {names - charts} more" in page) == (names > charts)
    assert len(page) < 200_000


async def test_the_home_page_reads_one_rank_of_each_running_job(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await rig.launch(await rig.submit("ann", name="wide"))
    asked = await told(rig, monkeypatch, RANKS, ["loss"])
    found: list[int] = []
    series = rig.metrics.series

    async def counted(job_id: str, wanted: list[str] | None = None, **look: Any) -> list[storage.Series]:
        made = await series(job_id, wanted, **look)
        found.append(len(made))
        return made

    monkeypatch.setattr(rig.metrics, "series", counted)
    async with rig.browser("ann") as browser:
        page = (await browser.get("/")).text
    assert job.name in page
    assert 'aria-label="loss"' in page
    assert (len(asked), found) == (1, [1])


async def test_a_rank_has_its_log_its_stacks_and_its_exit_record(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="fails", max_restarts=0))
    key = rigs.key_of(job)
    await rig.happen(
        job.id,
        events.TaskRegistered(key=key, address="127.0.0.1"),
        events.TaskReported(key=key, phase="PROCESSING"),
        events.StacksAsked(attempt=1, task="worker-0", message="it hangs"),
        events.StacksTaken(key=key, request=1, stacks={"0": "in the data loader"}),
    )
    await rig.logs.append(key, "stdout.0", 0, b"its only line\n", at=1.0)
    await rig.end(job.id, code=3, last_lines=("the last line",))
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/ranks/worker-0")).text
        browsers.elements(page)
        text = browsers.text(page)
        for expected in ("Exit code 3", "the last line", "in the data loader", "its only line"):
            assert expected in text
        assert "hang: stacks were asked for" in browsers.text((await browser.get(f"/jobs/{job.id}")).text)


async def with_attempts(rig: browsers.WebRig) -> jobs.Job:
    """A job whose second attempt runs, after a first one in which three ranks failed with the blamed one."""
    job = await with_ranks(rig, 5)
    causes = [attempts.Cause.PEER] * 5
    causes[1] = attempts.Cause.OOM
    ended = [
        msgspec.structs.replace(
            task(index),
            phase=phases.TaskPhase.STOPPED if index == 4 else phases.TaskPhase.FAILED,
            exit=attempts.Exit(code=10 + index, cause=cause, at=1.0, last_lines=(f"the end of {index}",)),
        )
        for index, cause in enumerate(causes)
    ]
    verdict = attempts.Verdict(cause=attempts.Cause.OOM, message="no memory", at=1.0, task="worker-1")
    stacks = tuple(attempts.Stacks(task="worker-0", at=1.0, stacks={"0": f"stood at {number}"}) for number in (1, 2))
    first, last = (
        msgspec.structs.replace(job.attempts[0], number=number, stacks=(stacks[number - 1],)) for number in (1, 2)
    )
    first = msgspec.structs.replace(first, tasks=tuple(ended), verdict=verdict, ended_at=first.started_at + 60)
    return await changed(rig, job, attempts=(first, last))


async def test_the_end_of_an_attempt_names_the_ranks_that_failed_because_of_the_blamed_one(
    rig: browsers.WebRig,
) -> None:
    job = await with_attempts(rig)
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}")).text
        browsers.elements(page)
        assert "worker-0, worker-2 to 3 failed because worker-1 did." in browsers.text(page)
        (leading,) = [one for one in browsers.links(page) if "/ranks/worker-1" in one]
        record = browsers.text((await browser.get(leading)).text)
        assert "Exit code 11 (oom)" in record


async def test_the_ranks_of_an_earlier_attempt_are_reached(rig: browsers.WebRig) -> None:
    job = await with_attempts(rig)
    here = f"/jobs/{job.id}"
    async with rig.browser("ann") as browser:

        async def got(address: str, *texts: str) -> list[str]:
            """The links of a page that has these texts."""
            page = (await browser.get(address)).text
            browsers.elements(page)
            assert [one for one in texts if one not in browsers.text(page)] == []
            return browsers.links(page)

        now = await got(f"{here}?sections=ranks&decision=admitted", "Attempt 2.")
        earlier = f"{here}?decision=admitted&sections=ranks&attempt=1#ranks"
        assert earlier in now, "the link keeps what else was chosen"
        then = await got(earlier, "Attempt 1.", "10 peer", "11 oom", "14 peer")
        both = await got(f"{here}?sections=ranks,decisions&attempt=1")
        kinds = [one for one in both if "decision=" in one]
        assert kinds
        assert all("attempt=1" in one for one in kinds), "no other link loses it"
        ranks = [one for one in then if "/ranks/worker-0" in one]
        assert ranks == [f"{here}/ranks/worker-0?attempt=1"]
        links = await got(ranks[0], "1 of attempt 1", "Exit code 10 (peer)", "the end of 0", "stood at 1")
        assert "stood at 2" not in browsers.text((await browser.get(ranks[0])).text)
        assert f"{here}/ranks/worker-0?attempt=2" in links
        await got(f"{here}/ranks/worker-0", "1 of attempt 2", "will appear here", "stood at 1", "stood at 2")
        assert "slowest" not in browsers.text((await browser.get(f"{here}/ranks/worker-3?attempt=1")).text)
        file = await browser.get(f"{earlier.partition('#')[0]}&csv=ranks")
        assert "14 peer" in file.text


@pytest.mark.parametrize(("attempt", "status"), [("3", 404), ("0", 404), ("first", 422), ("9" * 5000, 404)])
async def test_an_attempt_that_is_not_there_is_refused(rig: browsers.WebRig, attempt: str, status: int) -> None:
    job = await with_attempts(rig)
    async with rig.browser("ann") as browser:
        for address in ("", "/ranks/worker-0"):
            answer = await browser.get(f"/jobs/{job.id}{address}?attempt={attempt}")
            assert answer.status_code == status
            assert ("Its last attempt is 2." if status == 404 else "The first attempt is 1.") in answer.text


async def test_the_log_of_a_rank_is_that_of_the_chosen_attempt(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="again"))
    for number in (1, 2):
        key = msgspec.structs.replace(rigs.key_of(job), attempt=number)
        await rig.logs.append(key, "stdout.0", 0, b"said in %d\n" % number, at=1.0)
    first = msgspec.structs.replace(job.attempts[0], ended_at=job.attempts[0].started_at + 1)
    await changed(rig, job, attempts=(first, msgspec.structs.replace(job.attempts[0], number=2)))
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/ranks/worker-0?attempt=1")).text
    assert "said in 1" in page
    assert "said in 2" not in page
    assert f"/jobs/{job.id}/log?task=worker-0&attempt=1" in browsers.links(page)


async def test_decisions_of_one_kind(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="train"))
    async with rig.browser("ann") as browser:
        await browser.post("/jobs", data={"action": "halt", "job": job.id, "sure": "yes"}, headers=browsers.OURS)
        page = (await browser.get(f"/jobs/{job.id}?sections=decisions")).text
        assert "<title>halt</title>" in page, "the timeline marks it"
        links = [one for one in browsers.links(page) if "decision=" in one]
        assert len(links) >= 2, "each kind with its number"
        for link in links:
            kind = link.partition("decision=")[2].partition("#")[0]
            one = browsers.text((await browser.get(link)).text)
            assert f"{kind} " in one


async def test_why_it_waits_as_bars_an_axis_and_a_button_that_starts_it(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    test_outlook.stretch(rig)
    big = await test_outlook.fill(rig, "big", 1, who="bob", timeout="1h")
    job = await rig.submit("ann", name="waits", roles={"worker": {"count": 2, "gpus": 1}})
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}")).text
        browsers.elements(page)
        read = browsers.text(page)
        assert "gpus: 2 GPUs needed, 1 GPU free, 1 GPU held" in read
        assert re.search(r"big\s*bob\s*default\s*1 CPU, 1 GPU", read)
        assert "its time-out ends it within" in read
        assert "Expected start within 1h 00m" in read
        assert 'action="/jobs/' + job.id + '/set"' in page
        assert f"/jobs/{big.id}" not in page, "ann may not open it"
        assert f"oarlock set {job.id} --min 1" in read
        for bad in ({"min": "x"}, {"min": "-1"}, {"min": "99"}, {}):
            answer = await browser.post(f"/jobs/{job.id}/set", data=bad, headers=browsers.OURS)
            assert answer.status_code == 422, bad
        answer = await browser.post(f"/jobs/{job.id}/set", data={"min": "1"}, headers=browsers.OURS)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job.id}")
    changed = await rig.store.read(lambda view: view.job(job.id))
    assert changed is not None
    assert changed.spec.roles[roles.RoleName.WORKER].min == 1
    async with rig.browser("bob") as browser:
        answer = await browser.post(f"/jobs/{big.id}/set", data={"priority": "60"}, headers=browsers.OURS)
        assert answer.status_code == 409, "it runs: the page was made while it waited"
        assert "big is not waiting any more" in browsers.text(answer.text)
    async with rig.browser("vera") as browser:
        answer = await browser.post(f"/jobs/{job.id}/set", data={"min": "1"}, headers=browsers.OURS)
        assert answer.status_code == 403


def test_a_resource_of_which_the_refusal_tells_nothing_has_no_bar() -> None:
    told = refusals.Refusal(
        code=refusals.Code.POOL_SHARE,
        message="",
        needed={"cpus": 2.0, "gpus": 2.0},
        free={"gpus": 1.0},
        total={"gpus": 2.0},
    )
    assert [one["resource"] for one in jobpage._bars(told)] == ["gpus"]


async def test_a_resource_of_which_nothing_is_free_has_its_bar(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    await test_outlook.fill(rig, "big", 2, roles={"worker": {"gpus": 2}})
    job = await rig.submit("ann", name="waits", roles={"worker": {"gpus": 1}})
    async with rig.browser("ann") as browser:
        read = browsers.text((await browser.get(f"/jobs/{job.id}")).text)
    assert "gpus: 1 GPU needed, 0 GPUs free, 2 GPUs held" in read


async def test_the_timeline_is_a_table_with_the_times_of_its_phases_and_marks(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await rig.launch(await rig.submit("ann", name="train"))
    attempt, ends = job.attempts[0], ("launched_at", "processing_at")
    times = {name: attempt.started_at + 10 * number for number, name in enumerate(ends, 1)}
    await changed(rig, job, phase=phases.Phase.PROCESSING, attempts=(msgspec.structs.replace(attempt, **times),))
    rig.clock.now += 30
    async with rig.browser("ann") as browser:
        await browser.post("/jobs", data={"action": "halt", "job": job.id, "sure": "yes"}, headers=browsers.OURS)
        rig.clock.now += 60
        address = f"/jobs/{job.id}"
        page = (await browser.get(address)).text
        browsers.elements(page)
        table = re.search(r'<table data-table="timeline">.*?</table>', page, flags=re.DOTALL)
        assert table is not None
        assert "a table follows" in page[: table.start()]
        found = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table[0].split("<tr>")[2:]]
        told = [tuple(browsers.text(cell) for cell in row) for row in found]
        assert told == [
            ("1", "DEPLOYING", "1m ago", "10.0 s"),
            ("1", "DOWNLOADING", "1m ago", "10.0 s"),
            ("1", "PROCESSING", "1m ago", "1m 10s"),
            ("1", "halt", "1m ago", ""),
        ]
        assert all("<time" in row[2] for row in found)
        file = (await browser.get(f"{address}?csv=timeline")).text.splitlines()
        assert file[1].endswith(",DEPLOYING,2023-11-14T22:13:20.0Z,10.0"), "exactly"
        monkeypatch.setattr(jobpage, "MOMENTS", 1)
        page = (await browser.get(address)).text
        assert "3 earlier rows" in page
        assert "DOWNLOADING</th>" not in page
        assert (await browser.get(f"{address}?csv=timeline")).text.splitlines() == file, "it has them all"


async def test_run_again_makes_one_job_with_the_same_code(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="first", max_restarts=0))
    async with rig.browser("ann") as browser:
        assert "Run again" not in (await browser.get(f"/jobs/{job.id}")).text, "its name is taken while it runs"
        await rig.end(job.id, code=1)
        assert "Run again" in (await browser.get(f"/jobs/{job.id}")).text
        made = [
            (await browser.post(f"/jobs/{job.id}/again", data={"key": "once"}, headers=browsers.OURS)).headers[
                "location"
            ]
            for _ in range(2)
        ]
        assert made[0] == made[1] != f"/jobs/{job.id}"
    again = await rig.store.read(lambda view: view.job(made[0].removeprefix("/jobs/")))
    assert again is not None
    assert (again.spec, again.snapshot, again.owner) == (job.spec, job.snapshot, "ann")
    async with rig.browser("vera") as browser:
        answer = await browser.post(f"/jobs/{job.id}/again", headers=browsers.OURS)
        assert answer.status_code == 403
