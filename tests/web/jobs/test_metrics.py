"""The page of a job's metrics: a place for each of a thousand names, and the numbers that the script draws."""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.data.metrics import test_metricfiles
from tests.web import browsers

from oarlock.data import storage
from oarlock.data.metrics import metricfiles
from oarlock.spec import attempts, events, holdings, jobs
from oarlock.web.drawing import charts, colours

NAMES = ["loss", *(f"layer/{number:04d}/<b>norm" for number in range(999))]


async def measured(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch, names: list[str]) -> jobs.Job:
    job = await rig.launch(await rig.submit("ann", name="train"))

    async def series(job_id: str, wanted: list[str] | None = None, **asked: Any) -> list[storage.Series]:
        first, last = asked.get("steps", (0, 9))
        values = [float("nan") if step == 3 else float(step) for step in range(max(first, 0), min(last, 9) + 1)]
        points = tuple(storage.Point(step, 100.0 + step, value) for step, value in enumerate(values, max(first, 0)))
        return [
            storage.Series(task="worker-0", process=0, name=one, points=points, count=90) for one in wanted or names
        ]

    async def named(job_id: str) -> list[str]:
        return names

    monkeypatch.setattr(rig.metrics, "series", series)
    monkeypatch.setattr(rig.metrics, "names", named)
    return job


async def test_a_thousand_names_are_one_page_and_no_number_is_read(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await measured(rig, monkeypatch, NAMES)
    rig.metrics.series = None  # type: ignore[assignment]
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/metrics")).text
        assert browsers.elements(page)["figure data-kept data-name data-query id"] == 1000
        assert "1000 of 1,000 metrics" in browsers.text(page).replace("1,000 of", "1000 of")
        page = (await browser.get(f"/jobs/{job.id}/metrics", params={"q": "0007"})).text
        assert browsers.elements(page)["figure data-kept data-name data-query id"] == 1


async def test_a_name_s_link_leads_to_its_chart_and_its_table(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await measured(rig, monkeypatch, NAMES[:3])
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/metrics")).text
        link = next(one for one in browsers.links(page) if "name=layer%2F0001" in one)
        told = (await browser.get(link)).text
        assert '<td>worker-0</td><td class="number">90</td><td class="number">9</td><td class="number">0</td>' in told
        assert told.count("<polyline") == 2, "broken where a value is not a number"


async def test_a_chart_asks_for_its_name_with_all_signs(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "loss \u200d\u00e9&x"  # a sign that is not seen is shown as its number
    job = await measured(rig, monkeypatch, [name])
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/jobs/{job.id}/metrics")).text
        (query,) = re.findall(r'data-query="([^"]+)"', page)
        answer = await browser.get(f"/jobs/{job.id}/metrics/numbers{html.unescape(query)}")
    assert urllib.parse.parse_qs(html.unescape(query)[1:]) == {"name": [name]}
    assert len(answer.json()["series"]) == 1


async def test_the_numbers_of_a_part_of_the_steps(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await measured(rig, monkeypatch, NAMES)
    async with rig.browser("ann") as browser:
        path = f"/jobs/{job.id}/metrics/numbers"
        told = (await browser.get(path, params={"name": "loss", "first": "2", "last": "4"})).json()
        expected = {"label": "worker-0", "count": 90, "steps": [2, 3, 4], "at": [102.0, 103.0, 104.0]}
        (line,) = told["series"]
        assert {**line, **expected, "values": [2.0, None, 4.0], "low": [], "high": []} == line
        assert (len(line["starts"]), line["resized"], line["gaps"], line["smooth"]) == (1, [], [3], [])
        assert (await browser.get(path)).json()["series"] == []


async def test_a_job_without_metrics_says_how_to_report_some(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await measured(rig, monkeypatch, [])
    async with rig.browser("ann") as browser:
        assert "session.log" in (await browser.get(f"/jobs/{job.id}/metrics")).text


STEPS, RANKS, SPIKE = 10_000, 3, 4321
BAND = r'<polygon class="band series-(\d)" points="([^"]*)"'


@pytest.fixture
def stored(
    rig: browsers.WebRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[metricfiles.DirectoryMetrics]:
    """Metrics as a server stores them."""
    made = metricfiles.DirectoryMetrics(tmp_path / "metrics")
    monkeypatch.setattr(rig.metrics, "series", made.series)
    monkeypatch.setattr(rig.metrics, "names", made.names)
    yield made
    made.close()


async def reported(stored: metricfiles.DirectoryMetrics, job: jobs.Job, *spikes: int) -> None:
    """Let each rank have reported a flat loss: the first one with a spike, if there is one, then so on."""
    for rank, spike in enumerate(spikes):
        rows = (test_metricfiles.row(1, step, 9.0 if step == spike else 1.0) for step in range(STEPS))
        key = attempts.TaskKey(job.id, 1, "worker", rank, 1)
        await stored.append(key, 0, 0, test_metricfiles.schema(1, "loss") + b"".join(rows))


@pytest.mark.parametrize(
    ("path", "bands", "colour"),
    [
        ("/jobs/{job}?sections=metrics", RANKS, 1),
        ("/jobs/{job}/metrics?name=loss", RANKS, 1),
        ("/jobs/{job}/metrics?name=loss&ranks=range", 1, 0),
        ("/compare?job={job}&job={other}&name=loss", 2, None),
    ],
)
async def test_no_spike_of_any_rank_is_lost_without_a_script(
    rig: browsers.WebRig, stored: metricfiles.DirectoryMetrics, path: str, bands: int, colour: int | None
) -> None:
    """A drawn point stands for many: the line itself passes the spike by."""
    job, other = [await rig.launch(await rig.submit("ann", name=name)) for name in ("spiked", "flat")]
    await reported(stored, job, -1, SPIKE, -1)
    await reported(stored, other, -1)
    async with rig.browser("ann") as browser:
        page = (await browser.get(path.format(job=job.id, other=other.id))).text
    browsers.elements(page)
    drawn = [
        (int(number), [tuple(map(float, point.split(","))) for point in points.split()])
        for number, points in re.findall(BAND, page)
    ]
    assert len(drawn) == bands
    reaching = [(number, points) for number, points in drawn if min(y for _, y in points) == 0]
    ((number, points),) = reaching
    assert number == (colours.of(job.id) if colour is None else colour)
    across = [x for x, y in points if y == 0]
    assert across == pytest.approx([SPIKE / (STEPS - 1) * charts.WIDTH] * len(across), abs=charts.WIDTH / 200)
    lines = re.findall(r'<polyline[^>]* points="([^"]*)"', page)
    assert all(float(point.split(",")[1]) > 0 for line in lines for point in line.split()), "the lines are flat"
    assert page.rindex("<polygon") < page.index("<polyline"), "no band covers a line"


MANY = [
    (8, "", 8, 0),
    (8, "range", 1, 0),
    (9, "", 1, 0),
    (9, "lines", 9, 0),
    (64, "lines", 64, 0),
    (70, "lines", 64, 6),
]


@pytest.mark.parametrize(("ranks", "look", "lines", "left_out"), MANY)
async def test_many_ranks_are_one_line_unless_their_lines_are_asked_for(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch, ranks: int, look: str, lines: int, left_out: int
) -> None:
    job = await measured(rig, monkeypatch, ["loss"])

    async def series(job_id: str, wanted: list[str] | None = None, **asked: Any) -> list[storage.Series]:
        point = storage.Point(1, 2.0, 3.0)
        return [
            storage.Series(task=f"worker-{n}", process=0, name="loss", points=(point,), count=1) for n in range(ranks)
        ]

    monkeypatch.setattr(rig.metrics, "series", series)
    async with rig.browser("ann") as browser:
        told = (await browser.get(f"/jobs/{job.id}/metrics/numbers", params={"name": "loss", "ranks": look})).json()
        assert (len(told["series"]), told["left_out"]) == (lines, left_out)
        assert sum(one["count"] for one in told["series"]) == ranks - left_out
        page = (await browser.get(f"/jobs/{job.id}/metrics", params={"name": "loss", "ranks": look})).text
        assert page.count("<polyline") == lines, "the same without JavaScript"
        assert re.findall(r"(\d+) ranks have no line", page) == [str(left_out)] * (left_out > 0)


async def test_the_times_at_which_an_attempt_got_other_workers(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await rig.launch(await rig.submit_elastic(name="grows"))
    still = await measured(rig, monkeypatch, ["loss"])
    rig.clock.now += 7
    await rig.happen(job.id, events.Reshaped(attempt=1, round=1, held=holdings.Resources(2000, 0, 0)))
    async with rig.browser("ann") as browser:
        for path, resized in (
            (f"/jobs/{job.id}/metrics/numbers?", [rig.clock.now]),
            (f"/compare/numbers?job={job.id}&", [rig.clock.now]),
        ):
            told = (await browser.get(f"{path}name=loss&first=0&last=9")).json()
            assert [one["resized"] for one in told["series"]] == [resized]
        told = (await browser.get(f"/jobs/{still.id}/metrics/numbers?name=loss&first=0&last=9")).json()
        assert told["series"][0]["resized"] == []


async def test_restarts_and_resizes_are_marked_without_a_script(
    rig: browsers.WebRig, stored: metricfiles.DirectoryMetrics
) -> None:
    job = await rig.launch(await rig.submit_elastic(name="grows"))
    other = await rig.launch(await rig.submit("ann", name="still"))
    begun = rig.clock.now
    rig.clock.now += 10
    job = await rig.happen(job.id, events.Reshaped(attempt=1, round=1, held=holdings.Resources(2000, 0, 0)))
    (first,) = job.attempts
    ended = msgspec.structs.replace(first, ended_at=begun + 20)
    again = msgspec.structs.replace(first, number=2, started_at=begun + 30)
    rig.store._state._jobs[job.id] = msgspec.structs.replace(job, attempts=(ended, again))
    for one, ranks in ((job, 2), (other, 1)):
        for rank in range(ranks):
            rows = (test_metricfiles.row(1, step, 1.0 / (step + 1), at=begun + step) for step in range(41))
            key = attempts.TaskKey(one.id, 1, "worker", rank, 1)
            await stored.append(key, 0, 0, test_metricfiles.schema(1, "loss") + b"".join(rows))
    series = f"series-{colours.of(job.id)}"
    async with rig.browser("ann") as browser:
        for path, colour in (
            (f"/jobs/{job.id}?sections=metrics", "violet"),
            (f"/jobs/{job.id}/metrics?name=loss", "violet"),
            (f"/compare?job={job.id}&job={other.id}&name=loss", series),
        ):
            page = (await browser.get(path)).text
            browsers.elements(page)
            assert re.findall(r'<line class="(re\w+) ([^"]*)" x1="([\d.]+)"', page) == [
                ("restart", colour, "240.0"),
                ("resize", colour, "80.0"),
            ], "once, although two ranks have them"
            assert "1 restart, 1 change of the number of workers" in page
            assert "Dashed lines mark restarts" in page
        page = (await browser.get(f"/jobs/{other.id}?sections=metrics")).text
        assert '<line class="re' not in page
        assert "Dashed lines mark" not in page


@pytest.mark.parametrize("asked", ["", "0", "-1", "nan", "inf", "many", "1e99"])
async def test_a_curve_is_smooth_only_where_a_length_is_given(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    job = await measured(rig, monkeypatch, ["loss"])
    async with rig.browser("ann") as browser:
        for path in (f"/jobs/{job.id}/metrics/numbers?", f"/compare/numbers?job={job.id}&"):
            where = f"{path}name=loss&first=0&last=9"
            (raw,) = (await browser.get(f"{where}&smooth={asked}")).json()["series"]
            (line,) = (await browser.get(f"{where}&smooth=2")).json()["series"]
            assert raw["smooth"] == []
            assert line["values"] == raw["values"], "the raw line stays"
            assert [one is None for one in line["smooth"]] == [one is None for one in line["values"]]
        page = (await browser.get(f"/jobs/{job.id}/metrics", params={"name": "loss", "smooth": "2"})).text
        assert page.count(' raw"') == page.count("<polyline") / 2 == 2, "the raw line is paler"
        assert page.count(' gap"') == 1
