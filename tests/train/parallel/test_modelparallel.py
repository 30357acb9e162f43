"""What a job whose model is on several processes tells the scheduler, and where its parts are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train import crew
from tests.train.measuring import test_speed
from tests.train.parallel import models

from oarlock import train
from oarlock.train import errors

NUMBER = 8  # bytes of a float64
STEPS = 20
LAYERS = (4 * 5 + 4, 1 * 7 + 1)  # numbers in a piece of each layer, the first one with a row of padding
SENT = {
    # Each layer is gathered before its forward pass and again before its backward pass, and its gradient summed once.
    "fsdp": (3 * sum(LAYERS) * NUMBER,) * 2,
    # The output is summed over the ranks: in a ring of two each rank sends the bytes of the tensor once.
    "tensor": (8 * 1 * NUMBER,) * 2,
    # Two parts of the batch: activations go forward, gradients back.
    "pipeline": (8 * 6 * NUMBER,) * 2,
    "messages": (8 * 5 * NUMBER, 3 * 4),
}


@pytest.mark.parametrize("way", SENT)
def test_waiting_and_bytes_are_told_as_those_of_data_parallelism(tmp_path: Path, way: str) -> None:
    env = {rank: {"OARLOCK_REPORT": str(tmp_path / f"report-{rank}")} for rank in (0, 1)}
    codes = crew.run(models.tell_figures, tmp_path, way, folder=tmp_path, env_of_rank=env)
    assert codes == [0, 0], crew.output(tmp_path)
    quick, slow = (torch.load(tmp_path / f"figures-{rank}.pt") for rank in (0, 1))
    assert quick["exchanges"] == slow["exchanges"] == STEPS
    assert (quick["sent_bytes"] / STEPS, slow["sent_bytes"] / STEPS) == SENT[way]
    assert quick["waited_s"] > 0.8 * STEPS * models.SLOW_S, "the quick rank waits for the slow one, in each step"
    last = test_speed.reports(tmp_path / "report-0")[-1]
    assert last["sent_bytes"] == SENT[way][0]
    assert 0 < last["sync_s"] <= last["step_s"]


def test_a_part_is_placed_on_a_named_task(tmp_path: Path) -> None:
    """The chief comes first. A task of two processes has two ranks."""
    tasks = [("chief", 0, 0), ("worker", 0, 0), ("worker", 0, 1)]
    env = {
        rank: {"OARLOCK_ROLE": role, "OARLOCK_INDEX": str(index), "OARLOCK_PROCESS": str(process)}
        for rank, (role, index, process) in enumerate(tasks)
    }
    codes = crew.run(_name_ranks, folder=tmp_path, world_size=3, env_of_rank=env)
    assert codes == [0] * 3, crew.output(tmp_path, 3)


def _name_ranks() -> None:
    world = train.init()
    assert [train.rank_of("chief"), train.rank_of("worker"), train.rank_of("worker", 0, 1)] == [0, 1, 2]
    with pytest.raises(errors.WorldError, match=r"no rank is process 0 of worker 1: .* worker 0, worker 0 process 1"):
        train.rank_of("worker", 1)
    with pytest.raises(errors.WorldError, match="cannot exchange messages with rank 3 of 3"):
        train.ModelParallel().receive(torch.empty(1), 3)
    with pytest.raises(errors.WorldError, match="a mesh of data=2 x tensor=2 needs 4 processes, but 3 train together"):
        train.device_mesh(data=2, tensor=2)
    assert train.device_mesh(data=3).mesh_dim_names == ("data",)
    divided = models.sharded(models.Net())
    with pytest.raises(
        errors.StateError, match=r"divided .* already.*Session\(strategy=train\.ModelParallel\(model\)\)"
    ):
        train.data_parallel(divided)
    assert world.world_size == 3


def test_replicas_of_parameters_that_are_gathered_begin_with_the_same_values(tmp_path: Path) -> None:
    codes = crew.run(_begin_apart, folder=tmp_path)
    assert codes == [0, 0], crew.output(tmp_path)


def _begin_apart() -> None:
    world = train.init()
    torch.manual_seed(world.rank)
    net = models.replicated(models.Net())
    net(torch.zeros(1, 5))
    with train.Session(model=net):
        values = {name: value.tolist() for name, value in models.full(dict(net.state_dict())).items()}
        assert world.gather(values)[0] == values


def test_the_waiting_is_unknown_where_replicas_are_summed(tmp_path: Path) -> None:
    codes = crew.run(_look_for_replicas, folder=tmp_path, world_size=4)
    assert codes == [0] * 4, crew.output(tmp_path, 4)


def _look_for_replicas() -> None:
    train.init()
    for divide, known in ((models.sharded, True), (models.both, True), (models.replicated, False)):
        net = divide(models.Net().double())
        net(torch.zeros(1, 5, dtype=torch.float64))  # gathers the parameters
        assert train.ModelParallel(net).figures.waits_known == known, divide


def test_outside_of_oarlock_each_rank_is_a_worker_and_a_process_alone_has_a_mesh() -> None:
    try:
        assert train.rank_of("worker") == 0
        assert train.device_mesh().size() == 1
        assert train.device_mesh(data=1, tensor=1).shape == (1, 1)
    finally:
        train.shutdown()
    assert not torch.distributed.is_initialized(), "a later process group is not in its way"
