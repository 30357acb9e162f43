"""The page of pools: the tree with its bars, and a change that is seen before it is made."""

from __future__ import annotations

import re
from typing import Any

import httpx
from tests.api.cluster import test_pools
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.spec import bodies, holdings
from oarlock.spec.cluster import pools
from oarlock.web.drawing import poolscale


async def send(rig: browsers.WebRig, who: str = "root", **form: Any) -> httpx.Response:
    async with rig.browser(who) as browser:
        return await browser.post("/pools/edit", data=form, headers=browsers.OURS)


async def page(rig: browsers.WebRig, path: str, who: str = "root") -> str:
    async with rig.browser(who) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    browsers.elements(answer.text)
    return answer.text


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
    made = await send(rig, **typed, action="apply")
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
    assert (await send(rig, **{**form, "policy": "fifo", "action": "apply"})).status_code == 303
    after = (await test_pools.by_name(rig))["research"]["pool"]
    assert after == {**before, "policy": "fifo", "version": after["version"]}
    changed = form["share"].replace("1234567.5", "3")
    assert (
        await send(rig, **{**form, "version": "2", "share": changed, "policy": "fifo", "action": "apply"})
    ).status_code == 303
    assert (await test_pools.by_name(rig))["research"]["pool"]["share"] == {**share, "cpus": 3.0}


async def test_a_field_that_is_left_out_of_the_form_is_removed(rig: browsers.WebRig) -> None:
    await test_pools.change(rig, "research", limit={"gpus": 1, "cpus": 4}, policy="fifo")
    await send(rig, pool="research", version="1", limit="gpus=1", action="apply")
    stored = (await test_pools.by_name(rig))["research"]["pool"]
    assert (stored["limit"], stored["policy"], stored["share"]) == ({"gpus": 1.0}, None, {})


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
