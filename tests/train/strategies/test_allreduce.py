"""Replicas stay together, by the same gradients that DistributedDataParallel or one large batch would give."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from torch import nn

from oarlock import train
from oarlock.train import errors, worlds
from oarlock.train.servers import addresses
from oarlock.train.sharing import crews
from oarlock.train.strategies import automatic, buckets, choices, dataparallel, parameterservers, replicas, tuning
from oarlock.train.strategies.allreduce import AllReduce
from oarlock.train.strategies.parameterservers import ParameterServers


def learned(model: nn.Module, attached: nn.Module, *, steps: int = 4, parts: int = 1) -> list[torch.Tensor]:
    """Weights after some steps of plain SGD on this rank's part of the examples; `parts` backward passes a step."""
    world = train.init()
    x, y = scripts.examples(8 * world.world_size * steps)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        mine = slice((step * world.world_size + world.rank) * 8, (step * world.world_size + world.rank + 1) * 8)
        optimizer.zero_grad()
        pieces = list(zip(x[mine].chunk(parts), y[mine].chunk(parts), strict=True))
        for number, (some_x, some_y) in enumerate(pieces):
            loss = nn.functional.cross_entropy(attached(some_x), some_y) / parts
            if number < parts - 1:
                with train.no_sync(model):
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def plain_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3))


def as_distributed_data_parallel() -> None:
    """The oracle. Two ranks add two numbers, in whatever order: the bits are the same."""
    train.init()
    torch.manual_seed(1)
    ours, theirs = plain_net(), plain_net()
    theirs.load_state_dict(ours.state_dict())
    expected = learned(theirs, nn.parallel.DistributedDataParallel(theirs))
    for bucket_bytes in (25 << 20, 4000):  # one bucket, several
        model = copy.deepcopy(ours)
        assert train.data_parallel(model, bucket_bytes=bucket_bytes) is model
        for one, other in zip(learned(model, model), expected, strict=True):
            assert torch.equal(one, other)


def as_one_large_batch() -> None:
    world = train.init()
    torch.manual_seed(1 + world.rank)
    model = train.data_parallel(plain_net(), bucket_bytes=4000)
    alone = plain_net()
    alone.load_state_dict(model.state_dict())
    parts = learned(model, model, parts=4)
    x, y = scripts.examples(8 * world.world_size * 4)
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    for some_x, some_y in zip(x.chunk(4), y.chunk(4), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(alone(some_x), some_y).backward()
        optimizer.step()
    for one, other in zip(parts, alone.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach())


def held_back() -> None:
    world = train.init()
    model = train.data_parallel(nn.Linear(2, 1))
    x = torch.ones(1, 2) * (1 + world.rank)
    with train.no_sync(model):
        model(x).sum().backward()
    assert torch.equal(model.weight.grad, x), "nothing is exchanged yet"
    model(x).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((1, 2), 3.0)), "the mean of 1 + 1 and 2 + 2"


class Failing(torch.autograd.Function):
    """The input, with a backward pass that fails."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")


def after_a_pass_that_failed() -> None:
    """A script passes over a batch that is too large. The exchanges of the later ones are whole."""
    world = train.init()
    for compression in ("none", "powersgd"):
        model = train.data_parallel(plain_net(), bucket_bytes=1000, compression=compression)
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(world.rank))
        for _ in range(2):
            model.zero_grad()
            with pytest.raises(RuntimeError, match="out of memory"):
                model[4](Failing.apply(model[:4](x))).sum().backward()
            model.zero_grad()
            model(x).sum().backward()
            for one in model.parameters():
                first, second = world.gather(one.grad.tolist())
                assert first == second


def stepped(world: worlds.World, model: nn.Sequential, step: int, failing: bool) -> None:
    """Make a backward pass, which an error may end in its middle, and look at the means."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + world.rank))
    alone = nn.Sequential(*copy.deepcopy(list(model)))
    alone.zero_grad()
    alone(x).square().sum().backward()
    model.zero_grad()
    if failing:
        with model[3].register_forward_hook(lambda _, inputs, output: Failing.apply(output)):
            loss = model(x).square().sum()
        with pytest.raises(RuntimeError, match="out of memory"):
            loss.backward()
        return
    model(x).square().sum().backward()
    ours = torch.cat([one.grad.reshape(-1) for one in alone.parameters()])
    means = torch.cat([one.grad.reshape(-1) for one in model.parameters()])
    model.checked = (ours.tolist(), means.tolist())  # type: ignore[assignment]


def after_a_pass_that_failed_on_one_rank(way: str) -> None:
    """The ranks without an error wait for its buckets. Later sums are those of the same buckets on all ranks."""
    world = train.init()
    tuning.SIZES, tuning.MEASURED, buckets.BUCKET_BYTES = (1000, 8000), 1, 4000
    crews.LEAST_BYTES = 1 if way == "memory" else 1 << 40
    automatic.may_win = lambda *_: True
    torch.manual_seed(1)
    layers = [nn.BatchNorm1d(40)] if way == "buffers" else [nn.Tanh()]
    model = nn.Sequential(nn.Linear(6, 40), *layers, nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compression = way if way in choices.COMPRESSIONS else "none"
    size: Any = "tuned" if way in ("tuned", "auto") else 1000
    train.data_parallel(model, optimizer, compression=compression, bucket_bytes=size)
    for step in range(24):
        stepped(world, model, step, failing=step in (2, 5, 6) and world.rank == step % 2)
        if step == 6:
            world.gather(step)
        elif step > 6:
            (ours, means), (theirs, others) = world.gather(model.checked)
            assert means == others
            if way in ("none", "memory", "buffers", "tuned"):
                torch.testing.assert_close(torch.tensor(means), (torch.tensor(ours) + torch.tensor(theirs)) / 2)
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    assert strategy.figures is not None
    assert strategy.figures.exchanges == 24, "each pass has one, whatever ended it"
    choice = strategy.choice()
    assert world.gather(choice) == [choice] * 2


@pytest.mark.parametrize("way", ["none", "memory", "buffers", "bf16", "powersgd", "dgc", "tuned", "auto"])
def test_an_error_on_one_rank_shifts_no_sums(way: str, tmp_path: Path) -> None:
    codes = crew.run(after_a_pass_that_failed_on_one_rank, way, folder=tmp_path, timeout_s=40)
    assert codes == [0, 0], crew.output(tmp_path)


def of_two_models() -> None:
    """The exchange of the model with the error comes before that of the other one, and before a session's own."""
    world = train.init()
    one, other = (train.data_parallel(plain_net(), bucket_bytes=1000) for _ in range(2))
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1)
    seen = []
    with train.Session(one=one, other=other, optimizer=optimizer, total_steps=6) as session:
        for step in session.steps():
            stepped(world, one, step, failing=step in (2, 4, 6) and world.is_chief)
            if step > 2:
                stepped(world, other, step, failing=False)
                seen.append(other.checked)
    (ours, theirs) = world.gather(seen)
    for (mine, means), (others, same) in zip(ours, theirs, strict=True):
        assert means == same
        torch.testing.assert_close(torch.tensor(means), (torch.tensor(mine) + torch.tensor(others)) / 2)


def recomputed() -> None:
    """The engine ends a pass within a pass, before all gradients are there: the message tells the way out."""
    model = train.data_parallel(plain_net())
    x = torch.randn(4, 6, requires_grad=True)
    middle = torch.utils.checkpoint.checkpoint(model[:3], x, use_reentrant=True)
    with pytest.raises(errors.StateError, match="use_reentrant=False"):
        torch.utils.checkpoint.checkpoint(model[3:], middle, use_reentrant=True).sum().backward()
    model.zero_grad()
    middle = torch.utils.checkpoint.checkpoint(model[:3], x, use_reentrant=False)
    torch.utils.checkpoint.checkpoint(model[3:], middle, use_reentrant=False).sum().backward()
    first, second = train.init().gather(model[0].weight.grad.tolist())
    assert first == second


def thawed(folder: Path) -> None:
    """Layers that are trained only later. Without an exchange each process would train them by itself."""
    x = torch.ones(2, 6) * (1 + train.rank())
    for early, message in ((True, r"0\.weight, 0\.bias did not require a gradient"), (False, "")):
        model = plain_net()
        model[0].requires_grad_(not early)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train.data_parallel(model, optimizer, unused_parameters=True)
        with ExitStack() as stack:
            if message:
                stack.enter_context(pytest.raises(errors.StateError, match=message))
            with train.Session(model=model, optimizer=optimizer, total_steps=5) as session:
                for step in session.steps():
                    model[0].requires_grad_(step > 2)
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
    first, second = train.init().gather(model[0].weight.tolist())
    assert first == second


class Forked(nn.Module):
    """Uses `left` or `right`, never `never`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, side: str) -> torch.Tensor:
        return getattr(self, side)(x).sum()


def with_unused_parameters() -> None:
    world = train.init()
    torch.manual_seed(1)
    model = train.data_parallel(Forked(), unused_parameters=True)
    x = torch.tensor([[1.0, 3.0]])
    model(x, "left" if world.is_chief else "right").backward()
    for linear in (model.left, model.right):
        assert torch.equal(linear.weight.grad, x / 2), "made on one of two ranks: the mean counts the other as zero"
    assert model.never.weight.grad is None, "an optimizer would decay what no rank has used"

    strict = train.data_parallel(Forked())
    with pytest.raises(errors.StateError, match=r"no gradient to never\.bias, never\.weight, right\.bias and 1 more"):
        strict(x, "left").backward()


def with_different_models() -> None:
    world = train.init()
    with pytest.raises(errors.StateError, match="another model"):
        train.data_parallel(nn.Linear(2 + world.rank, 1))
    torch.manual_seed(world.rank)
    first, second = world.gather(train.data_parallel(nn.Linear(2, 1)).weight.tolist())
    assert first == second, "every rank begins with the chief's weights"
    sparse = train.data_parallel(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(errors.StateError, match="sparse=False"):
        sparse(torch.tensor([1])).sum().backward()


def with_running_statistics() -> None:
    world = train.init()
    model = train.data_parallel(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)))
    for _ in range(3):
        model(torch.randn(8, 2) + world.rank).sum().backward()
    model(torch.randn(8, 2))
    everyones = world.gather(model[0].num_batches_tracked.item())
    assert everyones == [4, 4]
    means = world.gather(model[0].weight.grad.tolist())
    assert means[0] == means[1]


class Summing(train.Strategy):
    """A strategy of a user's own, which sees the optimizer and counts the moments."""

    kind = "summing"

    def __init__(self) -> None:
        self.moments: list[Any] = []

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
        self.moments.append(optimizer)
        return model

    def begin(self) -> None:
        self.moments.append("begin")

    def after_step(self, step: int) -> None:
        self.moments.append(step)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": len(self.moments)}


def with_shorter_numbers() -> None:
    """Travelling numbers are rounded, all ranks end with the same bits, and half the bytes are sent."""
    world = train.init()
    for name, least in (("bf16", 2.0**-8), ("fp16", 2.0**-11)):
        torch.manual_seed(1)
        dense, short = plain_net(), plain_net()
        short.load_state_dict(dense.state_dict())
        train.data_parallel(dense, bucket_bytes=4000)
        train.data_parallel(short, bucket_bytes=4000, compression=name)
        for model in (dense, short):
            x, y = scripts.examples(16)
            mine = slice(8 * world.rank, 8 * world.rank + 8)
            nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        one, other = (torch.cat([p.grad.reshape(-1) for p in model.parameters()]) for model in (dense, short))
        assert not torch.equal(one, other), "nothing was rounded"
        assert (one - other).norm() < 2 * least * one.norm()
        assert len({tuple(each) for each in world.gather(other.tolist())}) == 1
        figures = [dataparallel.strategy_of(model).figures for model in (dense, short)]
        assert figures[0].sent_bytes == 4 * one.numel(), "by a ring of two: once"
        assert figures[1].sent_bytes == 2 * one.numel()
    half = train.data_parallel(plain_net().bfloat16(), compression="fp16")
    half(torch.randn(2, 6).bfloat16()).sum().backward()
    assert dataparallel.strategy_of(half).figures.sent_bytes == 2 * one.numel(), "what is short already travels so"


def without_an_exchange() -> None:
    world = train.init()
    torch.manual_seed(world.rank)
    model = train.data_parallel(nn.Linear(2, 1), strategy="none")
    first, second = world.gather(model.weight.tolist())
    assert first == second, "every rank begins with the chief's weights"
    with train.no_sync(model):
        model(torch.ones(1, 2)).sum().backward()
    model(torch.full((1, 2), 1.0 + world.rank)).sum().backward()
    assert model.weight.grad[0, 0].item() == 2.0 + world.rank


class UpsideDown(nn.Module):
    """The layers are registered in the opposite order of their use: the last bucket is the first that is full."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(40, 3), nn.Linear(40, 40), nn.Linear(6, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return out


def with_buckets_that_fill_up_backwards() -> None:
    """A bucket is sent when it is full, not when another one is: the replicas would otherwise drift apart."""
    world = train.init()
    torch.manual_seed(1)
    model = UpsideDown()
    alone = copy.deepcopy(model)
    train.data_parallel(model, bucket_bytes=1000)
    x, y = scripts.examples(8 * world.world_size)
    mine = slice(world.rank * 8, world.rank * 8 + 8)
    for _ in range(2):  # in the second pass a bucket that is sent too early holds the first pass's gradients
        model.zero_grad()
        alone.zero_grad()
        nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        nn.functional.cross_entropy(alone(x), y).backward()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize(
    "scenario",
    [
        with_buckets_that_fill_up_backwards,
        with_shorter_numbers,
        without_an_exchange,
        as_distributed_data_parallel,
        as_one_large_batch,
        held_back,
        after_a_pass_that_failed,
        of_two_models,
        recomputed,
        with_unused_parameters,
        with_different_models,
        with_running_statistics,
    ],
)
def test_two_ranks(tmp_path: Path, scenario: Callable[[], None]) -> None:
    assert crew.run(scenario, folder=tmp_path, timeout_s=60) == [0, 0], crew.output(tmp_path)


def test_parameters_that_are_trained_later(tmp_path: Path) -> None:
    assert crew.run(thawed, tmp_path, folder=tmp_path) == [0, 0], crew.output(tmp_path)


def test_alone_nothing_is_attached() -> None:
    model = plain_net()
    assert train.data_parallel(model) is model
    assert not model._forward_pre_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    with train.no_sync(model):
        model(torch.randn(2, 6)).sum().backward()


def test_buckets_go_from_the_last_layer_to_the_first_and_hold_one_kind() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100).double(), nn.Linear(100, 100), nn.Linear(100, 2))
    made = buckets.sort(list(model.named_parameters()), 50_000, 2, False)
    assert [bucket.names for bucket in made] == [
        ["3.bias", "3.weight", "2.bias", "2.weight"],
        ["1.bias"],
        ["1.weight"],
        ["0.bias", "0.weight"],
    ]


def test_a_gradient_that_is_removed_during_the_pass_is_not_sent_as_zeros() -> None:
    model = nn.Linear(3, 2)
    bucket = buckets.sort(list(model.named_parameters()), None, 2, False)[0]
    model(torch.ones(1, 3)).sum().backward()
    for place in range(2):
        bucket.mark(place)
    model.weight.grad = None
    with pytest.raises(errors.StateError, match="weight was removed during the backward pass"):
        bucket.start(False)


@pytest.mark.parametrize(
    ("script", "job", "expected"),
    [
        ((None, None), "", ("allreduce", "none")),
        (("allreduce", "bf16"), "", ("allreduce", "bf16")),
        (("none", "fp16"), '{"kind": "allreduce"}', ("allreduce", "fp16")),
        (("allreduce", "fp16"), '{"compression": "none"}', ("allreduce", "none")),
    ],
)
def test_the_job_file_wins_field_by_field(script: tuple[Any, Any], job: str, expected: tuple[str, str]) -> None:
    choice = choices.choose(*script, {choices.VARIABLE: job})
    assert choice == choices.Choice(*expected)


@pytest.mark.parametrize(
    ("script", "job", "message"),
    [
        (("ring", None), "", "'ring' is not one of auto, allreduce"),
        ((None, "zip"), "", "'zip' is not one of none, fp16"),
        ((None, None), '{"kind": "telepathy"}', "'telepathy' is not one of"),
        ((None, None), "[1]", "not a JSON object"),
        ((None, None), "{", "not a JSON object"),
        ((Summing(), "fp16"), "", "give the compression to the object"),
    ],
)
def test_a_choice_that_cannot_be_made_names_the_names(script: tuple[Any, Any], job: str, message: str) -> None:
    with pytest.raises(errors.StateError, match=message):
        choices.choose(*script, {choices.VARIABLE: job})


PS = '{"kind": "ps"}'


@pytest.mark.parametrize(
    ("script", "job", "expected"),
    [
        ({"sync": False}, PS, {"sync": False}),
        ({"sharding": "greedy"}, PS, {"sharding": "greedy"}),
        ({"sync": False, "staleness": 3}, '{"kind": "ps", "sync": false}', {"sync": False, "staleness": 3}),
        (
            {"sync": False, "staleness": 3, "sharding": "greedy"},
            '{"kind": "ps", "sync": false, "staleness": 5}',
            {"sync": False, "staleness": 5, "sharding": "greedy"},
        ),
        ({"sync": False, "staleness": 3}, '{"kind": "ps", "sync": true}', {"sync": True}),
        ({"sync": False, "staleness": 3}, '{"kind": "ps", "backup": 0}', {"sync": False, "staleness": 3}),
        ({"sync": True}, '{"kind": "ps", "sync": false, "staleness": 5}', {"sync": False, "staleness": 5}),
        ({"sharding": "round_robin"}, '{"compression": "none"}', {"sharding": "round_robin"}),
    ],
)
def test_the_settings_of_parameter_servers_hold_unless_the_job_file_sets_them(
    script: dict[str, Any], job: str, expected: dict[str, Any]
) -> None:
    """The tasks of the role `ps` need `kind: ps` in the job file, which says nothing of the other settings."""
    given = ParameterServers(**script)
    chosen = choices.choose(given, None, {choices.VARIABLE: job})
    made = choices.make(chosen, unused_parameters=False, bucket_bytes=None) if chosen is not given else given
    assert isinstance(made, ParameterServers)
    assert made.settings == parameterservers.Settings(**expected)
    assert made._mode == ParameterServers(**expected)._mode


def test_backup_workers_of_the_job_file_let_the_workers_step_together() -> None:
    told = {"kind": "ps", "backup": 1}
    assert parameterservers.Settings(sync=False, staleness=3).under(told) == parameterservers.Settings(backup=1)


def test_servers_that_auto_may_choose_are_synchronous_whatever_the_script_says() -> None:
    """The sharding changes no result, and is kept."""
    environ = {choices.VARIABLE: '{"kind": "auto"}', addresses.VARIABLE: "127.0.0.1:1", addresses.TOKEN: "x"}
    chosen = choices.choose(ParameterServers(sync=False, sharding="greedy"), None, environ)
    made = choices.make(chosen, unused_parameters=False, bucket_bytes=None)
    assert isinstance(made, automatic.Automatic)
    served = made._of(automatic.SERVERS)
    assert isinstance(served, ParameterServers)
    assert served.settings == parameterservers.Settings(sharding="greedy")


def test_an_object_of_the_kind_that_the_job_file_names_is_kept() -> None:
    dense, own = AllReduce(bucket_bytes=123, wire=torch.bfloat16), Summing()
    for given, job in ((dense, '{"kind": "allreduce"}'), (dense, '{"kind": "auto"}')):
        assert choices.choose(given, None, {choices.VARIABLE: job}) is given
    for name, wire in (("none", None), ("fp16", torch.float16)):
        made = choices.choose(dense, None, {choices.VARIABLE: json.dumps({"compression": name})})
        assert isinstance(made, AllReduce)
        assert (made._bucket_bytes, made._wire) == (123, wire)
    for size, sizes in ((4000, (4000, False)), ("tuned", (None, True))):
        made = choices.choose(dense, None, {choices.VARIABLE: json.dumps({"bucket_bytes": size})})
        assert isinstance(made, AllReduce)
        assert (made._bucket_bytes, made._tunes, made._wire) == (*sizes, torch.bfloat16)
    assert choices.choose(own, None, {choices.VARIABLE: PS}) == choices.Choice("ps")
    with pytest.raises(errors.StateError, match="'summing' is not one of"):
        choices.choose(own, None, {choices.VARIABLE: '{"compression": "bf16"}'})


def test_an_unknown_sharding_is_refused() -> None:
    with pytest.raises(errors.StateError, match="sharding='even' is not one of partition, greedy, round_robin"):
        ParameterServers(sharding="even")


def test_a_strategy_of_the_scripts_own_sees_the_optimizer_and_every_moment(tmp_path: Path) -> None:
    strategy, model = Summing(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert train.data_parallel(model, optimizer, strategy=strategy) is model
    with train.Session(model=model, optimizer=optimizer, total_steps=2, checkpoints=tmp_path) as session:
        for _ in session.steps():
            pass
    assert strategy.moments == [optimizer, "begin", 1, 2]
    kept = torch.load(next(tmp_path.glob("*/rank-0.pt")), weights_only=True)
    assert kept["own"]["per_rank"] == {"strategy of model": {"seen": 4}}


def test_a_model_within_that_of_the_session_keeps_its_strategy(tmp_path: Path) -> None:
    """A compiled model holds the one with the strategy. Parameter servers would lose the restored weights."""
    for told in (0, 4):
        strategy = scripts.Averaging()
        model = train.data_parallel(nn.Linear(1, 1), strategy=strategy)
        with train.Session(model=nn.ModuleDict({"held": model}), total_steps=told + 4, checkpoints=tmp_path) as session:
            assert len(strategy.seen) == told
            for _ in session.steps():
                pass
        assert len(strategy.seen) == told + 4


def test_the_job_file_replaces_an_object_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choices.VARIABLE, '{"kind": "none"}')
    strategy, model = Summing(), nn.Linear(1, 1)
    train.data_parallel(model, strategy=strategy)
    assert strategy.moments == []
    assert dataparallel.strategy_of(model).kind == "none"


def test_a_model_that_is_not_on_its_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL exchanges the gradients of GPUs alone, and torch's own error names no model. Here meta stands for a GPU."""
    model = nn.Linear(2, 1)
    replicas.check_devices(list(model.named_parameters()))
    monkeypatch.setattr(worlds, "_world", worlds.World(0, 2, 0, torch.device("meta")))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    with pytest.raises(errors.StateError, match=r"weight is on the cpu.*model\.to\(world\.device\)"):
        train.data_parallel(model)
    replicas.check_devices([("weight", nn.Parameter(torch.empty(2, device="meta")))])


def test_groups_are_small_on_a_processor_and_large_on_a_gpu() -> None:
    for device, most in (("cpu", 4 << 20), ("meta", 25 << 20)):  # any device that is not the processor
        named = [(str(number), nn.Parameter(torch.empty(1 << 18, device=device))) for number in range(32)]  # 1 MB each
        groups = buckets.sort(named, None, 2, unused=False)
        sizes = [each.sent.numel() * each.sent.element_size() for each in groups]
        assert sizes[0] == 1 << 20
        assert max(sizes) == most
        assert sum(sizes) == 32 << 20
