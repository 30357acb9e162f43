"""A run that was interrupted ends with the same bits as one that was not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts


def assert_same(ours: Any, theirs: Any, where: str = "final") -> None:
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs), f"{where} differs by {(ours - theirs).abs().max()}"
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for name in ours:
            assert_same(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(ours, list):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{number}]")
    else:
        assert ours == theirs, where


def uninterrupted(folder: Path, world_size: int) -> Any:
    folder.mkdir()
    assert crew.run(scripts.learn, folder, folder=folder, world_size=world_size) == [0] * world_size, crew.output(
        folder
    )
    return torch.load(folder / "final.pt")


@pytest.mark.parametrize("world_size", [2, 3])  # alone: test_failpoints.py
def test_sigterm_to_one_rank_and_sigkill_leave_no_trace_in_the_weights(tmp_path: Path, world_size: int) -> None:
    whole = uninterrupted(tmp_path / "whole", world_size)
    cut = tmp_path / "cut"
    cut.mkdir()

    codes = crew.run(scripts.learn_until, cut, 9, signal.SIGTERM, folder=cut, world_size=world_size)
    assert codes == [143] * world_size, crew.output(cut, world_size)
    saved = {path.name for path in (cut / "checkpoints").iterdir()}
    assert len(saved) == 2, "keep=2"
    assert not (cut / "final.pt").exists(), "what follows the session must not run after a request to stop"

    codes = crew.run(scripts.learn_until, cut, 33, signal.SIGKILL, folder=cut, world_size=world_size)
    assert codes[-1] == -signal.SIGKILL, crew.output(cut, world_size)
    assert all(codes), "the others cannot go on alone"

    assert crew.run(scripts.learn, cut, folder=cut, world_size=world_size) == [0] * world_size, crew.output(cut)
    said = crew.output(cut)
    assert any(f"resumed from attempt-2-round-1-step-{step}" in said for step in (30, 25)), (
        "SIGKILL at 33 leaves the checkpoint of 30, or of 25 if that of 30 was still being written"
    )
    resumed = torch.load(cut / "final.pt")
    assert_same(resumed, whole)
