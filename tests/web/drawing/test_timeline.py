"""The timeline of a job: a bar for each attempt, and a mark for each event that a reader looks for."""

from __future__ import annotations

import msgspec
import pytest

from oarlock.spec import attempts, events, jobfile, jobs, phases
from oarlock.web.drawing import timeline

FIRST = attempts.Attempt(number=1, started_at=100.0, launched_at=110.0, processing_at=130.0, ended_at=200.0)
LOST = attempts.Verdict(cause=attempts.Cause.PLATFORM, message="the node was lost", at=200.0)
SECOND = attempts.Attempt(number=2, started_at=300.0, launched_at=305.0, processing_at=310.0)
JOB = jobs.Job(
    id="j-1",
    name="train",
    owner="ann",
    spec=jobfile.JobSpec(command="true"),
    created_at=0.0,
    phase=phases.Phase.PROCESSING,
    phase_at=310.0,
    attempts=(FIRST, SECOND),
)


def record(kind: str, at: float, **data: object) -> events.Record:
    return events.Record(seq=1, at=at, job="j-1", kind=kind, version=1, data=data)


def marks(*found: events.Record, job: jobs.Job = JOB, now: float = 400.0) -> list[list[tuple[str, float]]]:
    """Each row's marks as their words and times."""
    drawn = timeline.draw(job, found, now)
    assert drawn is not None
    return [[(mark.word, mark.at) for mark in row.marks] for row in drawn.rows]


@pytest.mark.parametrize("kind", timeline.MARKS)
def test_an_event_is_marked_in_the_row_of_its_attempt(kind: str) -> None:
    word = timeline.MARKS[kind][1]
    assert marks(record(kind, 150.0), record(kind, 350.0)) == [[(word, 150.0)], [(word, 350.0)]]


@pytest.mark.parametrize("intent", timeline.INTENTS)
def test_an_intent_is_marked_also_between_two_attempts(intent: str) -> None:
    """A halted job is resumed while no attempt runs, and may be halted or canceled while it waits."""
    word = timeline.INTENTS[intent][1]
    assert marks(record("intended", 150.0, intent=intent)) == [[(word, 150.0)], []]
    assert marks(record("intended", 250.0, intent=intent)) == [[(word, 250.0)], []]
    halted = msgspec.structs.replace(JOB, attempts=(FIRST,), phase=phases.Phase.HALTED)
    assert marks(record("intended", 250.0, intent=intent), job=halted) == [[(word, 250.0)]]


def test_other_events_and_those_before_the_first_attempt_have_no_mark() -> None:
    assert marks(record("phase", 150.0), record("intended", 50.0, intent="halt"), record("reshaped", 999.0)) == [[], []]


def test_marks_lie_where_they_happened_on_one_scale_and_are_told_below() -> None:
    ended = msgspec.structs.replace(JOB, ended_at=400.0, phase=phases.Phase.CANCELED)
    drawn = timeline.draw(ended, [record("intended", 250.0, intent="run"), record("reshaped", 400.0)], 999.0)
    assert drawn is not None
    assert (drawn.begin, drawn.end) == (100.0, 400.0)
    assert [mark.x for row in drawn.rows for mark in row.marks] == [timeline.WIDTH / 2, timeline.WIDTH]
    assert drawn.legend == (("▶", "resume"), ("↕", "another number of workers"))


def test_the_parts_of_a_bar_are_the_phases_of_its_attempt() -> None:
    drawn = timeline.draw(JOB, [], 400.0)
    assert drawn is not None
    assert [part.word for part in drawn.rows[0].parts] == [
        "DEPLOYING",
        "DOWNLOADING",
        "PROCESSING",
        "ended: QUEUED again",
    ]
    assert [part.word for part in drawn.rows[1].parts] == ["DEPLOYING", "DOWNLOADING", "PROCESSING"]
    assert timeline.draw(msgspec.structs.replace(JOB, attempts=()), [], 400.0) is None


@pytest.mark.parametrize(
    ("fields", "phase", "word", "colour"),
    [
        ({"led_to": phases.Phase.COMPLETED}, phases.Phase.COMPLETED, "COMPLETED", "green"),
        ({"led_to": phases.Phase.HALTED}, phases.Phase.CANCELED, "HALTED", "violet"),
        ({"led_to": phases.Phase.QUEUED}, phases.Phase.CANCELED, "QUEUED again", "amber"),
        ({"led_to": phases.Phase.QUEUED, "verdict": LOST}, phases.Phase.CANCELED, "FAILED", "red"),
        # The records of an earlier version, which the present phase of the job explains where no attempt followed.
        ({}, phases.Phase.HALTED, "HALTED", "violet"),
        ({}, phases.Phase.CANCELED, "CANCELED", "violet"),
        ({}, phases.Phase.QUEUED, "QUEUED again", "amber"),
        ({"verdict": LOST}, phases.Phase.QUEUED, "FAILED", "red"),
    ],
)
def test_the_end_of_a_bar_tells_how_its_attempt_ended(
    fields: dict[str, object], phase: phases.Phase, word: str, colour: str
) -> None:
    ended = msgspec.structs.replace(FIRST, **fields)
    drawn = timeline.draw(msgspec.structs.replace(JOB, attempts=(ended,), phase=phase), [], 400.0)
    assert drawn is not None
    last = drawn.rows[0].parts[-1]
    assert (last.word, last.colour) == (f"ended: {word}", colour)


def told(*found: events.Record, job: jobs.Job = JOB) -> list[tuple[int, str, float, float | None]]:
    drawn = timeline.draw(job, found, 400.0)
    assert drawn is not None
    return [(one.attempt, one.word, one.at, one.lasted_s) for one in drawn.moments]


def test_all_parts_and_marks_are_told_with_their_times_in_their_order() -> None:
    assert told(record("reshaped", 150.0), record("intended", 250.0, intent="run")) == [
        (1, "DEPLOYING", 100.0, 10.0),
        (1, "DOWNLOADING", 110.0, 20.0),
        (1, "PROCESSING", 130.0, 70.0),
        (1, "another number of workers", 150.0, 0.0),
        (1, "ended: QUEUED again", 200.0, 0.0),
        (1, "resume", 250.0, 0.0),
        (2, "DEPLOYING", 300.0, 5.0),
        (2, "DOWNLOADING", 305.0, 5.0),
        (2, "PROCESSING", 310.0, None),
    ]


def test_the_drawing_has_the_last_of_very_many_marks_and_the_words_have_all() -> None:
    many = [record("checkpoint_visible", 310.0 + number / 10) for number in range(timeline.MOST_MARKS + 50)]
    drawn = timeline.draw(JOB, many, 400.0)
    assert drawn is not None
    assert [mark.at for mark in drawn.rows[1].marks] == [one.at for one in many[50:]]
    assert [one.at for one in drawn.moments if one.word == "checkpoint"] == [one.at for one in many]


@pytest.mark.parametrize(
    ("phase", "attempt", "words"),
    [
        (phases.Phase.STORING, {"storing_at": 350.0}, ["DEPLOYING", "DOWNLOADING", "PROCESSING", "STORING"]),
        (phases.Phase.DOWNLOADING, {"processing_at": None}, ["DEPLOYING", "DOWNLOADING"]),
        (phases.Phase.DEPLOYING, {"processing_at": None}, ["DEPLOYING"]),
        (phases.Phase.DEPLOYING, {"processing_at": None, "launched_at": None}, ["DEPLOYING"]),
    ],
)
def test_the_last_part_is_the_phase_in_which_the_attempt_is(
    phase: phases.Phase, attempt: dict[str, float | None], words: list[str]
) -> None:
    last = msgspec.structs.replace(SECOND, **attempt)
    drawn = timeline.draw(msgspec.structs.replace(JOB, attempts=(FIRST, last), phase=phase), [], 400.0)
    assert drawn is not None
    assert [part.word for part in drawn.rows[1].parts] == words


def test_an_attempt_that_stored_or_downloaded_when_it_ended_says_so() -> None:
    for changes, word in (({"storing_at": 190.0}, "STORING"), ({"processing_at": None}, "DOWNLOADING")):
        ended = msgspec.structs.replace(JOB, attempts=(msgspec.structs.replace(FIRST, **changes), SECOND))
        drawn = timeline.draw(ended, [], 400.0)
        assert drawn is not None
        assert drawn.rows[0].parts[-2].word == word
