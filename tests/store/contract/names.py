"""The names of active jobs, and the keys of submissions."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors, intents, phases
from oarlock.store import stores


class Names:
    async def test_an_active_name_is_taken_until_its_job_has_ended(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", name="digits")
        again = nouns.job("j-2", name="digits")
        with pytest.raises(errors.NameTaken) as refused:
            await store.write(lambda t: t.add_job(again, at=1.0))
        assert refused.value.detail == {"job": "j-1"}
        await store.write(lambda t: t.add_job(nouns.job("j-3", name="digits", owner="bob"), at=1.0))
        await writing.finish(store, "j-1")
        assert (await store.write(lambda t: t.add_job(again, at=2.0))).version == 1

    async def test_a_halted_job_cannot_come_back_to_a_name_that_was_taken(self, store: stores.Store) -> None:
        halted = nouns.job("j-1", name="x", phase=phases.Phase.HALTED, intent=intents.Intent.HALT)
        halted = await store.write(lambda t: t.add_job(halted, at=1.0))
        await writing.add(store, "j-2", name="x")
        with pytest.raises(errors.NameTaken):
            await store.write(
                lambda t: t.put_job(
                    msgspec.structs.replace(halted, phase=phases.Phase.QUEUED, intent=intents.Intent.RUN), at=2.0
                )
            )
        await writing.finish(store, "j-2")
        resumed = msgspec.structs.replace(halted, phase=phases.Phase.QUEUED, intent=intents.Intent.RUN)
        assert (await store.write(lambda t: t.put_job(resumed, at=2.0))).version == 2

    async def test_one_key_makes_one_job(self, store: stores.Store) -> None:
        """Sixty-four clients at once say the same, as the API does: look for the key, else add."""

        def submit(job_id: str):
            def change(t: stores.Transaction) -> str:
                if (made := t.submitted("ann", "key")) is not None:
                    return made[0]
                return t.add_job(nouns.job(job_id), at=1.0, idempotency_key="key", request_sha256="abc").id

            return change

        answers = await asyncio.gather(*(store.write(submit(f"j-{place}")) for place in range(64)))
        assert len(set(answers)) == 1
        assert await store.read(lambda v: v.count()) == {phases.Phase.QUEUED: 1}
        assert await store.read(lambda v: v.submitted("ann", "key")) == (answers[0], "abc")
        assert await store.read(lambda v: v.submitted("bob", "key")) is None

    async def test_a_used_key_is_refused_for_another_job(self, store: stores.Store) -> None:
        await store.write(lambda t: t.add_job(nouns.job(), at=1.0, idempotency_key="key"))
        with pytest.raises(errors.Conflict, match="idempotency key"):
            await store.write(lambda t: t.add_job(nouns.job("j-2"), at=1.0, idempotency_key="key"))
        assert await store.read(lambda v: v.job("j-2")) is None
