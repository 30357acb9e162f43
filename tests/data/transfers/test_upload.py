"""The storing of results within this process: which files go, in which order, and where to."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.data.transfers import reporting, serverplaces, upload
from oarlock.spec import errors


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    for name in ("manifest.json", "a", "deep/b"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_the_files_are_stored_and_the_signs_of_an_end_last(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str] = []
    really = upload.to_folder

    def told(target: Path, meter: reporting.Meter) -> object:
        send = really(target, meter)
        return lambda path, name: (send(path, name), stored.append(name))

    monkeypatch.setattr(upload, "to_folder", told)
    assert upload.run(str(results), f"file://{tmp_path}/out") == 3
    assert sorted(stored) == ["a", "deep/b", "manifest.json"]
    assert stored[-1] == "manifest.json"
    assert (tmp_path / "out/deep/b").read_text() == "deep/b"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a", "deep", "manifest.json"]


def test_a_place_at_the_server_has_no_scheme(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[bytes, str]] = []

    class Place:
        def __init__(self, url: str, task: str | None) -> None:
            assert (url, task) == ("oarlock:results/j-1", str(tmp_path))

        def send(self, path: bytes, key: str) -> None:
            sent.append((path, key))

    monkeypatch.setattr(serverplaces, "ServerPlace", Place)
    assert upload.run(str(results), "oarlock:results/j-1", str(tmp_path)) == 3
    assert sorted(key for _, key in sent) == ["a", "deep/b", "manifest.json"]


@pytest.mark.parametrize("url", ["http://h/x", "https://h/x"])
def test_nothing_is_stored_by_http(results: Path, url: str) -> None:
    with pytest.raises(errors.InvalidInput, match="nothing can be stored by http"):
        upload.run(str(results), url)
