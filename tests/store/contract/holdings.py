"""Holdings: devices, their shares, ports, and sums of CPUs and memory."""

from __future__ import annotations

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors, holdings
from oarlock.store import stores

replace = msgspec.structs.replace


class Holdings:
    async def test_the_jobs_and_holdings_of_many_ids(self, store: stores.Store) -> None:
        ids = [f"j-{place}" for place in range(1200)]  # more than one statement takes

        def change(t: stores.Transaction) -> None:
            t.put_node(nouns.node())
            for job_id in ids:
                t.add_job(nouns.job(job_id), at=1.0)
            t.hold([nouns.claim("j-7"), nouns.claim("j-7", index=1, devices=(1,)), nouns.claim("j-1199", devices=(2,))])

        await store.write(change)
        wanted = [*ids[1:], "j-none", "j-\0"]
        told = await store.read(lambda v: (v.jobs_by_id(wanted), v.holdings_by_job(wanted), v.holdings("j-7")))
        found, held, two = told
        assert sorted(found) == sorted(ids[1:])
        assert all(job.id == job_id for job_id, job in found.items())
        assert sorted(held) == ["j-1199", "j-7"]
        assert held["j-7"] == two
        assert len(two) == 2
        assert await store.read(lambda v: (v.jobs_by_id([]), v.holdings_by_job(["j-1"]))) == ({}, {})

    async def test_jobs_and_holdings_that_were_read_together_show_the_transaction_s_own_changes(
        self, store: stores.Store
    ) -> None:
        await writing.add(store, "j-1", "j-2")
        await store.write(lambda t: t.put_node(nouns.node()))

        def change(t: stores.Transaction) -> None:
            assert t.holdings_by_job(["j-1", "j-2"]) == {}
            assert t.jobs_by_id(["j-1", "j-2", "j-3"]).keys() == {"j-1", "j-2"}
            t.hold([nouns.claim("j-1")])
            assert t.holdings("j-1") == [nouns.claim("j-1")]
            assert t.holdings("j-2") == []
            with pytest.raises(errors.AlreadyHeld):
                t.hold([nouns.claim("j-1")])
            t.holdings_by_job(["j-1"])
            t.release("j-1", 1)
            assert t.holdings("j-1") == []
            job = t.put_job(replace(t.jobs_by_id(["j-1"])["j-1"], reason="changed"), at=2.0)
            assert t.jobs_by_id(["j-1"]) == {"j-1": job}
            assert t.job("j-1") == job

        await store.write(change)

    async def test_a_device_and_a_port_have_one_holder(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        await store.write(lambda t: (t.put_node(nouns.node()), t.put_node(nouns.node("n2"))))
        held = nouns.claim("j-1", devices=(2, 0), ports=(20004, 20003))
        await store.write(lambda t: t.hold([held]))
        for wanted in (
            {"devices": (1, 2)},
            {"devices": (2, 1)},
            {"ports": (20003,)},
            {"devices": (3,), "ports": (20005, 20004)},
        ):
            with pytest.raises(errors.AlreadyHeld, match="held by job j-1"):
                await store.write(lambda t, w=wanted: t.hold([nouns.claim("j-2", index=1), nouns.claim("j-2", **w)]))
        assert await store.read(lambda v: v.holdings()) == [held]
        other = [nouns.claim("j-2", node="n2", devices=(0, 2)), nouns.claim("j-2", index=1, devices=(1,))]
        await store.write(lambda t: t.hold(other))
        assert await store.read(lambda v: (v.holdings("j-1"), v.holdings("j-2"))) == (
            [held],
            sorted(other, key=lambda claim: claim.index),
        )

    async def test_twice_the_same_within_one_claim_is_refused_too(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        await store.write(lambda t: t.put_node(nouns.node()))
        for claims in (
            [nouns.claim(devices=(1, 1))],
            [nouns.claim(devices=(1,)), nouns.claim(index=1, devices=(1,))],
            [nouns.claim(), nouns.claim()],
        ):
            with pytest.raises(errors.AlreadyHeld):
                await store.write(lambda t, claims=claims: t.hold(claims))
        await store.write(lambda t: t.hold([nouns.claim()]))
        with pytest.raises(errors.AlreadyHeld, match="worker-0 of job j-1"):
            await store.write(lambda t: t.hold([nouns.claim()]))
        await writing.add(store, "j-2")
        await store.write(lambda t: t.put_node(nouns.node("n2")))
        for other in ({"job": "j-2"}, {"attempt": 2}, {"role": "ps"}, {"index": 1}, {"node": "n2"}):
            await store.write(lambda t, other=other: t.hold([nouns.claim(**other)]))

    async def test_the_first_and_the_last_of_a_node_s_ports_can_be_held(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([nouns.claim(ports=(20000, 20999))])))
        assert [claim.ports for claim in await store.read(lambda v: v.holdings())] == [(20000, 20999)]

    async def test_cpus_and_memory_are_held_in_sum(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        await store.write(lambda t: t.put_node(nouns.node(cpus=8)))
        await store.write(lambda t: t.hold([nouns.claim("j-1", cpus=5), nouns.claim("j-1", index=1, cpus=1)]))
        with pytest.raises(errors.AlreadyHeld, match="2000 cpus_milli left of 8000, 3000 are asked for"):
            await store.write(lambda t: t.hold([nouns.claim("j-2", cpus=2), nouns.claim("j-2", index=1, cpus=1)]))
        with pytest.raises(errors.AlreadyHeld, match="memory_bytes left"):
            await store.write(lambda t: t.hold([nouns.claim("j-2", memory=(62 << 30) + 1)]))
        await store.write(lambda t: t.hold([nouns.claim("j-2", cpus=2, memory=62 << 30)]))
        assert len(await store.read(lambda v: v.holdings())) == 3

    async def test_a_transaction_counts_what_it_has_held_freed_and_changed(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        await store.write(lambda t: t.put_node(nouns.node(cpus=8)))

        def held(t: stores.Transaction) -> None:
            t.hold([nouns.claim("j-1", cpus=5)])
            t.hold([nouns.claim("j-2", cpus=4)])

        def shared(t: stores.Transaction) -> None:
            t.hold([nouns.share("j-1", milli=600)])
            t.hold([nouns.share("j-2", milli=401)])

        def freed(t: stores.Transaction) -> None:
            t.hold([nouns.claim("j-1", cpus=5)])
            t.release("j-1", 1)
            t.hold([nouns.claim("j-2", cpus=8)])

        def shrunk(t: stores.Transaction) -> None:
            t.release("j-2", 1)
            t.hold([nouns.claim("j-1", cpus=1)])
            (node,) = t.nodes()
            t.put_node(replace(node, capacity=replace(node.capacity, cpus_milli=4000)))
            t.hold([nouns.claim("j-2", cpus=4)])

        with pytest.raises(errors.AlreadyHeld, match="3000 cpus_milli left of 8000, 4000 are asked for"):
            await store.write(held)
        with pytest.raises(errors.AlreadyHeld, match="400 thousandths of device 0 of node n1 are left"):
            await store.write(shared)
        await store.write(freed)
        with pytest.raises(errors.AlreadyHeld, match="3000 cpus_milli left of 4000, 4000 are asked for"):
            await store.write(shrunk)
        assert [claim.job for claim in await store.read(lambda v: v.holdings())] == ["j-2"]

    async def test_shares_of_a_device_are_no_more_than_the_device(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2", "j-3")
        await store.write(lambda t: (t.put_node(nouns.node()), t.put_node(nouns.node("n2"))))
        await store.write(lambda t: t.hold([nouns.share("j-1", milli=600), nouns.share("j-1", index=1, device=1)]))
        with pytest.raises(
            errors.AlreadyHeld, match="400 thousandths of device 0 of node n1 are left, 401 are asked for"
        ):
            await store.write(lambda t: t.hold([nouns.share("j-2", milli=401)]))
        both = [nouns.share("j-2", milli=300), nouns.share("j-2", index=1, milli=101)]
        with pytest.raises(errors.AlreadyHeld, match="100 thousandths"):
            await store.write(lambda t: t.hold(both))
        await store.write(lambda t: t.hold([nouns.share("j-2", milli=400), nouns.share("j-2", index=1, node="n2")]))
        with pytest.raises(errors.AlreadyHeld):
            await store.write(lambda t: t.hold([nouns.share("j-3", milli=1)]))
        assert len(await store.read(lambda v: v.holdings())) == 4

        await store.write(lambda t: t.release("j-1", 1))
        await store.write(lambda t: t.hold([nouns.share("j-3", milli=600)]))
        assert [claim.amount.gpu_milli for claim in await store.read(lambda v: v.holdings("j-3"))] == [600]

    async def test_a_device_is_whole_or_shared(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        await store.write(lambda t: t.put_node(nouns.node()))
        await store.write(lambda t: t.hold([nouns.share("j-1", milli=1), nouns.claim("j-1", index=1, devices=(1,))]))
        with pytest.raises(errors.AlreadyHeld, match="999 thousandths of device 0 of node n1 are left, 1000 are"):
            await store.write(lambda t: t.hold([nouns.claim("j-2", devices=(2, 0))]))
        with pytest.raises(errors.AlreadyHeld, match="device 1 of node n1 is held by job j-1"):
            await store.write(lambda t: t.hold([nouns.share("j-2", device=1, milli=1)]))
        for claims in (
            [nouns.share("j-2", device=3, milli=1), nouns.claim("j-2", index=1, devices=(3,))],
            [nouns.claim("j-2", devices=(3,)), nouns.share("j-2", index=1, device=3, milli=1)],
        ):
            with pytest.raises(errors.AlreadyHeld):
                await store.write(lambda t, claims=claims: t.hold(claims))
        await store.write(lambda t: t.release("j-1", 1))
        await store.write(lambda t: t.hold([nouns.claim("j-2", devices=(0, 1))]))

    async def test_a_number_that_is_not_a_share_is_refused(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        await store.write(lambda t: t.put_node(nouns.node()))
        for wrong in (
            nouns.share(milli=1000),
            nouns.share(milli=-1),
            nouns.share(device=9),
            replace(nouns.share(), devices=()),
            replace(nouns.share(), devices=(0, 1)),
            replace(nouns.share(), amount=holdings.Resources(gpus=1, gpu_milli=500)),
        ):
            with pytest.raises(errors.Conflict):
                await store.write(lambda t, wrong=wrong: t.hold([wrong]))
        assert await store.read(lambda v: v.holdings()) == []

    async def test_a_device_that_is_not_there_cannot_be_held(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node(devices=2)), t.put_node(nouns.node("n2", ports=None))))
        for claim in (
            nouns.claim(node="n9"),
            nouns.claim(devices=(2,)),
            nouns.claim(devices=(-1,)),
            nouns.claim(ports=(19999,)),
            nouns.claim(ports=(21000,)),
            nouns.claim(node="n2", ports=(20000,)),
        ):
            with pytest.raises(errors.Conflict, match=r"there is no|has no"):
                await store.write(lambda t, claim=claim: t.hold([claim]))
        with pytest.raises(errors.NotFound):
            await store.write(lambda t: t.hold([nouns.claim("j-9")]))
        await store.write(lambda t: t.hold([]))
        assert await store.read(lambda v: v.holdings()) == []

    async def test_release_frees_one_attempt_once(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        first = [nouns.claim(index=index, devices=(index,), ports=(20000 + index,)) for index in range(2)]
        second = nouns.claim(attempt=2, devices=(2,))
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([*first, second])))
        assert await store.write(lambda t: t.release("j-1", 1)) == first
        assert await store.write(lambda t: t.release("j-1", 1)) == []
        assert await store.read(lambda v: v.holdings()) == [second]
        await store.write(lambda t: t.hold([replace(claim, job="j-2") for claim in first]))

    async def test_release_of_some_tasks_leaves_the_others(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        claims = [nouns.claim(index=index, devices=(index,), ports=(20000 + index,)) for index in range(3)]
        later = nouns.claim(attempt=2, index=1, devices=(3,))
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([*claims, later])))
        assert await store.write(lambda t: t.release("j-1", 1, ["worker-1", "worker-7"])) == [claims[1]]
        assert await store.write(lambda t: t.release("j-1", 1, ["worker-1"])) == []
        assert await store.write(lambda t: t.release("j-1", 1, [])) == []
        assert await store.read(lambda v: v.holdings()) == [claims[0], claims[2], later]
        await store.write(lambda t: t.hold([replace(claims[1], job="j-2")]))
        with pytest.raises(errors.AlreadyHeld):
            await store.write(lambda t: t.hold([replace(claims[2], job="j-2")]))
        assert await store.write(lambda t: t.release("j-1", 1)) == [claims[0], claims[2]]

    async def test_a_node_leaves_when_nothing_is_held_on_it(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([nouns.claim()])))
        with pytest.raises(errors.Conflict, match="job j-1 holds"):
            await store.write(lambda t: t.remove_node("n1"))
        await store.write(lambda t: t.release("j-1", 1))
        await store.write(lambda t: (t.remove_node("n1"), t.remove_node("n1")))
        assert await store.read(lambda v: v.nodes()) == []
