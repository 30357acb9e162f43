"""The archive of jobs that are kept no longer: each listed job is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.data import jobarchive
from oarlock.spec import errors


async def test_lines_are_appended_for_the_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / "archive.jsonl"
    for lines in ([b'{"id":"a"}', b'{"id":"b"}'], [], [b'{"id":"c"}']):
        await jobarchive.ArchiveFile(place)(lines)
    assert place.read_bytes() == b'{"id":"a"}\n{"id":"b"}\n{"id":"c"}\n'
    assert place.stat().st_mode & 0o777 == 0o600


async def test_a_line_that_was_cut_short_takes_no_other_job_with_it(tmp_path: Path) -> None:
    """A server was killed in the midst of it; the next one archives the same job again."""
    place = tmp_path / "archive.jsonl"
    place.write_bytes(b'{"id":"a"}\n{"id":"b"')
    await jobarchive.ArchiveFile(place)([b'{"id":"b"}'])
    assert place.read_bytes().splitlines() == [b'{"id":"a"}', b'{"id":"b"', b'{"id":"b"}']


async def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    place = tmp_path / "archive.jsonl"
    place.mkdir()
    with pytest.raises(errors.Unavailable, match="archive could not be stored"):
        await jobarchive.ArchiveFile(place)([b"{}"])
