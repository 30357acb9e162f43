"""The speed that a training run reports, and the batch sizes that the scheduler decides for it."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from torch import nn

from oarlock import train
from oarlock.train import agreement, batchsizes, environment, errors, membership, worlds
from oarlock.train import session as timed
from oarlock.train.compression import powersgd
from oarlock.train.measuring import noise, pace, straggling
from oarlock.train.strategies import strategy


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# The pace


def test_a_step_is_counted_from_end_to_end_and_warm_up_and_saving_are_not() -> None:
    clock = Clock()
    kept = pace.Pace(clock)
    mean = pace.Mean(kept)
    for took, waited in [(9.0, 3.0)] * pace.WARM_UP_STEPS + [(2.0, 0.5), (4.0, 1.5)]:
        clock.now += took
        kept.ended(counts=True, waited_s=waited)
    assert mean.since() == (3.0, 1.0, 0.0, 0.0)
    assert mean.since() is None, "nothing new"
    clock.now += 30  # a checkpoint
    kept.restart()
    clock.now += 5
    kept.ended(counts=False, waited_s=0.0)  # a part without an exchange
    clock.now += 1
    kept.ended(counts=True, waited_s=None)
    assert mean.since() == (1.0, None, 0.0, 0.0), "it is not known how long it waited"


def test_a_new_batch_size_warms_up_again() -> None:
    clock = Clock()
    kept = pace.Pace(clock)
    for _ in range(10):
        clock.now += 1
        kept.ended(counts=True, waited_s=0.0)
    before = kept.total[0]
    kept.restart(cold=True)
    for _ in range(pace.WARM_UP_STEPS):
        kept.ended(counts=True, waited_s=0.0)
    assert kept.total[0] == before


def reports(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events-0.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "progress" and "step_s" in event]


def test_the_rank_that_the_others_wait_for_is_told(tmp_path: Path) -> None:
    env = {rank: {"OARLOCK_REPORT": str(tmp_path / f"report-{rank}")} for rank in range(2)}
    assert crew.run(scripts.drag, tmp_path, 40, 1, folder=tmp_path, env_of_rank=env) == [0, 0], crew.output(tmp_path)
    quick, slow = (reports(tmp_path / f"report-{rank}")[-1] for rank in range(2))
    assert (quick["ranks"], quick["local"], quick["accumulate"]) == (2, 8, 1)
    assert slow["sync_s"] < quick["sync_s"] <= quick["step_s"]
    assert quick["sync_s"] > 0.02, "of 0.05 s that the other takes longer"
    assert quick["sent_bytes"] == 4 * 21, "half of 21 gradients in each direction of the ring"
    assert 0 <= quick["data_s"] <= quick["step_s"]
    metrics = (tmp_path / "report-0" / "metrics-0.bin").read_bytes()
    assert all(f'"oarlock/{name}"'.encode() in metrics for name in ("step_s", "sync_s", "data_s", "sent_bytes"))


def test_a_rank_alone_waits_for_no_other(tmp_path: Path) -> None:
    env = {"OARLOCK_REPORT": str(tmp_path / "report")}
    assert crew.run(scripts.drag, tmp_path, 30, 0, folder=tmp_path, world_size=1, env=env) == [0]
    last = reports(tmp_path / "report")[-1]
    assert (last["ranks"], last["sync_s"], "noise" in last) == (1, 0.0, False)
    assert last["step_s"] > 0.05


# The gradients' noise


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("scale", [20.0, 300.0])
def test_the_noise_scale_of_a_known_distribution_is_found(ranks: int, scale: float) -> None:
    """Examples' gradients around a known one with a known variance: the scale is their ratio, on each rank."""
    generator = torch.Generator().manual_seed(7)
    size, share = 400, 16
    true = torch.randn(size, generator=generator)
    each = (scale * true.square().sum() / size).sqrt()  # of one example: trace of the covariance = scale * |G|^2
    found = noise.Noise(ranks)
    for _ in range(noise.EVERY * 400):
        due = found.due()
        if due:
            gradients = true + each / share**0.5 * torch.randn(ranks, size, generator=generator)
            found.take(noise.squared_norm(gradients[0]), noise.squared_norm(gradients.mean(0)), share)
    told = found.examples()
    assert told is not None
    assert told == pytest.approx(scale, rel=0.25)


def test_nothing_is_said_before_enough_is_known_or_without_a_second_process() -> None:
    found = noise.Noise(2)
    for _ in range(noise.LEAST_SAMPLES - 1):
        found.take(torch.tensor(3.0), torch.tensor(2.0), 8.0)
    assert found.examples() is None
    found.take(torch.tensor(3.0), torch.tensor(2.0), 8.0)
    assert found.examples() == pytest.approx(8 * 2.0 / 1.0)  # variance (3-2)/(1-1/2), squared (2*2-3)/1
    assert not any(noise.Noise(1).due() for _ in range(20))
    lost = noise.Noise(2)
    for _ in range(20):
        lost.take(torch.tensor(9.0), torch.tensor(2.0), 8.0)
    assert lost.examples() is None, "the gradient is lost in its noise"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_that_are_not_finite_do_not_count(dtype: torch.dtype) -> None:
    """The scale of a GradScaler begins too large. One infinite gradient must not hide all later ones."""
    found = noise.Noise(2)
    for wrong in (float("inf"), float("nan")):
        found.take(torch.tensor(wrong, dtype=dtype), torch.tensor(2.0, dtype=dtype), 8.0)
        for _ in range(noise.LEAST_SAMPLES // 2):
            assert found.examples() is None
            found.take(torch.tensor(3.0, dtype=dtype), torch.tensor(2.0, dtype=dtype), 8.0)
    assert found.examples() == pytest.approx(8 * 2.0 / 1.0)


def test_squares_of_half_precision_do_not_overflow() -> None:
    assert noise.squared_norm(torch.full((4,), 1e4, dtype=torch.float16)).item() == pytest.approx(4e8)


def test_the_norm_of_complex_gradients_is_known() -> None:
    assert noise.squared_norm(torch.tensor([3.0 + 4.0j, 2.0])).item() == pytest.approx(29.0)


# The batch size


def test_decisions_are_found_in_the_environment_and_then_in_the_file(tmp_path: Path) -> None:
    clock = Clock()
    environ = {"OARLOCK_LOCAL_BATCH": "32", "OARLOCK_ACCUMULATE": "2", "OARLOCK_REPORT": str(tmp_path)}
    given = environment.Environment.read(environ)
    assert given.batch == train.Batch(32, 2)
    told = batchsizes.BatchFile(given.report, clock)
    assert told.look() is None
    path = tmp_path / batchsizes.FILE
    for text, expected in [
        ('{"local": 64, "accumulate": 1}', train.Batch(64)),
        ("not json", train.Batch(64)),
        ('{"local": 0, "accumulate": 1}', train.Batch(64)),
        ('{"local": 16, "accumulate": 8, "later": true}', train.Batch(16, 8)),
    ]:
        (tmp_path / "~").write_text(text)
        (tmp_path / "~").rename(path)
        clock.now += 1
        assert told.look() == expected, text
    path.write_text('{"local": 1, "accumulate": 1}')
    assert told.look() == train.Batch(16, 8), "not looked at again so soon"
    assert environment.Environment.read({"OARLOCK_LOCAL_BATCH": "many"}).batch is None
    assert train.Batch.of(train.Batch(4096, 17).code) == train.Batch(4096, 17)


def test_all_ranks_hear_the_chiefs_word_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = worlds.World(0, 1, 0, torch.device("cpu"))
    told = agreement.Agreement(alone, lambda: 0.0).settle(stop=0, save=False, batch=5, noise=1.5)
    assert (told.batch, told.noise) == (5, 1.5)


def adapted(folder: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"adapted-{rank}.pt", weights_only=True)
    return found


def report_env(folder: Path, **more: str) -> dict[int, dict[str, str]]:
    for rank in range(2):
        (folder / f"report-{rank}").mkdir(parents=True)
    return {rank: {"OARLOCK_REPORT": str(folder / f"report-{rank}"), **more} for rank in range(2)}


def test_parts_of_a_step_are_worth_the_whole(tmp_path: Path) -> None:
    """4 examples twice are 8 at once: the same gradient, the same weights up to rounding, as many steps."""
    for name, local, accumulate in [("whole", "8", "1"), ("parts", "4", "2")]:
        folder = tmp_path / name
        env = report_env(folder, OARLOCK_LOCAL_BATCH=local, OARLOCK_ACCUMULATE=accumulate)
        codes = crew.run(adapt_ten, folder, folder=folder, env_of_rank=env)
        assert codes == [0, 0], crew.output(folder)
    whole, parts = adapted(tmp_path / "whole"), adapted(tmp_path / "parts")
    assert (whole["batch"], parts["batch"]) == ((8, 1), (4, 2))
    assert len(parts["seen"]) == 2 * len(whole["seen"]) == 20
    for name, weights in whole["model"].items():
        assert torch.allclose(weights, parts["model"][name], atol=1e-5), name
    assert whole["exchanges"] == parts["exchanges"] == 10, "one for each step, however many parts it has"


def adapt_ten(folder: Path) -> None:
    scripts.adapt(folder, change={}, total_steps=10)


def test_a_change_is_taken_up_at_the_same_step_and_no_example_is_lost(tmp_path: Path) -> None:
    """Only the chief's agent is told; an epoch of 96 examples is seen once, whatever the sizes."""
    env = report_env(tmp_path, OARLOCK_BATCH_SIZE="16")
    assert crew.run(adapt_midway, tmp_path, folder=tmp_path, env_of_rank=env) == [0, 0], crew.output(tmp_path)
    ranks = [adapted(tmp_path, rank) for rank in range(2)]
    sizes = [[(step, len(which)) for step, _, which in rank["seen"]] for rank in ranks]
    assert sizes[0] == sizes[1], "in step"
    assert [rank["batch"] for rank in ranks] == [(4, 3)] * 2
    said = (tmp_path / "rank-0.txt").read_text()
    assert said.count("on a step takes 4 examples 3 times") == 1, "however many exchanges tell it"
    assert {size for _, size in sizes[0]} == {8, 4}
    for rank in ranks:
        assert rank["total"] == rank["seen"][-1][0]
    taken = sum(len(which) for rank in ranks for _, _, which in rank["seen"])
    assert 4 * (96 - 16) <= taken <= 4 * 96 + 24, "four epochs, and what the last step takes of the next"
    for name, weights in ranks[0]["model"].items():
        assert torch.equal(weights, ranks[1]["model"][name]), name
    for epoch in (0, 1):
        seen = [one for rank in ranks for _, of, which in rank["seen"] if of == epoch for one in which]
        assert len(set(seen)) == len(seen)
        assert len(seen) >= 96 - 16, "what is left of an epoch is smaller than a batch"


def adapt_midway(folder: Path) -> None:
    os.environ["OARLOCK_BATCH_SIZE"] = "16"
    batchsizes.LOOK_EVERY_S = 0.0
    scripts.adapt(folder, change={3: '{"local": 4, "accumulate": 3}'}, epochs=4)


def grow(folder: Path) -> None:
    batchsizes.LOOK_EVERY_S = 0.0
    scripts.adapt(folder, change={3: '{"local": 16, "accumulate": 1}', 8: '{"local": 32, "accumulate": 1}'}, epochs=9)


@pytest.mark.parametrize("compression", ["powersgd", "bf16"])
def test_a_new_batch_size_is_told(compression: str, tmp_path: Path) -> None:
    told = json.dumps({"compression": compression})
    env = report_env(tmp_path, OARLOCK_BATCH_SIZE="16", OARLOCK_STRATEGY=told)
    assert crew.run(grow, tmp_path, folder=tmp_path, env_of_rank=env) == [0, 0], crew.output(tmp_path)
    said = crew.output(tmp_path)
    assert said.count("on a step takes") == 2, said
    assert "session.gain stays 1" not in said


@pytest.mark.parametrize(("measures", "times"), [(False, 1), (True, 0)])
def test_where_the_noise_is_not_measured_it_is_said_once_that_the_gain_stays(*, measures: bool, times: int) -> None:
    figures = strategy.Figures(worlds.init())
    figures.measures_noise = measures
    words = batchsizes.Words()
    said = [words.of(step, train.Batch(16), 2, [figures]) for step in (3, 8)]
    assert all("a step takes 16 examples on each of 2 ranks" in one for one in said)
    assert "".join(said).count("so session.gain stays 1") == times


def test_a_strategy_knows_whether_it_measures_noise() -> None:
    assert train.AllReduce().figures.measures_noise
    assert train.ParameterServers().figures.measures_noise
    assert not train.ParameterServers(sync=False).figures.measures_noise
    later = train.ParameterServers(sync=False)
    figures = train.AllReduce().figures
    later.take_over([], None, figures)
    assert not figures.measures_noise, "it goes on with the figures of another strategy"
    compressed = powersgd.LowRank()
    compressed.take_over([], None, figures)
    assert figures.measures_noise


@pytest.mark.parametrize(
    ("initial", "total", "scale", "gain"),
    [("16", 16, 100.0, 1.0), ("16", 64, None, 1.0), ("16", 64, 1e9, 4.0), ("16", 64, 1e-9, 1.0), (None, 64, 9.0, 1.0)],
)
def test_the_worth_of_a_larger_batch(
    monkeypatch: pytest.MonkeyPatch, initial: str | None, total: int, scale: float | None, gain: float
) -> None:
    if initial is not None:
        monkeypatch.setenv("OARLOCK_BATCH_SIZE", initial)
    batches = train.Batches(scripts.examples(), total)
    with train.Session(batches=batches, adapt=True) as session:
        session._noise = scale
        assert session.gain == pytest.approx(gain, rel=1e-3)


def test_another_batch_size_in_the_middle_of_an_epoch_loses_no_example() -> None:
    batches = train.Batches((torch.arange(100),), 10, seed=2)
    seen = [next(batches)[0] for _ in range(3)]
    batches.resize(7)
    seen += [next(batches)[0] for _ in range(10)]
    assert [len(each) for each in seen] == [10] * 3 + [7] * 10
    assert sorted(torch.cat(seen).tolist()) == list(range(100))


class Dawdling(train.Hook):
    """Takes its time after each checkpoint."""

    def after_checkpoint(self, session: train.Session, path: Path) -> None:
        time.sleep(0.15)


def test_the_time_of_saving_is_no_part_of_a_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    options: dict[str, Any] = {"checkpoints": tmp_path, "every_steps": 1, "total_steps": 12, "hooks": [Dawdling()]}
    with train.Session(model=model, **options) as session:
        for _ in session.steps():
            pass
        steps, seconds, _ = session._pace.total
    assert steps == 12 - pace.WARM_UP_STEPS
    assert seconds < steps * 0.15


def test_a_batch_too_large_for_its_data_is_as_large_as_they_are() -> None:
    batches = train.Batches(scripts.examples(100), 10)
    batches.resize(4000)
    assert batches.batch_size == 100
    assert len(next(batches)[0]) == 100


def test_the_type_of_the_gpus_is_told_with_each_measure(tmp_path: Path) -> None:
    env = {"OARLOCK_REPORT": str(tmp_path / "report"), "OARLOCK_GPU_TYPE": "a100"}
    assert crew.run(scripts.drag, tmp_path, 30, 0, folder=tmp_path, world_size=1, env=env) == [0]
    assert {event["gpu_type"] for event in reports(tmp_path / "report")} == {"a100"}


# Stragglers


def test_a_rank_is_a_straggler_when_it_is_slow_again_and_again() -> None:
    straggler = straggling.Straggler()
    slow, other, even = (
        straggling.Slowest(3, 0.2, 0.1),
        straggling.Slowest(2, 0.2, 0.1),
        straggling.Slowest(3, 0.11, 0.1),
    )
    few = straggling.IN_A_ROW - 1
    assert not any(straggler.note(slow) for _ in range(few))
    assert not any(straggler.note(told) for told in [other, *[slow] * few, even, *[slow] * few])
    assert straggler.present is None
    assert straggler.note(slow), "named"
    assert straggler.present == slow
    assert not straggler.note(slow), "once"
    straggler.note(even)
    assert straggler.present is None
    tiny = straggling.Slowest(1, 0.0011, 0.0001)
    assert not any(straggler.note(tiny) for _ in range(20)), "a millisecond delays nothing"


LONG_S = 0.15
"""A step of the slow rank sleeps so long, many times what the others compute."""


def slow_before_its_gradients() -> None:
    """Rank 1 sleeps in each step: the others wait for its gradients."""
    world = train.init()
    model = train.data_parallel(nn.Linear(6, 3))
    with train.Session(model=model, total_steps=pace.WARM_UP_STEPS + 3 * straggling.IN_A_ROW) as session:
        for _ in session.steps():
            time.sleep(LONG_S if world.rank == 1 else 0.0)
            model(torch.randn(8, 6)).square().mean().backward()


def slow_before_its_buffers(compression: str) -> None:
    """The chief sleeps in each step: the others wait for its running statistics, before their own forward pass."""
    world = train.init()
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train.data_parallel(model, optimizer, compression=compression)
    steps = pace.WARM_UP_STEPS + 3 * straggling.IN_A_ROW
    with train.Session(model=model, optimizer=optimizer, total_steps=steps) as session:
        for _ in session.steps():
            time.sleep(LONG_S if world.is_chief else 0.0)
            model(torch.randn(8, 6)).square().mean().backward()


def check_named(folder: Path, slow: int, ranks: int) -> None:
    """Check that this rank, and no other one, was named once, by the chief."""
    said = crew.output(folder, ranks)
    assert re.findall(r"rank (\d) is slow", said) == [str(slow)], said
    last = [event for event in reports(folder / "report-0") if "slowest_rank" in event][-1]
    assert last["slowest_rank"] == slow
    assert last["slowest_s"] >= LONG_S
    assert last["fastest_s"] < last["slowest_s"] / straggling.RATIO
    for rank in range(1, ranks):
        assert not any("slowest_rank" in event for event in reports(folder / f"report-{rank}")), "the chief tells it"


def test_a_straggling_rank_is_named(tmp_path: Path) -> None:
    env = {rank: {"OARLOCK_REPORT": str(tmp_path / f"report-{rank}")} for rank in range(3)}
    codes = crew.run(slow_before_its_gradients, folder=tmp_path, world_size=3, env_of_rank=env)
    assert codes == [0, 0, 0], crew.output(tmp_path, 3)
    check_named(tmp_path, 1, 3)


@pytest.mark.parametrize("compression", ["none", "powersgd"])
def test_the_waiting_for_running_statistics_is_no_computing(compression: str, tmp_path: Path) -> None:
    env = {rank: {"OARLOCK_REPORT": str(tmp_path / f"report-{rank}")} for rank in range(2)}
    codes = crew.run(slow_before_its_buffers, compression, folder=tmp_path, env_of_rank=env)
    assert codes == [0, 0], crew.output(tmp_path)
    check_named(tmp_path, 0, 2)


def slow_data(folder: Path) -> None:
    def batches() -> Iterator[int]:
        for number in range(20):
            time.sleep(0.03)
            yield number

    with train.Session(model=nn.Linear(1, 1), total_steps=20) as session:
        for _ in session.steps(batches()):
            pass


def test_the_time_that_data_takes_is_told(tmp_path: Path) -> None:
    env = {"OARLOCK_REPORT": str(tmp_path / "report")}
    assert crew.run(slow_data, tmp_path, folder=tmp_path, world_size=1, env=env) == [0], crew.output(tmp_path, 1)
    last = reports(tmp_path / "report")[-1]
    assert 0.03 <= last["data_s"] <= last["step_s"]


def parts() -> None:
    """Each look at the clock is a second later, so that the reading of a part takes one second."""
    ticks = itertools.count()
    timed.monotonic = lambda: float(next(ticks))  # type: ignore[assignment]
    seen = []

    class Watched(train.Session):
        def _end_pace(self, agreeing_s: float) -> None:
            seen.append(self._data_s)
            super()._end_pace(agreeing_s)

    batches = train.Batches((torch.randn(48, 2),), 4, seed=1)
    with Watched(batches=batches, adapt=True, total_steps=3) as session:
        for _ in session.steps(batches):
            pass
    assert seen == [1.0] * 3


def test_the_reading_is_that_of_the_part_that_is_timed(tmp_path: Path) -> None:
    """A step of four parts is timed in its last one, so that reading all of them may take longer than the step."""
    env = {"OARLOCK_LOCAL_BATCH": "4", "OARLOCK_ACCUMULATE": "4"}
    assert crew.run(parts, folder=tmp_path, world_size=1, env=env) == [0], crew.output(tmp_path)


class NextRound:
    """A round of one process, after the loss of the others."""

    number = 2

    def change(self, cause: object, here: membership.Position, *_: object) -> membership.Position:
        return membership.Position(3)


def test_a_straggler_is_forgotten_with_its_round() -> None:
    """Another process may have its number now, and in a world of one no rank is compared."""
    session = train.Session(step=State())
    for _ in range(straggling.IN_A_ROW):
        session._note_slowest(straggling.Slowest(1, 2.0, 1.0))
    assert session._straggler.present is not None
    session._membership = NextRound()  # type: ignore[assignment]
    session._change_round(errors.PeersLost("a process was lost"), 3)
    assert session._straggler.present is None
    for _ in range(straggling.IN_A_ROW):
        session._note_slowest(straggling.Slowest(1, 2.0, 1.0))
    assert session._straggler.present is not None, "another process, which is named again"


class State:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
