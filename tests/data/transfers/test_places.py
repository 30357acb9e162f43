"""Places of data: paths and URLs, and the version by which a change of a file is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import objectstores

from oarlock.data.transfers import places
from oarlock.spec import errors


@pytest.mark.parametrize(
    ("url", "path"),
    [("/a/b c", "/a/b c"), ("file:///a/b%20c", "/a/b c"), ("file://localhost/a", "/a")],
)
def test_the_path_of_a_local_place(url: str, path: str) -> None:
    assert places.local(url) == Path(path)


@pytest.mark.parametrize("url", ["file://host/a", "file:a", "file:"])
def test_a_local_place_has_an_absolute_path_on_this_machine(url: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        places.local(url)
    assert caught.value.message == f"{url!r} does not name an absolute path"
    assert (caught.value.path, caught.value.hint) == ("source", "write file:///absolute/path")


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ({"ETag": '"e"', "mtime": 5}, '"e"'),
        ({"mtime": 5.5, "LastModified": "today"}, "5.5"),
        ({"LastModified": "today", "updated": "now"}, "today"),
        ({"updated": "now"}, "now"),
        ({}, ""),
    ],
)
def test_the_version_of_a_file(told: dict[str, Any], version: str) -> None:
    assert places.item({"name": "bucket/a", "size": 3, **told}, "a") == places.Item("a", "bucket/a", 3, version)


def test_an_empty_folder_is_nothing_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound) as caught:
        places.listing(f"file://{tmp_path}")
    assert (caught.value.message, caught.value.hint) == (f"there are no files at file://{tmp_path}", "check the URL")


def test_each_call_reads_the_environment_of_its_time(
    bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second environment has a store; the first has none, at a port where nothing listens."""
    bucket.put("a/one", b"1")
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(errors.OarlockError):
        places.listing(f"{bucket.url}/a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.env["AWS_ENDPOINT_URL"])
    assert [item.name for item in places.listing(f"{bucket.url}/a").items] == ["one"]
