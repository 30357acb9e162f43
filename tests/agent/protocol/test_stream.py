"""A growing file as a stream: its last bytes, and the places where the program removed or the agent dropped some."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oarlock.agent.protocol import blanking, stream

CUT = b"[oarlock] the program truncated its own output here\n"


class Rig:
    """A file and its stream, from which all is taken at once."""

    def __init__(self, path: Path, secrets: list[str] | None = None) -> None:
        self.path = path
        self.file = stream.Stream("stdout.0", str(path), None if secrets is None else blanking.Blanker(secrets))

    def take(self) -> bytes:
        batch = self.file.batch(final=True)
        self.file.acknowledge(self.file.acknowledged + len(batch))
        return batch


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "stdout.0", ["secret"])
    yield made
    if made.file._fd >= 0:
        os.close(made.file._fd)


@pytest.mark.parametrize(
    ("size", "tail"),
    [(100, b"one\na ****** b\n"), (5, b"** b\n"), (2, b"b\n"), (0, b"")],
)
def test_the_last_bytes_are_blanked_though_a_secret_began_before_them(rig: Rig, size: int, tail: bytes) -> None:
    rig.path.write_bytes(b"one\na secret b\n")
    assert rig.file.tail(size) == tail


def test_without_a_file_there_is_nothing(rig: Rig) -> None:
    assert (rig.file.size(), rig.file.end(), rig.file.unsent()) == (0, 0, 0)
    assert (rig.file.batch(final=True), rig.file.tail(10)) == (b"", b"")


def test_a_truncated_file_is_read_from_its_beginning_and_a_line_says_so(rig: Rig) -> None:
    rig.path.write_bytes(b"one\ntwo\n")
    assert rig.take() == b"one\ntwo\n"
    rig.path.write_bytes(b"new\n")  # the same file, shorter
    assert rig.take() + rig.take() == CUT + b"new\n"
    assert rig.file.acknowledged == 8 + len(CUT) + 4
    rig.path.write_bytes(b"")
    assert rig.take() == CUT, "again"


def test_bytes_that_a_truncation_removed_are_newlines_if_they_are_asked_for_again(rig: Rig) -> None:
    """Offsets never move, so something must stand there."""
    rig.path.write_bytes(b"one\ntwo\n")
    rig.take()
    rig.path.write_bytes(b"")
    rig.take()
    rig.file.acknowledge(2)
    assert rig.take() == b"\n" * 6
    assert rig.take() == CUT


def test_a_batch_that_was_attempted_counts_as_sent_when_the_file_is_truncated(rig: Rig) -> None:
    """The server may have stored it, though its answer was lost."""
    rig.path.write_bytes(b"one\ntwo\n")
    assert rig.file.batch(final=True) == b"one\ntwo\n"
    rig.path.write_bytes(b"x\n")
    assert rig.take() == CUT
    assert rig.file.acknowledged == 8 + len(CUT)


def test_whole_lines_are_dropped_and_counted(rig: Rig) -> None:
    rig.path.write_bytes(b"one\ntwo\nthree\n")
    assert rig.file.drop(5) == 8, "up to the end of a line"
    assert rig.file.drop(1) == 6, "in the same place: one line tells both"
    rig.path.write_bytes(b"one\ntwo\nthree\nfour\n")
    assert rig.take() == b"[oarlock] 14 bytes (3 lines) were dropped here: they could not be sent in time\n"
    assert rig.take() == b"four\n"


def test_a_line_that_was_sent_in_part_is_ended_before_the_notice(rig: Rig) -> None:
    rig.path.write_bytes(b"one two\nthree\n")
    rig.file.acknowledge(3)
    assert rig.file.drop(1) == 5
    assert rig.take().startswith(b"\n[oarlock] 5 bytes (1 lines)")
    assert rig.take() == b"three\n"
