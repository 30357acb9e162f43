"""The home page: what waits, in the order of the queue, and when each job should start."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

import pytest
from tests.api import rig as rigs
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.api.administration import server
from oarlock.spec import bodies, events, holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools, samples
from oarlock.store.sql import filesystems
from oarlock.web.drawing import deviceday
from oarlock.web.pages import home


async def test_a_waiting_job_has_its_expected_start(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.take_time(monkeypatch)
    await test_outlook.fill(rig, "big", 2, timeout="1h")
    await rig.submit("bob", name="low", priority=10, roles={"worker": {"gpus": 2}})
    rig.clock.now += 1
    await rig.submit("ann", name="high", priority=90, timeout="30m", roles={"worker": {"gpus": 2}})
    async with rig.browser("ann") as browser:
        page = (await browser.get("/")).text
    browsers.elements(page)
    text = browsers.text(page)
    assert text.index("high") < text.index("low"), "in the order of the queue"
    cells = re.findall('title="It should start (.*?)\\."[^>]*>(.*?)</td>', page)
    assert len(cells) == 2
    assert all(sentence == shown for sentence, shown in cells), "the heading has the first words"


async def test_the_links_to_more_jobs_lead_to_those_that_are_counted(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "SHOWN", 1)
    monkeypatch.setattr(home, "WAITING", 1)
    for name in ("alpha", "beta"):
        await rig.launch(await rig.submit("ann", name=name))  # both are deploying
    for name in ("gamma", "delta"):
        await rig.submit("ann", name=name, roles={"worker": {"gpus": 2}})
    monkeypatch.setattr(home, "FAILED", 1)
    for name in ("omega", "sigma"):
        await rig.end((await rig.launch(await rig.submit("ann", name=name, max_restarts=0))).id, code=1)
    names = ("alpha", "beta", "gamma", "delta", "omega", "sigma")

    async def linked(more: int) -> list[list[str]]:
        """The names on the lists to which the links of ann's page lead."""
        async with rig.browser("ann") as browser:
            page = (await browser.get("/")).text
            browsers.elements(page)
            found = re.findall(rf'href="([^"#]*)[^"]*">(?:1 more|{more} more wait)</a>', page)
            told = [browsers.text((await browser.get(html.unescape(path))).text) for path in found]
        return [[name for name in (*names, "another") if name in text] for text in told]

    assert await linked(1) == [["alpha", "beta"], ["gamma", "delta"], ["omega", "sigma"]]
    await rig.submit("bob", name="another", roles={"worker": {"gpus": 2}})
    _, waiting, _ = await linked(2)
    assert {"gamma", "delta", "another"} <= set(waiting), "a job of another user is counted, and is on the list"


async def test_many_notices_are_one_line_and_many_rows_are_counted(rig: browsers.WebRig) -> None:
    lost = [
        nodes.Node(name=f"n{number}", capacity=rigs.NODE.capacity, ready=False, reason="off") for number in range(5)
    ]
    await rig.store.write(lambda tx: tx.put_node(lost[0]))
    async with rig.browser("ann") as browser:
        assert '<p class="notice">n0 is not ready: off</p>' in (await browser.get("/")).text
        for one in lost[1:]:
            await rig.store.write(lambda tx, one=one: tx.put_node(one))
        for number in range(home.POOLS):
            await rig.store.write(lambda tx, number=number: tx.put_pool(pools.Pool(name=f"p{number}")))
        page = (await browser.get("/")).text
    browsers.elements(page)
    assert page.count('class="notice"') == 1
    assert "5 nodes are not ready: n0, n1, n2 and 2 more. See why: oarlock nodes" in page
    assert re.search(r'<a href="/pools">\d more pools?</a>', page)
    rig.problems |= {"leader": "there is no leader yet", "store": "the store is slow", "logs": "the logs are full"}
    async with rig.browser("root") as browser:
        page = (await browser.get("/")).text
    browsers.elements(page)
    assert re.search(r'<details id="notices"><summary class="notice">\d notices: 5 nodes are not ready', page)


def test_the_largest_types_are_shown() -> None:
    rows = [{"type": f"t{number}", "total": number} for number in range(6)] + [{"type": "CPUs", "total": 1}]
    shown, hidden = home._largest(rows, 4)
    assert ([one["type"] for one in shown], hidden) == (["t2", "t3", "t4", "t5", "CPUs"], 2)


def pool(name: str, used: float, entitled: float, jobs: int = 0, resource: str = "gpus") -> bodies.PoolState:
    held = holdings.Resources(0, 0, used) if resource == "gpus" else holdings.Resources(int(1000 * used), 0, 0)
    entitlement = {"gpus": 0.0, "cpus": 0.0, resource: entitled}
    return bodies.PoolState(
        pool=pools.Pool(name=name), held=held, entitled=entitlement, demand={}, reserved={}, running=jobs, waiting=0
    )


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ([pool("a", 1, 1, jobs=9), pool("idle", 0, 8), pool("b", 2, 1), pool("above", 9, 1)], ["idle", "above"]),
        ([pool("a", 1, 1, jobs=1), pool("b", 1, 1, jobs=3), pool("c", 1, 1, jobs=2)], ["b", "c"]),
        ([pool("a", 0.1 + 0.2, 0.3, jobs=1), pool("b", 1, 1, jobs=3), pool("c", 1, 1, jobs=2)], ["b", "c"]),
        ([pool("cores", 0, 64, resource="cpus"), pool("a", 0, 2), pool("b", 1, 2)], ["a", "b"]),
        ([pool("cores", 0, 64, resource="cpus"), pool("a", 2, 2, jobs=9), pool("b", 1, 2)], ["cores", "b"]),
    ],
)
def test_the_pools_farthest_from_their_entitlement_are_shown(found: list[bodies.PoolState], shown: list[str]) -> None:
    assert [one.pool.name for one in home._farthest(found, 2)] == shown


@pytest.mark.parametrize(
    ("used", "entitled", "told"),
    [
        (2, 2, "as entitled"),
        (0.1 + 0.2, 0.3, "as entitled"),
        (0.3, 0.1 + 0.2, "as entitled"),
        (0.5, 0.75, "0.25 below"),
        (3, 4 / 3, "1.667 above"),
        (0.001, 0, "0.001 above"),
    ],
)
def test_the_difference_from_an_entitlement_has_no_rounding_error(used: float, entitled: float, told: str) -> None:
    assert home._pool(pool("a", used, entitled))["against"] == told


async def test_an_idle_pool_below_its_entitlement_is_not_hidden_by_busy_ones(rig: browsers.WebRig) -> None:
    kept = pools.Pool(name="zzz-idle", reserve={"gpus": 1.0}, static=("gpus",))
    await rig.store.write(lambda tx: tx.put_pool(kept))
    for number in range(home.POOLS + 2):
        name = f"busy-{number}"
        await rig.store.write(lambda tx, name=name: tx.put_pool(pools.Pool(name=name)))
        await rig.submit("ann", name=name, pool=name, roles={"worker": {"gpus": 1}})
    async with rig.browser("ann") as browser:
        page = (await browser.get("/")).text
    row = re.search(r'<th scope="row">zzz-idle</th>.*?</tr>', page, flags=re.DOTALL)
    assert row is not None, "it has no job, and others have"
    assert "1 below" in browsers.text(row[0])


async def test_nothing_waits(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        assert "No job waits" in browsers.text((await browser.get("/")).text)


def test_a_day_of_devices() -> None:
    def held(first: float, last: float | None, *devices: int, node: str = "here") -> bodies.HeldBefore:
        places = (bodies.Place(node, devices),)
        return bodies.HeldBefore(
            user="ann", pool="p", name="n", attempt=1, started_at=first, ended_at=last, places=places
        )

    now = 10 * deviceday.DAY_S
    state = bodies.NodeState(node=rigs.NODE, held=holdings.Resources(), holdings=())
    half = now - deviceday.DAY_S / 2
    (day,) = deviceday.days([state], [held(0.0, half, 0), held(half, None, 0, 1), held(0.0, None, 0, node="gone")], now)
    assert (day.type, day.total, day.most) == ("h100", 2, 2.0)
    assert abs(day.held - 1.5) < 0.02
    assert (day.not_ready, day.reserved, round(day.idle, 1)) == (None, None, 0.5), "no sample tells the rest"
    told = [samples.Sample(at=1.0, devices={"h100": samples.Devices(1.0, 1.0 - lost, lost)}) for lost in (0.0, 0.5)]
    (day,) = deviceday.days([state], [], now, told)
    assert (day.not_ready, day.reserved, day.idle) == (0.25, None, 0.75), "samples of an earlier version"
    told = [samples.Sample(at=1.0, devices={"h100": samples.Devices(1.0, 0.5, 0.0, 0.5)}), *told[1:]]
    (day,) = deviceday.days([state], [], now, told)
    assert (day.not_ready, day.reserved, day.idle) == (0.25, 0.5, 0.5)
    (day,) = deviceday.days([state], [held(0.0, None, 0), held(half, None, 0), held(half, now, 0)], now)
    assert (day.most, round(day.held, 1)) == (1.0, 1.0), "three jobs on one device"
    told = [samples.Sample(at=1.0, devices={"h100": samples.Devices(3.0, 3.0, 1.0, 1.0)})]
    (day,) = deviceday.days([state], [], now, told)
    assert (day.counted, day.total) == (8.0, 2), "there were more devices: their parts are of those"
    told = [samples.Sample(at=1.0, devices={"h100": samples.Devices(1.0, 1.0)})]
    (day,) = deviceday.days([state], [held(0.0, None, 0, 1)], now, told)
    assert (day.held, day.idle, day.most) == (1.0, 1.0, 2.0), "the sums are those of the samples"
    (idle,) = deviceday.days([state], [held(0.0, now - 2 * deviceday.DAY_S, 0)], now)
    assert (idle.held, idle.most) == (0.0, 0.0)


def test_the_time_before_the_server_ran_is_no_idle_time() -> None:
    def held(first: float, last: float | None, *devices: int) -> bodies.HeldBefore:
        places = (bodies.Place("here", devices),)
        return bodies.HeldBefore(
            user="ann", pool="p", name="n", attempt=1, started_at=first, ended_at=last, places=places
        )

    now = 10 * deviceday.DAY_S
    state = bodies.NodeState(node=rigs.NODE, held=holdings.Resources(), holdings=())
    (day,) = deviceday.days([state], [held(now - 60, None, 0, 1)], now, started_at=now - 120)
    assert (day.held, day.idle, day.most, day.known_s) == (1.0, 1.0, 2, 120.0)
    assert day.points.startswith("190,24 190,"), "the curve begins there, too"
    (day,) = deviceday.days([state], [], now, started_at=now - 120)
    assert (day.held, day.idle, day.known_s) == (0.0, 2.0, 120.0)
    (day,) = deviceday.days([state], [], now, [samples.Sample(at=now - 600)], started_at=now - 120)
    assert day.known_s == 600.0, "an earlier server has told"
    short = [held(now - 100, now - 90, 0), held(now - 90, now - 80, 1), held(now - 50, now - 49, 0, 1)]
    (day,) = deviceday.days([state], short, now)
    assert day.most == 2, "also where they were held for a second"


async def test_devices_pools_and_notices(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.take_time(monkeypatch)
    await test_outlook.fill(rig, "big", 1, timeout="1h")
    await rig.submit("ann", name="high", timeout="30m", roles={"worker": {"gpus": 2}})
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 1 << 20, 1000, 1000, 1, 1, 1, 0, 255))
    )
    rig.problems["leader"] = "there is no leader yet"
    async with rig.browser("ann") as browser:
        page = (await browser.get("/")).text
        browsers.elements(page)
        row = re.search(r'<th scope="row">h100</th>(.*?)<td><svg', page, flags=re.DOTALL)
        assert row is not None
        assert re.findall(r">(\d+)<", row[1]) == ["1", "1", "0", "0"], "used, idle, reserved, not ready"
        assert "data-loaded" not in page, "the day is read only where it is looked at"
        assert "nearly full" not in page, "what an administrator may know"
        rig.clock.now += 3600
        day = (await browser.get("/?sections=day")).text
        browsers.elements(day)
        assert "1 of 2</td>" in day
        assert "Last 1h" in browsers.text(day)
    async with rig.browser("root") as browser:
        text = browsers.text((await browser.get("/")).text)
        assert "the disk is full" in text
        assert "there is no leader yet" in text


async def test_a_waiting_job_tells_its_need_and_the_holders_to_all(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    await test_outlook.fill(rig, "big", 2, timeout="1h")
    job = await rig.submit("ann", name="waits", roles={"worker": {"count": 2, "gpus": 1}})
    holder = refusals.Holder(job="j-secret", name="big", owner="ann", pool="default", amount={"gpus": 2.0})
    refusal = refusals.Refusal(
        code=refusals.Code.NO_CAPACITY, message="it needs 2 GPUs, 0 are free", needed={"gpus": 2.0}, holders=(holder,)
    )
    await rig.happen(job.id, events.Refused(refusal=refusal))
    told = {}
    for who in ("ann", "bob"):
        async with rig.browser(who) as browser:
            page = (await browser.get("/")).text
        browsers.elements(page)
        row = re.search(r'<th scope="row">(?:(?!<tr>).)*waits.*?</tr>', page, flags=re.DOTALL)
        assert row is not None
        told[who] = browsers.text(row[0])
        assert "j-secret" not in page
    assert all("2 GPUs" in text and "Held by big (2 GPUs)." in text for text in told.values())
    assert "it needs 2 GPUs, 0 are free" in told["ann"]
    assert "There is no room for it." in told["bob"], "the message is the owner's"


async def test_a_failure_shows_the_last_line_of_the_blamed_rank(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann", name="fails", max_restarts=0))
    await rig.end(job.id, code=3, last_lines=("Traceback: it has <failed>", "  "))
    async with rig.browser("ann") as browser:
        page = (await browser.get("/")).text
    browsers.elements(page)
    assert "<code>Traceback: it has &lt;failed&gt;</code>" in page


async def test_administrators_see_what_doctor_would_find(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(rig.services.about.home)
    home.mkdir(parents=True, exist_ok=True)
    (home / "token").touch(mode=0o644)
    (home / "token").chmod(0o644)
    monkeypatch.setattr(filesystems, "kind", lambda path, mounts: "nfs4")
    small = os.statvfs_result((4096, 4096, 1 << 10, 1 << 10, 1 << 10, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    monkeypatch.setattr(server, "file_skew_s", lambda home, clock: 90.0)
    rig.programs = bodies.Programs(
        python=bodies.Python(path="/bin/python", version="3.12.1"), gpus=bodies.Driver(tool="x", silence="mismatch")
    )
    async with rig.browser("root") as browser:
        text = browsers.text((await browser.get("/")).text)
    for said in (
        "network file system (nfs4)",
        "data loaders with workers crash",
        "can be read by others (mode 644)",
        "get a time 90 s ahead of the clock",
        "jobs use /bin/python (Python 3.12.1), which has no torch",
        "the GPU driver does not answer: mismatch",
    ):
        assert said in text
    async with rig.browser("ann") as browser:
        assert "nfs4" not in browsers.text((await browser.get("/")).text)


def test_reserved_devices_are_those_of_the_first_waiting_job() -> None:
    places = (bodies.Place("here", (1,)),)
    told = {"user": "ann", "pool": "p", "when": plans.When.LATER, "expected": "soon"}
    first, later = (bodies.ExpectedStart(name=name, places=places, **told) for name in ("first", "later"))
    unknown = bodies.ExpectedStart(name="unknown", **told)
    forecast = bodies.Forecasts(at=1.0, starts=(unknown, first, later), ends=())
    state = bodies.NodeState(node=rigs.NODE, held=holdings.Resources(), holdings=())
    (gpus, _) = home.devices([state], home.promised(forecast))
    assert (gpus["idle"], gpus["reserved"]) == (1, 1)
    assert home.promised(None) == home.promised(bodies.Forecasts(at=1.0, starts=(unknown,), ends=())) == set()
