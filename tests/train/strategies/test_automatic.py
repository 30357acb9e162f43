"""`auto`: without permission it is dense synchronous training, with permission it measures and keeps to its choice."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import marks
from tests.train import crew, scripts
from torch import distributed, nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.compression import dgc
from oarlock.train.sharing import segments
from oarlock.train.strategies import automatic, choices, dataparallel
from oarlock.train.strategies.allreduce import AllReduce
from oarlock.train.strategies.automatic import Measured, Step
from oarlock.train.strategies.wholegradient import WholeGradient

LINKS_BYTES_PER_S = {"10 Gbit/s": 1.25e9, "1 Gbit/s": 1.25e8, "100 Mbit/s": 1.25e7}
MODELS = {"small": (1e6, 0.05), "MLP": (25e6, 0.04), "large": (100e6, 0.3)}  # bytes and seconds of computing


def measured(size: float, own_s: float, rate: float) -> Measured:
    """The measurements over a link without latency; PowerSGD and DGC cost 12 ms for each 25 MB."""
    dense_s, work_s = size / rate, size / 25e6 * 0.012
    exchanges = {
        "none": dense_s,
        "bf16": dense_s / 2 + work_s / 4,
        "powersgd": dense_s / 150 + work_s,
        "dgc": dense_s / 250 + work_s,
    }
    return Measured(own_s + dense_s, own_s, exchanges)


def test_the_choice_is_hardly_slower_than_the_best_and_as_exact_as_that_allows() -> None:
    chosen = {}
    for link, rate in LINKS_BYTES_PER_S.items():
        for model, (size, own_s) in MODELS.items():
            steps = automatic.predict([measured(size, own_s, rate)] * 2)
            kind = automatic.choose(steps)
            chosen[link, model] = kind
            assert steps[kind] <= (1 + automatic.MARGIN) * min(steps.values())
            better = automatic.CANDIDATES[: automatic.CANDIDATES.index(kind)]
            assert all(steps[each] > (1 + automatic.MARGIN) * min(steps.values()) for each in better if each in steps)
    assert chosen["10 Gbit/s", "small"] == "none"
    assert chosen["1 Gbit/s", "MLP"] == "powersgd"
    assert chosen["100 Mbit/s", "large"] == "dgc"


def test_a_late_rank_makes_no_link_slow() -> None:
    """One rank computes for 90 ms, the other for 10 ms and waits 80 ms more. The exchange takes 10 ms."""
    late = Measured(0.1, 0.09, {"none": 0.01, "bf16": 0.008})
    early = Measured(0.1, 0.01, {"none": 0.09, "bf16": 0.006})
    assert automatic.predict([late, early]) == {"none": pytest.approx(0.1), "bf16": pytest.approx(0.098)}
    unknown = Measured(0.1, 0.01, {"none": 0.09})
    assert list(automatic.predict([late, unknown])) == ["none"], "one rank has not measured it"


def test_computing_hides_as_much_of_16_bits_as_of_the_dense_exchange() -> None:
    """Three quarters of the dense exchange go on during the backward pass; a whole gradient is sent after it."""
    known = Measured(0.35, 0.3, {"none": 0.2, "bf16": 0.1, "dgc": 0.03})
    steps = {"none": 0.35, "bf16": 0.325, "dgc": 0.33}
    assert automatic.predict([known] * 2) == {kind: pytest.approx(took) for kind, took in steps.items()}
    assert automatic.choose(automatic.predict([known] * 2)) == "bf16"


def test_steps_tell_of_computing_alone_and_of_the_exchange_alone() -> None:
    """The exchange goes on beside the computing, which takes longer then: 60 ms instead of 40."""
    beside, after = Step(0.1, 0.04, None), Step(0.11, 0.07, 0.04)
    assert automatic.summed_up([beside, after, beside, after]) == Measured(0.1, 0.04, {"none": pytest.approx(0.07)})
    assert automatic.summed_up([beside]) == Measured(0.1, pytest.approx(0.06), {"none": 0.04}), "the best that is known"


def test_a_candidate_that_cannot_be_chosen_is_not_tried() -> None:
    """As much is chosen as if all candidates were measured."""
    dense = Measured(2.1, 0.1, {"none": 2.0})
    slow = dense.with_exchange("dgc", 0.1)
    assert all(automatic.may_win(kind, [dense, dense]) for kind in automatic.CANDIDATES)
    assert not automatic.may_win("bf16", [slow, slow]), "half of the bytes take a second"
    assert not automatic.may_win("ps", [slow, slow])
    assert automatic.may_win("powersgd", [slow, slow]), "which may be as short"
    fast = Measured(0.1, 0.096, {"none": 0.03})
    assert not any(automatic.may_win(kind, [fast, fast]) for kind in automatic.CANDIDATES[1:])
    early = Measured(0.1, 0.01, {"none": 0.09})
    assert not any(automatic.may_win(kind, [fast, early]) for kind in automatic.CANDIDATES[1:]), "not by the link"
    for rate in LINKS_BYTES_PER_S.values():
        for size, own_s in MODELS.values():
            whole = measured(size, own_s, rate)
            known = whole._replace(exchange_s={"none": whole.exchange_s["none"]})
            tried = []
            for kind in reversed(automatic.LOSSY):
                if automatic.may_win(kind, [known]):
                    tried.append(kind)
                    known = known.with_exchange(kind, whole.exchange_s[kind])
            chosen = [automatic.choose(automatic.predict([one])) for one in (whole, known)]
            assert chosen[0] == chosen[1], tried


def test_the_bytes_of_16_bits_are_a_part_of_the_real_ones() -> None:
    """bf16 sends a quarter of float64, and what is as short already as it is."""
    half, double = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float64)
    assert automatic.least_parts([torch.zeros(3)])["bf16"] == 0.5
    assert automatic.least_parts([double])["bf16"] == 0.25
    assert automatic.least_parts([half])["bf16"] == 1.0
    assert automatic.least_parts([half, double])["bf16"] == 0.5
    assert automatic.least_parts([double.to(torch.complex128)])["bf16"] == 1.0
    slow = Measured(2.1, 0.1, {"none": 2.0, "dgc": 0.5})
    assert automatic.may_win("bf16", [slow], automatic.least_parts([double]))
    assert not automatic.may_win("bf16", [slow])


def test_auto_is_the_default_and_only_its_compression_is_lossy() -> None:
    dense = choices.Choice("allreduce")
    assert choices.choose(None, None, {}) == dense
    assert choices.choose("auto", None, {}) == dense
    assert choices.choose(None, "bf16", {choices.VARIABLE: '{"kind": "auto", "compression": "none"}'}) == dense
    assert choices.choose("auto", "auto", {}).compression == "auto"  # type: ignore[union-attr]
    assert choices.choose("ps", "auto", {}) == choices.Choice("ps"), "servers have no compression to choose"


class Slow:
    """An exchange that takes as long as a link of this rate needs."""

    def __init__(self, work: Any, seconds: float) -> None:
        self._work, self._seconds = work, seconds

    def wait(self, *args: Any) -> None:
        self._work.wait(*args)
        time.sleep(self._seconds)


def slow_down(rate: float) -> None:
    """Let the model's exchanges take as long as over a link of so many bytes a second, between two hosts."""
    segments.place = lambda: f"host {train.rank()}"
    sums = distributed.all_reduce

    def all_reduce(tensor: torch.Tensor, *args: Any, async_op: bool = False, **options: Any) -> Any:
        seconds = tensor.numel() * tensor.element_size() / rate if "group" not in options else 0.0
        work = Slow(sums(tensor, *args, async_op=True, **options), seconds)
        if async_op:
            return work
        work.wait()
        return None

    distributed.all_reduce = all_reduce


def some_steps(model: nn.Module, optimizer: torch.optim.Optimizer, width: int, steps: int) -> None:
    x = torch.randn(4, width, dtype=next(model.parameters()).dtype) + train.rank()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()


def without_permission() -> None:
    for rate in (1e9, 1e8, 1e7):
        slow_down(rate)
        for layers, width in ((1, 16), (2, 64), (3, 128)):
            model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
            optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
            train.data_parallel(model, optimizer, strategy="auto")
            some_steps(model, optimizer, width, 12)
            strategy = dataparallel.strategy_of(model)
            assert type(strategy) is AllReduce
            assert strategy.figures.sent_bytes == 12 * 4 * layers * (width + 1) * width, "dense and in full precision"


def equal_after(steps: int) -> None:
    results = []
    for strategy in ("auto", "allreduce"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        train.data_parallel(model, optimizer, strategy=strategy)
        torch.manual_seed(2)
        some_steps(model, optimizer, 6, steps)
        results.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert torch.equal(*results)
    assert len(set(map(tuple, train.init().gather(results[0].tolist())))) == 1


def over_a_slow_link() -> None:
    slow_down(8e6)
    width = 512
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    train.data_parallel(model, optimizer, compression="auto")
    some_steps(model, optimizer, width, automatic.WARM_UP + automatic.MEASURED + 3)
    chosen = dataparallel.strategy_of(model).choice()["exchange"]  # type: ignore[union-attr]
    assert chosen in ("powersgd", "dgc"), chosen
    assert len(set(train.init().gather(chosen))) == 1


def told_no_more() -> None:
    """After its choice, of each kind, the strategy is told of no pass: a step costs as much as with a fixed one."""
    automatic.may_win = lambda *_: True
    for kind in ("none", "bf16", "dgc"):
        automatic.predict = lambda ranks, kind=kind: {"none": 2.0, kind: 1.0}
        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        train.data_parallel(model, optimizer, compression="auto")
        some_steps(model, optimizer, 16, automatic.WARM_UP + automatic.MEASURED + 2)
        strategy: Any = dataparallel.strategy_of(model)
        assert strategy.choice()["exchange"] == kind
        strategy.pass_began = strategy.gradient_ready = strategy.pass_ended = None
        some_steps(model, optimizer, 16, 2)
        weights = model.weight.tolist()
        assert train.init().gather(weights) == [weights] * 2


def over_a_very_slow_link() -> None:
    """One step tells enough of it, and one exchange of each candidate, of DGC in each stage of its warm-up."""
    automatic.ENOUGH_S = automatic.LONG_S = 0.0
    automatic.may_win = lambda *_: True
    tried: list[type] = []
    for kind in (AllReduce, WholeGradient):
        sound = kind.rehearse

        def rehearse(self: Any, sound: Any = sound) -> None:
            tried.append(type(self))
            sound(self)

        kind.rehearse = rehearse  # type: ignore[method-assign]
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train.data_parallel(model, optimizer, compression="auto")
    some_steps(model, optimizer, 64, 1)
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    assert strategy.choice() == {}, "the first step may be a slow one"
    some_steps(model, optimizer, 64, 1)
    assert strategy.choice(), "the second step told enough"
    assert sorted(tried.count(each) for each in set(tried)) == [1, 1, 5]


def a_warm_up_counts() -> None:
    """DGC's exchanges are short after its warm-up alone. A training that ends before gets another compression."""
    automatic.may_win = lambda *_: True

    def once(self: Any, kind: str, made: Any, held: Any) -> float:
        warm = kind == "dgc" and made._exchanges >= made.settings.warm_up_steps
        return {"powersgd": 0.002, "bf16": 0.1, "dgc": 0.001 if warm else 0.02}[kind]

    automatic.Automatic._once = once  # type: ignore[method-assign, assignment]
    sound, expected = automatic.predict, []

    def predict(ranks: Sequence[Measured]) -> Mapping[str, float]:
        expected.append(sound([one._replace(step_s=10.0, computing_s=0.0) for one in ranks]))
        return expected[-1]

    automatic.predict = predict  # type: ignore[assignment]
    for total_steps, kind in ((600, "powersgd"), (None, "powersgd"), (200_000, "dgc")):
        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        train.data_parallel(model, optimizer, compression="auto")
        with train.Session(model=model, optimizer=optimizer, total_steps=total_steps) as session:
            for _ in session.steps():
                some_steps(model, optimizer, 16, 1)
                if session.step > automatic.WARM_UP + automatic.MEASURED + 2:
                    break
        assert dataparallel.strategy_of(model).choice()["exchange"] == kind, total_steps  # type: ignore[union-attr]
    assert [each["dgc"] for each in expected] == pytest.approx([0.02, 0.0029, 0.001095], rel=1e-3)


def over_a_link_that_is_fast_enough() -> None:
    """Nothing is measured where no exchange could make the step shorter. All else is as if dense were named."""
    automatic.Automatic._try = None  # type: ignore[assignment, method-assign]
    sound = automatic.Automatic._knows_enough

    def knows_enough(self: Any) -> bool:
        self._steps = [Step(0.1, 0.001, None)] * len(self._steps)
        return sound(self)

    automatic.Automatic._knows_enough = knows_enough  # type: ignore[method-assign]
    model = nn.Linear(16, 16)
    train.data_parallel(model, torch.optim.SGD(model.parameters(), 0.01), compression="auto")
    some_steps(model, torch.optim.SGD(model.parameters(), 0.01), 16, automatic.WARM_UP + automatic.MEASURED + 3)
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    assert strategy.choice() == {"exchange": "none"}


def over_a_link_with_pauses() -> None:
    """An exchange that was disturbed is not the measure of its candidate: the median of several is."""
    automatic.may_win = lambda kind, *_: kind == "bf16"
    automatic.LONG_S = 10.0
    sound, tries, seen = automatic.Automatic._once, [], []

    def once(self: Any, *args: Any) -> float:
        tries.append(sound(self, *args))
        return 1.0 if len(tries) < automatic.MOST_TRIES / 2 else 0.001

    def predict(ranks: Sequence[Measured]) -> Mapping[str, float]:
        seen.append([one.exchange_s["bf16"] for one in ranks])
        return {"none": 1.0}

    automatic.Automatic._once, automatic.predict = once, predict  # type: ignore[method-assign, assignment]
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train.data_parallel(model, optimizer, compression="auto")
    some_steps(model, optimizer, 16, automatic.WARM_UP + automatic.MEASURED + 3)
    assert seen == [[0.001, 0.001]]


def in_turn() -> None:
    """Every other measured step makes its exchange after the pass, and has the bits of all others."""
    sound, seen = automatic.summed_up, []

    def summed_up(steps: Sequence[Step]) -> Measured:
        seen.extend(steps)
        return sound(steps)

    automatic.summed_up = summed_up
    results = []
    for compression in ("auto", "none"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        train.data_parallel(model, optimizer, compression=compression)
        torch.manual_seed(2)
        some_steps(model, optimizer, 64, automatic.WARM_UP + automatic.MEASURED + 1)
        results.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert [one.computing_s is not None for one in seen] == [False, True] * (automatic.MEASURED // 2)
    assert all(one.computing_s is None or 0 < one.computing_s < one.whole_s for one in seen)
    assert torch.equal(*results)


def for_adam() -> None:
    """Candidates that do not fit the optimizer are left out."""
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())
    train.data_parallel(model, optimizer, compression="auto")
    seen: list[list[str]] = []

    def predict(ranks: Sequence[Measured]) -> Mapping[str, float]:
        seen.append(list(ranks[0].exchange_s))
        return {"none": 2.0, "bf16": 1.0}

    automatic.may_win = lambda *_: True
    automatic.predict = predict  # type: ignore[assignment]
    some_steps(model, optimizer, 16, automatic.WARM_UP + automatic.MEASURED + 3)
    assert seen == [["none", "powersgd", "bf16"]]
    bytes_before = dataparallel.strategy_of(model).figures.sent_bytes  # type: ignore[union-attr]
    some_steps(model, optimizer, 16, 1)
    sent = dataparallel.strategy_of(model).figures.sent_bytes - bytes_before  # type: ignore[union-attr]
    assert sent == 2 * 17 * 16, "two bytes for each number"


def without_a_trace() -> None:
    """The measurements change nothing: not the gradients, not the momentum, not the hooks of the optimizer."""
    automatic.may_win = lambda *_: True
    automatic.predict = lambda ranks: {"none": 1.0, "dgc": 2.0}  # type: ignore[assignment]
    results = []
    for compression in ("auto", "none"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 20))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
        train.data_parallel(model, optimizer, compression=compression)
        torch.manual_seed(2)
        some_steps(model, optimizer, 20, 20)
        results.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
        assert not optimizer._optimizer_step_pre_hooks
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "target",
    [
        without_permission,
        over_a_slow_link,
        over_a_very_slow_link,
        a_warm_up_counts,
        told_no_more,
        over_a_link_that_is_fast_enough,
        over_a_link_with_pauses,
        in_turn,
        for_adam,
        without_a_trace,
    ],
)
def test_two_ranks(target: Any, tmp_path: Path) -> None:
    assert crew.run(target, folder=tmp_path) == [0, 0], crew.output(tmp_path)


@pytest.mark.parametrize("steps", marks.long_except([300], [300, 1000]))
def test_without_permission_the_weights_are_those_of_dense_allreduce(steps: int, tmp_path: Path) -> None:
    assert crew.run(equal_after, steps, folder=tmp_path) == [0, 0], crew.output(tmp_path)


def learn(folder: Path, kind: str, steps: int, stop: int | None, compression: str | None = "auto") -> None:
    """Train with momentum; the first start chooses `kind`, a later one must not choose again."""

    def predict(ranks: Sequence[Measured]) -> Mapping[str, float]:
        assert not (folder / "chosen").exists(), "the choice is made once"
        train.init().gather(None)
        (folder / "chosen").touch()
        return {"none": 2.0, kind: 1.0}

    automatic.may_win = lambda *_: True
    automatic.predict = predict  # type: ignore[assignment]
    world = train.init()
    torch.manual_seed(1 + world.rank)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, compression=compression)
    batches = train.Batches(scripts.examples(), 7, seed=3)
    hooks = [scripts.Interrupt(stop, signal.SIGTERM, rank=0)] if stop else []
    kept = {"model": model, "optimizer": optimizer, "batches": batches}
    with train.Session(**kept, checkpoints=folder / "checkpoints", total_steps=steps, hooks=hooks) as session:
        for x, y in session.steps(batches):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if world.is_chief:
        state = {"model": model.state_dict(), "choice": dataparallel.strategy_of(model).choice()}  # type: ignore[union-attr]
        torch.save(state, folder / "final.pt")


@pytest.mark.parametrize(
    "kind", [pytest.param("bf16", marks=pytest.mark.long), pytest.param("powersgd", marks=pytest.mark.long), "dgc"]
)
def test_a_resumed_run_keeps_the_choice_and_ends_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder in (whole, parted):
        folder.mkdir()
    assert crew.run(learn, whole, kind, 40, None, folder=whole) == [0, 0], crew.output(whole)
    assert crew.run(learn, parted, kind, 40, 20, folder=parted) == [143, 143], crew.output(parted)
    assert not (parted / "final.pt").exists()
    assert crew.run(learn, parted, kind, 40, None, folder=parted) == [0, 0], crew.output(parted)
    assert f"compression {kind}, as chosen before" in crew.output(parted)
    one, other = (torch.load(folder / "final.pt") for folder in (whole, parted))
    assert one["choice"] == other["choice"] == {"exchange": kind}
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name


@pytest.mark.long
def test_the_choice_outlives_a_start_with_one_process(tmp_path: Path) -> None:
    assert crew.run(learn, tmp_path, "dgc", 40, 20, folder=tmp_path) == [143, 143], crew.output(tmp_path)
    assert crew.run(learn, tmp_path, "dgc", 50, 30, folder=tmp_path, world_size=1) == [143], crew.output(tmp_path)
    assert "strategy of model goes on" in crew.output(tmp_path), "what the two ranks kept back is not lost"
    assert crew.run(learn, tmp_path, "dgc", 60, None, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    assert torch.load(tmp_path / "final.pt")["choice"] == {"exchange": "dgc"}


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (kinds, chosen)
        for kinds in [("ps",), automatic.LOSSY, ("ps", "bf16"), ()]
        for chosen in [*automatic.CANDIDATES, "of another version"]
        if not ("ps" in kinds and chosen == "ps")  # test_a_resumed_run_goes_on_with_its_servers
    ],
)
def test_a_choice_of_a_checkpoint_is_kept_only_with_permission(
    kinds: tuple[str, ...], chosen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The permission may have changed since the checkpoint. A lossy exchange without it would change the result."""
    named = choices.Choice("allreduce")

    def make(name: str) -> automatic.Exchange:
        return choices._exchange(dataclasses.replace(named, compression=name), False, 1 << 20)

    model = nn.Linear(4, 4)
    strategy = automatic.Automatic(make, kinds)
    strategy.attach(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    strategy.keep_choice({"exchange": chosen})
    kept = chosen if chosen in kinds else "none"
    assert type(strategy._present) is type(make(kept))
    said = capsys.readouterr().err
    if chosen in ("none", "ps") or chosen in kinds:
        assert strategy.choice() == {"exchange": kept}
        assert "as chosen before" in said
    else:
        assert strategy.choice() == {}, "it measures anew"
        assert f"compression {chosen}, which is not permitted now" in said


def test_a_compression_s_state_that_nothing_takes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A run with a named compression is resumed with `auto`: its checkpoint has a state, and no choice."""
    chosen = choices.Choice("allreduce", "auto")
    model = nn.Linear(4, 4)
    strategy = choices.make(chosen, unused_parameters=False, bucket_bytes=1 << 20)
    strategy.attach(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    strategy.load_state_dict({})
    assert capsys.readouterr().err == ""
    strategy.load_state_dict({"residual": [torch.ones(4)]})
    assert "gradients that the compression kept back" in capsys.readouterr().err


def test_one_that_is_alone_may_train_layers_later() -> None:
    """Nobody else trains them, so no process trains them by itself."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train.data_parallel(model, optimizer, compression="auto")
    with train.Session(model=model, optimizer=optimizer, total_steps=2) as session:
        for _ in session.steps():
            model[0].requires_grad_(True)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(errors.StateError, match="not one of auto, allreduce"):
        choices.choose("automatic", None, {})


def test_one_that_is_alone_applies_the_momentum_of_an_inherited_state_once() -> None:
    """A bound of the norm lets the compression follow the backward passes before it inherits."""
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = dgc.DGC(clip_norm=1e6)
    made = automatic.Automatic(
        lambda kind: AllReduce() if kind == automatic.DENSE else dgc.DeepGradientCompression(settings), ("dgc",)
    )
    made.attach(model, optimizer)
    made.keep_choice({"exchange": "dgc"})
    kept = {"velocity": {"weight": torch.zeros(4)}, "residual": {"weight": torch.zeros(4)}}
    assert made.inherit({"exchanges": 9, "owed": 0, **kept}, [{"exchanges": 9, "owed": 0, **kept}], 2)
    told = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (model.weight * told).sum().backward()
    torch.testing.assert_close(model.weight.grad, told)
