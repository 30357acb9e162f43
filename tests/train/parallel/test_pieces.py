"""Checkpoints of models that the ranks have divided: each rank saves its pieces, and any number of ranks resumes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.parallel import models
from tests.train.test_resume import assert_same

from oarlock.train import errors
from oarlock.train.checkpointing import pieces


def run(folder: Path, division: str, ranks: int, env: dict[int, dict[str, str]] | None = None, **options: Any) -> None:
    folder.mkdir(exist_ok=True)
    expected = [143 if options.get("stop") else 0] * ranks
    codes = crew.run(_learn, folder, division, options, folder=folder, world_size=ranks, env_of_rank=env)
    assert codes == expected, crew.output(folder, ranks)


def _learn(folder: Path, division: str, options: dict[str, Any]) -> None:
    models.learn(folder, division, **options)


def state(folder: Path, moment: str) -> Any:
    return torch.load(folder / f"{moment}.pt")


def assert_close(ours: Any, theirs: Any, where: str = "state") -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for name in ours:
            assert_close(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(ours, torch.Tensor):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), f"{where}: {(ours - theirs).abs().max()}"


def stopped(folder: Path, division: str, ranks: int, **options: Any) -> Path:
    """Return a folder with the checkpoints of a run that was stopped after step 7, and the state of that moment."""
    run(folder, division, ranks, stop=7, **options)
    (folder / "end.pt").rename(folder / "stopped.pt")
    return folder


def test_a_resumed_run_of_fsdp_ends_with_the_same_bits(tmp_path: Path, of_two: Path, whole: Any) -> None:
    folder = tmp_path / "again"
    shutil.copytree(of_two, folder)
    run(folder, "sharded", 2)
    assert "resumed from attempt-1-round-1-step-" in crew.output(folder)
    assert_same(state(folder, "begin"), state(of_two, "stopped"))
    assert_same(state(folder, "end"), whole)


@pytest.mark.parametrize(("division", "ranks"), [("by_tensor", 2), ("both", 4)])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, division: str, ranks: int) -> None:
    run(tmp_path / "whole", division, ranks)
    cut = stopped(tmp_path / "cut", division, ranks)
    run(cut, division, ranks)
    assert_same(state(cut, "begin"), state(cut, "stopped"))
    assert_same(state(cut, "end"), state(tmp_path / "whole", "end"))


@pytest.mark.parametrize("division", ["at_the_root", "gathered"])
def test_parameters_that_are_gathered_when_a_save_is_due_are_saved_in_pieces(tmp_path: Path, division: str) -> None:
    """An evaluation before the save gathers them."""
    run(tmp_path / "whole", division, 2, evaluate=True)
    cut = stopped(tmp_path / "cut", division, 2, evaluate=True)
    run(cut, division, 2, evaluate=True)
    assert_same(state(cut, "begin"), state(cut, "stopped"))
    assert_same(state(cut, "end"), state(tmp_path / "whole", "end"))


def test_parameters_that_are_gathered_take_a_checkpoint_that_was_saved_whole(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", "whole", 2)
    run(folder, "at_the_root", 2, evaluate=True)
    assert_same(state(folder, "begin"), state(folder, "stopped"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the state at the end of an uninterrupted run of two ranks."""
    folder = tmp_path_factory.mktemp("whole") / "sharded"
    run(folder, "sharded", 2)
    return state(folder, "end")


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("two") / "sharded", "sharded", 2)


@pytest.mark.parametrize(("division", "ranks"), [("sharded", 1), ("sharded", 3), ("replicated", 2), ("whole", 2)])
def test_another_division_goes_on_with_the_same_values(
    tmp_path: Path, of_two: Path, whole: Any, division: str, ranks: int
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(of_two, folder)
    run(folder, division, ranks)
    assert_same(state(folder, "begin"), state(of_two, "stopped"))
    assert_close(state(folder, "end"), whole)


@pytest.mark.parametrize(
    ("before", "ranks", "after", "now"),
    [("sharded", 1, "sharded", 2), ("whole", 2, "sharded", 2), ("by_tensor", 2, "both", 4)],
)
def test_a_checkpoint_of_another_division_is_taken(
    tmp_path: Path, before: str, ranks: int, after: str, now: int
) -> None:
    folder = stopped(tmp_path / "run", before, ranks)
    run(folder, after, now)
    assert_same(state(folder, "begin"), state(folder, "stopped"))


def test_each_rank_stores_its_own_pieces_and_the_chief_alone_what_is_whole(of_two: Path) -> None:
    newest = max((of_two / "checkpoints").iterdir(), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    chief, other = (torch.load(newest / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert "shared" not in other
    whole = chief["shared"]["model"]
    assert whole["first.weight"] == {
        pieces.DIVIDED: {"shape": [7, 5], "dtype": torch.float64, "mesh": [2], "dimensions": [0]}
    }
    assert whole["seen"].shape == (), "a buffer that no rank has divided"
    assert chief["shared"]["scheduler"]["last_epoch"] == chief["step"] == other["step"] >= 7
    for name in ("model/first.weight", "optimizer/state/0/exp_avg", "optimizer/state/0/exp_avg_sq"):
        ours, theirs = chief["own"]["pieces"][name], other["own"]["pieces"][name]
        assert (ours["offset"], tuple(ours["values"].shape)) == ([0, 0], (4, 5))
        assert (theirs["offset"], tuple(theirs["values"].shape)) == ([4, 0], (3, 5))
    # The one row of the last layer is the chief's.
    assert "model/last.weight" not in other["own"]["pieces"]


def test_a_torn_piece_makes_all_ranks_take_the_checkpoint_before(tmp_path: Path, of_two: Path, whole: Any) -> None:
    """The shard is that of a rank whose number does not exist in the resumed run."""
    folder = tmp_path / "again"
    shutil.copytree(of_two, folder)
    newest, before = sorted((folder / "checkpoints").iterdir(), key=lambda path: -int(path.name.rsplit("-", 1)[1]))[:2]
    shard = newest / "rank-1.pt"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    run(folder, "sharded", 1)
    said = crew.output(folder, 1)
    assert "the digest of rank-1.pt is not the one in its manifest" in said
    assert f"resumed from {before.name}" in said
    assert state(folder, "begin")["step"] == int(before.name.rsplit("-", 1)[1])
    assert_close(state(folder, "end"), whole)


def test_a_torn_piece_in_the_directory_of_one_task_makes_all_ranks_take_the_checkpoint_before(
    tmp_path: Path, of_two: Path
) -> None:
    """Each task has a copy of all shards. The torn one is that of the other task's rank, and this one needs it."""
    env = {}
    for rank in (0, 1):
        copied = tmp_path / f"task-{rank}"
        shutil.copytree(of_two / "checkpoints", copied)
        newest, before = sorted(copied.iterdir(), key=lambda path: -int(path.name.rsplit("-", 1)[1]))[:2]
        env[rank] = {"OARLOCK_ROLE": "worker", "OARLOCK_INDEX": str(rank), "OARLOCK_CHECKPOINTS": str(copied)}
        env[rank] |= {"OARLOCK_CHECKPOINTS_SEPARATE": "1", "OARLOCK_RESTORE": f"{newest}:{before}"}
    shard = tmp_path / "task-0" / newest.name / "rank-1.pt"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    run(tmp_path, "replicated", 2, env, total_steps=8)
    said = crew.output(tmp_path)
    assert "the digest of rank-1.pt is not the one in its manifest" in said
    assert f"resumed from {before.name}" in said


def test_a_tensor_that_is_not_whole_is_an_error(tmp_path: Path) -> None:
    stored = {"net/weight": {"offset": [2, 0], "values": torch.ones(2, 3)}}
    told = {pieces.DIVIDED: {"shape": [5, 3], "dtype": torch.float32, "mesh": [2], "dimensions": [0]}}
    torch.save({"own": {"pieces": {"net/weight": {"offset": [0, 0], "values": torch.ones(2, 3)}}}}, tmp_path / "one.pt")
    of_both = pieces.Pieces([tmp_path / "none.pt", tmp_path / "one.pt"], stored, 0)
    with pytest.raises(errors.CheckpointError, match="lacks 3 of 15 values of net/weight"):
        of_both.joined({"weight": told}, "net", torch.nn.Linear(3, 5))


@pytest.mark.parametrize("way", ["application", "per_rank"])
def test_divided_tensors_in_other_objects_are_kept_too(tmp_path: Path, way: str) -> None:
    for _ in range(2):
        codes = crew.run(models.keep_otherwise, tmp_path, way, folder=tmp_path)
        assert codes == [0, 0], crew.output(tmp_path)
    assert_same(state(tmp_path, "after"), state(tmp_path, "before"))


def test_divided_tensors_that_only_the_chief_would_save_are_refused(tmp_path: Path) -> None:
    assert crew.run(models.keep_otherwise, tmp_path, "hidden", folder=tmp_path) == [1, 1]
    assert "state.shared.model.first.weight is a tensor that ranks have divided" in crew.output(tmp_path)
    assert not list((tmp_path / "checkpoints").glob("*/manifest.json"))
