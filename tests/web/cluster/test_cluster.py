"""The map of the cluster: each device tells its holder, bars tell the past and the forecast, long lists fold."""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec
import pytest
from tests import marks
from tests.api.cluster import test_history
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.spec import bodies, events, holdings, phases
from oarlock.spec.cluster import nodes
from oarlock.web.drawing import clustermap
from oarlock.web.pages.cluster import cluster


async def page(rig: browsers.WebRig, path: str, who: str = "ann") -> str:
    async with rig.browser(who) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    browsers.elements(answer.text)
    return answer.text


def titles(found: str, kind: str) -> list[str]:
    return re.findall(rf'<(?:rect|path) class="{kind} [^>]*><title>([^<]*)</title>', found)


async def test_each_device_tells_its_holder_and_the_bars_tell_the_rest(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    await test_history.ran(rig, "before", 600)
    await test_outlook.fill(rig, "theirs", 1, "bob", timeout="1h", roles={"worker": {"gpus": 1}})
    rig.clock.now += 60
    await rig.submit("ann", name="next", roles={"worker": {"gpus": 2}})
    found = await page(rig, "/cluster")
    cells = re.findall(r"<title>(GPU [^<]*)</title>", found)
    assert len(cells) == 2
    assert re.fullmatch(
        r"GPU 0: theirs \(bob, default\), since 2023-11-14 22:23 UTC, until \S+ \S+ UTC at the latest", cells[0]
    ), cells[0]
    assert cells[1] == "GPU 1: idle"
    assert any(
        re.fullmatch(r"before \(ann, default\), since 2023-11-14 22:13 UTC, until 2023-11-14 22:23 UTC, COMPLETED", one)
        for one in titles(found, "held")
    )
    assert any(one.startswith("theirs") for one in titles(found, "forecast"))
    assert (await page(rig, "/cluster?colour=phase")).count('<rect class="held green"') == 1, "the past one"
    table = found[found.index('id="jobs"') :]
    assert "next</a>" in table, "the reader's own job is a link"
    assert "theirs</a>" not in table, "another's is its name"
    assert "theirs</a>" in await page(rig, "/cluster", "root")


async def test_the_name_of_a_node_leads_to_its_devices_and_jobs_in_words(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    await test_history.ran(rig, "before", 600)
    await test_outlook.fill(rig, "theirs", 1, "bob", timeout="1h", roles={"worker": {"gpus": 1}})
    found = await page(rig, "/cluster?colour=pool")
    (link,) = re.findall(r'<th scope="row"><a href="(/cluster[^"#]*)#node">here</a>', found)
    assert 'id="node"' not in found
    assert 'id="node"' not in await page(rig, "/cluster?node=her"), "a part of the name filters, and tells of no node"
    told = await page(rig, link.replace("&amp;", "&"))
    for title in {*re.findall(r"<title>([^<]*(?:before|theirs|idle)[^<]*)</title>", told)}:
        assert told.count(f"<li>{title}</li>") == (not title.startswith("GPU 0 to")), title
    assert "<li>GPU 1: idle</li>" in told
    assert "<li>before (ann, default), since" in told


async def test_a_node_that_is_not_ready_says_why(rig: browsers.WebRig) -> None:
    await rig.store.write(
        lambda tx: tx.put_node(msgspec.structs.replace(tx.nodes()[0], ready=False, reason="no contact"))
    )
    found = await page(rig, "/cluster")
    assert titles(found, "closed") == ["GPU 0 to 1: no contact"]
    assert "no contact" in browsers.text(found)


async def test_a_thousand_nodes_are_grouped_and_no_node_is_left_out_in_silence(rig: browsers.WebRig) -> None:
    def many(tx: Any) -> None:
        for number in range(1000):
            rack = f"r{number % 10}"
            tx.put_node(nodes.Node(name=f"n{number}", capacity=holdings.Resources(1000), domains={"rack": rack}))

    await rig.store.write(many)
    found = await page(rig, "/cluster?group=rack")
    assert found.count('<svg class="gantt"') == 200
    assert re.findall(r"r9: 100 nodes, 100 ready", found)
    assert "100 more nodes of r9" in found
    one = await page(rig, "/cluster?group=rack&in=r9")
    assert one.count('<svg class="gantt"') == 100
    named = await page(rig, "/cluster?group=none&node=n99")
    assert named.count('<svg class="gantt"') == 11, "n99, n990 to n999"
    assert "No node has this name" in await page(rig, "/cluster?node=nowhere")


MANY, GPUS = 10_000, 8


def many_nodes(racks: int) -> list[nodes.Node]:
    """Ten thousand nodes with eight GPUs each, dealt out to racks; node 507 is not ready."""
    lost = {"ready": False, "reason": "no contact"}
    return [
        nodes.Node(
            name=f"n{number:05d}",
            capacity=holdings.Resources(64_000, 512 << 30, GPUS),
            devices=tuple(nodes.Device(index=index, type="h100") for index in range(GPUS)),
            ports=(20000, 29999),
            domains={"rack": f"r{number % racks:04d}"},
            **(lost if number == 507 else {}),
        )
        for number in range(MANY)
    ]


@pytest.mark.parametrize("racks", marks.long_except([100], [100, 1250]))
async def test_ten_thousand_nodes_with_devices_fold_with_the_right_sums(rig: browsers.WebRig, racks: int) -> None:
    await rig.store.write(lambda tx: [tx.put_node(one) for one in many_nodes(racks)])
    job = await rig.submit("ann", name="wide", roles={"worker": {"count": 3, "gpus": GPUS}})
    on = (7, 7 + racks, 42)  # two in rack 7, one in rack 42
    claims = tuple(
        holdings.Holding(
            job=job.id,
            attempt=1,
            role="worker",
            index=index,
            node=f"n{number:05d}",
            amount=holdings.Resources(1000, 0, GPUS),
            devices=tuple(range(GPUS)),
            ports=(20000, 20001),
        )
        for index, number in enumerate(on)
    )
    await rig.happen(job.id, events.Admitted(attempt=1, holdings=claims), events.Launched(attempt=1))
    await rig.store.write(lambda tx: tx.hold(claims))
    rig.clock.now += 60
    each, lost = MANY // racks, f"r{507 % racks:04d}"
    async with rig.browser("ann") as browser:
        found = (await browser.get("/cluster?group=rack")).text
        told = re.findall(r'<details id="group-(r\d+)"( open)?><summary>r\d+: (.*?)</summary>', found)
        sums = {rack: words for rack, _, words in told}
        ready = {rack: each - (rack == lost) for rack in sums}
        used = {"r0007": 2 * GPUS, "r0042": GPUS}
        assert len(sums) == racks
        part = re.compile(r"; nodes .*")
        assert {rack: part.sub("", words) for rack, words in sums.items()} == {
            rack: f"{each} nodes, {ready[rack]} ready, {used.get(rack, 0)} of {each * GPUS} GPUs held" for rack in sums
        }
        opened = [rack for rack, shown, _ in told if shown]
        assert len(opened) == 200 // each, "the others are folded"
        assert found.count('<svg class="gantt"') == 200
        assert len(found) < 1_000_000
        inner = await page(rig, "/cluster?group=rack&in=r0042")
        assert inner.count('<svg class="gantt"') == each
        (title,) = titles(inner[: inner.index('id="jobs"')], "held")[:1]
        assert title.startswith("GPU 0 to 7: wide (ann, default), since")
        assert titles(await page(rig, f"/cluster?group=rack&in={lost}"), "closed") == ["GPU 0 to 7: no contact"]


HOSTILE = ['r" onload="x', "r 1", "r-1", "r\u202e1", "r" * 500, "r" * 501, "", "../r", "\ud800"]


async def test_a_group_keeps_its_id_and_its_table_whatever_comes_beside_it(rig: browsers.WebRig) -> None:
    """An open page keeps what its reader has folded by the ids."""

    async def shown(*racks: str) -> dict[str, str]:
        """The ids by the names of the groups."""
        await rig.store.write(
            lambda tx: [
                tx.put_node(nodes.Node(name=f"n-{rack}", capacity=holdings.Resources(1000), domains={"rack": rack}))
                for rack in racks
            ]
        )
        found = await page(rig, "/cluster?group=rack")
        ids = re.findall(r'<details id="([^"]*)"[^>]*><summary>([^:]*):', found)
        for one, _ in ids:
            assert f'<table data-table="{one}"' in found
        return {name: one for one, name in ids}

    before = await shown("r5", "r7")
    after = await shown("a0", "r6", "r50")
    assert {name: after[name] for name in before} == before
    assert (before["r5"], after["r50"]) == ("group-r5", "group-r50")
    async with rig.browser("ann") as browser:
        told = (await browser.get("/cluster?group=rack&csv=group-r5")).text
    assert [line.partition(",")[0] for line in told.splitlines()] == ["Node", "n-r5"]


def test_ids_of_groups_are_safe_short_and_distinct() -> None:
    found = [cluster._id(name) for name in HOSTILE]
    assert len(set(found)) == len(HOSTILE)
    assert all(re.fullmatch(r"group-[A-Za-z0-9._~-]{0,100}", one) for one in found)


NODE_LINK = r'<th scope="row"><a href="/cluster[^"]*#node">([^<]*)</a>'


@pytest.mark.parametrize("group", ["none", "type"])
async def test_all_nodes_of_a_large_group_are_reached_by_links(rig: browsers.WebRig, group: str) -> None:
    await rig.store.write(
        lambda tx: [
            tx.put_node(nodes.Node(name=f"n{number:03d}", capacity=holdings.Resources(1000))) for number in range(1000)
        ]
    )
    async with rig.browser("ann") as browser:
        found, seen = (await browser.get(f"/cluster?group={group}")).text, set[str]()
        for number in range(6):
            names = re.findall(NODE_LINK, found)
            assert 1 <= len(names) <= 200
            assert not seen.intersection(names)
            seen |= set(names)
            link = re.search(r'rel="next" href="([^"]*)"', found)
            assert (link is None) == (len(seen) == 1001), f"after {len(seen)} nodes, on page {number + 1}"
            found = found if link is None else (await browser.get(html.unescape(link[1]))).text
        assert len(seen) == 1001
        (back,) = re.findall(r'rel="prev" href="([^"]*)"', found)
        assert "n799" in re.findall(NODE_LINK, (await browser.get(html.unescape(back))).text)
        for first in ("0", "99999", "-1", "x", "9" * 30, "²"):
            told = (await browser.get(f"/cluster?group=none&in=all+nodes&first={first}")).text
            assert re.findall(NODE_LINK, told), first


async def test_nodes_are_grouped_by_the_pools_of_the_jobs_on_them(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    await rig.store.write(lambda tx: tx.put_node(nodes.Node(name="rests", capacity=holdings.Resources(1000))))
    await test_outlook.fill(rig, "theirs", 1, "bob", timeout="1h", roles={"worker": {"gpus": 1}})
    rig.clock.now += 60
    found = browsers.text(await page(rig, "/cluster?group=pool"))
    assert re.search(r"default: 1 node,", found)
    assert re.search(r"no jobs: 1 node,", found)


WINDOW = clustermap.Window(0.0, 100.0, 150.0)
NODE = nodes.Node(
    name="n",
    capacity=holdings.Resources(8000, 0, 4),
    devices=tuple(nodes.Device(index=index, type="h100") for index in range(4)),
)


def held(
    name: str, devices: tuple[int, ...], first: float, last: float | None, outcome: phases.Phase | None = None
) -> bodies.HeldBefore:
    where = {"user": "ann", "pool": "p", "places": (bodies.Place("n", devices),)}
    return bodies.HeldBefore(name=name, attempt=1, started_at=first, ended_at=last, outcome=outcome, **where)


def row(*past: bodies.HeldBefore, by: str = "job", **facts: Any) -> clustermap.Row:
    told = bodies.Forecasts(at=100.0, starts=facts.get("starts", ()), ends=facts.get("ends", ()))
    drawn = clustermap.Map(clustermap.Facts(past, told, facts.get("phases", {})), WINDOW, by, lambda at: f"{at:g}")
    return drawn.row(bodies.NodeState(NODE, holdings.Resources(), ()))


def test_a_shared_device_is_split_and_apart_devices_are_apart() -> None:
    found = row(held("a", (0, 1, 3), 10, None), held("b", (3,), 20, None))
    assert [(one.x, one.width, one.kind) for one in found.cells] == [
        (0, 12, "held"),
        (14, 12, "held"),
        (28, 12, "idle"),
        (42, 6, "held"),
        (48, 6, "held"),
    ]
    lane = found.height / 4
    assert [(one.y, one.height) for one in found.bars[:2]] == [(0, 2 * lane), (3 * lane, lane)]


def test_jobs_without_devices_lie_below_those_with_some() -> None:
    found = row(held("gpu", (0, 1, 2, 3), 5, None), *(held(f"cpu{number}", (), 10, None) for number in range(4)))
    devices, *others = sorted(found.bars, key=lambda one: one.y)
    assert (devices.y, devices.height) == (0, 4 * clustermap.LANE)
    assert [one.y for one in others] == [32, 36, 40, 44], "each has a lane, and none covers a device"
    assert all(one.y + one.height <= found.height for one in found.bars)
    assert row(held("gpu", (0,), 5, None)).height == 32


def test_a_bar_ends_at_its_end_now_or_the_border() -> None:
    found = row(held("a", (0,), -50, 50), held("b", (1,), 60, None))
    scale = clustermap.WIDTH / 150
    assert [(one.x, round(one.x + one.width, 3)) for one in found.bars] == [
        (0.0, round(50 * scale, 3)),
        (60 * scale, round(100 * scale, 3)),
    ]


def test_the_forecast_is_apart_from_the_past() -> None:
    ends = (bodies.ExpectedEnd(user="ann", pool="p", name="a", end=120.0),)
    start = bodies.ExpectedStart(
        user="ann",
        pool="p",
        name="b",
        when="later",  # type: ignore[arg-type]  # as it arrives
        expected="",
        start=120.0,
        latest=130.0,
        places=(bodies.Place("n", (0,)),),
    )
    found = row(held("a", (0,), 10, None), ends=ends, starts=(start,))
    assert [one.kind for one in found.bars] == ["held", "forecast", "forecast", "range"]
    assert found.bars[2].title == "b (ann, p): expected start 120 to 130"


def test_a_job_keeps_its_colour_and_a_phase_has_its_own() -> None:
    one, other = row(held("a", (0,), 10, None)), row(held("z", (0,), 10, None), held("a", (1,), 10, None))
    assert one.cells[0].colour == other.cells[1].colour
    phased = row(held("a", (0,), 10, None), by="phase", phases={("ann", "p", "a"): "PROCESSING"})
    assert phased.cells[0].colour == "blue"


@pytest.mark.parametrize(
    ("outcome", "colour", "word"),
    [
        (phases.Phase.COMPLETED, "green", "COMPLETED"),
        (phases.Phase.FAILED, "red", "FAILED"),
        (phases.Phase.CANCELED, "violet", "CANCELED"),
        (phases.Phase.HALTED, "violet", "HALTED"),
        (phases.Phase.QUEUED, "amber", "QUEUED again"),
    ],
)
def test_a_past_attempt_has_the_colour_of_its_outcome(outcome: phases.Phase, colour: str, word: str) -> None:
    """The job runs again meanwhile: its present phase is not that of its past."""
    past = held("a", (0,), 10, 50, outcome)
    found = row(past, held("a", (1,), 60, None), by="phase", phases={("ann", "p", "a"): "PROCESSING"})
    assert [(one.colour, one.title.partition(", until ")[2]) for one in found.bars] == [
        (colour, f"50, {word}"),
        ("blue", ""),
    ]


def test_devices_that_are_alike_are_one_element() -> None:
    def cell(place: int, kind: str, title: str, colour: str = "open") -> clustermap.Box:
        return clustermap.Box(clustermap.CELL * place, 0, clustermap.CELL - 2, 16, kind, colour, title)

    cells = [
        *(cell(place, "idle", f"GPU {place}: idle") for place in range(3)),
        cell(3, "held", "GPU 3: a (ann, default)", "fill-1"),
        cell(4, "held", "GPU 4: b: c (ann, default)", "fill-1"),
        cell(5, "held", "GPU 5: b: c (ann, default)", "fill-1"),
        clustermap.Box(84, 0, 6, 16, "held", "fill-1", "GPU 6: b: c (ann, default)"),
        clustermap.Box(90, 0, 6, 16, "held", "fill-1", "GPU 6: b: c (ann, default)"),
        cell(7, "idle", "GPU 7: idle"),
    ]
    found = list(clustermap.runs(cells))
    assert [(one.kind, one.title) for one in found] == [
        ("idle", "GPU 0 to 2: idle"),
        ("held", "GPU 3: a (ann, default)"),
        ("held", "GPU 4 to 5: b: c (ann, default)"),
        ("held", "GPU 6: b: c (ann, default)"),
        ("held", "GPU 6: b: c (ann, default)"),
        ("idle", "GPU 7: idle"),
    ]
    assert found[0].path == "M0 0h12v16h-12zM14 0h12v16h-12zM28 0h12v16h-12z"
    assert sum(one.path.count("M") for one in found) == len(cells), "each device is drawn"
