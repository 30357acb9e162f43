"""Killed at any moment of a save, a run is resumed from a checkpoint that verifies, and ends with the same bits."""

from __future__ import annotations

import ast
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from tests.train.test_resume import assert_same

from oarlock.train import failpoints
from oarlock.train.checkpointing import manifests

STEPS = 13  # saves at 5, 10 and 13
PACKAGE = Path(failpoints.__file__).parent
OF_EVERY_RANK = [name for name in failpoints.NAMES if "shard" in name]
Start = Callable[[Path, int], Path]


def learn(folder: Path, total_steps: int) -> None:
    scripts.learn(folder, total_steps=total_steps, keep=1)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Folders in which a run has ended at step 5, and one that went to the end; each made once for a world size."""
    made: dict[int, Path] = {}

    def copy(folder: Path, world_size: int) -> Path:
        if world_size not in made:
            made[world_size] = tmp_path_factory.mktemp(f"world-{world_size}")
            for name, steps in (("start", 5), ("whole", STEPS)):
                (made[world_size] / name).mkdir()
                codes = crew.run(
                    learn, made[world_size] / name, steps, folder=made[world_size] / name, world_size=world_size
                )
                assert not any(codes), crew.output(made[world_size] / name)
        shutil.copytree(made[world_size] / "start" / "checkpoints", folder / "checkpoints")
        return made[world_size] / "whole"

    return copy


def killed_and_resumed(folder: Path, start: Start, name: str, *, rank: int, world_size: int) -> None:
    whole = start(folder, world_size)
    point = {rank: {"OARLOCK_FAILPOINT": f"{name}:kill"}}
    codes = crew.run(learn, folder, STEPS, folder=folder, world_size=world_size, env_of_rank=point)
    assert codes[rank] == -signal.SIGKILL, f"{name} was not reached\n{crew.output(folder)}"

    left = manifests.complete(folder / "checkpoints")
    assert left, "one good checkpoint is always kept"
    for path in left:
        assert manifests.fault(path, manifests.read(path)) is None, path

    codes = crew.run(learn, folder, STEPS, folder=folder, world_size=world_size)
    assert not any(codes), crew.output(folder)
    assert_same(torch.load(folder / "final.pt"), torch.load(whole / "final.pt"))
    (kept,) = (folder / "checkpoints").iterdir()
    assert kept.name.endswith(f"-step-{STEPS}"), "what a killed save left behind is cleared away"


@pytest.mark.parametrize("name", failpoints.NAMES)
def test_killed_at_every_failpoint(tmp_path: Path, start: Start, name: str) -> None:
    killed_and_resumed(tmp_path, start, name, rank=0, world_size=1)


@pytest.mark.parametrize("name", OF_EVERY_RANK[:1] + OF_EVERY_RANK[-1:])
def test_killed_on_one_rank_while_the_other_lives(tmp_path: Path, start: Start, name: str) -> None:
    killed_and_resumed(tmp_path, start, name, rank=1, world_size=2)


def test_the_list_and_the_code_agree() -> None:
    assert Counter(points()) == Counter(failpoints.NAMES)


def points() -> Iterator[Any]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.hit":
                yield ast.literal_eval(node.args[0])
