"""A job that is to run in the user's own directory: only where the server is sure that it sees the very same one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs

from oarlock.api.jobs import capabilities, inplace
from oarlock.data.snapshots import directories
from oarlock.spec import errors, jobfile, jobs

replace = msgspec.structs.replace


async def post(rig: rigs.Rig, asked: jobfile.InPlace, **spec: Any) -> Any:
    body = {"spec": {"command": "true", **spec}, "in_place": msgspec.to_builtins(asked)}
    async with rig.as_user("ann") as http:
        return await http.post("/api/v1/jobs", json=body)


async def test_the_record_names_the_directory(rig: rigs.Rig, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    answer = await post(rig, directories.identity(tmp_path / "link"), dependencies="requirements.txt")
    assert answer.status_code == 201, answer.text
    assert msgspec.json.decode(answer.content, type=jobs.Job).directory == str(tmp_path)


REFUSED: list[tuple[Callable[[jobfile.InPlace], jobfile.InPlace], str]] = [
    (lambda here: replace(here, machine="another"), "runs on another machine"),
    (lambda here: replace(here, user=here.user + 1), f"runs as the user with the number {os.getuid()}"),
    (lambda here: replace(here, directory=here.directory + "/nowhere"), "does not see"),
    (lambda here: replace(here, inode=here.inode + 1), "is another directory for this server"),
    (lambda here: replace(here, device=here.device + 1), "is another directory for this server"),
    (lambda here: replace(here, directory="."), "is not an absolute path"),
    (lambda here: replace(here, directory="/a\0b"), "does not see"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
async def test_a_path_that_may_be_another_directory_is_refused(
    rig: rigs.Rig, tmp_path: Path, change: Callable[[jobfile.InPlace], jobfile.InPlace], said: str
) -> None:
    answer = await post(rig, change(directories.identity(tmp_path)))
    told = answer.json()["error"]
    assert (answer.status_code, told["path"], said in told["message"]) == (409, "in_place", True), told
    assert "Leave out --in-place" in told["hint"]


async def test_a_backend_that_cannot_do_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(errors.Unsupported, match="Tasks of the kubernetes backend do not run in your directory"):
        await inplace.refuse(directories.identity(tmp_path), (), "kubernetes")
    await inplace.refuse(None, (), "kubernetes")
    await inplace.refuse(directories.identity(tmp_path), capabilities.LOCAL, "local")


async def test_names_that_were_left_out_are_remembered_within_bounds(rig: rigs.Rig) -> None:
    async with rig.as_user("ann") as http:
        lost = [{"path": "data/", "why": ".gitignore"}]
        answer = await http.post("/api/v1/jobs", json={"spec": {"command": "true"}, "left_out": lost})
        assert answer.json()["left_out"] == lost
        answer = await http.post("/api/v1/jobs", json={"spec": {"command": "true"}, "left_out": lost * 51})
        assert answer.status_code == 413
        long = [{"path": "d" * 400, "why": ".gitignore"}]
        answer = await http.post("/api/v1/jobs", json={"spec": {"command": "true"}, "left_out": long})
        assert answer.status_code == 422
