"""A fetch within this process: what is moved and counted, what is tried again, and what a second fetch finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oarlock.data.transfers import fetch, patience, places, reporting
from oarlock.spec import errors

FILES = {"a.csv": "1,2\n", "deep/b.csv": "3,4,5\n"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def tree(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def moved(told: str) -> dict[str, int]:
    """Return the sums of the last line of progress."""
    last: dict[str, int] = json.loads(told.splitlines()[-1])["moved"]
    return last


def test_a_folder_comes_as_a_whole_and_its_bytes_are_counted_once(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = fetch.run(f"file://{source}", str(tmp_path / "data"))
    assert target == tmp_path / "data"
    assert tree(target) == FILES
    assert moved(capsys.readouterr().err) == {"files": 2, "total_files": 2, "bytes": 10, "total_bytes": 10}
    assert fetch.run(f"file://{source}", str(tmp_path / "data")) == target, "it is there already"


def test_files_of_a_fetch_that_was_ended_are_kept_and_counted(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = places.listing(str(source))
    place = tmp_path / ".data.oarlock-fetch"
    (place / "files").mkdir(parents=True)
    record = fetch.Record(str(source), fetch.fingerprint(listing))
    (place / "record").write_bytes(fetch.msgspec.json.encode(record))
    (place / "files" / "a.csv").write_text("old\n")  # of the same size: it is not fetched again
    target = fetch.run(str(source), str(tmp_path / "data"))
    assert tree(target) == {**FILES, "a.csv": "old\n"}
    assert moved(capsys.readouterr().err) == {"files": 2, "total_files": 2, "bytes": 10, "total_bytes": 10}


def test_one_file_becomes_the_target_or_goes_into_the_folder(source: Path, tmp_path: Path) -> None:
    assert fetch.run(f"{source}/a.csv", str(tmp_path / "one.csv")).read_text() == "1,2\n"
    (tmp_path / "folder").mkdir()
    assert fetch.run(f"{source}/a.csv", str(tmp_path / "folder")) == tmp_path / "folder" / "a.csv"


class Remote:
    """A file system that fails so many times, then gives the bytes; `tells` whether it reports its progress."""

    def __init__(self, failures: int, data: bytes, *, tells: bool = True) -> None:
        self.failures, self.data, self.tells = failures, data, tells
        self.asked = 0

    def get_file(self, path: str, target: str, callback: Any) -> None:
        self.asked += 1
        if self.asked <= self.failures:
            raise ConnectionResetError("gone")
        Path(target).write_bytes(self.data)
        for _ in range(2 if self.tells else 0):
            callback.relative_update(len(self.data) // 2)


ITEM = places.Item("x", "bucket/x", 6, "v")


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("failures", [0, 10])
def test_a_file_is_tried_again_and_its_bytes_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failures: int, tells: bool
) -> None:
    meter = reporting.Meter("fetched", 1, 6)
    system = Remote(failures, b"abcdef", tells=tells)
    fetch.copied(system, "s3://bucket", ITEM, tmp_path / "draft", meter, patience.Patience(sleep=lambda _: None))
    meter.done()
    assert (tmp_path / "draft").read_bytes() == b"abcdef"
    assert system.asked == failures + 1
    assert moved(capsys.readouterr().err)["bytes"] == 6


def test_a_file_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    meter = reporting.Meter("fetched", 1, 6)
    with pytest.raises(errors.Unavailable, match="has 5 bytes instead of 6"):
        fetch.copied(Remote(0, b"abcde"), "s3://bucket", ITEM, tmp_path / "draft", meter, patience.Patience())
