"""Deep Gradient Compression against a slow, plain description of it, and against dense training."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import marks
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.compression import dgc, halves, momentum, runlengths, selection
from oarlock.train.strategies import dataparallel

RANKS = 3
Hosts = list[list[int]]
ALONE: Hosts = [[0], [1], [2]]
APART = {"OARLOCK_SHARED_MEMORY": "0"}  # each rank is a node, as if on a host of its own

# Encoding


@pytest.mark.parametrize(
    "positions",
    [
        [],
        [0],
        [0, 1, 2],
        [65533],
        [65534],
        [65535],
        [65536],
        [0, 65535, 131071, 196608],
        [131070],
        [131069, 131070],
        [10**7, 10**7 + 1, 3 * 10**9],
    ],
)
def test_run_lengths_give_back_the_positions(positions: list[int]) -> None:
    encoded = runlengths.encode(torch.tensor(positions, dtype=torch.int64))
    assert encoded.dtype == torch.int16
    assert runlengths.decode(encoded).tolist() == positions
    total = positions[-1] + 1 if positions else 1
    assert len(encoded) <= runlengths.most(len(positions), total)


def test_run_lengths_of_random_positions() -> None:
    generator = torch.Generator().manual_seed(3)
    for density in (0.9, 0.01, 0.00002):
        positions = (torch.rand(1_000_000, generator=generator) < density).nonzero().view(-1)
        assert torch.equal(runlengths.decode(runlengths.encode(positions)), positions)


# Selection


@pytest.mark.parametrize("shape", marks.long_except([(50, 60)], [(50, 60), (1000, 300), (64, 64, 5, 5), (700, 1024)]))
@pytest.mark.parametrize("density", [0.25, 0.01, 0.001])
def test_the_largest_elements_are_found(shape: tuple[int, ...], density: float) -> None:
    """Where the sample's threshold was low enough the selection is exact; it never takes more than was asked for."""
    generator = torch.Generator().manual_seed(3)
    tensor = torch.randn(shape, generator=generator).view(-1)
    peaks = selection.Peaks(tensor)
    peaks.note(lambda number: None)
    count = max(1, round(density * len(tensor)))
    exact = 0
    for start in range(20):
        found = selection.largest(tensor, peaks, count, start * 7)
        assert selection.ENOUGH * count <= len(found) <= count
        assert torch.equal(found, found.unique()), "ascending, each once"
        expected = torch.topk(tensor.abs(), len(found)).values[-1]
        assert tensor[found].abs().min() >= expected, "the largest, however many"
        exact += len(found) == count
    assert exact >= 15


def test_an_update_is_seen_by_the_selection() -> None:
    tensor = torch.zeros(3 * selection.CHUNK + 5)
    places = torch.tensor([7, selection.CHUNK, 2 * selection.CHUNK - 1, 3 * selection.CHUNK + 4])
    added = torch.zeros_like(tensor)
    added[places] = torch.tensor([1.0, -2.0, 3.0, -4.0])
    peaks = selection.Peaks(tensor)

    def update(number: int) -> None:
        tensor.split(peaks.pieces)[number].add_(added.split(peaks.pieces)[number])

    peaks.note(update)
    found = selection.largest(tensor, peaks, 200, 0)
    assert torch.equal(found, places), "zeros need not travel"


def test_a_value_that_is_not_a_number_travels() -> None:
    tensor = torch.randn(2 * selection.CHUNK)
    tensor[70_000] = math.nan
    peaks = selection.Peaks(tensor)
    peaks.note(lambda number: None)
    assert 70_000 in selection.largest(tensor, peaks, 50, 0)


def test_a_sample_does_not_keep_to_some_columns() -> None:
    for shape in [(1024, 1024), (3000, 3000), (512, 512, 3, 3), (10_000, 100)]:
        size = math.prod(shape)
        for length in (size, size // selection.ROWS):
            stride = selection.stride_of(length, 8192, size)
            assert math.gcd(stride, size) == 1
            assert 0.4 < length / stride / 8192 < 1.1


# The method, against its description


def gradients(steps: int, ranks: int = RANKS) -> list[list[dict[str, torch.Tensor]]]:
    """Return the gradients of each rank and step, for a weight and a bias."""
    generator = torch.Generator().manual_seed(9)
    kind: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    return [
        [{"weight": torch.randn(5, 8, **kind), "bias": torch.randn(5, **kind)} for _ in range(steps)]
        for _ in range(ranks)
    ]


def described(
    settings: dgc.DGC, options: dict[str, Any], steps: int, without: str = "", hosts: Hosts = ALONE
) -> tuple[torch.Tensor, torch.Tensor]:
    """The paper's algorithm, element by element and node by node; `without` leaves one part of it out.

    A node is a host: its ranks add up their gradients.
    """
    ranks = sum(map(len, hosts))
    momentum, lr = options.get("momentum", 0.0), options["lr"]
    weight, bias = (torch.ones(shape, dtype=torch.float64) for shape in ((5, 8), (5,)))
    u, v = (torch.zeros(len(hosts), 40, dtype=torch.float64) for _ in range(2))
    decayed, velocity = torch.zeros(5, 8, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    told = gradients(steps, ranks)
    for step in range(steps):
        total, bias_mean = torch.zeros(40, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
        density = settings.density(settings.warm_up_steps if without == "warm-up" else step)
        # an element of 8 bytes has a run length of 2: beyond this density a ring of dense numbers moves less
        dense = len(hosts) == 1 or 16 + 10 * math.ceil(40 * density) >= 2 / len(hosts) * 40 * 8
        count = 40 if dense else max(1, math.ceil(40 * density))
        for node, host in enumerate(hosts):
            g = sum(told[rank][step]["weight"].view(-1) for rank in host) / ranks
            b = sum(told[rank][step]["bias"] for rank in host) / ranks
            norm = torch.cat([g, b]).norm()
            bound = (settings.clip_norm or math.inf) / (1 if without == "local clipping" else math.sqrt(len(hosts)))
            if norm > bound:
                g, b = g * bound / norm, b * bound / norm
            if without == "momentum correction":  # momentum only after the exchange
                v[node] += g
            elif options.get("nesterov"):
                u[node] = momentum * u[node] + g
                v[node] += g + momentum * u[node]
            else:
                u[node] = momentum * u[node] + g
                v[node] += u[node]
            chosen = sorted(range(40), key=lambda i: -abs(float(v[node, i])))[:count]
            for i in chosen:
                total[i] += v[node, i]
                v[node, i] = 0
                if without != "momentum factor masking" and not dense:
                    u[node, i] = 0
            bias_mean += b
        x = options.get("weight_decay", 0.0) * weight
        if without == "momentum correction":
            x = x + total.view(5, 8)
            total = torch.zeros(40, dtype=torch.float64)
        decayed = momentum * decayed + x
        more = x + momentum * decayed if options.get("nesterov") else decayed
        y = bias_mean + options.get("weight_decay", 0.0) * bias
        velocity = momentum * velocity + y
        weight = weight - lr * (total.view(5, 8) + more)
        bias = bias - lr * (y + momentum * velocity if options.get("nesterov") else velocity)
    return weight, bias


def learned(settings: dgc.DGC | None, options: dict[str, Any], steps: int, model: nn.Module | None = None) -> nn.Module:
    """The library's: a model with a loss of exactly those gradients."""
    rank = train.rank()
    if model is None:
        model = nn.Linear(8, 5, dtype=torch.float64)
        nn.init.ones_(model.weight)
        nn.init.ones_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), **options)
    train.data_parallel(model, optimizer, compression=settings)
    before = copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])
    for told in gradients(steps, train.world_size())[rank]:
        optimizer.zero_grad()
        sum((getattr(model, name) * gradient).sum() for name, gradient in told.items()).backward()
        optimizer.step()
    after = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    assert before == after, "the user's settings are the user's"
    return model


PLAIN = {"lr": 0.1, "momentum": 0.9}
DECAYED = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "nesterov": True}
TRICKS = ("local clipping", "momentum correction", "momentum factor masking", "warm-up")


def as_described() -> None:
    settings = dgc.DGC(sparsity=0.9, clip_norm=2.0, warm_up_steps=12)
    for options in (PLAIN, DECAYED, {"lr": 0.1, "weight_decay": 0.05}):
        model = learned(settings, options, 30)
        weight, bias = described(settings, options, 30)
        torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model.bias.detach(), bias, rtol=1e-12, atol=1e-12)


def with_every_trick() -> None:
    """Without any one of the four the weights are others, far beyond rounding: so the test above would fail."""
    settings = dgc.DGC(sparsity=0.9, clip_norm=2.0, warm_up_steps=12)
    model = learned(settings, PLAIN, 30)
    for trick in TRICKS:
        weight, _ = described(settings, PLAIN, 30, without=trick)
        assert (model.weight.detach() - weight).abs().max() > 1e-3, trick


def without_sparsity_as_dense() -> None:
    for options in (PLAIN, DECAYED, {"lr": 0.1}):
        dense = learned(None, options, 20)
        model = learned(dgc.DGC(sparsity=0.0, warm_up_steps=0), options, 20)
        for one, other in zip(model.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def without_sparsity_by_the_sparse_exchange() -> None:
    """All elements travel, with their positions. Each is masked then, so momentum counts only without masking."""
    exchange, keep = dgc.DeepGradientCompression._exchange_sparse, dgc._Tensor.keep
    made: list[dgc._Layout] = []

    def counted(self: Any, node: Any, layout: dgc._Layout, accumulate: Any) -> None:
        made.append(layout)
        exchange(self, node, layout, accumulate)

    def unmasked(self: Any, positions: torch.Tensor, rest: torch.Tensor) -> None:
        self.residual.scatter_(0, positions, rest)

    dgc._Layout.smaller_than_dense = lambda *_: True  # type: ignore[method-assign]
    dgc.DeepGradientCompression._exchange_sparse = counted  # type: ignore[method-assign]
    for masks, options in (
        (True, {"lr": 0.1}),
        (True, {"lr": 0.1, "weight_decay": 0.05}),
        (False, PLAIN),
        (False, DECAYED),
    ):
        dgc._Tensor.keep = keep if masks else unmasked  # type: ignore[method-assign]
        dense = learned(None, options, 20)
        model = learned(dgc.DGC(sparsity=0.0, warm_up_steps=0), options, 20)
        for one, other in zip(model.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert [layout.counts for layout in made] == [[40]] * 80, "each step sends the whole weight so"


def from_a_dense_checkpoint() -> None:
    """The momentum that dense training has gathered goes on under compression."""
    models = []
    for later in (None, dgc.DGC(sparsity=0.0, warm_up_steps=0)):
        model = nn.Linear(8, 5, dtype=torch.float64)
        nn.init.ones_(model.weight)
        nn.init.ones_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), **DECAYED)
        train.data_parallel(model, optimizer)
        kept: dict[str, Any] = {}
        for number, told in enumerate(gradients(12)[train.rank()]):
            if number == 6:
                kept = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
                model = nn.Linear(8, 5, dtype=torch.float64)
                optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
                train.data_parallel(model, optimizer, compression=later)
                model.load_state_dict(kept["model"])
                optimizer.load_state_dict(kept["optimizer"])
            optimizer.zero_grad()
            sum((getattr(model, name) * gradient).sum() for name, gradient in told.items()).backward()
            optimizer.step()
        models.append(model)
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-12, atol=1e-12)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 500), nn.BatchNorm1d(500), nn.ReLU(), nn.Linear(500, 40), nn.Linear(40, 3))


def with_the_same_bits(half: bool) -> None:
    """A sampled selection, several tensors, other data on every rank: replicas stay together bit by bit."""
    world = train.init()
    torch.manual_seed(world.rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    train.data_parallel(model, optimizer, compression=dgc.DGC(sparsity=0.99, warm_up_steps=40, half_values=half))
    for _ in range(120):
        optimizer.zero_grad()
        x = torch.randn(8, 20)
        nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()
    for parameter in model.parameters():
        first, *others = world.gather(parameter.detach())
        assert all(torch.equal(first, other) for other in others)
        assert first.isfinite().all()
    figures = dataparallel.strategy_of(model).figures
    assert figures.exchanges == 120
    if half:
        small = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        before = figures.sent_bytes
        x = torch.randn(8, 20)
        nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        sparse = dgc._Layout(dataparallel.strategy_of(model)._sparse, 0.01, half_values=True).size
        dense = figures.sent_bytes - before - sparse * (world.world_size - 1)
        ring = 2 * (world.world_size - 1) / world.world_size
        assert dense == round(ring * sum(2 * each.numel() for each in small)), "two bytes for each number"
    assert figures.waiting.total_s > 0


def with_the_same_bits_in_half_values() -> None:
    with_the_same_bits(half=True)


def with_the_same_bits_in_full_values() -> None:
    with_the_same_bits(half=False)


def resumed(folder: Path, total_steps: int) -> None:
    world = train.init()
    torch.manual_seed(2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    train.data_parallel(model, optimizer, compression=dgc.DGC(sparsity=0.99, warm_up_steps=10))
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "total_steps": total_steps}
    with train.Session(model=model, optimizer=optimizer, **options) as session:
        for step in session.steps():
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + world.rank))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
            optimizer.step()
    if world.is_chief:
        torch.save(model.state_dict(), folder / f"after-{total_steps}.pt")


def accumulating() -> None:
    """Parts of a step are compressed once, as their sum."""
    world = train.init()
    models = []
    for parts in (1, 2):
        model = nn.Linear(8, 5, dtype=torch.float64)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), **PLAIN)
        train.data_parallel(model, optimizer, compression=dgc.DGC(sparsity=0.9, warm_up_steps=0))
        for told in gradients(6)[world.rank]:
            optimizer.zero_grad()
            for part in range(parts):
                loss = sum((getattr(model, name) * gradient).sum() / parts for name, gradient in told.items())
                if part + 1 < parts:
                    with train.no_sync(model):
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
        models.append(model)
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-12, atol=1e-12)


def with_tensors_that_are_sent_whole() -> None:
    """A complex matrix, and one without elements, beside one that is compressed."""
    rank = train.rank()
    shapes = [((2, 3), torch.complex64), ((0, 8), torch.float32), ((64, 64), torch.float32)]
    model = nn.ParameterList([nn.Parameter(torch.ones(shape, dtype=dtype)) for shape, dtype in shapes])
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9, weight_decay=0.1)
    train.data_parallel(model, optimizer, compression=dgc.DGC(half_values=True, warm_up_steps=0))
    for _ in range(2):
        optimizer.zero_grad()
        ((model[0] * (rank + 2j)).real.sum() + model[1].sum() + (rank * model[2]).sum()).backward()
        optimizer.step()
    first = torch.full((2, 3), 1.1 - 2.0j)  # the mean gradient, and the decay
    second = 0.9 * first + (1.0 - 2.0j) + 0.1 * (1 - 0.5 * first)
    torch.testing.assert_close(model[0].detach(), 1 - 0.5 * (first + second))
    assert (model[2] != model[2][0, 0]).any(), "it is compressed"


def beyond_the_range_of_fp16() -> None:
    """What fp16 cannot say is sent later: also of a bias, and of the sum over the ranks. NaN leaves no trace."""
    rank = train.rank()
    model = nn.Linear(60, 60)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    train.data_parallel(model, optimizer, compression=dgc.DGC(sparsity=0.999, warm_up_steps=0, half_values=True))
    for step in range(40):
        optimizer.zero_grad()
        size = (1 + rank) * 4e5 if step == 0 else 0.0
        (size * (model.weight[7, 9] + model.bias[3])).backward()
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in model.parameters()), step
    assert model.weight[7, 9].item() == pytest.approx(-8e5)
    assert model.bias[3].item() == pytest.approx(-8e5, rel=1e-3), "sums of fp16 are rounded"
    strategy = dataparallel.strategy_of(model)
    assert isinstance(strategy, dgc.DeepGradientCompression)
    assert not any(kept.any() for _, _, kept in strategy._kept()), "all is sent"
    (float("nan") * (model.weight[7, 9] + model.bias[3])).backward()
    assert model.bias.grad[3].isnan()
    assert all(kept.isfinite().all() for kind, _, kept in strategy._kept() if kind == "residual")


SHORT = [
    beyond_the_range_of_fp16,
    with_tensors_that_are_sent_whole,
    with_every_trick,
    without_sparsity_as_dense,
    without_sparsity_by_the_sparse_exchange,
    from_a_dense_checkpoint,
    with_the_same_bits_in_full_values,
    accumulating,
]
LONG = [as_described, with_the_same_bits_in_half_values]


@pytest.mark.parametrize("scenario", marks.long_except(SHORT, [*SHORT, *LONG]))
def test_three_ranks(tmp_path: Path, scenario: Callable[[], None]) -> None:
    codes = crew.run(scenario, folder=tmp_path, world_size=RANKS, env=APART)
    assert codes == [0] * RANKS, crew.output(tmp_path, RANKS)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    for name, runs in (("whole", [30]), ("parts", [15, 30])):
        folder = tmp_path / name
        folder.mkdir()
        for steps in runs:
            codes = crew.run(resumed, folder, steps, folder=folder, env=APART)
            assert codes == [0, 0], crew.output(folder)
    whole, parts = (torch.load(tmp_path / name / "after-30.pt", weights_only=True) for name in ("whole", "parts"))
    for name, values in whole.items():
        assert torch.equal(values, parts[name]), name


# The edges


def test_the_rest_of_a_half_value_is_what_is_missing() -> None:
    values = torch.tensor([1e6, -7e4, 65504.0, 0.1, 0.0, math.inf, math.nan])
    sent, rest = halves.parted(values, torch.float16)
    assert sent[:3].tolist() == [65504.0, -65504.0, 65504.0]
    assert torch.equal((sent.float() + rest)[:5], values[:5])
    assert sent[5].isinf()
    assert sent[6].isnan()
    assert rest[5:].tolist() == [0.0, 0.0]
    for summands in (2, 3, 64):
        parts = halves.parted(torch.full((1,), 1e6), torch.float16, summands)[0]
        total = torch.zeros(1, dtype=torch.float16)
        for _ in range(summands):
            total += parts
        assert total.isfinite()


def test_rounding_errors_stay_in_the_residual() -> None:
    parameter = nn.Parameter(torch.zeros(4, 5))
    tensor = dgc._Tensor("weight", parameter, 0)
    parameter.grad = torch.randn(4, 5)
    expected = parameter.grad.view(-1).clone()
    tensor.accumulate(parameter.grad.view(-1), 1.0, 0.9, False)
    assert not parameter.grad.any(), "it becomes the sum of all ranks' parts"
    sent, rest = tensor.parted(torch.tensor([3, 8]), torch.float16)
    tensor.keep(torch.tensor([3, 8]), rest)
    assert sent.dtype == torch.float16
    left = tensor.residual.clone()
    assert left[[3, 8]].any(), "these values are not halves"
    left[[3, 8]] += sent.float()
    assert torch.equal(left, expected)
    assert not tensor.velocity[[3, 8]].any()


def shapes_of_resnet50() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            for conv in ((inner, width, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)):
                shapes += [conv, (conv[0],), (conv[0],)]
            if block == 0:
                shapes += [(4 * inner, width, 1, 1), (4 * inner,), (4 * inner,)]
            width = 4 * inner
    return [*shapes, (1000, 2048), (1000,)]


@pytest.mark.parametrize(
    ("shapes", "millions", "half", "least"),
    [
        ([(2048, 1024), (2048,), (2048, 2048), (2048,), (10, 2048), (10,)], 6.316, False, 460),
        pytest.param(
            [(2048, 1024), (2048,), (2048, 2048), (2048,), (10, 2048), (10,)], 6.316, True, 740, marks=pytest.mark.long
        ),
        (shapes_of_resnet50(), 25.56, False, 270),
    ],
)
def test_a_rank_sends_hundreds_of_times_less(
    shapes: list[tuple[int, ...]], millions: float, half: bool, least: int
) -> None:
    """At 99.9 %, with all heads and dense small tensors."""
    dense = sum(4 * math.prod(shape) for shape in shapes)
    assert dense / 4e6 == pytest.approx(millions, rel=0.01)
    tensors = [dgc._Tensor("", nn.Parameter(torch.empty(shape)), 0) for shape in shapes if len(shape) > 1]
    small = sum((2 if half else 4) * math.prod(shape) for shape in shapes if len(shape) == 1)
    assert dense / (dgc._Layout(tensors, 0.001, half).size + small) >= least


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda model: None, "got none"),
        (lambda model: torch.optim.Adam(model.parameters()), "momentum of Adam"),
        (lambda model: torch.optim.SGD([model.weight], 0.1), "does not step bias"),
        (lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, dampening=0.5), "dampening"),
    ],
)
def test_an_optimizer_whose_momentum_is_not_known_is_refused(
    optimizer: Callable[[nn.Module], Any], message: str
) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(errors.StateError, match=message):
        momentum.Momentum(optimizer(model), list(model.named_parameters()))


def test_a_step_with_a_closure_is_refused_and_leaves_the_settings() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    momentum.Momentum(optimizer, list(model.named_parameters()))
    with pytest.raises(errors.StateError, match="without a closure"):
        optimizer.step(lambda: 0.0)
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_the_gradient_of_a_process_that_is_alone_is_clipped_too() -> None:
    model = nn.Linear(2, 2)
    train.data_parallel(model, torch.optim.SGD(model.parameters(), 0.1), compression=dgc.DGC(clip_norm=1.0))
    for size, norm in ((100.0, 1.0), (0.1, 0.1)):
        model.zero_grad()
        (size * (model.weight * torch.tensor([[0.6, 0.0], [0.0, 0.8]])).sum() + 0.0 * model.bias.sum()).backward()
        assert torch.cat([each.grad.view(-1) for each in model.parameters()]).norm().item() == pytest.approx(norm)


@pytest.mark.parametrize("wrong", [{"sparsity": 1.0}, {"sparsity": -0.1}, {"clip_norm": 0.0}, {"warm_up_steps": -1}])
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.StateError):
        dgc.DGC(**wrong)


def test_the_warm_up_has_the_stages_of_the_paper() -> None:
    settings = dgc.DGC(warm_up_steps=400)
    sparsities = [round(100 * (1 - settings.density(step)), 1) for step in (0, 99, 100, 200, 300, 399, 400, 10**6)]
    assert sparsities == [74.9, 74.9, 93.7, 98.4, 99.6, 99.6, 99.9, 99.9]


def test_the_stages_of_a_training_cover_its_steps() -> None:
    """Each stage has one density, and none lasts longer than the training."""
    settings = dgc.DGC(warm_up_steps=400)
    assert settings.stages(1000) == [(0, 100), (100, 100), (200, 100), (300, 100), (400, 600)]
    assert settings.stages(150) == [(0, 100), (100, 50)]
    assert dgc.DGC(warm_up_steps=0).stages(10) == [(0, 10)]
    for warm_up_steps, steps in itertools.product((0, 1, 2, 3, 7, 1000), (1, 5, 1003)):
        settings = dgc.DGC(warm_up_steps=warm_up_steps)
        told = [settings.density(begin) for begin, count in settings.stages(steps) for _ in range(count)]
        assert told == [settings.density(step) for step in range(steps)]
