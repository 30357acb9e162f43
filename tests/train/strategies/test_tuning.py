"""Buckets whose size is measured: no gradient is altered, all ranks choose one size, and a resumed run keeps it."""

from __future__ import annotations

import signal
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from tests.train.rounds import counting as counts
from tests.train.rounds import gang
from tests.train.strategies import test_allreduce, test_sums
from torch import nn

from oarlock import train
from oarlock.train import errors, membership
from oarlock.train.sharing import crews
from oarlock.train.strategies import automatic, buckets, choices, dataparallel, tuning
from oarlock.train.strategies.allreduce import AllReduce

DEFAULT, SMALL, LARGE = 4000, 1000, 8000
"""The sizes of these small models."""
MEASURED = 2
WHOLE = tuning.WARM_UP + 3 * (MEASURED + 1)
"""So many steps are enough for three sizes."""


def small_sizes(kept: int | None = None) -> list[int]:
    """Let models of some kilobytes have several sizes, and the search return `kept`. Return the list of its ends."""
    tuning.SIZES, tuning.MEASURED = (SMALL, LARGE), MEASURED
    buckets.BUCKET_BYTES = DEFAULT
    sound, ended = tuning.choose, []

    def choose(sizes: Sequence[int], ranks: Sequence[Sequence[float]]) -> tuple[int, dict[int, float]]:
        size, steps = sound(sizes, ranks)
        ended.append(len(steps))
        return kept or size, steps

    tuning.choose = choose
    return ended


def test_the_default_is_kept_unless_another_size_is_clearly_better() -> None:
    sizes = (4, 1, 16)
    assert tuning.choose(sizes, [[1.0, 0.97, 0.96]])[0] == 4, "hardly better"
    assert tuning.choose(sizes, [[1.0, 0.90, 0.80]]) == (16, {4: 1.0, 1: 0.90, 16: 0.80})
    assert tuning.choose(sizes, [[1.0, 0.90, 0.70], [1.0, 0.90, 0.95]])[0] == 1, "the slowest rank counts"
    assert tuning.choose(sizes, [[1.0, 0.90], [1.0, 0.80]])[0] == 1, "of those that were measured"
    assert tuning.choose(sizes, [[], []]) == (4, {}), "nothing was measured yet"


def test_each_size_has_steps_of_its_own_and_its_first_one_does_not_count() -> None:
    search = tuning.Tuning(4 << 20, 20 << 20)
    assert search.sizes == (4 << 20, 1 << 20, 16 << 20), "none is larger than the gradients"
    seen, now = [], 0.0
    while not search.over:
        seen.append(search.present)
        first = len(seen) > 1 and seen[-1] != seen[-2]
        now += 50.0 if first or len(seen) <= tuning.WARM_UP else search.present / (1 << 20)
        search.step_ended(now)
    assert search.medians == [4.0, 1.0, 16.0]
    assert seen == [4 << 20] * (3 + 5) + [1 << 20] * (1 + 5) + [16 << 20] * (1 + 5)
    assert tuning.Tuning(4 << 20, 1000).sizes == (4 << 20,)


def learned(bucket_bytes: int | str, unused: bool, wire: str, parts: int) -> tuple[list[torch.Tensor], AllReduce, int]:
    """Return the weights after the search and some steps, the strategy, and the number of its layouts."""
    layouts: list[int] = []
    sound = buckets.sort

    def sort(named: Any, size: Any, *args: Any) -> list[buckets.Bucket]:
        layouts.append(size)
        return sound(named, size, *args)

    buckets.sort = sort
    torch.manual_seed(1)
    model = test_sums.wide_net() if wire == "memory" else test_allreduce.plain_net()
    compression = wire if wire in choices.WIRES else "none"
    train.data_parallel(
        model, compression=compression, strategy="allreduce", bucket_bytes=bucket_bytes, unused_parameters=unused
    )
    found = test_allreduce.learned(model, model, steps=WHOLE + 3, parts=parts)
    buckets.sort = sound
    strategy = dataparallel.strategy_of(model)
    assert isinstance(strategy, AllReduce)
    return found, strategy, len(layouts)


def as_with_one_size() -> None:
    """Two ranks add two numbers in whatever groups: the search leaves no trace in the bits."""
    for unused, wire, parts in (
        (False, "", 1),
        (True, "", 1),
        (False, "", 3),
        (False, "bf16", 1),
        (True, "fp16", 2),
        (False, "memory", 1),
    ):
        ended = small_sizes(kept=SMALL)
        if wire == "memory":
            crews.LEAST_BYTES = 1000
        expected, _, _ = learned(LARGE, unused, wire, parts)
        found, strategy, layouts = learned("tuned", unused, wire, parts)
        assert layouts == 4, "the default, two more, and the one that is kept"
        assert ended == [3], "all three sizes were measured, once"
        assert strategy.choice() == {"bucket_bytes": SMALL}
        assert len(strategy._buckets) > 2
        assert any(each._sum is not None for each in strategy._buckets) == (wire == "memory")
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other), (unused, wire, parts)


def choose_one() -> None:
    """Each rank measures its own seconds. All keep the same size, though one of them would keep another."""
    small_sizes()
    world, sound = train.init(), tuning.Tuning.step_ended

    def step_ended(self: tuning.Tuning, now: float) -> bool:
        size = self.present
        over = sound(self, now)
        if over:
            fast = {SMALL: 0.5, LARGE: 0.7} if world.is_chief else {SMALL: 2.0, LARGE: 0.8}
            self.medians[-1] = fast.get(size, 1.0)
        return over

    tuning.Tuning.step_ended = step_ended  # type: ignore[method-assign]
    _, strategy, _ = learned("tuned", False, "", 1)
    assert world.gather(strategy.choice()) == [{"bucket_bytes": LARGE}] * 2


def after_the_choice_of_an_exchange() -> None:
    """`auto` compares exchanges with one size; the size is sought in the exchange that it has chosen."""
    for kind in ("none", "bf16", "powersgd"):
        ended = small_sizes(kept=SMALL)
        automatic.may_win = lambda *_: True
        automatic.choose = lambda steps, kind=kind: kind
        model = test_allreduce.plain_net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        train.data_parallel(model, optimizer, compression="auto", bucket_bytes="tuned")
        strategy = dataparallel.strategy_of(model)
        assert isinstance(strategy, automatic.Automatic)
        x = torch.randn(4, 6)
        for _ in range(automatic.WARM_UP + automatic.MEASURED):
            model(x).square().mean().backward()
            assert strategy._dense._tuning is not None
            assert not strategy._dense._tuning.medians
        for _ in range(WHOLE + 2):
            model(x).square().mean().backward()
        size = {} if kind == "powersgd" else {"bucket_bytes": SMALL}
        assert strategy.choice() == {"exchange": kind, **size}
        assert len(ended) == len(size)
        assert bool(strategy._dense._buckets) == (kind == "none"), "buckets that nothing uses hold no memory"


def with_another_batch() -> None:
    """Sizes are compared over equal work. Each rank may have another batch before the change, and the same after it."""
    small_sizes()
    world = train.init()
    model = train.data_parallel(test_allreduce.plain_net(), bucket_bytes="tuned")
    strategy = dataparallel.strategy_of(model)
    assert isinstance(strategy, AllReduce)
    strategy.figures.share = 4 + world.rank
    for changed in (False, True):
        if changed:
            strategy.figures.share = 5
        for step in range(WHOLE - 1):
            assert strategy._tuning is not None
            measured = len(strategy._tuning.medians)
            if step:
                assert measured == max(0, (step - tuning.WARM_UP + 1) // (MEASURED + 1))
            if not changed and step == WHOLE - 2:
                break
            model(torch.randn(4, 6)).square().mean().backward()
            if changed and step == 0:
                assert strategy._bucket_bytes == DEFAULT
    assert set(strategy.choice()) == {"bucket_bytes"}


def at_a_checkpoint_of_the_choice() -> None:
    """The step in which `auto` has chosen is saved with a size, too: no later search decides by time."""
    for kind in ("none", "bf16"):
        small_sizes(kept=SMALL)
        automatic.ENOUGH_S = 1e9
        automatic.may_win = lambda *_: True
        automatic.choose = lambda steps, kind=kind: kind
        model = test_allreduce.plain_net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        train.data_parallel(model, optimizer, compression="auto", bucket_bytes="tuned")
        strategy = dataparallel.strategy_of(model)
        assert strategy is not None
        for _ in range(automatic.WARM_UP + automatic.MEASURED + 1):
            assert strategy.choice() == {}
            model(torch.randn(4, 6)).square().mean().backward()
        strategy.before_save()
        assert strategy.choice() == {"exchange": kind, "bucket_bytes": SMALL}


@pytest.mark.parametrize(
    "scenario",
    [
        as_with_one_size,
        choose_one,
        after_the_choice_of_an_exchange,
        with_another_batch,
        at_a_checkpoint_of_the_choice,
    ],
)
def test_two_ranks(scenario: Callable[[], None], tmp_path: Path) -> None:
    assert crew.run(scenario, folder=tmp_path) == [0, 0], crew.output(tmp_path)


def learn(folder: Path, kept: int, bucket_bytes: Any, saved: int, stop: int | None, compression: str = "none") -> None:
    """Train for 24 steps. The first start measures, a later one must not."""
    ended = small_sizes(kept)
    resumes = (folder / "checkpoints").exists()
    world = train.init()
    world.gather(None)
    automatic.ENOUGH_S = 1e9  # the choice comes after equally many steps in both runs
    automatic.may_win = lambda *_: True
    automatic.choose = lambda steps: "bf16"
    torch.manual_seed(1)
    model = test_allreduce.plain_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    train.data_parallel(model, optimizer, bucket_bytes=bucket_bytes, compression=compression)
    batches = train.Batches(scripts.examples(), 7, seed=3)
    hooks = [scripts.Interrupt(stop, signal.SIGKILL, rank=rank) for rank in range(world.world_size)] if stop else []
    told = {"model": model, "optimizer": optimizer, "batches": batches}
    where = {"checkpoints": folder / "checkpoints", "every_steps": saved}
    with train.Session(**told, **where, total_steps=24, hooks=hooks) as session:
        for x, y in session.steps(batches):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if session.step == saved + 1 and session._checkpoints is not None:
                session._take_saved(session._checkpoints.finish())  # it is complete before anybody is killed
    assert not (resumes and ended), "the size of the checkpoint was measured again"
    if world.is_chief:
        strategy = dataparallel.strategy_of(model)
        assert strategy is not None
        torch.save({"model": model.state_dict(), "choice": strategy.choice()}, folder / "final.pt")


def ended_with(folder: Path) -> tuple[dict[str, Any], torch.Tensor]:
    final = torch.load(folder / "final.pt")
    return final["choice"], torch.cat([each.flatten() for each in final["model"].values()])


@pytest.mark.parametrize(("saved", "compression"), [(16, "none"), (6, "none"), (2, "none"), (16, "auto")])
def test_a_resumed_run_keeps_the_size_and_ends_with_the_same_bits(saved: int, compression: str, tmp_path: Path) -> None:
    """The checkpoint is from after the search, from its middle, or from before its first measurement."""
    codes = {}
    for name, size, stops in (("whole", LARGE, [None]), ("parted", LARGE, [saved + 1, None])):
        (tmp_path / name).mkdir()
        for stop in stops:
            args = (tmp_path / name, size, "tuned", saved, stop, compression)
            codes[name] = crew.run(learn, *args, folder=tmp_path / name, world_size=3)
            assert codes[name] == [-9 if stop else 0] * 3, crew.output(tmp_path / name, 3)
    (choice, whole), (kept, parted) = (ended_with(tmp_path / name) for name in ("whole", "parted"))
    assert choice == kept
    assert choice["bucket_bytes"] == LARGE
    assert torch.equal(whole, parted)
    (tmp_path / "other").mkdir()
    args = (tmp_path / "other", SMALL, "tuned", saved, None, compression)
    assert crew.run(learn, *args, folder=tmp_path / "other", world_size=3) == [0] * 3
    assert not torch.equal(ended_with(tmp_path / "other")[1], whole), "another size gives other bits"


def test_the_size_outlives_a_start_with_one_process_and_a_named_size_wins(tmp_path: Path) -> None:
    def run(bucket_bytes: Any, saved: int, stop: int | None, ranks: int) -> None:
        args = (tmp_path, LARGE, bucket_bytes, saved, stop)
        codes = crew.run(learn, *args, folder=tmp_path, world_size=ranks)
        assert codes == [-9 if stop else 0] * ranks, crew.output(tmp_path, ranks)

    run("tuned", 14, 15, 2)
    run("tuned", 17, 18, 1)
    run("tuned", 20, 21, 2)
    run(DEFAULT, 24, None, 2)
    assert ended_with(tmp_path)[0] == {}


def test_alone_nothing_is_measured() -> None:
    model = test_allreduce.plain_net()
    assert train.data_parallel(model, bucket_bytes="tuned") is model
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    model(torch.randn(2, 6)).sum().backward()
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    strategy.before_save()
    assert strategy.choice() == {}


def test_another_word_is_refused() -> None:
    with pytest.raises(errors.StateError, match="bucket_bytes='best' is neither a number of bytes nor \"tuned\""):
        train.data_parallel(nn.Linear(1, 1), bucket_bytes="best")  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "used"), [('{"kind": "allreduce"}', 1000), ('{"bucket_bytes": 4000}', 4000)])
def test_the_job_file_overrides_the_script(told: str, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choices.VARIABLE, told)
    model = train.data_parallel(nn.Linear(1, 1), bucket_bytes=1000)
    strategy = dataparallel.strategy_of(model)
    assert isinstance(strategy, AllReduce)
    assert (strategy._bucket_bytes, strategy._tunes) == (used, False)
    monkeypatch.setenv(choices.VARIABLE, '{"bucket_bytes": "tuned"}')
    for compression in ("none", "auto"):  # with `auto`: that of the dense exchange
        found: Any = dataparallel.strategy_of(train.data_parallel(nn.Linear(1, 1), compression=compression))
        assert getattr(found, "_dense", found)._tunes


class Chosen(train.Strategy):
    """A strategy with these choices."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.chosen = chosen

    def choice(self) -> dict[str, Any]:
        return self.chosen

    def keep_choice(self, choice: Any) -> None:
        self.chosen = {**self.chosen, **choice}


@pytest.mark.parametrize("mine", [{}, {"exchange": "bf16"}, {"exchange": "bf16", "bucket_bytes": 1}])
def test_a_rank_takes_the_choices_that_it_lacks(mine: dict[str, Any]) -> None:
    """A loss in the exchange of the measurements leaves some ranks with the size and some without."""
    strategy = Chosen(mine)
    one: Any = types.SimpleNamespace(_strategies=[strategy])
    membership.Membership._keep_choices(one, [{}])
    assert strategy.chosen == mine
    membership.Membership._keep_choices(one, [{"exchange": "bf16", "bucket_bytes": 1}])
    assert strategy.chosen == {"exchange": "bf16", "bucket_bytes": 1}


def tuned_count(folder: Path) -> None:
    """`counts.count`, whose search is slow enough for changes of the members in its middle."""
    tuning.SIZES, tuning.MEASURED, buckets.BUCKET_BYTES = (64, 1000), 40, 400
    attach = train.data_parallel

    def data_parallel(model: nn.Module, optimizer: Any, **_: Any) -> nn.Module:
        return attach(model, optimizer, bucket_bytes="tuned")

    def session(*, checkpoints: Path, every_steps: int, **told: Any) -> train.Session:
        return sound(**told)  # a checkpoint would end the search

    train.data_parallel, sound, train.Session = data_parallel, train.Session, session
    made: list[AllReduce] = []
    begin = AllReduce._begin_tuning

    def begin_tuning(self: AllReduce) -> None:
        made.append(self)
        begin(self)

    AllReduce._begin_tuning = begin_tuning  # type: ignore[method-assign]
    begun = tuning.Tuning.restart

    def restart(self: tuning.Tuning) -> None:
        if getattr(self, "medians", None):
            (folder / "restarted").touch()
        begun(self)

    tuning.Tuning.restart = restart  # type: ignore[method-assign]
    counts.count(folder, 0.0, 300)
    (folder / "size").write_text(str(made[0].choice()))


def test_the_search_begins_anew_with_other_members(tmp_path: Path) -> None:
    made = gang.Gang(tmp_path, tuned_count)
    names = ["a", "b", "c"]

    def on(steps: int) -> None:
        before = counts.reached(made, names[0])
        made.wait(lambda: counts.reached(made, names[0]) >= before + steps)

    try:
        made.start(names)
        on(60)  # the second size is in use
        made.kill("c")
        names.remove("c")
        counts.change(made, names)
        on(60)
        made.begin("n0")
        made.wait(lambda: made.ready("n0"))
        names.append("n0")
        counts.change(made, names)
        made.wait(lambda: counts.reached(made, "n0") > 0)  # the search begins anew with it
        on(200)
        counts.end(made, names, losses=1)
        assert (tmp_path / "a" / "restarted").exists()
        assert len({(tmp_path / name / "size").read_text() for name in names}) == 1
        assert "bucket_bytes" in (tmp_path / "a" / "size").read_text()
    finally:
        made.close()
