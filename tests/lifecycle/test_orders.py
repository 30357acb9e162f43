"""The orders of agents, field by field."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.lifecycle import script

from oarlock.lifecycle import orders
from oarlock.spec import errors
from oarlock.spec.protocol import assignments


def running(*lines: str) -> script.Play:
    play = script.Play()
    for line in ("job {grace: 7s, roles: {worker: {count: 2}}}", "admit batch=8x2", "launched", *lines):
        play.run(line)
    return play


def told(play: script.Play, task: str = "worker-0") -> assignments.Orders:
    return orders.orders(play.job, play.key(task), play.now)


def fields(play: script.Play, task: str = "worker-0") -> dict[str, object]:
    """Return what differs from no orders at all, without the version."""
    said, none = told(play, task), assignments.Orders(version="")
    return {
        name: getattr(said, name)
        for name in said.__struct_fields__
        if name != "version" and getattr(said, name) != getattr(none, name)
    }


def test_the_batch_size_is_told() -> None:
    play = running("register worker-0 worker-1")
    assert fields(play) == {"round": 1, "batch": assignments.Batch(8, 2)}
    play.run("batch 16x4")
    assert fields(play) == {"round": 1, "batch": assignments.Batch(16, 4)}


def test_a_job_without_a_batch_size_is_told_none() -> None:
    play = script.Play()
    for line in ("job {}", "admit", "launched", "register worker-0"):
        play.run(line)
    assert fields(play) == {"round": 1}


def test_stacks_are_asked_only_from_those_that_train_and_have_not_told() -> None:
    play = script.Play()
    play.run("job {hang_timeout: 10s, roles: {worker: {count: 2}}}")
    for line in ("admit", "launched", "register worker-0 worker-1", "report worker-0 PROCESSING idle=20", "do"):
        play.run(line)
    assert fields(play, "worker-0") == {"round": 1, "stacks": 1}
    assert fields(play, "worker-1") == {"round": 1}
    play.run("stacks worker-0")
    assert fields(play, "worker-0") == {"round": 1}


def test_a_stop_names_the_grace_and_the_reason_from_its_very_moment() -> None:
    play = running("register worker-0 worker-1", "report worker-0 PROCESSING", "intend cancel by=ada")
    expected = {
        "round": 1,
        "batch": assignments.Batch(8, 2),
        "stop": assignments.Stop(7.0, "canceled by ada"),
    }
    assert fields(play) == expected
    play.run("exit worker-0 stopped signal=15")
    del expected["stop"]
    assert fields(play) == {**expected, "release": True}


def test_the_version_changes_with_the_orders_and_only_with_them() -> None:
    play = running("register worker-0 worker-1")
    first = told(play)
    assert re.fullmatch("[0-9a-f]{16}", first.version)
    play.run("report worker-0 PROCESSING step=3")
    assert told(play) == first
    play.run("batch 16")
    second = told(play)
    assert second.version != first.version
    play.run("intend cancel")
    assert told(play).version not in {first.version, second.version}


def test_the_barrier_admits_a_round_and_nothing_that_stops() -> None:
    play = running("register worker-0")
    key = play.key("worker-0")
    assert not orders.admitted(play.job, key)
    play.run("register worker-1")
    assert orders.admitted(play.job, key)
    play.run("intend cancel")
    assert not orders.admitted(play.job, key)


def test_no_process_starts_once_the_gang_has_lost_a_task_and_restarts() -> None:
    play = running("register worker-0 worker-1", "report worker-0 PROCESSING step=1", "exit worker-0 signal=9")
    assert not orders.admitted(play.job, play.key("worker-1"))
    expected = assignments.Stop(7.0, "another task has failed, and the gang restarts")
    assert fields(play, "worker-1")["stop"] == expected


def test_those_that_train_may_meet_in_a_round_that_was_decided_before_their_end() -> None:
    """Else some of them know of it and some do not, and they cannot save together."""
    play = running("register worker-0 worker-1", "report worker-0 PROCESSING", "intend halt")
    assert orders.admitted(play.job, play.key("worker-0"))
    assert not orders.admitted(play.job, play.key("worker-1")), "nothing starts any more"


@pytest.mark.parametrize("changed", [{"job": "other"}, {"attempt": 2}, {"index": 5}, {"incarnation": 2}])
def test_another_task_than_the_present_one_is_stale(changed: dict[str, object]) -> None:
    play = running("register worker-0 worker-1")
    key = msgspec.structs.replace(play.key("worker-0"), **changed)
    for ask in (lambda: orders.orders(play.job, key, play.now), lambda: orders.admitted(play.job, key)):
        with pytest.raises(errors.StaleTask) as refused:
            ask()
        assert refused.value.message == f"{key} is not the present incarnation of its task"
        assert refused.value.hint == "End its processes and go."


def test_every_task_of_a_job_without_an_attempt_is_stale() -> None:
    play = running()
    key = play.key("worker-0")
    play.run("job {}")
    with pytest.raises(errors.StaleTask):
        orders.orders(play.job, key, play.now)
