"""Paths of checkpoints come from tasks: what is no place on this machine is not looked at, and no error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.api import checkpoints


@pytest.mark.parametrize(
    "path", ["s3://bucket/attempt-1-round-1-step-1", "relative", "/none/here", f"/{'x' * 300}/y", "/a\0b/c"]
)
async def test_what_does_not_lie_here_cannot_be_said_to_hold(tmp_path: Path, path: str) -> None:
    assert await checkpoints.CheckpointDirectories(tmp_path).holds(path, "") is None


async def test_what_lies_here_without_a_manifest_does_not_hold(tmp_path: Path) -> None:
    assert (
        await checkpoints.CheckpointDirectories(tmp_path).holds(str(tmp_path / "attempt-1-round-1-step-1"), "") is False
    )
