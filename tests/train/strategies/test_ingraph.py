"""In-graph replication: the gradients of several replicas in one process are those of the whole batch."""

import copy
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from oarlock import train
from oarlock.train import worlds
from oarlock.train.measuring import noise

F64 = torch.float64


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(F64)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def batch(examples: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 6, generator=generator, dtype=F64)
    return x, x[:, :3].square()


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [one.grad for one in model.parameters()]


@pytest.mark.parametrize(("examples", "replicas"), [(8, 2), (7, 3), (2, 3), (1, 4)])
def test_training_is_that_of_one_replica_with_the_whole_batch(examples: int, replicas: int) -> None:
    model = net()
    alone = copy.deepcopy(model)
    together = train.InGraph(model, ["cpu"] * replicas)
    ours, theirs = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, alone))
    for step in range(50):
        x, y = batch(examples, step)
        ours.zero_grad()
        theirs.zero_grad()
        loss = together.backward(loss_of, x, y)
        whole = loss_of(alone, x, y)
        whole.backward()
        torch.testing.assert_close(loss, whole.detach(), rtol=1e-12, atol=1e-12)
        ours.step()
        theirs.step()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_gradients_add_up_over_passes() -> None:
    model = net()
    alone = copy.deepcopy(model)
    together = train.InGraph(model, ["cpu", "cpu"])
    for seed in (1, 2):
        together.backward(loss_of, *batch(6, seed))
        loss_of(alone, *batch(6, seed)).backward()
    assert all(one is not None for one in gradients(model))
    for one, other in zip(gradients(model), gradients(alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_parameter_without_a_gradient_stays_without_one() -> None:
    model = net()
    model[0].bias.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=F64)))
    together = train.InGraph(model, ["cpu", "cpu"])
    together.backward(lambda replica, x, y: loss_of(replica[:3], x, y), *batch(4))
    assert model[0].bias.grad is None
    assert model.get_parameter("unused").grad is None
    assert model[0].weight.grad is not None


def test_a_parameter_that_only_another_replica_reaches_gets_its_gradient() -> None:
    """A loss may leave out a part of the model, by what is in its part of the batch."""
    model = net()
    together = train.InGraph(model, ["cpu", "cpu"])
    x = torch.cat([torch.zeros(2, 6, dtype=F64), torch.ones(2, 6, dtype=F64)])
    together.backward(lambda replica, part: replica(part).mean() if part.any() else replica[2].bias.mean(), x)
    assert model[0].weight.grad is not None
    assert model[0].weight.grad.abs().sum() > 0


def test_a_loss_that_fails_leaves_the_gradients_as_they_were() -> None:
    model = net()
    together = train.InGraph(model, ["cpu", "cpu"])
    together.backward(loss_of, *batch(4))
    before = [one.clone() for one in gradients(model) if one is not None]

    def fails(replica: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if replica is not model:
            raise ValueError("no loss")
        return loss_of(replica, x, y)

    with pytest.raises(ValueError, match="no loss"):
        together.backward(fails, *batch(4))
    for one, other in zip(gradients(model), before, strict=True):
        assert one is not None
        assert torch.equal(one, other)
    together.backward(loss_of, *batch(4))
    for one, other in zip(gradients(model), before, strict=True):
        torch.testing.assert_close(one, other * 2, rtol=1e-12, atol=1e-12)


def test_replicas_have_the_buffers_of_the_model() -> None:
    model = nn.BatchNorm1d(3).to(F64)
    together = train.InGraph(model, ["cpu", "cpu"])
    for seed in (1, 2):
        together.backward(lambda replica, x: replica(x).square().mean(), batch(8, seed)[0][:, :3])
    assert int(model.num_batches_tracked) == 2
    assert int(together.replicas[1].num_batches_tracked) == 2  # the model's 1, and its own
    alone = nn.BatchNorm1d(3).to(F64)
    for seed in (1, 2):
        alone(batch(8, seed)[0][:4, :3])
    torch.testing.assert_close(model.running_mean, alone.running_mean)


def test_replicas_follow_the_modes_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)).to(F64).eval()
    together = train.InGraph(model, ["cpu", "cpu"])
    model.train()
    model[0].bias.requires_grad_(False)
    together.backward(lambda replica, x: replica(x).square().mean(), batch(4)[0])
    assert all(one.training for one in together.replicas[1].modules())
    assert model[0].bias.grad is None
    model.eval()
    model[0].bias.requires_grad_(True)
    together.backward(lambda replica, x: replica(x).mean(), batch(4)[0])
    assert not together.replicas[1][1].training
    torch.testing.assert_close(model[0].bias.grad, torch.full((4,), 0.25, dtype=F64))


def test_the_loss_is_computed_under_the_callers_autocast() -> None:
    model = nn.Linear(6, 3)
    together = train.InGraph(model, ["cpu", "cpu"])
    seen = []

    def loss(replica: nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = replica(x)
        seen.append(made.dtype)
        return made.float().mean()

    with torch.autocast("cpu", torch.bfloat16):
        together.backward(loss, torch.ones(4, 6))
    together.backward(loss, torch.ones(4, 6))
    assert seen == [torch.bfloat16] * 2 + [torch.float32] * 2


def test_the_noise_is_measured_where_every_replica_has_as_many_examples() -> None:
    together = train.InGraph(net(), ["cpu"] * 4)
    for examples, samples in ((2, False), (6, False), (8, True)):
        together.figures.noise = noise.Noise(4)
        together.backward(loss_of, *batch(examples))
        assert (together.figures.noise._means is not None) == samples


@pytest.mark.parametrize("tensors", [(), (torch.zeros(0, 6),), (torch.zeros(4, 6), torch.zeros(3)), (torch.tensor(1),)])
def test_a_batch_that_cannot_be_divided_is_refused(tensors: tuple[torch.Tensor, ...]) -> None:
    together = train.InGraph(net(), ["cpu", "cpu"])
    with pytest.raises(train.StateError, match="same number of examples"):
        together.backward(loss_of, *tensors)


def test_what_is_no_tensor_is_given_to_each_replica() -> None:
    given = []
    together = train.InGraph(net(), ["cpu", "cpu"])

    def loss(replica: nn.Module, x: torch.Tensor, scale: float) -> torch.Tensor:
        given.append((len(x), scale))
        return replica(x).square().mean() * scale

    together.backward(loss, batch(5)[0], 0.5)
    assert sorted(given) == [(2, 0.5), (3, 0.5)]


@pytest.mark.parametrize("devices", [[], ["meta", "cpu"]])
def test_the_first_device_is_the_models_own(devices: list[str]) -> None:
    with pytest.raises(train.StateError, match=r"the model is on cpu.*call model.to\(devices\[0\]\)"):
        train.InGraph(net(), devices)


def test_several_processes_are_refused() -> None:
    world = mock.Mock(world_size=2)
    with (
        mock.patch.object(worlds, "init", return_value=world),
        pytest.raises(train.WorldError, match="there are 2: use data_parallel"),
    ):
        train.InGraph(net())


def test_a_session_reports_and_resumes(tmp_path: Path) -> None:
    """A run that is stopped and resumed ends with the bits of an uninterrupted one, and knows the gradients' noise."""

    def trained(folder: Path, *stops: int) -> tuple[nn.Module, train.InGraph]:
        for stop in stops:
            model = net()
            together = train.InGraph(model, ["cpu", "cpu"])
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            session = train.Session(
                model=model,
                optimizer=optimizer,
                strategy=together,
                total_steps=120,
                checkpoints=folder,
                hooks=[train.StopAtStep(stop)],
            )
            with session:
                for step in session.steps():
                    optimizer.zero_grad()
                    session.log(loss=together.backward(loss_of, *batch(16, step)))
                    optimizer.step()
        return model, together

    whole, together = trained(tmp_path / "whole", 120)
    parts, _ = trained(tmp_path / "parts", 50, 120)
    assert together.figures.exchanges == 120
    assert together.figures.waiting.total_s > 0
    assert together.figures.noise.examples() is not None
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other)
