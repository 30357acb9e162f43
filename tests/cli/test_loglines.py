"""Lines of output as they are shown: whose they are, and where one ends."""

from __future__ import annotations

import pytest

from oarlock.cli import loglines
from oarlock.data import port as data
from oarlock.spec import judging


def line(text: str, *, task: str = "worker-0", stream: str = "stdout.0", partial: bool = False) -> data.Line:
    return data.Line(task=task, attempt=1, incarnation=1, stream=stream, offset=0, at=1.0, text=text, partial=partial)


@pytest.mark.parametrize(
    ("roles", "alone", "shown"),
    [
        ({"worker": {}}, False, "hi\n"),
        ({"worker": {"count": 2}}, False, "worker-0 | hi\n"),
        ({"worker": {"count": 2}}, True, "hi\n"),
        ({"worker": {"nproc": 2}}, False, "worker-0.1 | hi\n"),
        ({"worker": {"count": 2, "nproc": 2}}, True, "worker-0.1 | hi\n"),
    ],
)
def test_a_line_says_whose_it_is_where_it_could_be_anothers(roles: dict[str, object], alone: bool, shown: str) -> None:
    spec = judging.decode({"command": "x", "roles": roles})
    writer = loglines.Writer(loglines.style(spec, alone=alone, colour=False, clean=False))
    assert writer.text(line("hi", stream="stderr.1")) == shown


@pytest.mark.parametrize(("clean", "lines"), [(False, 1), (True, 4)])
def test_a_long_line_is_whole_for_programs_and_broken_on_a_terminal(clean: bool, lines: int) -> None:
    writer = loglines.Writer(loglines.Style(prefix=False, colour=False, clean=clean))
    pieces = [line("x" * 65_536, partial=True)] * 3 + [line("end")]
    shown = "".join(map(writer.text, pieces)) + writer.rest()
    assert (shown.count("\n"), len(shown.replace("\n", ""))) == (lines, 3 * 65_536 + 3)
