"""Lines of output as they are shown: their ranks, and where one ends."""

from __future__ import annotations

import io

import pytest

from oarlock.cli.following import loglines
from oarlock.cli.output import terminal
from oarlock.spec import tasklogs
from oarlock.spec.input import validation


def line(text: str, *, task: str = "worker-0", stream: str = "stdout.0", partial: bool = False) -> tasklogs.Line:
    return tasklogs.Line(
        task=task, attempt=1, incarnation=1, stream=stream, offset=0, at=1.0, text=text, partial=partial
    )


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
def test_a_line_names_its_task_where_it_could_be_another_ones(
    roles: dict[str, object], alone: bool, shown: str
) -> None:
    spec = validation.decode({"command": "x", "roles": roles})
    writer = loglines.Writer(loglines.style(spec, alone=alone, colour=False, clean=False))
    assert text(writer, line("hi", stream="stderr.1")) == shown


@pytest.mark.parametrize(("clean", "lines"), [(False, 1), (True, 4)])
def test_a_long_line_is_whole_for_programs_and_broken_on_a_terminal(clean: bool, lines: int) -> None:
    writer = loglines.Writer(loglines.Style(prefix=False, colour=False, clean=clean))
    pieces = [line("x" * 65_536, partial=True)] * 3 + [line("end")]
    shown = "".join(text(writer, piece) for piece in pieces) + rest(writer)
    assert (shown.count("\n"), len(shown.replace("\n", ""))) == (lines, 3 * 65_536 + 3)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("prefix", [False, True])
def test_lines_that_come_together_are_shown_as_if_each_had_come_alone(prefix: bool, clean: bool, raw: bool) -> None:
    """Also after a piece without an end: they finish its line."""
    style = loglines.Style(prefix=prefix, colour=False, clean=clean, raw=raw)
    alone, together = loglines.Writer(style), loglines.Writer(style)
    expected, shown = "", ""
    for piece, texts in (("", ["one", "", "a\tb\x1b[31m"]), ("open", ["ed", "two"]), ("\r50%", ["\r100%", "three"])):
        for writer in (alone, together):
            said = text(writer, line(piece, partial=True)) if piece else ""
            expected, shown = (expected + said, shown) if writer is alone else (expected, shown + said)
        expected += "".join(text(alone, line(one)) for one in texts)
        block = tasklogs.Lines(
            task="worker-0",
            attempt=1,
            incarnation=1,
            stream="stdout.0",
            offset=0,
            at=1.0,
            data="".join(f"{one}\n" for one in texts).encode(),
            last=9,
        )
        shown += text(together, block)
    assert shown + rest(together) == expected + rest(alone)


def test_bytes_are_printed_between_the_texts_around_them() -> None:
    """In the order of the pieces, and the task's own bytes, also those that are not UTF-8."""
    pieces = [loglines.Piece(text, False) for text in ("one\n", "", "two\n", b"three\xff\n", b"four\n", "five\n")]
    assert list(loglines.joined(pieces)) == ["one\ntwo\n", b"three\xff\n", b"four\n", "five\n"]
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    for text in loglines.joined(pieces):
        terminal.write(file, text)
    file.flush()
    assert file.buffer.getvalue() == b"one\ntwo\nthree\xff\nfour\nfive\n"  # type: ignore[attr-defined]  # a BytesIO


def text(writer: loglines.Writer, piece: tasklogs.Line) -> str:
    shown = writer.piece(piece).text
    return shown if isinstance(shown, str) else shown.decode()


def rest(writer: loglines.Writer) -> str:
    return "".join(str(piece.text) for piece in writer.rest())


BAR = ("\r 10%|#    |", "\r 20%|##   |\r 30%|###  |", "\r", "\r100%|#####|")


@pytest.mark.parametrize(("prefix", "name"), [(False, ""), (True, "worker-0 | ")])
def test_a_bar_that_is_redrawn_comes_piece_by_piece_and_no_piece_twice(prefix: bool, name: str) -> None:
    writer = loglines.Writer(loglines.Style(prefix=prefix, colour=False, clean=False))
    pieces = [text(writer, line(bar, stream="stderr.0", partial=True)) for bar in BAR[:3]]
    assert pieces == [f"{name} 10%|#    |\n", f"{name} 20%|##   |\r 30%|###  |\n", ""]
    assert text(writer, line("epoch 1")) == f"{name}epoch 1\n", "another stream's line is whole"
    assert text(writer, line(BAR[3], stream="stderr.0")) == f"{name}100%|#####|\n"
    assert text(writer, line("no bar", stream="stderr.0", partial=True)) == ""
    assert text(writer, line(" any more", stream="stderr.0")) == f"{name}no bar any more\n"
    assert writer.rest() == []


def test_each_stream_has_its_style_and_its_place() -> None:
    """stdout goes into a pipe as it is, while a terminal shows stderr."""
    plain, shown = (loglines.Style(prefix=False, colour=False, clean=clean) for clean in (False, True))
    writer = loglines.Writer(plain, shown)
    assert writer.piece(line("\x1b[2Ja")) == ("\x1b[2Ja\n", False)
    assert writer.piece(line("\x1b[2Jb", stream="stderr.0")) == ("b\n", True)
    for stream in ("stdout.0", "stderr.0"):
        assert text(writer, line(f"{stream} without an end", stream=stream, partial=True)) == ""
    assert writer.rest() == [("stdout.0 without an end\n", False), ("stderr.0 without an end\n", True)]


def test_a_bar_on_a_terminal_waits_in_the_live_rows() -> None:
    writer = loglines.Writer(loglines.Style(prefix=False, colour=False, clean=True))
    assert text(writer, line(BAR[0] + BAR[1], partial=True)) == ""
    assert writer.pending == " 30%|###  |"
