"""Checkpoints of jobs."""

from __future__ import annotations

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors
from oarlock.store import stores


class Checkpoints:
    async def test_checkpoints_are_best_first_and_added_once(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        made = [nouns.checkpoint(attempt=a, step=s) for a, s in ((1, 10), (2, 30), (1, 200), (2, 40), (10, 1))]
        await store.write(lambda t: [t.add_checkpoint(one) for one in [*made, made[0]]])
        found = await store.read(lambda v: v.checkpoints("j-1"))
        assert found == [made[4], made[3], made[1], made[2], made[0]]
        await store.write(
            lambda t: (t.remove_checkpoint("j-1", made[4].path), t.remove_checkpoint("j-2", made[3].path))
        )
        assert await store.read(lambda v: v.checkpoints("j-1")) == found[1:]
        same_path = msgspec.structs.replace(made[0], job="j-2")
        await store.write(lambda t: t.add_checkpoint(same_path))
        assert await store.read(lambda v: v.checkpoints("j-2")) == [same_path]
        wanted = ["j-2", "j-1", "j-9", "\0"]
        by_job = await store.read(lambda v: v.checkpoints_by_job(wanted))
        assert by_job == {"j-1": found[1:], "j-2": [same_path]}
        assert await store.read(lambda v: v.checkpoints_by_job([])) == {}
        with pytest.raises(errors.NotFound):
            await store.write(lambda t: t.add_checkpoint(nouns.checkpoint("j-9")))
