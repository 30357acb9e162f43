"""The hints that name an extra: their commands can be typed."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from oarlock.spec.hints import extras


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ('{"dir_info": {"editable": true}, "url": "file:///home/a%20b/oarlock"}', "-e '/home/a b/oarlock[s3]'"),
        ('{"dir_info": {}, "url": "file:///home/ab/oarlock"}', "'/home/ab/oarlock[s3]'"),
        (
            '{"vcs_info": {"vcs": "git", "commit_id": "f00"}, "url": "https://host.example/oarlock"}',
            "'oarlock[s3] @ git+https://host.example/oarlock@f00'",
        ),
        (
            '{"archive_info": {}, "url": "https://host.example/oarlock.whl"}',
            "'oarlock[s3] @ https://host.example/oarlock.whl'",
        ),
        (None, "'.[s3]' in a clone of Oarlock"),
    ],
)
def test_an_extra_is_installed_from_where_oarlock_came(origin: str | None, said: str) -> None:
    assert extras.requirement("s3", origin) == said


def test_the_command_of_this_installation_names_a_project_that_has_the_extra() -> None:
    words = shlex.split(extras.command("torch", python="/usr/bin/python3"))
    assert words[:4] == ["/usr/bin/python3", "-m", "pip", "install"]
    clone, _, extra = words[-1].rstrip("]").partition("[")
    project = tomllib.loads((Path(clone) / "pyproject.toml").read_text())["project"]
    assert project["name"] == "oarlock"
    assert extra in project["optional-dependencies"]
