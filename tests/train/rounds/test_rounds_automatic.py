"""Elastic membership while a compression is chosen, and after it: all ranks use one, and no gradient is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.train.rounds import counting as counts
from tests.train.rounds import gang, test_rounds_compressed
from torch import nn

from oarlock import train
from oarlock.train import errors, worlds
from oarlock.train.strategies import automatic, dataparallel

COLUMNS, ROWS = 60, 8


def dies_while_measuring(self: automatic.Automatic, kind: str, horizon: int) -> float | None:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def loses_once(steps: Any) -> str:
    """Lose the round after the other ranks have chosen."""
    automatic.choose = lambda steps: "dgc"
    assert worlds.rounds is not None
    worlds.rounds.lose()
    raise errors.PeersLost("a member is gone")


def sum_up(folder: Path) -> None:
    """Each process has gradients in a row of its own, and adds up those of the steps that were made."""
    name, seen = folder.name, folder / "measured"

    def predict(ranks: Sequence[automatic.Measured]) -> dict[str, float]:
        seen.write_text(seen.read_text() + "." if seen.exists() else ".")
        return {"none": 2.0, "dgc": 1.0}

    automatic.may_win = lambda *_: True
    automatic.predict = predict
    if name == "c":
        automatic.Automatic._try = dies_while_measuring  # type: ignore[method-assign]
    elif name == "b":
        automatic.choose = loses_once
    world = train.init()
    model = nn.Linear(COLUMNS, ROWS, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train.data_parallel(model, optimizer, compression="auto")
    row = ["a", "b", "c", "n0", "n1"].index(name)
    ours = {}
    hooks = [test_rounds_compressed.Steps(folder)]
    with train.Session(model=model, optimizer=optimizer, hooks=hooks) as session:
        for step in session.steps():
            gradient = torch.randn(
                COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(step * 8 + row)
            )
            ours[step] = gradient / world.world_size  # again, where a step is repeated
            optimizer.zero_grad()
            (model.weight[row] * gradient).sum().backward()
            optimizer.step()
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    assert strategy.choice() == {"exchange": "dgc"}
    kept = strategy.state_dict()["residual"]["weight"].view_as(model.weight)[row]
    sums = {"sent": -model.weight[row].detach(), "total": sum(ours.values()) - kept}
    torch.save({"model": model.state_dict(), "sums": sums, "rate": 0, "repeated": 0}, folder / "final.pt")


def test_the_choice_is_one_of_all_ranks(tmp_path: Path) -> None:
    """The first measurement ends with a process, the second one leaves a rank without the choice."""
    made = gang.Gang(tmp_path, sum_up)
    names = ["a", "b", "c"]

    def on(steps: int) -> None:
        before = counts.reached(made, names[0])
        made.wait(lambda: counts.reached(made, names[0]) >= before + steps)

    def measured(name: str) -> str:
        file = tmp_path / name / "measured"
        return file.read_text() if file.exists() else ""

    try:
        made.start(names)
        last = made.processes.pop("c")
        last.join()
        assert last.exitcode == -signal.SIGKILL, made.output()
        assert not measured("a")
        assert made.ready("a"), made.output()
        names.remove("c")
        counts.change(made, names)
        made.meet_again(names)
        on(20)
        assert measured("a") == measured("b") == "."
        for number, place in enumerate((2, 0)):  # the second one begins as the chief
            counts.take_in(made, names, f"n{number}", place)
            on(20)
        counts.lose(made, names, "a")
        on(50)
        counts.end(made, names, losses=0)
        for name in names:
            assert measured(name) == ("." if name == "b" else ""), f"{name} measured anew\n{made.output()}"
            sums = torch.load(tmp_path / name / "final.pt")["sums"]
            torch.testing.assert_close(sums["sent"], sums["total"], rtol=1e-6, atol=1e-6)
    finally:
        made.close()
