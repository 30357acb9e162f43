"""The ready-made hooks, each in a small training."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from torch import nn

from oarlock import train
from oarlock.train import errors


def trained(hooks: list[train.Hook], values: Callable[[int], dict[str, Any]], **options: Any) -> int:
    """Train until the end, and return the last step."""
    model = options.pop("model", None) or nn.Linear(2, 1)
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), 0.1)
    options = {"total_steps": 50, **options}
    with train.Session(model=model, hooks=hooks, **options) as session:
        for step in session.steps():
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            session.log(**values(step))
    return session.step


def stops_at_a_step(folder: Path) -> None:
    assert trained([train.StopAtStep(7)], lambda step: {}) == 7
    assert trained([train.StopAtStep(70)], lambda step: {}) == 50
    for _ in range(2):
        assert trained([train.StopAtStep(7)], lambda step: {}, checkpoints=folder / "checkpoints") == 7, "resumed at 7"


def stops_early(folder: Path) -> None:
    """The best value is at step 9, and `patience` values later the training ends; a resumed one counts on."""
    curve = {"name": "loss", "patience": 6}

    def loss(step: int) -> dict[str, Any]:
        return {"loss": abs(step - 9) + 1.0 if step != 3 else math.nan}

    stopping = train.EarlyStopping(**curve)
    assert trained([stopping], loss) == 15
    assert (stopping.best, stopping.best_step) == (1.0, 9)
    larger = train.EarlyStopping("loss", patience=17, larger=True)
    assert trained([larger], loss) == 50, "17 values later the loss is above the first again"
    assert trained([train.EarlyStopping("loss", patience=16, larger=True)], loss) == 17
    assert trained([train.EarlyStopping("accuracy", patience=1)], loss) == 50, "it is never logged"
    small = train.EarlyStopping("loss", patience=3, least_change=0.1)
    assert trained([small], lambda step: {"loss": 1 - 0.01 * step}) == 4, "too small to count"
    for last in (12, 50):
        stopping = train.EarlyStopping(**curve)
        options = {"checkpoints": folder / "checkpoints", "stopping": stopping, "total_steps": last}
        assert trained([stopping], loss, **options) == min(last, 15)


def guards_against_nan(folder: Path) -> None:
    def loss(step: int) -> dict[str, Any]:
        return {"loss": torch.tensor(math.nan if step == 8 else 1.0), "other": math.inf}

    with pytest.raises(errors.DivergedError, match="loss is nan at step 8"):
        trained([train.NaNGuard()], loss, checkpoints=folder / "checkpoints", every_steps=4)
    saved = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert saved == ["attempt-1-round-1-step-4"], "none with NaN"
    with pytest.raises(errors.DivergedError, match="loss is nan at step 8"):
        trained([train.NaNGuard(every_steps=20)], loss, total_steps=10)
    for name, total_steps in (("rarely", 50), ("end", 9)):
        options = {"checkpoints": folder / name, "every_steps": 6, "total_steps": total_steps}
        with pytest.raises(errors.DivergedError, match="loss is nan at step 8"):
            trained([train.NaNGuard(every_steps=20)], loss, **options)
        saved = sorted(path.name for path in (folder / name).iterdir())
        assert saved == ["attempt-1-round-1-step-6"], "none with NaN"
    with pytest.raises(errors.DivergedError, match="other is inf at step 1"):
        trained([train.NaNGuard("loss", "other")], loss)


def summarises(folder: Path) -> None:
    class Reader(train.Hook):
        def __init__(self) -> None:
            self.seen: dict[int, dict[str, Any]] = {}

        def on_log(self, session: train.Session, values: Any) -> None:
            if values:
                self.seen[session.step] = dict(values)

    reader, model = Reader(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    hooks = [train.Summaries(model, optimizer, every_steps=20, each=True), reader]
    trained(hooks, lambda step: {}, model=model, optimizer=optimizer)
    assert sorted(reader.seen) == [20, 40]
    told = reader.seen[40]
    assert float(told["gradient_norm"]) == pytest.approx(math.sqrt(3)), "ones for two weights and a bias"
    assert float(told["gradient_norm/weight"]) == pytest.approx(math.sqrt(2))
    weights = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    assert float(told["weight_norm"]) == pytest.approx(float(weights.norm()))
    assert told["lr"] == 0.0


def profiles(folder: Path) -> None:
    trained([train.Profiler(folder / "profile", first=5, steps=2)], lambda step: {}, total_steps=12)
    (trace,) = (folder / "profile").iterdir()
    assert trace.name == "trace-step-6.json.gz"
    names = [event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert names.count("aten::linear") == 2, "one in each of the two steps"


@pytest.mark.parametrize("scenario", [stops_at_a_step, stops_early, guards_against_nan, summarises, profiles])
def test_alone(tmp_path: Path, scenario: Callable[[Path], None]) -> None:
    assert crew.run(scenario, tmp_path, folder=tmp_path, world_size=1, timeout_s=240) == [0], crew.output(tmp_path, 1)


def one_rank_has_enough(folder: Path) -> None:
    """Only the last rank's accuracy stops growing; all ranks end at the same step."""
    stopping = train.EarlyStopping("accuracy", patience=2, larger=True)
    last = train.world_size() - 1
    hooks = [stopping, train.StopAtStep(400)]
    step = trained(hooks, lambda step: {"accuracy": 0.5 if train.rank() == last else step}, total_steps=None)
    assert train.init().gather(step) == [step] * (last + 1)
    assert 3 <= step < 400
    assert trained([train.StopAtStep(5)], lambda step: {}) == 5


def test_together(tmp_path: Path) -> None:
    codes = crew.run(one_rank_has_enough, tmp_path, folder=tmp_path, timeout_s=240)
    assert codes == [0, 0], crew.output(tmp_path)
