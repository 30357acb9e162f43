"""OarlockPools: a pool changes with its object and the object with its pool, and no edit is lost without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import yaml
from tests.api import rig as rigs
from tests.api.customresources import desks
from tests.api.customresources.desks import condition, is_false, is_true
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, faults, rights

from oarlock.api.customresources import definitions, poolface
from oarlock.backends.kubernetes import oarlockpools
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors, holdings, resources
from oarlock.spec.cluster import pools

pytestmark = apiserver.needed


class Office:
    """An administrator with `kubectl`, and a server that serves the pools with the rights of `deploy/`."""

    def __init__(self, rig: rigs.Rig, server: apiserver.ApiServer, admin: client.Client) -> None:
        self.rig = rig
        self.admin = admin
        self.desk = desks.RealDesk(rig, server, admin)

    @contextlib.asynccontextmanager
    async def serving(self, lags: Callable[[], bool] = lambda: False) -> AsyncIterator[None]:
        """Serve the pools. While discovery `lags`, it tells what it told at first."""
        around = functools.partial(faults.Lagging, path=resources.API, lags=lags)
        api = client.Client(conftest.access(self.desk.server, rights.SERVER), around=around)
        watched = oarlockpools.OarlockPools(api, "here", monotonic=time.monotonic)
        async with poolface.serving(self.rig.services, watched, leads=lambda: True):
            yield
        assert not [what for what, _ in self.rig.reports if what == "pools_failed"], self.rig.reports

    async def apply(self, name: str, token: str = "admin-token", *, fails: bool = False, **spec: Any) -> str:
        kind = {"apiVersion": f"{resources.GROUP}/{resources.VERSION}", "kind": "OarlockPool"}
        manifest = {**kind, "metadata": {"name": name}, "spec": spec}
        return await self.desk.kubectl(token, "apply", "--filename", "-", text=yaml.safe_dump(manifest), fails=fails)

    async def patch(self, name: str, **wanted: Any) -> None:
        """Change the pool by the API."""
        async with self.rig.as_user("root") as http:
            (await http.patch(f"/api/v1/pools/{name}", json=wanted)).raise_for_status()

    async def pools(self) -> dict[str, pools.Pool]:
        return {one.name: one for one in await self.rig.store.read(lambda view: view.pools())}

    async def pool(self, name: str, holds: Callable[[pools.Pool], bool] = lambda pool: True) -> pools.Pool:
        """Return the pool once this holds of it."""

        async def found() -> pools.Pool | None:
            one = (await self.pools()).get(name)
            return one if one is not None and holds(one) else None

        return await until(found, name)

    async def object(self, name: str, holds: Callable[[dict[str, Any]], bool] = lambda found: True) -> dict[str, Any]:
        """Return the object once this holds of it."""

        async def found() -> dict[str, Any] | None:
            with contextlib.suppress(errors.NotFound):
                one: dict[str, Any] = await self.admin.get(f"{oarlockpools.PATH}/{name}", dict)
                return one if holds(one) else None
            return None

        return await until(found, name)

    async def status(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found = await self.object(name, lambda found: holds(found.get("status", {})))
        return dict(found["status"])

    async def delete(self, name: str) -> None:
        await self.desk.kubectl("admin-token", "delete", "--ignore-not-found", "oarlockpool", name)


async def until(find: Any, what: str) -> Any:
    deadline = time.monotonic() + desks.PATIENCE_S
    while (found := await find()) is None:
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)
    return found


@pytest_asyncio.fixture
async def office(rig: rigs.Rig, resource_server: apiserver.ApiServer) -> AsyncIterator[Office]:
    async with client.Client(conftest.access(resource_server)) as admin:
        with contextlib.suppress(errors.Conflict):
            await admin.create(desks.DEFINITIONS, definitions.pool_definition(), objects.Bare)
        await desks.discovered(admin, oarlockpools.PLURAL)
        one = Office(rig, resource_server, admin)

        async def served() -> list[Any] | None:
            with contextlib.suppress(errors.NotFound):
                return await admin.list(oarlockpools.PATH, resources.OarlockPool)
            return None

        for left in await until(served, "the definition is served"):
            await admin.delete(f"{oarlockpools.PATH}/{left.metadata.name}")
        with contextlib.suppress(errors.Conflict):
            await admin.create("/api/v1/namespaces", {"metadata": {"name": "pools"}}, objects.Bare)
        await rights.grant(admin, "pools")
        yield one


def generation_is_known(found: dict[str, Any]) -> bool:
    return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])


async def test_apply_makes_and_changes_a_pool_and_delete_removes_it(office: Office) -> None:
    async with office.serving():
        await office.apply("research", limit={"gpus": 1, "memory": "8Gi"}, share={"gpus": 2}, reserve={"cpus": "500m"})
        pool = await office.pool("research")
        assert pool.limit == {"gpus": 1.0, "memory": float(8 << 30)}
        assert (pool.share, pool.reserve) == ({"gpus": 2.0}, {"cpus": 0.5})
        await office.status("research", is_true("Applied"))
        await office.apply("research", limit={"gpus": 2})
        pool = await office.pool("research", lambda pool: pool.limit == {"gpus": 2.0})
        assert (pool.share, pool.reserve) == ({}, {}), "a field that the file does not have any more is none"
        await office.object("research", generation_is_known)
        await office.delete("research")

        async def gone() -> bool | None:
            return None if "research" in await office.pools() else True

        await until(gone, "the pool is removed")


async def test_the_status_shows_holdings_entitlement_limit_and_waiting_jobs(office: Office) -> None:
    async with office.serving():
        await office.apply("research", limit={"gpus": 2})
        await office.pool("research")
        job = await office.rig.launch(await office.rig.submit("ann", name="runs", pool="research"))
        amount = holdings.Resources(cpus_milli=1000)
        held = holdings.Holding(job=job.id, attempt=1, role="worker", index=0, node="here", amount=amount)
        await office.rig.store.write(lambda tx: tx.hold([held]))
        await office.rig.submit("ann", name="waits", pool="research")

        def shows(status: dict[str, Any]) -> bool:
            return (status.get("held", {}).get("cpus"), status.get("running"), status.get("waiting")) == (1, 1, 1)

        status = await office.status("research", shows)
        assert status["limit"] == {"gpus": 2}
        assert status["entitlement"]["cpus"] > 0
        table = await office.desk.kubectl("admin-token", "get", "oarlockpools")
        header, row = (line.split() for line in table.splitlines())
        assert header == ["NAME", "PARENT", "RUNNING", "WAITING", "GPUS", "ENTITLED", "LIMIT", "AGE"]
        assert row[:3] == ["research", "1", "1"]


async def test_a_pool_of_the_command_line_has_an_object_which_follows_it(office: Office) -> None:
    await office.patch("team", limit={"gpus": 2, "cpus": 4}, share={"gpus": 3})
    await office.patch("part", parent="team")
    async with office.serving():
        assert (await office.object("part"))["spec"] == {"parent": "team"}
        await office.object("team", generation_is_known)
        await office.patch("team", limit={"cpus": None, "gpus": 1}, share=None)
        found = await office.object("team", lambda found: found["spec"] == {"limit": {"gpus": 1}})
        await office.object("team", generation_is_known)
        async with office.rig.as_user("root") as http:
            (await http.delete("/api/v1/pools/part")).raise_for_status()

        async def gone() -> bool | None:
            try:
                await office.admin.get(f"{oarlockpools.PATH}/part", dict)
            except errors.NotFound:
                return True
            return None

        await until(gone, "the object goes with its pool")
        assert found["metadata"]["uid"] == (await office.object("team"))["metadata"]["uid"]


async def test_a_change_that_does_not_fit_is_answered_by_a_condition(office: Office) -> None:
    async with office.serving():
        await office.apply("research", limit={"gpus": 2})
        await office.pool("research")
        for spec, words in (
            ({"limit": {"gpu": 2}}, "There is no resource `gpu`"),
            ({"limit": {"gpus": "many"}}, "is not an amount"),
            ({"parent": "nowhere"}, "nowhere"),
            ({"limits": {"gpus": 2}}, "unknown field 'limits' Did you mean `limit`?"),
            ({"policy": "magic"}, "magic"),
        ):
            await office.apply("research", **spec)
            status = await office.status(
                "research", lambda status, words=words: words in condition(status, "Applied").get("message", "")
            )
            assert is_false("Applied")(status)
            assert (await office.pool("research")).limit == {"gpus": 2.0}
        await office.apply("research", limit={"gpus": 1})
        await office.status("research", is_true("Applied"))
        assert (await office.pool("research")).limit == {"gpus": 1.0}


async def test_a_pool_with_jobs_stays_and_its_object_comes_back_with_the_reason(office: Office) -> None:
    async with office.serving():
        await office.apply("research", limit={"gpus": 2})
        await office.pool("research")
        await office.rig.submit("ann", name="waits", pool="research")
        await office.object("research", generation_is_known)
        await office.delete("research")
        status = await office.status("research", is_false("Applied"))
        assert condition(status, "Applied")["reason"] == "NotRemoved"
        assert "waits" in condition(status, "Applied")["message"]
        assert (await office.pool("research")).limit == {"gpus": 2.0}


async def test_both_sides_changed_while_no_server_looked(office: Office) -> None:
    async with office.serving():
        await office.apply("research", limit={"gpus": 2})
        await office.object("research", generation_is_known)
    await office.patch("research", limit={"gpus": 4})
    await office.apply("research", limit={"gpus": 6})
    async with office.serving():
        status = await office.status("research", is_false("Applied"))
        assert condition(status, "Applied")["reason"] == "Conflict"
        await office.object("research", lambda found: found["spec"] == {"limit": {"gpus": 4}})
        await office.object("research", generation_is_known)
        assert (await office.pool("research")).limit == {"gpus": 4.0}
        assert is_false("Applied")((await office.object("research"))["status"]), "the answer stays until the next edit"
        await office.apply("research", limit={"gpus": 6})
        assert (await office.pool("research", lambda pool: pool.limit == {"gpus": 6.0})).version == 3
        await office.status("research", is_true("Applied"))


@pytest.mark.parametrize("method", ["write_status", "write_spec", "create"])
async def test_a_server_that_ends_after_a_write_leaves_nothing_half_done(
    office: Office, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The write reaches the cluster, and the server knows nothing of it."""
    original = getattr(oarlockpools.OarlockPools, method)
    ended = asyncio.Event()

    async def ending(self: oarlockpools.OarlockPools, *given: Any) -> None:
        await original(self, *given)
        ended.set()
        await asyncio.Event().wait()

    await office.patch("team", limit={"gpus": 1})
    async with office.serving():
        await office.object("team", generation_is_known)
    await (office.patch("other", share={"gpus": 2}) if method == "create" else office.patch("team", limit={"gpus": 2}))
    monkeypatch.setattr(oarlockpools.OarlockPools, method, ending)
    if method == "write_status":
        await office.apply("team", limit={"gpus": 2})  # the same on both sides
    async with office.serving():
        await asyncio.wait_for(ended.wait(), desks.PATIENCE_S)
    monkeypatch.setattr(oarlockpools.OarlockPools, method, original)
    async with office.serving():
        found = await office.object("team", generation_is_known)
        assert found["spec"]["limit"] == {"gpus": 1 if method == "create" else 2}
        await office.patch("last", share={"gpus": 1})
        await office.object("last", generation_is_known)
        assert json.dumps(condition((await office.object("team"))["status"], "Applied")).count("Conflict") == 0
        assert set(await office.pools()) >= {"team", "last"}


async def test_a_user_without_the_cluster_role_reaches_no_pool(office: Office) -> None:
    async with office.serving():
        await office.apply("research", limit={"gpus": 2})
        await office.pool("research")
        said = await office.apply("research", "a-token", fails=True, limit={"gpus": 64})
        assert "forbidden" in said.lower()
        assert (await office.pool("research")).limit == {"gpus": 2.0}


async def test_a_definition_that_is_deleted_takes_no_pool_with_it(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects go, and come back with it. Discovery has not told of the deletion yet, as at a busy API server."""
    monkeypatch.setattr(poolface, "ANEW_S", 1.0)  # a look that finds no definition is followed by one so late
    definition = definitions.pool_definition()
    path = f"{desks.DEFINITIONS}/{definition['metadata']['name']}"
    async with office.serving(lambda: True):
        await office.apply("research", limit={"gpus": 2})
        before = await office.object("research", generation_is_known)
        await office.admin.delete(path)

        async def gone() -> bool | None:
            try:
                await office.admin.get(path, objects.Bare)
            except errors.NotFound:
                return True
            return None

        await until(gone, "the definition is gone")
        await asyncio.sleep(3)  # time to remove the pool
        assert (await office.pool("research")).limit == {"gpus": 2.0}
        await office.admin.create(desks.DEFINITIONS, definition, objects.Bare)
        await desks.discovered(office.admin, oarlockpools.PLURAL)
        after = await office.object("research", generation_is_known)
        assert before["metadata"]["uid"] != after["metadata"]["uid"]
        assert (await office.pool("research")).limit == {"gpus": 2.0}
