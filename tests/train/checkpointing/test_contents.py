"""State of single ranks with other names on other ranks, or none on some: the ranks decide about it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train

Parts = list[dict[str, str]]
COORDINATED: Parts = [{}, {"part": "Linear"}, {"part": "Linear"}]
BEGINS_WITHOUT_WEIGHTS: Parts = [{"part": "Flatten"}, {"part": "Linear"}]
UNLIKE: Parts = [{"encoder": "Linear"}, {"decoder": "Linear"}]


def keep(folder: Path, parts: Parts, total_steps: int, drop: bool) -> None:
    """Train the parts that this rank has alone: each step adds 1 to their weights."""
    world = train.init()
    held = {name: nn.Linear(2, 2) if kind == "Linear" else nn.Flatten() for name, kind in parts[world.rank].items()}
    for part in held.values():
        for weight in part.parameters():
            nn.init.constant_(weight, world.rank)
    given: dict[str, Any] = {"checkpoints": folder / "checkpoints", "total_steps": total_steps, "drop_per_rank": drop}
    with train.Session(per_rank=held, **given) as session, torch.no_grad():
        added = 0 if drop else session.step
        for part in held.values():
            assert all((weight == world.rank + added).all() for weight in part.parameters())
        for _ in session.steps():
            for part in held.values():
                for weight in part.parameters():
                    weight += 1


def run(folder: Path, parts: Parts, total_steps: int, *, drop: bool = False) -> list[int]:
    return crew.run(keep, folder, parts, total_steps, drop, folder=folder, world_size=len(parts))


def test_the_ranks_go_on_where_the_first_one_coordinates_and_holds_no_part(tmp_path: Path) -> None:
    for total_steps in (2, 4):
        assert run(tmp_path, COORDINATED, total_steps) == [0, 0, 0], crew.output(tmp_path, 3)
    said = crew.output(tmp_path, 3)
    assert "resumed from attempt-1-round-1-step-2" in said
    assert "saves no model" not in said


@pytest.mark.parametrize(
    ("before", "names"),
    [(COORDINATED[:2], "part"), (BEGINS_WITHOUT_WEIGHTS, "part"), (UNLIKE, "encoder and decoder")],
)
def test_all_ranks_refuse_to_lose_a_part_that_any_of_them_kept(tmp_path: Path, before: Parts, names: str) -> None:
    assert run(tmp_path, before, 2) == [0, 0], crew.output(tmp_path)
    now = [*before, before[1]]
    assert run(tmp_path, now, 4) == [1, 1, 1], crew.output(tmp_path, 3)
    for rank in range(3):
        refusal = f"was saved by 2 ranks, now 3: {names} of each rank (per_rank) fit only as many ranks"
        assert refusal in (tmp_path / f"rank-{rank}.txt").read_text()


def test_a_part_that_any_rank_kept_is_named_where_its_loss_is_permitted(tmp_path: Path) -> None:
    assert run(tmp_path, COORDINATED[:2], 2) == [0, 0], crew.output(tmp_path)
    assert run(tmp_path, COORDINATED, 4, drop=True) == [0, 0, 0], crew.output(tmp_path, 3)
    dropped = "saved by 2 ranks, now 3: the random generators' states and part are dropped"
    assert dropped in (tmp_path / "rank-0.txt").read_text()
