"""The page of pools: the tree with its bars, and a change that is seen before it is made."""

from __future__ import annotations

import re
from typing import Any

import httpx
from tests.api.cluster import test_pools
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.display.pools import pooluse
from oarlock.spec import bodies, holdings
from oarlock.spec.cluster import pools, samples
from oarlock.web.drawing import poolday, poolscale


async def send(rig: browsers.WebRig, who: str = "root", **form: Any) -> httpx.Response:
    async with rig.browser(who) as browser:
        return await browser.post("/pools/edit", data=form, headers=browsers.OURS)


async def page(rig: browsers.WebRig, path: str, who: str = "root") -> str:
    async with rig.browser(who) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    browsers.elements(answer.text)
    return answer.text


async def applied(rig: browsers.WebRig, **form: str) -> httpx.Response:
    """The answer to a change that is made after its effects were shown."""
    seen = await send(rig, **{**form, "action": "preview"})
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', seen.text))
    return await send(rig, **{**fields, "action": "apply"})


async def test_the_tree_is_told_in_words_and_administrators_alone_change_it(rig: browsers.WebRig) -> None:
    await test_pools.change(rig, "research", reserve={"gpus": 1})
    await test_pools.change(rig, "vision", parent="research", limit={"gpus": 1})
    await test_outlook.fill(rig, "big", 2, roles={"worker": {"gpus": 2}})
    await rig.submit("ann", name="waits", pool="vision", roles={"worker": {"gpus": 1}})
    found = await page(rig, "/pools")
    text = browsers.text(found)
    assert "2 GPUs used, 1 GPU entitled, 1 GPU borrowed" in text
    assert 'class="depth-1"' in found, "vision is below research"
    assert "limit 1 GPU" in text
    assert "/pools/edit?pool=vision" in found
    assert "/pools/edit" not in await page(rig, "/pools", "ann")


async def test_a_pool_is_removed_after_what_is_in_the_way_was_shown(rig: browsers.WebRig) -> None:
    await test_pools.change(rig, "research", reserve={"gpus": 1})
    await test_pools.change(rig, "vision", parent="research")
    job = await rig.submit("ann", name="waits", pool="vision")
    assert "/pools/remove?pool=vision" in await page(rig, "/pools/edit?pool=vision")
    assert "/pools/remove" not in await page(rig, "/pools/edit"), "a new pool"
    button = '<button class="danger">Remove</button>'
    for name, said in (
        ("default", "always there"),
        ("research", "removed after those below it"),
        ("vision", "once its jobs have ended"),
    ):
        asked = await page(rig, f"/pools/remove?pool={name}")
        assert (said in browsers.text(asked), button in asked) == (True, False)
        async with rig.browser("root") as browser:
            refused = await browser.post("/pools/remove", data={"pool": name}, headers=browsers.OURS)
        browsers.elements(refused.text)
        assert (refused.status_code, 'role="alert"' in refused.text) == (409, True)
    await rig.end((await rig.launch(job)).id)
    for name in ("vision", "research"):
        asked = await page(rig, f"/pools/remove?pool={name}")
        assert (button in asked, f"oarlock pool rm {name}" in asked) == (True, True)
        async with rig.browser("root") as browser:
            done = await browser.post("/pools/remove", data={"pool": name}, headers=browsers.OURS)
        assert (done.status_code, done.headers["location"]) == (303, "/pools")
    async with rig.browser("root") as browser:
        assert (await browser.get("/pools/remove?pool=vision")).status_code == 404
        gone = await browser.post("/pools/remove", data={"pool": "vision"}, headers=browsers.OURS)
        assert gone.status_code == 404


def taken(at: float, used: float, entitled: float, **more: Any) -> samples.Sample:
    pool = samples.PoolUse({"gpus": used, "cpus": 1.0}, {"gpus": entitled, "cpus": 8.0})
    return samples.Sample(at=at, pools={"research": pool, **more})


async def test_the_use_is_drawn_against_the_entitlement_over_time(rig: browsers.WebRig) -> None:
    assert "will appear here" in browsers.text(await page(rig, "/pools"))
    for age, used, entitled in ((90_000.0, 8.0, 1.0), (7200.0, 1.0, 2.0), (6900.0, 3.0, 2.0), (300.0, 2.0, 2.0)):
        one = taken(rig.clock.now - age, used, entitled)
        await rig.store.write(lambda tx, one=one: tx.add_sample(one))
    found = await page(rig, "/pools", "ann")
    assert "research: 2 used and 2 entitled on average" in found
    async with rig.browser("ann") as browser:
        sheet = (await browser.get("/pools?csv=use")).text.splitlines()
        week = (await browser.get("/pools?span=7d&csv=use")).text.splitlines()
    assert sheet == [
        "Pool,Resource,Used on average,At most,Entitled on average,Samples",
        "research,gpus,2,3,2,3",
    ]
    assert week[1] == "research,gpus,3.5,8,1.75,4"


def test_a_time_without_samples_is_a_gap_and_a_cluster_without_devices_shows_cores() -> None:
    times = (0.0, 300.0, 600.0, 50_000.0, 50_300.0)
    (use,) = pooluse.over([taken(at, 4.0 if at else 0.0, 2.0) for at in times])
    picture = poolday.draw(use, 0.0, 86_400.0, 4.0)
    assert [len(area.split()) for area in picture.areas] == [3 + 2, 2 + 2]
    assert picture.lines[0].split() == ["0.0,20.0", "1.1,20.0", "2.2,20.0"]
    assert picture.areas[0].split()[1:3] == ["0.0,40.0", "1.1,0.0"]
    (cores,) = pooluse.over([taken(1.0, 0.0, 0.0)])
    assert cores.cells() == ["research", "cpus", "1", "1", "8", "1"]
    assert pooluse.over([]) == []
    assert poolday.draw(use, 0.0, 0.0, 0.0).areas, "no scale is divided by nothing"


async def test_a_change_is_seen_before_it_is_made(rig: browsers.WebRig) -> None:
    await test_pools.change(rig, "research", limit={"gpus": 1}, share=2)
    await test_outlook.fill(rig, "runs", 1, "bob", pool="research", roles={"worker": {"gpus": 1}})
    await rig.submit("ann", name="waits", pool="research", roles={"worker": {"gpus": 1}})
    form = await page(rig, "/pools/edit?pool=research")
    assert 'value="gpus=1"' in form
    assert 'value="gpus=2, cpus=2, memory=2"' in form
    typed = {"pool": "research", "version": "1", "limit": "gpus=2", "share": "gpus=2, cpus=2, memory=2"}
    seen = await send(rig, **typed, action="preview")
    assert "1 job would start at once: waits (ann, research)." in browsers.text(seen.text)
    assert "oarlock pool set research" in seen.text
    stored = (await test_pools.by_name(rig))["research"]["pool"]
    assert stored["limit"] == {"gpus": 1.0}, "nothing is written by looking"
    made = await applied(rig, **typed)
    assert (made.status_code, made.headers["location"]) == (303, "/pools")
    stored = (await test_pools.by_name(rig))["research"]["pool"]
    assert (stored["limit"], stored["share"]["gpus"]) == ({"gpus": 2.0}, 2.0)


async def test_a_field_that_was_not_typed_is_not_changed(rig: browsers.WebRig) -> None:
    amounts = {"cpus": 1000.125, "gpus": 1234567}
    share = {"gpus": 1 / 3, "cpus": 1234567.5, "memory": 0.0000001}
    await test_pools.change(rig, "research", limit=amounts, share=share, reserve={"memory": 1000000001})
    before = (await test_pools.by_name(rig))["research"]["pool"]
    form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', await page(rig, "/pools/edit?pool=research")))
    assert form["limit"] == "gpus=1234567, cpus=1000.125"
    assert form["share"].endswith("cpus=1234567.5, memory=0.0000001")
    assert (await applied(rig, **{**form, "policy": "fifo"})).status_code == 303
    after = (await test_pools.by_name(rig))["research"]["pool"]
    assert after == {**before, "policy": "fifo", "version": after["version"]}
    changed = form["share"].replace("1234567.5", "3")
    assert (await applied(rig, **{**form, "version": "2", "share": changed, "policy": "fifo"})).status_code == 303
    assert (await test_pools.by_name(rig))["research"]["pool"]["share"] == {**share, "cpus": 3.0}


async def test_a_field_that_is_left_out_of_the_form_is_removed(rig: browsers.WebRig) -> None:
    await test_pools.change(rig, "research", limit={"gpus": 1, "cpus": 4}, policy="fifo")
    await applied(rig, pool="research", version="1", limit="gpus=1")
    stored = (await test_pools.by_name(rig))["research"]["pool"]
    assert (stored["limit"], stored["policy"], stored["share"]) == ({"gpus": 1.0}, None, {})


async def test_a_change_is_applied_only_as_its_effects_were_shown(rig: browsers.WebRig) -> None:
    await test_pools.change(rig, "research", limit={"gpus": 1})
    seen = await send(rig, pool="research", version="1", limit="gpus=2", action="preview")
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', seen.text))
    for form in ({**fields, "limit": "gpus=3"}, {**fields, "previewed": ""}):
        other = await send(rig, **{**form, "action": "apply"})
        assert other.status_code == 200
        browsers.elements(other.text)
        assert "Nothing was applied" in other.text
        assert f'value="{form["limit"]}"' in other.text
        assert "oarlock pool set research" in other.text, "the effects of these fields"
        assert (await test_pools.by_name(rig))["research"]["pool"]["limit"] == {"gpus": 1.0}
    again = dict(re.findall(r'name="(\w+)" value="([^"]*)"', other.text))
    assert (await send(rig, **{**again, "action": "apply"})).status_code == 303
    assert (await test_pools.by_name(rig))["research"]["pool"]["limit"] == {"gpus": 2.0}


async def test_a_change_of_another_administrator_is_shown_and_not_overwritten(rig: browsers.WebRig) -> None:
    await test_pools.change(rig, "research", limit={"gpus": 1})
    await test_pools.change(rig, "research", limit={"gpus": 2}, policy="las")
    late = await send(rig, pool="research", version="1", limit="gpus=1, cpus=3", action="apply")
    assert late.status_code == 409
    browsers.elements(late.text)
    text = browsers.text(late.text)
    assert "is at version 2, not 1" in text
    assert "las" in text
    assert 'value="gpus=1, cpus=3"' in late.text, "the typed text is kept"
    assert 'name="version" value="2"' in late.text
    assert (await test_pools.by_name(rig))["research"]["pool"]["limit"] == {"gpus": 2.0}


async def test_a_refusal_keeps_the_typed_text_and_names_the_field(rig: browsers.WebRig) -> None:
    for field, value in (("reserve", "eight"), ("parent", "nowhere"), ("limit", "gpus=-1"), ("policy", "none-such")):
        refused = await send(rig, pool="new", **{field: value}, action="apply")
        assert 400 <= refused.status_code < 500, refused.text
        browsers.elements(refused.text)
        assert f'value="{value}"' in refused.text
    assert list(await test_pools.by_name(rig)) == ["default"]


def test_all_bars_of_a_resource_have_one_scale() -> None:
    def state(used: int, **pool: Any) -> bodies.PoolState:
        return bodies.PoolState(
            pool=pools.Pool(name="p", **pool),
            held=holdings.Resources(0, 0, used),
            entitled={"gpus": 4.0},
            demand={},
            reserved={},
            running=0,
            waiting=0,
        )

    tree = [state(6), state(1, limit={"gpus": 100.0}, reserve={"gpus": 2.0})]
    full = poolscale.scale(tree, {"gpus": 8.0}, "gpus")
    one, other = (poolscale.bar(each, "gpus", full) for each in tree)
    assert (one.used, one.borrowed, one.entitled) == (120.0, 60.0, 120.0)
    assert (other.used, other.borrowed, other.reserved) == (30.0, 0.0, 60.0)
    assert other.limit == poolscale.WIDTH, "a limit beyond the scale stands at its end"
