"""Pools over REST: changed in one transaction, refused with the numbers, shown with their entitlements."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from tests.api import rig as rigs

from oarlock.spec import events, holdings
from oarlock.spec.cluster import nodes, pools


async def change(rig: rigs.Rig, name: str, who: str = "root", **fields: Any) -> httpx.Response:
    async with rig.as_user(who) as http:
        return await http.patch(f"/api/v1/pools/{name}", json=fields)


async def remove(rig: rigs.Rig, name: str) -> httpx.Response:
    async with rig.as_user("root") as http:
        return await http.delete(f"/api/v1/pools/{name}")


async def shown(rig: rigs.Rig, who: str = "ann") -> dict[str, Any]:
    async with rig.as_user(who) as http:
        answer = await http.get("/api/v1/pools")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def by_name(rig: rigs.Rig) -> dict[str, dict[str, Any]]:
    return {item["pool"]["name"]: item for item in (await shown(rig))["items"]}


async def submit(rig: rigs.Rig, **spec: Any) -> httpx.Response:
    async with rig.as_user("ann") as http:
        return await http.post("/api/v1/jobs", json=rigs.submission(**spec))


async def machine(rig: rigs.Rig, gpus: int, cpus: int = 1000) -> None:
    """In the place of the rig's own node."""
    node = nodes.Node(
        name="big",
        capacity=holdings.Resources(cpus * 1000, 0, gpus),
        devices=tuple(nodes.Device(index=index, type="h100") for index in range(gpus)),
    )
    await rig.store.write(lambda tx: (tx.remove_node("here"), tx.put_node(node)))


def workers(count: int, gpus: float = 1, **more: Any) -> dict[str, Any]:
    return {"worker": {"count": count, "gpus": gpus, **more}}


async def test_a_pool_is_made_changed_and_removed(rig: rigs.Rig) -> None:
    made = await change(rig, "research", reserve={"gpus": 1, "memory": "4Gi"}, share=2, policy="fair")
    assert (made.status_code, made.json()["version"]) == (201, 1)
    changed = await change(rig, "research", limit={"gpus": "2"}, reserve={"memory": None})
    assert (changed.status_code, changed.json()["version"]) == (200, 2)
    stored = (await by_name(rig))["research"]["pool"]
    assert stored == changed.json()
    assert (stored["reserve"], stored["limit"]) == ({"gpus": 1.0}, {"gpus": 2.0})
    assert (stored["share"], stored["policy"]) == ({"gpus": 2.0, "cpus": 2.0, "memory": 2.0}, "fair")
    same = await change(rig, "research", limit={"gpus": 2})
    assert (same.status_code, same.json()["version"]) == (200, 2), "nothing was to be written"
    assert (await remove(rig, "research")).status_code == 204
    assert list(await by_name(rig)) == ["default"]
    assert (await remove(rig, "research")).status_code == 404
    async with rig.as_user("ann") as http:
        lines = (await http.get("/api/v1/events")).json()["items"]
    assert [(one["kind"], one["job"], one["data"]["names"]) for one in lines] == [("pools", "", ["research"])] * 3


@pytest.mark.parametrize("who", ["ann", "vera"])
async def test_administrators_alone_change_pools(rig: rigs.Rig, who: str) -> None:
    assert (await change(rig, "mine", who, reserve={"gpus": 2})).status_code == 403
    async with rig.as_user(who) as http:
        assert (await http.delete("/api/v1/pools/default")).status_code == 403
    assert list(await by_name(rig)) == ["default"]


async def test_a_change_of_a_pool_that_has_changed_meanwhile_is_refused(rig: rigs.Rig) -> None:
    await change(rig, "a", share=2)
    assert (await change(rig, "a", share=3, version=1)).json()["version"] == 2
    late = await change(rig, "a", share=4, version=1)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "version_mismatch")
    assert late.json()["error"]["detail"] == {"version": 2}
    assert (await change(rig, "b", version=1)).status_code == 409, "there is none at that version"
    assert (await change(rig, "b", version=0)).status_code == 201


async def test_two_changes_of_different_fields_at_once_are_both_kept(rig: rigs.Rig) -> None:
    await change(rig, "a")
    changes = [{"limit": {"gpus": 9}}, {"share": {"cpus": 3}}, {"policy": "las"}, {"reserve": {"memory": 7}}] * 5
    await asyncio.gather(*(change(rig, "a", **fields) for fields in changes))
    found = (await by_name(rig))["a"]["pool"]
    assert (found["limit"], found["share"], found["policy"]) == ({"gpus": 9}, {"cpus": 3}, "las")
    assert (found["reserve"], found["version"]) == ({"memory": 7}, 5)


@pytest.mark.parametrize(
    ("name", "fields", "status", "path"),
    [
        ("a", {"reserve": {"gpus": 3}, "limit": {"gpus": 2}}, 422, "reserve.gpus"),
        ("a", {"parent": "nowhere"}, 422, "parent"),
        ("a", {"parent": "default"}, 422, "parent"),
        ("a", {"policy": "fir"}, 422, "policy"),
        ("a", {"reserve": {"gpu": 3}}, 422, "reserve.gpu"),
        ("a", {"reserve": 3}, 422, "reserve"),
        ("a", {"limits": {}}, 422, "limits"),
        ("a", {"version": "1"}, 422, "version"),
        ("A_b", {}, 422, "name"),
        ("none", {}, 422, "name"),
    ],
)
async def test_an_impossible_value_is_refused_where_it_stands(
    rig: rigs.Rig, name: str, fields: dict[str, Any], status: int, path: str
) -> None:
    answer = await change(rig, name, **fields)
    assert (answer.status_code, answer.json()["error"]["path"]) == (status, path), answer.text
    assert answer.json()["error"]["hint"]
    assert "job-file" not in answer.text
    assert list(await by_name(rig)) == ["default"]


async def test_jobs_live_in_leaves_and_hold_their_pool(rig: rigs.Rig) -> None:
    """A halted job holds it too: it may be resumed. A job that is over does not."""
    await change(rig, "a")
    job = msgspec.json.decode((await submit(rig, pool="a", name="digits")).content)
    for status in ("queued", "halted"):
        below = await change(rig, "below", parent="a")
        assert below.status_code == 409, status
        assert "There is 1 job in `a` itself (digits)" in below.json()["error"]["message"]
        gone = await remove(rig, "a")
        assert gone.status_code == 409, status
        assert gone.json()["error"]["message"] == "There is 1 job in `a`: digits."
        async with rig.as_user("ann") as http:
            await http.put(f"/api/v1/jobs/{job['id']}/intent", json={"intent": "halt"})
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/jobs/digits")).json()["phase"] == "HALTED"
        await http.put("/api/v1/jobs/digits/intent", json={"intent": "cancel"})
    assert (await change(rig, "below", parent="a")).status_code == 201
    parent = await remove(rig, "a")
    assert (parent.status_code, parent.json()["error"]["message"]) == (409, "1 pool lies below `a`: below.")
    assert [(await remove(rig, name)).status_code for name in ("below", "a", "default")] == [204, 204, 409]


async def test_a_job_goes_to_a_leaf_that_there_is(rig: rigs.Rig) -> None:
    await change(rig, "research")
    await change(rig, "vision", parent="research")
    missing, parent = await submit(rig, pool="visoin"), await submit(rig, pool="research")
    assert (missing.status_code, missing.json()["error"]["hint"]) == (422, "Did you mean `vision`?")
    assert parent.status_code == 422
    assert parent.json()["error"] == {
        "code": "invalid_input",
        "message": "`research` is divided into other pools, and jobs go to those.",
        "hint": "Below it there is: vision.",
        "path": "pool",
    }
    async with rig.as_user("ann") as http:
        planned = await http.post("/api/v1/plan", json=rigs.submission(pool="research"))
    assert planned.status_code == 422
    assert (await submit(rig, pool="vision")).status_code == 201


@pytest.mark.parametrize("how", ["removed", "divided"])
async def test_a_job_that_was_judged_before_its_pool_changed_is_not_stored(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await change(rig, "a")
    write = rig.store.write

    async def late(work: Any, **more: Any) -> Any:
        """The pool is another one by the time at which the job is written."""
        monkeypatch.setattr(rig.store, "write", write)
        done = await (remove(rig, "a") if how == "removed" else change(rig, "below", parent="a"))
        assert done.status_code < 300
        return await write(work, **more)

    monkeypatch.setattr(rig.store, "write", late)
    answer = await submit(rig, pool="a")
    assert (answer.status_code, answer.json()["error"]["path"]) == (422, "pool")
    assert await rig.store.read(lambda view: view.active()) == []


class TestShown:
    @pytest.mark.parametrize(
        ("wanted", "entitled"), [((10, 80, 80), (10, 45, 45)), ((50, 80, 80), (100 / 3, 100 / 3, 100 / 3))]
    )
    async def test_the_known_answers(self, rig: rigs.Rig, wanted: tuple[int, ...], entitled: tuple[float, ...]) -> None:
        await machine(rig, 100)
        for name, count in zip("abc", wanted, strict=True):
            await change(rig, name, reserve={"gpus": 20}, limit={"gpus": 100}, share=1)
            assert (await submit(rig, pool=name, roles=workers(count))).status_code == 201
        found = await by_name(rig)
        assert [found[name]["entitled"]["gpus"] for name in "abc"] == pytest.approx(entitled)
        assert [found[name]["demand"]["gpus"] for name in "abc"] == list(wanted)
        assert [found[name]["waiting"] for name in "abc"] == [1, 1, 1]
        assert [found[name]["reserved"]["gpus"] for name in ("a", "default")] == [20, 40]

    async def test_a_parent_is_shown_before_its_children_with_all_that_they_hold(self, rig: rigs.Rig) -> None:
        await machine(rig, 8)
        await change(rig, "research", reserve={"gpus": 4})
        await change(rig, "vision", parent="research", reserve={"gpus": 3})
        await change(rig, "audio", parent="research")
        await change(rig, "accounting")
        for pool, devices in (("vision", 2), ("audio", 1), ("default", 1)):
            job = msgspec.json.decode((await submit(rig, pool=pool, roles=workers(devices))).content)
            claims = [
                holdings.Holding(
                    job=job["id"],
                    attempt=1,
                    role="worker",
                    index=index,
                    node="big",
                    amount=holdings.Resources(1000, 0, 1),
                )
                for index in range(devices)
            ]
            await rig.happen(job["id"], events.Admitted(attempt=1, holdings=tuple(claims)))
            await rig.store.write(lambda tx, claims=claims: tx.hold(claims))
        await submit(rig, pool="vision", roles=workers(2))
        tree = await shown(rig)
        assert [item["pool"]["name"] for item in tree["items"]] == [
            "accounting",
            "default",
            "research",
            "audio",
            "vision",
        ]
        told = {
            item["pool"]["name"]: (item["held"]["gpus"], item["demand"]["gpus"], item["running"], item["waiting"])
            for item in tree["items"]
        }
        assert told == {
            "accounting": (0, 0, 0, 0),
            "default": (1, 1, 1, 0),
            "research": (3, 5, 2, 1),
            "audio": (1, 1, 1, 0),
            "vision": (2, 4, 1, 1),
        }
        assert tree["capacity"] == {"gpus": 8.0, "cpus": 1000.0, "memory": 0.0}
        assert tree["notes"] == []
        reserved = {item["pool"]["name"]: item["reserved"].get("gpus") for item in tree["items"]}
        assert reserved == {"accounting": 0, "default": 4, "research": None, "audio": 0, "vision": 3}

    async def test_lost_nodes_are_said(self, rig: rigs.Rig) -> None:
        await change(rig, "a", reserve={"gpus": 2})
        await change(rig, "b", reserve={"gpus": 2})
        await submit(rig, pool="a", roles=workers(2))
        await submit(rig, pool="b", roles=workers(1))
        tree = await shown(rig)
        assert tree["notes"] == [
            "The pools reserve 4 GPUs together, and the nodes that are ready have 2 GPUs: "
            "every reservation is reduced to the same part."
        ]
        assert [item["entitled"]["gpus"] for item in tree["items"]] == [1, 1, 0]
        (node,) = await rig.store.read(lambda view: view.nodes())
        await rig.store.write(lambda tx: tx.put_node(msgspec.structs.replace(node, ready=False)))
        tree = await shown(rig)
        assert "the nodes that are ready have none" in tree["notes"][0]
        assert tree["capacity"]["gpus"] == 0

    async def test_a_job_whose_pool_has_gone_is_shown_with_it(self, rig: rigs.Rig) -> None:
        """No route lets that come about; a restored backup might."""
        await change(rig, "a")
        await submit(rig, pool="a", roles=workers(2))
        await rig.store.write(lambda tx: tx._pools.drop("a"))
        found = await by_name(rig)
        assert found["a"]["waiting"] == 1
        assert found["a"]["pool"]["version"] == 0
        assert found["a"]["entitled"]["gpus"] == 2

    async def test_a_tree_that_could_not_be_stored_is_shown_nevertheless(self, rig: rigs.Rig) -> None:
        for pool in (
            pools.Pool(name="a", parent="b"),
            pools.Pool(name="b", parent="a"),
            pools.Pool(name="c", parent="?"),
        ):
            await rig.store.write(lambda tx, pool=pool: tx.put_pool(pool))
        assert sorted(await by_name(rig)) == ["a", "b", "c", "default"]
