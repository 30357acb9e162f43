"""A reader's place in a log: whatever is sent again after a loss, each character is given once, and none is lost."""

from __future__ import annotations

import itertools

import hypothesis
import msgspec
from hypothesis import strategies

from oarlock.api.data import logs
from oarlock.client import following, requests
from oarlock.spec import bodies, phases, tasklogs


def line(offset: int, text: str, *, partial: bool = False, task: str = "worker-0", at: float = 100.0) -> tasklogs.Line:
    return tasklogs.Line(
        task=task, attempt=1, incarnation=1, stream="stdout.0", offset=offset, at=at, text=text, partial=partial
    )


def given(cursor: following.Cursor, *lines: tasklogs.Line) -> list[str]:
    found = [cursor.unseen(each) for each in lines]
    return [each.text + ("" if each.partial else "\n") for each in found if each is not None]


def test_lines_that_were_seen_are_not_given_again() -> None:
    cursor = following.Cursor(requests.LogChoice())
    assert given(cursor, line(0, "a"), line(2, "b")) == ["a\n", "b\n"]
    assert given(cursor, line(0, "a"), line(2, "b"), line(4, "c")) == ["c\n"]


def test_streams_have_places_of_their_own() -> None:
    cursor = following.Cursor(requests.LogChoice())
    assert given(cursor, line(10, "a"), line(0, "b", task="worker-1")) == ["a\n", "b\n"]


def test_a_line_without_an_end_comes_again_as_a_whole() -> None:
    cursor = following.Cursor(requests.LogChoice())
    assert given(cursor, line(0, "ab", partial=True)) == ["ab"]
    assert given(cursor, line(0, "abcd")) == ["cd\n"]
    cursor = following.Cursor(requests.LogChoice())
    assert given(cursor, line(0, "ab", partial=True), line(2, "cd", partial=True)) == ["ab", "cd"]
    assert given(cursor, line(0, "abcd"), line(5, "next")) == ["\n", "next\n"]


def test_after_a_loss_only_lines_that_may_be_missing_are_asked_for() -> None:
    cursor = following.Cursor(requests.LogChoice(tail=5, role="worker"))
    assert cursor.choice() == requests.LogChoice(tail=5, role="worker")
    given(cursor, line(0, "a", at=1000.0), line(2, "b", at=2000.0))
    assert cursor.choice() == requests.LogChoice(role="worker", since=2000.0 - following.SLACK_S)
    cursor = following.Cursor(requests.LogChoice(tail=5))
    given(cursor, line(0, "a", at=1990.0), line(2, "b", at=2000.0))
    assert cursor.choice().since == 1990.0, "lines before the tail were not asked for"


@hypothesis.given(
    strategies.lists(strategies.text("abü€", max_size=5), min_size=1, max_size=8),
    strategies.lists(strategies.integers(0, 40), max_size=4),
    strategies.data(),
)
def test_no_character_is_lost_or_doubled(lines: list[str], losses: list[int], choose: strategies.DataObject) -> None:
    """Given a stream that is read in pieces and begun again anywhere: the text, once."""
    raw = "".join(text + "\n" for text in lines)
    cursor = following.Cursor(requests.LogChoice())
    seen = ""
    for upto in [*sorted(min(loss, len(raw)) for loss in losses), len(raw)]:
        for piece in pieces(raw[:upto], choose):
            fresh = cursor.unseen(piece)
            if fresh is not None:
                seen += fresh.text + ("" if fresh.partial else "\n")
        assert seen == raw[:upto]


def pieces(stored: str, choose: strategies.DataObject) -> list[tasklogs.Line]:
    """The bytes of `stored` from its beginning: whole lines, and the last one in pieces of its own choice."""
    found = []
    offset = 0
    *whole, rest = stored.split("\n")
    for text in whole:
        found.append(line(offset, text))
        offset += len(text.encode()) + 1
    if rest:
        found.append(line(offset, rest, partial=True))
    return found


ITEMS: list[tasklogs.Line | bodies.Ended] = [
    line(0, "a\u2028b\r\x0bc"),
    tasklogs.Lines(
        task="worker-0", attempt=1, incarnation=1, stream="stdout.0", offset=9, at=1.0, last=13, data=b"{}\n\n\xff\n"
    ),
    line(15, "half", partial=True),
    tasklogs.Lines(task="worker-1", attempt=1, incarnation=1, stream="stderr.0", offset=0, at=1.0, last=0, data=b"\n"),
    bodies.Ended(phases.Phase.FAILED, 3),
]


@hypothesis.given(strategies.lists(strategies.integers(0, 600), max_size=20))
def test_a_log_is_the_same_however_its_bytes_arrive(cuts: list[int]) -> None:
    """Items end at newlines alone, and the bytes of a block are no items."""
    sent = b"".join(
        logs.encoded(item) if isinstance(item, tasklogs.Line) else msgspec.json.encode(bodies.End(item)) + b"\n\n"
        for item in ITEMS
    )
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    reader = following.Reader()
    assert [item for a, b in itertools.pairwise(places) for item in reader.feed(sent[a:b])] == ITEMS


def test_the_position_after_a_block_is_its_last_line() -> None:
    cursor = following.Cursor(requests.LogChoice())
    assert cursor.unseen(ITEMS[1]) == ITEMS[1]
    assert given(cursor, line(13, "\ufffd"), line(15, "next")) == ["next\n"]
