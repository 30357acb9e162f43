"""The topics that an event names."""

from __future__ import annotations

import pytest

from oarlock.spec import events
from oarlock.web.updates import topics

KINDS = sorted({one.__struct_config__.tag for one in events.AnyEvent.__args__} | {"submitted", "phase", "removed"})
CLUSTER = {events.NODES, events.POOLS}


def line(kind: str, job: str = "j-1", seq: int = 1) -> events.Record:
    return events.Record(seq=seq, at=0.0, job=job, kind=kind, version=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_names_its_own_job(kind: str) -> None:
    assert topics.of_job("j-1") in topics.of([line(kind)])


def test_an_event_names_the_topics_that_it_may_change() -> None:
    everything = {topics.JOBS, *topics.SHARED}
    table = {
        "submitted": everything,
        "phase": everything,
        "admitted": everything,
        "released": everything,
        "removed": everything,
        "a kind of a later version": everything,
        "edited": {topics.JOBS, topics.QUEUE, topics.POOLS},
        "refused": {topics.JOBS, topics.QUEUE},
        "task_registered": {topics.JOBS},
        "checkpoint_visible": set(),
    }
    assert {kind: set(topics.of([line(kind)])) - {"job:j-1"} for kind in table} == table


def test_the_table_of_kinds_has_no_kind_that_no_event_has() -> None:
    assert set(topics._KINDS) <= set(KINDS) | CLUSTER


@pytest.mark.parametrize("kind", sorted(CLUSTER))
def test_a_change_of_nodes_or_pools_is_of_no_job(kind: str) -> None:
    assert topics.of([line(kind, job="")]) == topics.SHARED


def test_a_message_is_bounded() -> None:
    assert topics.of([line("projected", f"j-{number}") for number in range(topics.MOST + 1)]) == {topics.EVERYTHING}
