"""Pools from Python: changed by fields, in both clients; and which requests are sent again."""

from __future__ import annotations

import msgspec
import pytest
from tests.client import driven, live

from oarlock.client import requests
from oarlock.spec import errors
from oarlock.spec.cluster import poolchanges, pools


def test_a_pool_is_made_changed_looked_at_and_removed(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        made = client.set_pool("research", reserve={"gpus": 1, "memory": "4Gi"}, share=2)
        assert made == pools.Pool(
            name="research",
            reserve={"gpus": 1.0, "memory": float(4 << 30)},
            share={"gpus": 2.0, "cpus": 2.0, "memory": 2.0},
            version=1,
        )
        assert client.set_pool("research", reserve={"memory": None}, share=None, version=1).share == {}
        with pytest.raises(errors.VersionMismatch):
            client.set_pool("research", policy="las", version=1)
        preview = client.preview_pool("research", reserve={"gpus": 2})
        assert (preview.pool.reserve["gpus"], preview.planned) == (2.0, True)
        tree = client.pools()
        assert [view.pool.name for view in tree] == ["default", "research"]
        assert (len(tree), tree.capacity["gpus"], tree.notes) == (2, 2.0, ())
        assert tree.items[1].entitled["gpus"] + tree.items[0].entitled["gpus"] == 2.0
        assert tree.items[0].reserved["gpus"] == 1.0
        with pytest.raises(errors.UnknownField, match="Did you mean `reserve`"):
            client.set_pool("research", reserved={"gpus": 1})
        with pytest.raises(errors.InvalidInput) as refused:
            client.set_pool("below", parent="research", reserve={"gpus": 2})
        assert refused.value.path == "reserve.gpus"
        assert "oarlock pool set research --reserve gpus=2" in refused.value.hint
        client.remove_pool("research")
        with pytest.raises(errors.NotFound):
            client.remove_pool("research")
        with pytest.raises(errors.Conflict):
            client.remove_pool("default")


def test_a_field_that_is_left_out_is_not_sent_and_none_is() -> None:
    change = poolchanges.Change(reserve={"gpus": None}, limit=None)
    assert msgspec.json.encode(change) == b'{"reserve":{"gpus":null},"limit":null}'


def test_a_change_is_sent_again_unless_the_first_one_would_be_in_its_way() -> None:
    assert requests.set_pool("a", poolchanges.Change(share=2.0)).repeatable
    assert not requests.set_pool("a", poolchanges.Change(share=2.0, version=3)).repeatable


def test_a_pool_s_name_can_never_become_another_path() -> None:
    for made in (requests.remove_pool, lambda name: requests.set_pool(name, poolchanges.Change())):
        with pytest.raises(errors.InvalidInput, match="is not a valid name of a pool"):
            made("../users/x?y")
