"""Elastic membership under compression: no process that is left loses what it kept back, and none sends it twice."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.rounds import counting as counts
from tests.train.rounds import gang
from torch import nn

from oarlock import train
from oarlock.train import worlds
from oarlock.train.compression import dgc
from oarlock.train.strategies import dataparallel

COLUMNS = 60
SCALE = 4.0  # of the loss: the script scales the gradients back after the exchange
SETTINGS = {
    "sparse": train.DGC(sparsity=0.9, warm_up_steps=0),
    "dense": train.DGC(sparsity=0.0, warm_up_steps=0),
    "powersgd": train.PowerSGD(rank=1),
}


totals: list[torch.Tensor] = []  # the sum of this process's gradients


class Steps(train.Hook):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_step(self, session: train.Session) -> None:
        counts.tell(self.folder, session.step)
        if (self.folder.parent / "stop").exists():
            session.request_stop()


def sum_up(folder: Path, compression: str, rows: int) -> None:
    """Each process has gradients in a row of its own, and adds them up itself as well."""
    world = train.init()
    model = nn.Linear(COLUMNS, rows, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train.data_parallel(model, optimizer, compression=SETTINGS[compression])
    row = "abc".index(folder.name) if len(folder.name) == 1 else 3 + int(folder.name[1:])
    total = torch.zeros(COLUMNS, dtype=torch.float64)
    totals[:] = [total]
    generator = torch.Generator().manual_seed(row)
    with train.Session(model=model, optimizer=optimizer, hooks=[Steps(folder)]) as session:
        for _ in session.steps():
            gradient = torch.randn(COLUMNS, dtype=torch.float64, generator=generator)
            total += gradient / world.world_size
            optimizer.zero_grad()
            (SCALE * model.weight[row] * gradient).sum().backward()
            model.weight.grad.div_(SCALE)
            optimizer.step()
            time.sleep(0.002)
    strategy = dataparallel.strategy_of(model)
    assert strategy is not None
    state = strategy.state_dict()
    kept = next(state[kind]["weight"] for kind in ("residual", "error") if kind in state).view_as(model.weight) / SCALE
    sums = {"sent": -model.weight[row].detach(), "total": total - kept[row]}
    torch.save({"model": model.state_dict(), "sums": sums, "rate": 0, "repeated": 0, "kept": kept}, folder / "final.pt")


def leave(folder: Path, compression: str, rows: int) -> None:
    """As `sum_up`; each process tells the sum of its gradients, one that leaves by a plan, too."""
    try:
        sum_up(folder, compression, rows)
    finally:
        torch.save(totals[0], folder / "total.pt")


def leave_within_a_flush(folder: Path, rows: int) -> None:
    """As `leave`; the ranks know of the third round before their exchange for the second one is over."""
    flush = dgc.DeepGradientCompression.flush

    def flush_slowly(self: dgc.DeepGradientCompression, *args: Any) -> None:
        flush(self, *args)
        (folder / "flushed").touch()
        while worlds.rounds is not None and worlds.rounds.newest().number < 3:
            time.sleep(0.002)

    dgc.DeepGradientCompression.flush = flush_slowly  # type: ignore[method-assign]  # in this process alone
    leave(folder, "sparse", rows)


def approach(folder: Path, compression: str, rows: int) -> None:
    """The gradient leads to a certain matrix."""
    train.init()
    wanted = torch.randn(rows, COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(COLUMNS, rows, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer, compression=SETTINGS[compression])
    with train.Session(model=model, optimizer=optimizer, hooks=[Steps(folder)]) as session:
        for _ in session.steps():
            optimizer.zero_grad()
            (model.weight - wanted).square().sum().div(2).backward()
            optimizer.step()
            time.sleep(0.002)
    sums = {"sent": model.weight.detach(), "total": wanted}
    torch.save({"model": model.state_dict(), "sums": sums, "rate": 0, "repeated": 0}, folder / "final.pt")


@pytest.mark.parametrize("compression", ["sparse", "powersgd", pytest.param("dense", marks=pytest.mark.long)])
def test_a_planned_change_loses_nothing_of_those_that_leave(tmp_path: Path, compression: str) -> None:
    made = gang.Gang(tmp_path, leave, compression, 3 + 2)
    names = ["a", "b", "c"]
    try:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        for number, leaver in enumerate(("c", "a")):  # the second time the one that has the donor's place
            made.wait(lambda names=names: all(counts.reached(made, name) > 20 for name in names))
            left = [name for name in names if name != leaver]
            made.round(left, tell=names)
            made.processes[leaver].join()
            assert made.processes.pop(leaver).exitcode == 0, made.output()
            names = left
            fresh = f"n{number}"
            made.begin(fresh)
            made.wait(lambda fresh=fresh: made.ready(fresh))
            names = [*names, fresh]
            counts.change(made, names)
        counts.end(made, names, losses=0)
        finals = [torch.load(tmp_path / name / "final.pt") for name in names]
        kept = sum(final["kept"] for final in finals) / (len(finals) if compression == "powersgd" else 1)
        for row, name in enumerate(("a", "b", "c", "n0", "n1")):
            sent, total = -finals[0]["model"]["weight"][row], torch.load(tmp_path / name / "total.pt")
            torch.testing.assert_close(sent, total - kept[row], rtol=1e-9, atol=1e-9)
    finally:
        made.close()


def test_a_rank_that_leaves_in_a_later_round_gives_what_it_keeps_back(tmp_path: Path) -> None:
    """The later round comes while the ranks still exchange for the one before."""
    names = ["a", "b", "c", "n0"]
    made = gang.Gang(tmp_path, leave_within_a_flush, len(names))
    try:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        made.wait(lambda: all(counts.reached(made, name) > 20 for name in names))
        made.round(["a", "b", "c"], tell=names)
        made.wait(lambda: all((tmp_path / name / "flushed").exists() for name in names))
        made.round(["a", "b"], tell=names)
        for leaver in ("c", "n0"):
            made.processes[leaver].join()
            assert made.processes.pop(leaver).exitcode == 0, made.output()
        made.wait(lambda: all(made.rounds(name)[-1:] == [3] for name in ("a", "b")))
        counts.end(made, ["a", "b"], losses=0)
        finals = [torch.load(tmp_path / name / "final.pt") for name in ("a", "b")]
        kept = sum(final["kept"] for final in finals)
        for row, name in enumerate(names):
            sent, total = -finals[0]["model"]["weight"][row], torch.load(tmp_path / name / "total.pt")
            torch.testing.assert_close(sent, total - kept[row], rtol=1e-9, atol=1e-9)
    finally:
        made.close()


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize(
    "compression", ["sparse", *(pytest.param(each, marks=pytest.mark.long) for each in ("dense", "powersgd"))]
)
def test_values_that_were_kept_back_are_sent_once(tmp_path: Path, compression: str, kills: int) -> None:
    # A larger matrix would need a smaller learning rate: PowerSGD sends one rank of it a step, so the rest comes later.
    target, rows = (approach, 8) if compression == "powersgd" else (sum_up, 3 + kills)
    made = gang.Gang(tmp_path, target, compression, rows)
    names = ["a", "b", "c"]
    try:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        for number in range(kills):
            victim = names[number % 3] if number else "a"
            made.wait(lambda: all(counts.reached(made, name) for name in names))
            if number % 2:  # in an exchange for certain
                made.signal(victim, signal.SIGSTOP)
                counts.stands_still(made, [name for name in names if name != victim])
            counts.lose(made, names, victim)
            counts.take_in(made, names, f"n{number}", number % 3)
        before = counts.reached(made, names[0])
        made.wait(lambda: counts.reached(made, names[0]) > before + 300)
        counts.end(made, names, losses=0)
        for name in names:
            sums = torch.load(tmp_path / name / "final.pt")["sums"]
            torch.testing.assert_close(sums["sent"], sums["total"], rtol=1e-3, atol=1e-3)
    finally:
        made.close()
