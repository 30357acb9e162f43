"""Several installations in one cluster, and a database that was lost: no server takes another one's pools away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import types
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from tests.api.customresources import desks

from oarlock.api.customresources import poolface
from oarlock.api.services import provided
from oarlock.spec import errors, resources
from oarlock.spec.access import users
from oarlock.spec.cluster import pools
from oarlock.store import memory


async def _nothing(name: str) -> None:
    pass


class Cluster:
    """The OarlockPools of a cluster in memory."""

    def __init__(self) -> None:
        self.found: dict[str, resources.OarlockPool] = {}
        self.writes = 0  # by servers
        self.servers: list[Objects] = []
        self.faults: list[Exception] = []  # that end the watches
        self.defined: Iterator[bool | Exception] = iter(())  # the next answers of discovery; then it is
        self.created: Callable[[str], Awaitable[None]] = _nothing  # awaited after a server has made an object
        self._versions = itertools.count(1)

    def put(self, name: str, spec: Any = None, status: Any = None, labels: dict[str, str] | None = None) -> None:
        was = self.found.get(name)
        if was is None:
            was = resources.OarlockPool(metadata=resources.Meta(name=name, uid=str(uuid.uuid4())))
        meta = msgspec.structs.replace(
            was.metadata,
            generation=was.metadata.generation + (spec is not None and spec != was.spec),
            resource_version=str(next(self._versions)),
            labels={**was.metadata.labels, **(labels or {})},
        )
        one = msgspec.structs.replace(was, metadata=meta)
        one = msgspec.structs.replace(one, spec=spec) if spec is not None else one
        self.found[name] = msgspec.structs.replace(one, status=status) if status is not None else one
        for server in self.servers:
            server.changed.set()

    def delete(self, name: str) -> None:
        was = self.found.pop(name)
        for server in self.servers:
            if was.installation() == server.installation:
                server.deleted.add(name)
            server.changed.set()


class Objects:
    """`poolface.Objects` of one server."""

    def __init__(self, cluster: Cluster, installation: str) -> None:
        self._cluster = cluster
        self.installation = installation
        self.synced, self.changed = asyncio.Event(), asyncio.Event()
        self.deleted: set[str] = set()
        self.synced.set()
        cluster.servers.append(self)

    @property
    def items(self) -> dict[str, resources.OarlockPool]:
        return dict(self._cluster.found)

    async def run(self) -> None:
        if self._cluster.faults:
            raise self._cluster.faults.pop()
        await asyncio.Event().wait()

    async def renew(self) -> None:
        pass

    def take_deleted(self) -> set[str]:
        deleted, self.deleted = self.deleted, set()
        return deleted - self.items.keys()

    async def is_defined(self) -> bool:
        answer = next(self._cluster.defined, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def create(self, name: str, spec: dict[str, Any]) -> str:
        if name in self._cluster.found:
            raise errors.Conflict(f"{name} exists", hint="")
        self._cluster.writes += 1
        self._cluster.put(name, spec, labels={resources.INSTALLATION: self.installation})
        made = self._cluster.found[name].metadata.uid
        await self._cluster.created(name)
        return made

    async def write_spec(self, found: resources.OarlockPool, patch: dict[str, Any]) -> None:
        now = self._now(found)
        spec = {field: value for field, value in {**now.spec, **patch}.items() if value is not None}
        self._cluster.put(found.metadata.name, spec)

    async def write_status(self, found: resources.OarlockPool, status: resources.PoolStatus) -> str:
        self._now(found)
        self._cluster.put(found.metadata.name, status=msgspec.to_builtins(status))
        return self._cluster.found[found.metadata.name].metadata.resource_version

    async def remove(self, found: resources.OarlockPool) -> None:
        self._now(found)
        self._cluster.delete(found.metadata.name)

    async def close(self) -> None:
        self._cluster.servers.remove(self)

    def _now(self, found: resources.OarlockPool) -> resources.OarlockPool:
        now = self._cluster.found.get(found.metadata.name)
        if now is None:
            raise errors.NotFound("it is gone", hint="")
        if now.metadata.resource_version != found.metadata.resource_version:
            raise errors.Conflict("it has changed", hint="")
        self._cluster.writes += 1
        return now


class Server:
    """One server with a database of its own."""

    def __init__(self, cluster: Cluster, installation: str) -> None:
        self._cluster = cluster
        self.installation = installation
        self.reports: list[tuple[str, Any]] = []
        self.store = memory.MemoryStore()
        self.failures = 0  # that are expected

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        owner = users.User(name="root", right=users.Right.ADMIN, created_at=time.time())
        if not await self.store.read(lambda view: view.users()):
            await self.store.write(lambda tx: tx.put_user(owner))
        services = types.SimpleNamespace(
            store=self.store,
            clock=time.time,
            report=lambda *told: self.reports.append(told),
            meters=types.SimpleNamespace(failed=lambda name: None),
        )
        made = cast("provided.Services", services)
        async with poolface.serving(made, Objects(self._cluster, self.installation), leads=lambda: True):
            yield
        assert [what for what, _ in self.reports].count("pools_failed") == self.failures, self.reports

    async def set(self, name: str, **fields: Any) -> None:
        await self.store.write(lambda tx: tx.put_pool(pools.Pool(name=name, **fields)))

    async def limits(self) -> dict[str, float]:
        found = await self.store.read(lambda view: view.pools())
        return {one.name: one.limit.get("gpus", 0.0) for one in found}


async def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + desks.PATIENCE_S
    while not await holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def is_settled(cluster: Cluster, *names: str) -> Callable[[], Any]:
    """Return whether each object shows its pool, as a question."""

    async def holds() -> bool:
        found = [cluster.found[name] for name in names if name in cluster.found]
        seen = [one for one in found if one.told().observed_generation == one.metadata.generation]
        return len(seen) == len(names)

    return holds


async def test_two_installations_leave_each_others_pools_alone() -> None:
    cluster = Cluster()
    one, other = Server(cluster, "one"), Server(cluster, "other")
    await one.set("research", limit={"gpus": 16.0}, reserve={"gpus": 8.0})
    await one.set("default", limit={"gpus": 4.0})
    await other.set("default", limit={"gpus": 99.0})
    await other.set("own", limit={"gpus": 1.0})
    async with one.serving():
        await until(is_settled(cluster, "research", "default"), "the first server's objects show its pools")
        async with other.serving():
            await until(is_settled(cluster, "own"), "the second server has looked")
            writes = cluster.writes
            await asyncio.sleep(2 * poolface.PERIOD_S)  # time to undo each other's work
            assert cluster.writes == writes
            cluster.put("new", {"limit": {"gpus": 2}}, labels={resources.INSTALLATION: "other"})
            await until(is_settled(cluster, "new"), "the label says whose pool it is")
            cluster.delete("research")

            async def gone() -> bool:
                return await one.limits() == {"default": 4.0}

            await until(gone, "the pool goes with its object")
    assert await other.limits() == {"default": 99.0, "own": 1.0, "new": 2.0}
    assert {facts["pool"] for what, facts in other.reports if what == "pool_object_left_alone"} == {
        "research",
        "default",
    }


async def test_a_new_object_without_a_mark_becomes_a_pool_of_one_installation() -> None:
    cluster = Cluster()
    servers = [Server(cluster, "one"), Server(cluster, "other")]
    async with servers[0].serving(), servers[1].serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")
        await asyncio.sleep(poolface.PERIOD_S)  # time for the other one to look
    assert sorted([len(await one.limits()) for one in servers]) == [0, 1]


async def test_a_fresh_database_makes_the_pools_anew_from_their_objects() -> None:
    """Also where the installation has kept its name."""
    cluster = Cluster()
    lost, fresh = Server(cluster, "here"), Server(cluster, "here")
    async with lost.serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")

    async def made() -> bool:
        return await fresh.limits() == {"research": 16.0}

    async with fresh.serving():
        await until(made, "the pool is made anew")
        await until(is_settled(cluster, "research"), "its object shows it")
        await fresh.store.write(lambda tx: tx.remove_pool("research"))

        async def gone() -> bool:
            return "research" not in cluster.found

        await until(gone, "from then on the pool's end is the object's")


async def test_a_database_of_another_installation_deletes_no_object() -> None:
    cluster = Cluster()
    lost, fresh = Server(cluster, "here"), Server(cluster, "derived-anew")
    async with lost.serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")
    await fresh.set("own", limit={"gpus": 1.0})
    async with fresh.serving():
        await until(is_settled(cluster, "own"), "the server has looked")
        assert "research" in cluster.found
        cluster.put("research", labels={resources.INSTALLATION: "derived-anew"})

        async def made() -> bool:
            return await fresh.limits() == {"research": 16.0, "own": 1.0}

        await until(made, "the label hands the pool over")


async def test_two_databases_of_one_installation_do_not_write_without_a_pause() -> None:
    """A mistake: both servers have the same name."""
    cluster = Cluster()
    servers = [Server(cluster, "here"), Server(cluster, "here")]
    async with servers[0].serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")
        async with servers[1].serving():
            began, writes = time.monotonic(), cluster.writes
            await asyncio.sleep(2 * poolface.PERIOD_S)
            periods = (time.monotonic() - began) / poolface.PERIOD_S + 1
            assert cluster.writes - writes <= 2 * poolface.MOST_CHANGES * periods
    assert [await one.limits() for one in servers] == [{"research": 16.0}] * 2


async def test_the_watch_of_the_pools_begins_again_after_any_error() -> None:
    cluster = Cluster()
    server = Server(cluster, "here")
    cluster.faults, server.failures = [LookupError("a fault")], 1
    async with server.serving():
        await until(lambda: is_told(server), "the fault is told")
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")


async def is_told(server: Server) -> bool:
    return bool(server.reports)


async def test_a_definition_that_is_made_again_at_once_takes_no_pool_with_it() -> None:
    """`kubectl replace --force` deletes all objects with the definition, and makes it anew within the second."""
    cluster = Cluster()
    server = Server(cluster, "here")
    async with server.serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")
        cluster.defined = iter([False])
        cluster.delete("research")
        await until(is_settled(cluster, "research"), "its object is made again")
        assert await server.limits() == {"research": 16.0}
        cluster.delete("research")

        async def gone() -> bool:
            return not await server.limits()

        await until(gone, "a single object takes its pool with it")


async def test_a_deletion_counts_although_discovery_fails_at_first() -> None:
    """The object was made again, as if nobody had deleted it."""
    cluster = Cluster()
    server = Server(cluster, "here")
    async with server.serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")
        cluster.defined = iter([errors.Unavailable("no answer", hint="")])
        cluster.delete("research")

        async def gone() -> bool:
            return not await server.limits()

        await until(gone, "the pool goes with its object")
        assert "research" not in cluster.found


async def test_an_edit_beside_the_record_of_the_uid_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pool passes through this at an upgrade: the edit was undone with `The pool was changed elsewhere`."""
    cluster = Cluster()
    server = Server(cluster, "here")
    async with server.serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")

    def before(tx: Any) -> pools.Pool:
        (pool,) = tx.pools()
        stored: pools.Pool = tx.put_pool(msgspec.structs.replace(pool, object_uid=None))
        return stored

    version = (await server.store.write(before)).version
    cluster.put("research", status={**cast("dict[str, Any]", cluster.found["research"].status), "version": version})
    write = Objects.write_status

    async def edited(self: Objects, found: resources.OarlockPool, status: resources.PoolStatus) -> str:
        monkeypatch.setattr(Objects, "write_status", write)
        cluster.put("research", {"limit": {"gpus": 8}})  # at this moment
        return await write(self, found, status)

    monkeypatch.setattr(Objects, "write_status", edited)
    async with server.serving():

        async def holds() -> bool:
            return await server.limits() == {"research": 8.0}

        await until(holds, "the edit counts")
        assert cluster.found["research"].spec == {"limit": {"gpus": 8}}


async def test_where_nothing_changes_the_jobs_are_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor after a status of the server's own: a look reads all waiting jobs."""
    monkeypatch.setattr(poolface, "ANEW_S", 1e9)
    looks: list[int] = []
    really = poolface._states
    monkeypatch.setattr(poolface, "_states", lambda view: (looks.append(1), really(view))[1])
    cluster = Cluster()
    server = Server(cluster, "here")
    async with server.serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")

        async def rests() -> bool:
            before = len(looks)
            await asyncio.sleep(3 * poolface.PERIOD_S)
            return len(looks) == before

        await until(rests, "no look follows")
        cluster.put("research", {"limit": {"gpus": 8}})
        await until(is_settled(cluster, "research"), "an edit is seen")
        (pool,) = await server.store.read(lambda view: view.pools())
        await server.set("research", limit={"gpus": 4.0}, version=pool.version)

        async def shown() -> bool:
            return cluster.found["research"].spec["limit"] == {"gpus": 4.0}

        await until(shown, "a change of the pool is seen")


async def two_pools(cluster: Cluster, server: Server) -> None:
    """Let the server make pools of two objects, and end."""
    async with server.serving():
        for name in ("research", "teaching"):
            cluster.put(name, {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research", "teaching"), "they are pools")


async def test_an_object_that_is_deleted_while_another_deletion_is_looked_at_takes_its_pool_with_it() -> None:
    """The look asks the cluster for a second, and would have made the object of the second pool again."""
    cluster = Cluster()
    server = Server(cluster, "here")

    def answers() -> Iterator[bool]:
        cluster.delete("teaching")
        yield True

    async with server.serving():
        for name in ("research", "teaching"):
            cluster.put(name, {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research", "teaching"), "they are pools")
        before = cluster.found["teaching"]
        cluster.defined = answers()
        cluster.delete("research")

        async def decided() -> bool:
            made = cluster.found.get("teaching", before).metadata.uid != before.metadata.uid
            return made or await server.limits() == {}

        await until(decided, "both pools are removed")
        assert cluster.found == {}, "no object was made again"


async def test_an_object_that_was_deleted_while_no_server_ran_takes_its_pool_with_it() -> None:
    cluster = Cluster()
    server = Server(cluster, "here")
    await two_pools(cluster, server)
    cluster.delete("research")
    async with server.serving():

        async def gone() -> bool:
            return await server.limits() == {"teaching": 16.0}

        await until(gone, "the pool goes with its object")
        assert set(cluster.found) == {"teaching"}


async def test_a_definition_that_was_made_again_while_no_server_ran_takes_no_pool_with_it() -> None:
    """All objects have gone with it. Another one of the same name may have been applied since."""
    cluster = Cluster()
    server = Server(cluster, "here")
    await two_pools(cluster, server)
    for name in ("research", "teaching"):
        cluster.delete(name)
    cluster.put("teaching", {"limit": {"gpus": 8}})
    async with server.serving():
        await until(is_settled(cluster, "research", "teaching"), "the object is made again")
        assert await server.limits() == {"research": 16.0, "teaching": 8.0}


async def test_an_object_that_could_not_be_made_again_takes_no_pool_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition was made again while no server ran. The next server finds some objects, and one missing."""
    cluster = Cluster()
    server = Server(cluster, "here")
    await two_pools(cluster, server)
    for name in ("research", "teaching"):
        cluster.delete(name)
    cluster.put("teaching", {"limit": {"gpus": 16}})

    async def refused(*_: Any) -> None:
        raise errors.Unavailable("the API server failed", hint="")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "create", refused)
        async with server.serving():
            await until(is_settled(cluster, "teaching"), "one of them is there")
    async with server.serving():
        await until(is_settled(cluster, "research", "teaching"), "the other one is made again")
        assert await server.limits() == {"research": 16.0, "teaching": 16.0}


async def test_a_pool_that_is_removed_as_its_object_is_made_does_not_come_back() -> None:
    """The object has no status yet, as one that a user has made."""
    cluster = Cluster()
    server = Server(cluster, "one")

    made = asyncio.Event()

    async def removed(name: str) -> None:
        await server.store.write(lambda tx: tx.remove_pool(name))
        made.set()

    async with server.serving():
        await server.set("kept")
        await until(is_settled(cluster, "kept"), "the server looks")
        cluster.created = removed
        await server.set("another")
        await made.wait()

        async def settled() -> bool:
            there = "another" in await server.limits()
            return there or "another" not in cluster.found

        await until(settled, "the pool comes back, or its object goes")
        assert "another" not in await server.limits()


async def test_a_database_is_the_same_one_after_the_removal_of_its_first_user() -> None:
    """Else the next leader would take each object for a new one, and make removed pools again."""
    cluster = Cluster()
    server = Server(cluster, "here")
    async with server.serving():
        cluster.put("research", {"limit": {"gpus": 16}})
        await until(is_settled(cluster, "research"), "it is a pool")
    (first,) = await server.store.read(lambda view: view.users())
    assert cluster.found["research"].told().database == repr(first.created_at), "as earlier versions have written it"
    boss = users.User(name="boss", right=users.Right.ADMIN, created_at=time.time())
    await server.store.write(lambda tx: (tx.put_user(boss), tx.remove_user("root"), tx.remove_pool("research")))

    async def gone() -> bool:
        return "research" not in cluster.found

    async with server.serving():
        await until(gone, "the object goes with its pool")
    assert await server.limits() == {}
