"""The server's home is neither a source nor a destination of data, whatever leads there."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.data.transfers import homeguard
from oarlock.spec import errors


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "results").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("home")
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("{}/home", True),
        ("{}/home/token", True),
        ("{}", True),  # it contains the home
        ("file://{}/link/token", True),
        ("{}/other/../home/token", True),
        ("{}/homes", False),
        ("file://{}/other", False),
        ("s3://bucket/home", False),
    ],
)
def test_a_source_in_the_home_or_around_it_is_refused(home: Path, place: str, refused: bool) -> None:
    source = place.format(home.parent)
    if not refused:
        homeguard.check_source(source, str(home))
        return
    with pytest.raises(errors.InvalidInput) as caught:
        homeguard.check_source(source, str(home))
    assert caught.value.message == (
        f"{source} leads into the home of the server, which holds its tokens and all users' files"
    )
    assert caught.value.hint == (
        "Name another directory: copy the files that the job needs there, or into the submitted directory."
    )
    assert caught.value.path == "source"


@pytest.mark.parametrize(
    ("place", "refused"),
    [("{}/home/logs", True), ("{}/home/results/j-1", False), ("{}", False), ("{}/link/x", True), ("s3://b/x", False)],
)
def test_a_destination_in_the_home_is_refused_outside_of_the_allowed_folders(
    home: Path, place: str, refused: bool
) -> None:
    url = place.format(home.parent)
    if not refused:
        homeguard.check_destination(url, str(home), ("results",))
        return
    with pytest.raises(errors.InvalidInput, match="leads into the home"):
        homeguard.check_destination(url, str(home), ("results",))


def test_a_file_of_a_source_may_be_a_link_into_the_home(home: Path) -> None:
    (home.parent / "other" / "x").symlink_to(home / "token")
    homeguard.check_files([str(home.parent / "other" / "y")], str(home))
    with pytest.raises(errors.InvalidInput, match="other/x leads into the home"):
        homeguard.check_files([str(home.parent / "other" / "y"), str(home.parent / "other" / "x")], str(home))
