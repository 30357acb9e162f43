"""Scripts that clip gradients: `auto` computes the update of dense training, and `ps` says what is clipped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.strategies import automatic, changes, choices, dataparallel

STEPS = automatic.WARM_UP + automatic.MEASURED + 12
SAID = "the script changes gradients between backward() and optimizer.step()"


def learn(strategy: str | None, clips: Callable[[int], bool]) -> tuple[nn.Module, list[float]]:
    world = train.init()
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    train.data_parallel(model, optimizer, strategy=strategy)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + world.rank)
        x = (1 + 5 * world.rank) * torch.randn(4, 6, generator=generator).double()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if clips(step):
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model, torch.cat([each.detach().view(-1) for each in model.parameters()]).tolist()


def with_servers_first() -> None:
    """Let parameter servers be chosen wherever they may be."""
    os.environ[choices.VARIABLE] = '{"kind": "auto"}'
    automatic.may_win = lambda *args: True  # type: ignore[assignment]
    automatic.choose = lambda steps: "ps" if "ps" in steps else "none"  # type: ignore[assignment]


def dense(clips: Callable[[int], bool]) -> list[float]:
    os.environ[choices.VARIABLE] = '{"kind": "allreduce"}'
    return learn(None, clips)[1]


def always(step: int) -> bool:
    return True


def never(step: int) -> bool:
    return False


def later(step: int) -> bool:
    return step == STEPS - 3


def on_one_rank(step: int) -> bool:
    return train.rank() == 1 and step == automatic.WARM_UP + 1


def one_clips_while_the_choice_is_open() -> None:
    chooses(on_one_rank, "none")


def all_clip() -> None:
    chooses(always, "none")


def none_clips() -> None:
    chooses(never, "ps")


def chooses(clips: Callable[[int], bool], kind: str) -> None:
    with_servers_first()
    model, weights = learn(None, clips)
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    assert strategy.choice()["exchange"] == kind
    if clips is not on_one_rank:  # there the replicas are apart, by the script's own will
        assert weights == dense(clips), f"{kind} is not dense allreduce"


def clips_after_the_choice() -> None:
    with_servers_first()
    with pytest.raises(errors.StateError, match=r"as clip_grad_norm_ does.*allreduce"):
        learn(None, later)


def run(scenario: Callable[[], None], folder: Path) -> str:
    with farm.running(2) as servers:
        env = {**farm.variables(servers), choices.VARIABLE: '{"kind": "auto"}'}
        codes = crew.run(scenario, folder=folder, env=env)
    assert codes == [0, 0], crew.output(folder)
    return crew.output(folder)


@pytest.mark.parametrize("scenario", [all_clip, one_clips_while_the_choice_is_open])
def test_auto_leaves_servers_out_where_the_script_clips(scenario: Callable[[], None], tmp_path: Path) -> None:
    assert run(scenario, tmp_path).count(f"parameter servers cannot be used: {SAID}") == 1


def test_auto_uses_servers_where_the_script_does_not_clip(tmp_path: Path) -> None:
    assert SAID not in run(none_clips, tmp_path)


def test_auto_ends_where_the_script_begins_to_clip_after_the_choice(tmp_path: Path) -> None:
    run(clips_after_the_choice, tmp_path)


def clips_with_servers() -> None:
    del os.environ[choices.VARIABLE]
    learn("ps", always)


def does_not_clip_with_servers() -> None:
    del os.environ[choices.VARIABLE]
    learn("ps", never)


@pytest.mark.parametrize(("scenario", "times"), [(clips_with_servers, 1), (does_not_clip_with_servers, 0)])
def test_servers_say_once_that_each_workers_gradients_are_clipped(
    scenario: Callable[[], None], times: int, tmp_path: Path
) -> None:
    with farm.running(2) as servers:
        env = {**farm.variables(servers), choices.VARIABLE: '{"kind": "ps"}'}
        codes = crew.run(scenario, folder=tmp_path, env=env)
    assert codes == [0, 0], crew.output(tmp_path)
    assert crew.output(tmp_path).count(SAID) == times


def test_a_change_is_found_until_the_next_pass() -> None:
    model = nn.Linear(2, 2)
    found = changes.Changes(list(model.parameters()))
    found.follow()
    assert not found.found
    model(torch.ones(2)).sum().backward()
    assert not found.found
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert found.found, "the norm may be below the bound in this step alone"
    model(torch.ones(2)).sum().backward()
    assert not found.found
    assert model.bias.grad is not None
    model.bias.grad = model.bias.grad * 2
    assert found.found
    found.stop()
    assert not found.found


@pytest.mark.parametrize("to_none", [True, False])
def test_a_pass_that_leaves_out_parameters_is_no_change(to_none: bool, capsys: pytest.CaptureFixture[str]) -> None:
    often, rarely = nn.Linear(2, 2), nn.Linear(2, 2)
    both = nn.ModuleList([often, rarely])
    looks = changes.FirstSteps(list(both.parameters()), says=True)

    def step(*reached: nn.Module) -> bool:
        both.zero_grad(set_to_none=to_none)
        for each in reached:
            each(torch.ones(2)).sum().backward()
        return looks.over()

    assert not step(often, rarely)
    for _ in range(changes.LOOKS - 2):
        assert not step(often)
    assert step(often, rarely), "these were the first steps"
    assert SAID not in capsys.readouterr().err


def test_a_change_is_told_of_after_a_pass_that_left_the_parameter_out(capsys: pytest.CaptureFixture[str]) -> None:
    often, rarely = nn.Linear(2, 2), nn.Linear(2, 2)
    looks = changes.FirstSteps([*often.parameters(), *rarely.parameters()], says=True)
    often(torch.ones(2)).sum().backward()
    assert not looks.over()
    rarely(torch.ones(2)).sum().backward()
    nn.utils.clip_grad_norm_(rarely.parameters(), 0.05)
    assert looks.over()
    assert capsys.readouterr().err.count(SAID) == 1
