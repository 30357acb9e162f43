"""Events that must change nothing, and what a wish leaves in the record."""

from __future__ import annotations

import pytest
from tests.lifecycle import script

from oarlock.lifecycle import stepping
from oarlock.spec import attempts, events, holdings, intents

FACTS: list[tuple[type[events.TaskEvent], dict[str, object]]] = [
    (events.TaskRegistered, {"address": "10.0.0.2"}),
    (events.TaskReported, {"phase": "PROCESSING", "detail": "news"}),
    (events.TaskExited, {"exit": attempts.Exit(code=1, cause=attempts.Cause.ERROR, at=script.START)}),
    (events.TaskGone, {}),
    (events.StacksTaken, {"request": 0, "stacks": {"0": "File train.py"}}),
]


def launched(*lines: str) -> script.Play:
    play = script.Play()
    for line in ("job {grace: 5s, roles: {worker: {count: 2, gpus: 1}}}", "admit", "launched", *lines):
        play.run(line)
    return play


@pytest.mark.parametrize(("fact", "fields"), FACTS, ids=[fact.__name__ for fact, _ in FACTS])
@pytest.mark.parametrize(
    "other", [{"attempt": 2}, {"incarnation": 2}, {"incarnation": 0}, {"index": 2}, {"role": "ps"}], ids=str
)
def test_facts_of_another_task_are_not_believed(
    fact: type[events.TaskEvent], fields: dict[str, object], other: dict[str, object]
) -> None:
    play = launched()
    of = {"attempt": 1, "role": "worker", "index": 1, "incarnation": 1}
    strange = fact(**{**of, **other, **fields})  # type: ignore[arg-type]
    assert stepping.step(play.job, strange, play.now) is play.job


def test_nothing_is_released_while_one_of_several_tasks_runs() -> None:
    play = launched("register worker-0 worker-1", "intend cancel", "exit worker-0 stopped signal=15", "gone worker-0")
    released = events.Released(attempt=1)
    assert stepping.step(play.job, released, play.now) is play.job
    for line in ("exit worker-1 stopped signal=15", "gone worker-1"):
        play.run(line)
    assert stepping.step(play.job, released, play.now).terminal


def test_nothing_is_released_that_was_not_stopped() -> None:
    play = launched()
    assert stepping.step(play.job, events.Released(attempt=1), play.now) is play.job


def test_an_older_checkpoint_does_not_replace_a_newer_one() -> None:
    play = launched("register worker-0 worker-1", "checkpoint 20")
    for step in (10, 20):
        late = events.CheckpointVisible(attempt=1, checkpoint_step=step, path=f"step-{step}")
        assert stepping.step(play.job, late, play.now + 1) is play.job
    play.run("checkpoint 21")
    assert play.live.checkpoint_step == 21


def test_a_resize_carries_where_the_gang_goes_and_a_stronger_wish_drops_it() -> None:
    to = (
        holdings.Holding(
            job="j", attempt=2, role="worker", index=0, node="n9", amount=holdings.Resources(gpus=1), devices=(3,)
        ),
    )
    play = launched("register worker-0 worker-1", "report worker-0 PROCESSING")
    wished = stepping.step(
        play.job, events.Intended(intent=intents.Intent.RESIZE, reason="moved to n9", to=to), play.now
    )
    assert wished.destined == to
    assert wished.reason == "moved to n9"
    halted = stepping.step(wished, events.Intended(intent=intents.Intent.HALT, by="ada"), play.now)
    assert halted.destined == ()
    assert halted.reason == "halted by ada"


def test_a_wish_other_than_a_resize_goes_nowhere() -> None:
    to = (holdings.Holding(job="j", attempt=2, role="worker", index=0, node="n9", amount=holdings.Resources()),)
    play = launched()
    wished = stepping.step(play.job, events.Intended(intent=intents.Intent.PREEMPT, to=to), play.now)
    assert wished.destined == ()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"intent": intents.Intent.CANCEL}, "canceled"),
        ({"intent": intents.Intent.HALT, "by": "ada"}, "halted by ada"),
        (
            {"intent": intents.Intent.PREEMPT, "by": "urgent", "reason": "it gives way"},
            "preempted by urgent: it gives way",
        ),
        ({"intent": intents.Intent.RESIZE}, "resized"),
        ({"intent": intents.Intent.RESIZE, "by": "ada", "reason": "from 4 to 8"}, "from 4 to 8"),
    ],
)
def test_the_reason_of_a_wish(fields: dict[str, object], reason: str) -> None:
    play = launched()
    wished = stepping.step(play.job, events.Intended(**fields), play.now)  # type: ignore[arg-type]
    assert wished.reason == reason
