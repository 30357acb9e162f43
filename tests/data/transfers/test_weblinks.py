"""One attempt to fetch a file from the web: where it begins, and what it makes of each status. No server is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from oarlock.data.transfers import places, weblinks
from oarlock.spec import errors

URL = "http://h/x"


class Web:
    """A client with one answer, which a test says; `asked` are the headers of the request."""

    def __init__(self, status: int, body: bytes) -> None:
        self.answer = httpx.Response(status, content=iter([body[:2], body[2:]]))
        self.asked: dict[str, str] = {}

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None: ...

    @contextlib.contextmanager
    def ask(self, method: str, url: str, headers: dict[str, str] | None = None) -> Iterator[httpx.Response]:
        assert (method, url) == ("GET", URL)
        self.asked = headers or {}
        yield self.answer


def attempt(
    monkeypatch: pytest.MonkeyPatch, target: Path, status: int, body: bytes, version: str = '"v"', size: int | None = 6
) -> tuple[dict[str, str], int]:
    """Return the headers of the request, and the last place in the file that was told."""
    web, told = Web(status, body), [0]
    monkeypatch.setattr(weblinks, "Client", lambda: web)
    weblinks.attempted(places.Item("x", URL, size, version), target, told.append)
    return web.asked, told[-1]


def test_a_new_file_is_fetched_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempt(monkeypatch, tmp_path / "x", 200, b"abcdef") == ({}, 6)
    assert (tmp_path / "x").read_bytes() == b"abcdef"


def test_it_goes_on_after_the_bytes_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    asked, place = attempt(monkeypatch, tmp_path / "x", 206, b"def")
    assert (asked, place) == ({"Range": "bytes=3-", "If-Range": '"v"'}, 6)
    assert (tmp_path / "x").read_bytes() == b"abcdef"


def test_a_file_that_has_changed_is_fetched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"old")
    attempt(monkeypatch, tmp_path / "x", 200, b"abcdef")
    assert (tmp_path / "x").read_bytes() == b"abcdef"


@pytest.mark.parametrize("version", ["", "yesterday", 'W/"weak"'])
def test_without_a_strong_version_it_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert attempt(monkeypatch, tmp_path / "x", 200, b"abcdef", version)[0] == {}


def test_a_file_that_is_there_already_has_no_more_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"abcdef")
    assert attempt(monkeypatch, tmp_path / "x", 416, b"")[1] == 0
    assert (tmp_path / "x").read_bytes() == b"abcdef"
    with pytest.raises(errors.Unavailable, match="status 416"):
        attempt(monkeypatch, tmp_path / "x", 416, b"", size=7)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, errors.NotFound),
        (410, errors.NotFound),
        (401, errors.Forbidden),
        (403, errors.Forbidden),
        (500, errors.Unavailable),
        (417, errors.Unavailable),
    ],
)
def test_other_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, error: type[errors.OarlockError]
) -> None:
    (tmp_path / "x").write_bytes(b"abcdef")
    with pytest.raises(error):
        attempt(monkeypatch, tmp_path / "x", status, b"")
    assert (tmp_path / "x").read_bytes() == b"abcdef"


def test_a_file_that_ends_early_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.Unavailable, match="ended after 5 of 6 bytes"):
        attempt(monkeypatch, tmp_path / "x", 200, b"abcde")
