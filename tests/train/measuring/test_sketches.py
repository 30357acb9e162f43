"""Sketches of gradients, and the noise that compressed training learns from them."""

from pathlib import Path

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train import worlds
from oarlock.train.measuring import sketches
from oarlock.train.strategies import dataparallel, wholegradient

SCALE, SHARE = 20.0, 16


@pytest.mark.parametrize("kind", ["outer", "equal", "random", "few"])
def test_the_mean_of_squared_norms_is_that_of_the_tensors(kind: str) -> None:
    """Also for gradients whose rows are alike: those of a layer behind a ReLU are nearly an outer product."""
    torch.manual_seed(3)
    tensors = {
        "outer": [torch.outer(torch.rand(300), torch.rand(200)), torch.rand(200)],
        "equal": [torch.ones(300, 200), torch.ones(17)],
        "random": [torch.randn(300, 200), torch.randn(sketches.BUCKETS), torch.randn(5)],
        "few": [torch.randn(9), torch.randn(3)],
    }[kind]
    true = sum(float(one.square().sum()) for one in tensors)
    drawn = torch.tensor([float(sketches.sketch(tensors, draw).square().sum()) / true for draw in range(100)])
    assert drawn.mean().item() == pytest.approx(1, abs=0.01)
    assert drawn.std().item() < 0.04, "about sqrt(2 / BUCKETS)"


def test_sketches_add_up() -> None:
    torch.manual_seed(4)
    one, other = ([torch.randn(90, 100, dtype=torch.float64), torch.randn(7).double()] for _ in range(2))
    both = [a + b for a, b in zip(one, other, strict=True)]
    torch.testing.assert_close(
        sketches.sketch(one, 5) + sketches.sketch(other, 5), sketches.sketch(both, 5), rtol=1e-12, atol=1e-12
    )
    assert not torch.allclose(sketches.sketch(one, 5), sketches.sketch(one, 6)), "each draw has signs of its own"


def test_every_kind_of_number_has_a_sketch() -> None:
    complex_ones = [torch.full((70, 70), 3 + 4j)]
    assert sketches.sketch(complex_ones, 1).square().sum().item() == pytest.approx(25 * 4900, rel=0.1)
    halves = [torch.full((80, 80), 100.0, dtype=torch.float16)]
    assert sketches.sketch(halves, 1).square().sum().item() == pytest.approx(1e4 * 6400, rel=0.1), "no overflow"
    assert sketches.sketch([], 1).square().sum().item() == 0


def learn(compression: str) -> None:
    """Train with gradients whose mean and variance are known, at one place."""
    wholegradient.SKETCH_EVERY = 2
    world = train.init()
    model = nn.Sequential(nn.Linear(70, 90), nn.Linear(90, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model = train.data_parallel(model, optimizer, strategy="allreduce", compression=compression)
    figures = dataparallel._strategies[model].figures
    assert figures is not None
    assert figures.measures_noise
    figures.share = SHARE
    same, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2 + world.rank)
    true = [torch.randn(one.shape, generator=same) for one in model.parameters()]
    size = sum(one.numel() for one in true)
    each = (SCALE * sum(one.square().sum() for one in true) / size).sqrt()
    for _ in range(400):
        parts = [
            (one * (mean + each / SHARE**0.5 * torch.randn(mean.shape, generator=own))).sum()
            for one, mean in zip(model.parameters(), true, strict=True)
        ]
        optimizer.zero_grad()
        sum(parts).backward()
        optimizer.step()
    assert figures.noise.examples() == pytest.approx(SCALE, rel=0.25)
    worlds.shutdown()


@pytest.mark.parametrize("compression", ["powersgd", "dgc"])
def test_the_noise_of_compressed_training_is_known(tmp_path: Path, compression: str) -> None:
    assert crew.run(learn, compression, folder=tmp_path) == [0, 0], crew.output(tmp_path)
