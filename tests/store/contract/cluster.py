"""Nodes, pools and users: each is replaced only by a writer that knows its version."""

from __future__ import annotations

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors, holdings, phases
from oarlock.spec.access import users
from oarlock.spec.cluster import nodes, pools
from oarlock.store import stores

replace = msgspec.structs.replace


class Cluster:
    async def test_nodes_pools_and_users_are_written_by_compare_and_swap(self, store: stores.Store) -> None:
        for put, item, other in (
            ("put_node", nouns.node("b"), {"ready": False}),
            ("put_pool", pools.Pool(name="b", limit={"gpus": 8.0}), {"share": {"gpus": 2.0}}),
            ("put_user", users.User(name="b"), {"right": users.Right.ADMIN}),
        ):
            first = await store.write(lambda t, put=put, item=item: getattr(t, put)(item))
            assert first == replace(item, version=1)
            for stale in (item, replace(item, version=2), replace(item, name="c", version=1)):
                with pytest.raises(errors.VersionMismatch):
                    await store.write(lambda t, put=put, item=stale: getattr(t, put)(item))
            newer, another = replace(first, **other), replace(item, name="a")
            second = await store.write(lambda t, put=put, item=newer: getattr(t, put)(item))
            await store.write(lambda t, put=put, item=another: getattr(t, put)(item))
            listed = await store.read(lambda v, kind=put: getattr(v, kind.removeprefix("put_") + "s")())
            assert listed == [replace(item, name="a", version=1), second]
        assert (await store.read(lambda v: v.user("b"))).right is users.Right.ADMIN

    async def test_a_pool_is_removed_once_its_jobs_are_over(self, store: stores.Store) -> None:
        await store.write(lambda t: (t.put_pool(pools.Pool(name="a")), t.put_pool(pools.Pool(name="b"))))
        await writing.add(store, "j-1", pool="a")
        await writing.add(store, "j-2", pool="b", phase=phases.Phase.HALTED)
        for name, holder in (("a", "j-1"), ("b", "j-2")):
            with pytest.raises(errors.Conflict, match=f"{holder} is in pool {name}"):
                await store.write(lambda t, name=name: t.remove_pool(name))
        await writing.finish(store, "j-1")
        await store.write(lambda t: (t.remove_pool("a"), t.remove_pool("a"), t.remove_pool("\ud800")))
        assert [pool.name for pool in await store.read(lambda v: v.pools())] == ["b"]
        assert (await store.write(lambda t: t.put_pool(pools.Pool(name="a")))).version == 1

    async def test_a_node_comes_back_with_all_it_has(self, store: stores.Store) -> None:
        node = nodes.Node(
            name="n",
            capacity=holdings.Resources(cpus_milli=1, memory_bytes=1 << 60, gpus=1),
            devices=(nodes.Device(index=3, type="a100", memory_bytes=80 << 30, uuid="GPU-1", virtual=True),),
            labels={"a": "b"},
            domains={"rack": "r1"},
            ports=(1, 65535),
        )
        await store.write(lambda t: t.put_node(node))
        assert await store.read(lambda v: v.nodes()) == [replace(node, version=1)]
