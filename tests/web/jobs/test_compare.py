"""Jobs side by side: the fields that differ, last and best values, and curves that no other job changes."""

from __future__ import annotations

import csv
import io
import math
import random
import threading
from collections import defaultdict
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests.web import browsers

from oarlock.client import answers
from oarlock.data import storage
from oarlock.spec import jobs
from oarlock.web.drawing import charts, curves
from oarlock.web.pages.jobs import compare
from oarlock.web.rendering import texts


def series(task: str, *points: tuple[int, float | None]) -> answers.Series:
    told = tuple(answers.Point(step, 10.0 * step, value) for step, value in points)
    return answers.Series(task=task, process=0, name="loss", points=told, count=len(told))


@pytest.mark.parametrize(
    ("ranks", "steps", "values", "low", "high"),
    [
        ([[(1, 2.0), (2, 4.0)], [(1, 4.0), (2, 8.0)]], [1, 2], [3.0, 6.0], [2.0, 4.0], [4.0, 8.0]),
        # A rank with half as many points: its value between two of them lies on the line.
        (
            [[(1, 0.0), (2, 0.0), (3, 0.0)], [(1, 2.0), (3, 4.0)]],
            [1, 2, 3],
            [1.0, 1.5, 2.0],
            [0.0] * 3,
            [2.0, 4.0, 4.0],
        ),
        # A rank that ended early is not carried on, and one that began late is not carried back.
        (
            [[(1, 1.0), (2, 1.0), (3, 1.0)], [(1, 3.0), (2, 3.0)]],
            [1, 2, 3],
            [2.0, 2.0, 1.0],
            [1.0] * 3,
            [3.0, 3.0, 1.0],
        ),
        ([[(1, 1.0), (2, 1.0)], [(5, 3.0)]], [1, 2, 5], [1.0, 1.0, 3.0], [1.0, 1.0, 3.0], [1.0, 1.0, 3.0]),
        # NaN of one rank is left out, NaN of all ranks is a gap.
        ([[(1, None), (2, None)], [(1, 5.0), (2, None)]], [1, 2], [5.0, None], [5.0, None], [5.0, None]),
    ],
)
def test_the_mean_of_ranks(
    ranks: list[list[tuple[int, float | None]]],
    steps: list[int],
    values: list[float | None],
    low: list[float | None],
    high: list[float | None],
) -> None:
    found = curves.together([series(f"worker-{number}", *points) for number, points in enumerate(ranks)])
    assert (found.steps, found.values, found.low, found.high) == (steps, values, low, high)
    assert found.at == [10.0 * step for step in steps]
    assert found.count == sum(map(len, ranks))


def test_the_range_of_ranks_has_the_points_between_those_of_the_longest() -> None:
    """A rank that lived shortly has all its points where the thinned ones of another are far apart."""
    longest = series("worker-0", *((step, 1.0) for step in range(100, 600, 100)))
    between = series("worker-1", (110, 2.0), (120, 9.0), (200, 2.0), (301, 2.0), (302, 7.0))
    found = curves.together([longest, between])
    assert found.steps == [100, 200, 300, 400, 500]
    assert found.high == [1.0, 9.0, 2.0, 7.0, 1.0]
    assert found.values == [1.0, 1.5, pytest.approx(1.5), 1.0, 1.0], "the mean is that of the values at a step"


def test_a_band_is_drawn_for_a_point_alone_and_beside_an_infinite_one() -> None:
    told = curves.Columns("alone", 9, [1], [1.0], [2.0], [0.0], [4.0])
    (chart,) = charts.of_lines("loss", [told])
    assert chart.lines[0].band == "159.0,0.0 161.0,0.0 161.0,120.0 159.0,120.0"
    ends = curves.Columns("ends", 9, [0, 1], [0.0, 1.0], [2.0, 2.0], [0.0, 2.0], [None, 4.0])
    (chart,) = charts.of_lines("loss", [ends])
    assert chart.lines[0].band == "0.0,60.0 320.0,0.0 320.0,60.0 0.0,120.0"
    plain = curves.Columns("plain", 2, [0, 1], [0.0, 1.0], [2.0, 3.0], [], [])
    assert charts.of_lines("loss", [plain])[0].lines[0].band == "", "each point is drawn itself"


class Moment(float):
    """A time that counts its comparisons."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Moment.compared += 1
        return float(self) < other

    def __le__(self, other: float) -> bool:
        Moment.compared += 1
        return float(self) <= other

    def __gt__(self, other: float) -> bool:
        Moment.compared += 1
        return float(self) > other


def test_a_thousand_marks_are_found_without_reading_the_line_for_each() -> None:
    """A mark stands at the first point that is not before it. The times of a line of ranks go back now and then."""
    generator = random.Random(1)
    at = [step + generator.uniform(-3, 3) for step in range(1000)]
    moments = sorted(generator.uniform(-5, 1010) for _ in range(1000))
    told = curves.Columns("loss", 1000, list(range(1000)), at, [1.0] * 1000, [], [])
    resized = msgspec.structs.replace(told, resized=list(map(Moment, moments)))
    (chart,) = charts.of_lines("loss", [resized])
    assert 1000 <= Moment.compared < 20_000
    across = charts.Scale(0, 999, charts.WIDTH)
    first = [next((place for place, time in enumerate(at) if time >= moment), None) for moment in moments]
    places = [f"{across.at(place):.1f}" for place in first if place is not None]
    assert len(set(first)) > 300
    assert [mark.x for mark in chart.marks] == list(dict.fromkeys(places))


def test_steps_without_a_number_are_kept_of_all_ranks_also_those_that_a_point_stands_for() -> None:
    first = msgspec.structs.replace(series("worker-0", (10, 0.0), (20, math.nan)), gaps=(7,))
    second = series("worker-1", (10, 0.0), (30, None))
    assert curves.columns(first).gaps == [7, 20]
    assert curves.together([first, second]).gaps == [7, 20, 30]


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(-10, 10) | st.none()), max_size=20),
    st.sampled_from((0.01, 3.0, 1e9)),
)
def test_a_smoothed_curve_is_a_weighted_mean(told: list[tuple[int, float | None]], window: float) -> None:
    """The oracle adds up all weights anew for each step."""
    line = curves.columns(series("worker-0", *sorted(told, key=lambda one: one[0])))
    found = curves.smoothed(line, window)
    for place, (step, value) in enumerate(zip(line.steps, line.values, strict=True)):
        if value is None:
            assert found[place] is None
            continue
        known = [(s, v) for s, v in zip(line.steps[: place + 1], line.values, strict=False) if v is not None]
        weights = [math.exp(-(step - before) / window) for before, _ in known]
        mean = sum(weight * v for weight, (_, v) in zip(weights, known, strict=True)) / sum(weights)
        assert found[place] == pytest.approx(mean, abs=1e-9)


def test_the_epoch_of_each_step() -> None:
    told = series("worker-0", (10, 0.0), (20, 1.0), (40, 2.0))
    assert curves.along(told, [5, 10, 15, 20, 30, 41]) == [None, 0.0, 0.5, 1.0, 1.5, None]
    assert curves.along(None, [1]) == []


async def two(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> tuple[jobs.Job, jobs.Job]:
    """Two jobs of Ann with a loss each; the second one has two ranks, and a metric of its own."""
    first = await rig.launch(await rig.submit("ann", name="first", command="python train.py --lr 0.1"))
    second = await rig.launch(
        await rig.submit("ann", name="second", command="python train.py --lr 0.2", env={"SEED": "7"})
    )
    names = defaultdict(lambda: ["loss"], {first.id: ["epoch", "loss"], second.id: ["loss", "only/here"]})

    async def told(job_id: str, wanted: list[str] | None = None, **asked: Any) -> list[storage.Series]:
        low, high = asked.get("steps", storage.ALL_STEPS)
        steps = [step for step in range(1, 11) if low <= step <= high]
        found = []
        for task in ("worker-0", "worker-1")[: 1 if job_id == first.id else 2]:
            for name in wanted or names[job_id]:
                if name not in names[job_id]:
                    continue
                scale = {"epoch": 0.1, "loss": 1.0 if job_id == first.id else 2.0}.get(name, 5.0)
                values = [scale * step for step in steps]
                points = [storage.Point(step, 100.0 + step, value) for step, value in zip(steps, values, strict=True)]
                ends: dict[str, Any] = {}
                if asked.get("points") == 1:
                    points, ends = points[-1:], {"low": (min(values),), "high": (max(values),)}
                found.append(
                    storage.Series(task=task, process=0, name=name, points=tuple(points), count=len(steps), **ends)
                )
        return found

    async def named(job_id: str) -> list[str]:
        return names[job_id]

    monkeypatch.setattr(rig.metrics, "series", told)
    monkeypatch.setattr(rig.metrics, "names", named)
    return first, second


async def test_the_differences_of_two_jobs(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await two(rig, monkeypatch)
    async with rig.browser("ann") as browser:
        path = f"/compare?job={first.id}&job=second"
        page = (await browser.get(path)).text
        browsers.elements(page)
        text = browsers.text(page)
        assert "--lr 0.1" in text
        assert "--lr 0.2" in text
        assert "env.SEED" in text
        assert "<code>pool</code>" not in page, "the same in both"
        assert "10, least <b>1<span" in page, "the least of all jobs is marked"
        assert "20, least 2</td>" in page
        page = (await browser.get(f"{path}&best=greatest")).text
        assert "20, greatest <b>20<span" in page
        sheet = list(csv.reader(io.StringIO((await browser.get(f"/compare.csv?job={first.id}&job={second.id}")).text)))
        told = {row[0]: row[1:] for row in sheet}
        assert told[""] == ["first", "second"]
        assert told["env.SEED"] == ["", "7"]
        assert told["loss (last)"] == ["10.0", "20.0"]
        assert told["loss (least)"] == ["1.0", "2.0"]
        assert told["only/here (greatest)"] == ["", "50.0"]


async def test_a_curve_is_the_same_whatever_else_is_shown(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(rig, monkeypatch)
    async with rig.browser("ann") as browser:

        async def lines(*ids: str, **more: str) -> list[dict[str, Any]]:
            query = {"job": list(ids), "name": "loss", **more}
            return list((await browser.get("/compare/numbers", params=query)).json()["series"])

        for more in ({}, {"first": "3", "last": "5"}, {"x": "epoch"}):
            alone, both = await lines(first.id, **more), await lines(second.id, first.id, **more)
            assert both[1] == alone[0], "its numbers, its colour and its dash"
            assert both[0] == (await lines(second.id, **more))[0]
        assert [one["steps"] for one in await lines(first.id, first="3", last="5")] == [[3, 4, 5]]
        assert (await lines(first.id, x="epoch"))[0]["epochs"][:2] == [0.1, 0.2]
        assert (await lines(second.id, x="epoch"))[0]["epochs"] == [], "it reports none"
        assert (await browser.get("/compare/numbers", params={"job": first.id})).json()["series"] == []
        drawn = (await browser.get("/compare", params={"job": [first.id, second.id], "name": "loss"})).text
        assert drawn.count("<polyline") == 2, "a chart without scripts"
        points = (await browser.get("/compare/points.csv", params={"job": [first.id, second.id], "name": "loss"})).text
        rows = list(csv.DictReader(io.StringIO(points)))
        assert len(rows) == 30, "each rank of each job"
        assert rows[0]["value"] == rows[0]["greatest"] == "1.0"


async def test_files_are_bounded_and_written_away_from_the_event_loop(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(rig, monkeypatch)
    asked: list[tuple[str, int]] = []
    series = rig.metrics.series

    async def watched(job_id: str, wanted: list[str] | None = None, **more: Any) -> list[storage.Series]:
        asked.append((job_id, more.get("points", 0)))
        return await series(job_id, wanted, **more)

    threads: set[int] = set()
    cell = texts.cell

    def written(value: Any) -> str:
        if value == "loss":
            threads.add(threading.get_ident())
        return cell(value)

    monkeypatch.setattr(rig.metrics, "series", watched)
    monkeypatch.setattr(texts, "cell", written)
    monkeypatch.setattr(compare, "ROWS_IN_FILE", 30, raising=False)
    monkeypatch.setattr(compare, "NAMES_IN_FILE", 1, raising=False)
    ranks = await rig.launch(await rig.submit("ann", name="ranks", roles={"worker": {"count": 2, "nproc": 3}}))
    chosen = {"job": [first.id, ranks.id], "name": "loss"}
    async with rig.browser("ann") as browser:
        rows = list(csv.reader(io.StringIO((await browser.get("/compare/points.csv", params=chosen)).text)))
        assert asked == [(first.id, 30), (ranks.id, 5)], "a job has so many points, however many ranks it has"
        table = (await browser.get("/compare.csv", params={"job": [first.id, second.id]})).text
    assert len(rows) > 10
    assert threads
    assert threading.get_ident() not in threads
    assert table.rstrip().endswith("cut after 1 metrics")


async def test_the_jobs_of_an_address(rig: browsers.WebRig) -> None:
    of_ann = await rig.submit("ann", name="of-ann")
    mine = await rig.submit("bob", name="mine")
    async with rig.browser("bob") as browser:
        page = (await browser.get("/compare", params={"job": [mine.id, "nothing", of_ann.id, mine.id]})).text
        text = browsers.text(page)
        assert "nothing" in text
        assert "of-ann" not in text
        assert page.count("Leave out<") == 1
        assert "Add a second job" in text
        many = {"job": [f"j{number}" for number in range(compare.MOST + 1)]}
        assert (await browser.get("/compare", params=many)).status_code == 422
        assert "side by side" in (await browser.get("/compare")).text
