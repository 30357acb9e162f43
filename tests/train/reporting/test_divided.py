"""Logged values that ranks have divided among them: no exchange is made for a log, and none by the reporting thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.parallel import models
from tests.train.reporting import test_reports
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from oarlock import train
from oarlock.train import errors


def logs(steps: int) -> None:
    """Log what a rank has whole, and try to log a part of a value, on the chief alone."""
    world, mesh = train.init(), train.device_mesh()
    whole = DTensor.from_local(torch.tensor(3.0), mesh, [Replicate()])
    part = DTensor.from_local(torch.tensor(4.0), mesh, [Partial()])
    net = models.sharded(models.Net().double())
    with train.Session(total_steps=steps) as session:
        for _ in session.steps():
            net(torch.ones(3, 5, dtype=torch.float64)).sum().backward()
            clipped = nn.utils.clip_grad_norm_(net.parameters(), 1e9)
            norm = torch.linalg.vector_norm(net.first.weight.grad)
            assert isinstance(clipped, DTensor)
            if world.is_chief:
                session.log(whole=whole, clipped=clipped)
                for name, value in {"part": part, "norm": norm}.items():
                    with pytest.raises(errors.ReportError, match=rf"^{name} is divided .* log {name}\.full_tensor\(\)"):
                        session.log(**{name: value})
            session.log(part=part.full_tensor(), norm=norm.full_tensor())
    train.shutdown()


def test_a_part_of_a_value_is_refused_where_one_rank_logs_alone(tmp_path: Path) -> None:
    """To complete it is an exchange, for which the others would not come."""
    env = {rank: {"OARLOCK_REPORT": str(tmp_path / f"report-{rank}")} for rank in (0, 1)}
    codes = crew.run(logs, 3, folder=tmp_path, env_of_rank=env, timeout_s=120)
    assert codes == [0, 0], crew.output(tmp_path)
    for rank in (0, 1):
        found = test_reports.frames((tmp_path / f"report-{rank}" / "metrics-0.bin").read_bytes())
        named = [values for _, _, values in found if "whole" in values or "part" in values]
        assert [values["whole"] for values in named if "whole" in values] == [3.0] * (3 if rank == 0 else 0)
        assert [values["part"] for values in named if "part" in values] == [8.0] * 3


def logs_alone(report: Path) -> None:
    mesh = train.device_mesh()
    with train.Session(total_steps=1) as session:
        for _ in session.steps():
            for place in (Replicate(), Partial(), Shard(0)):
                session.log(**{type(place).__name__: DTensor.from_local(torch.tensor([5.0]), mesh, [place])})
    found = test_reports.frames((report / "metrics-0.bin").read_bytes())
    values = [each for _, _, values in found for name, each in values.items() if "oarlock" not in name]
    assert values == [5.0] * 3


def test_a_process_that_trains_alone_has_every_value_whole(tmp_path: Path) -> None:
    env = {"OARLOCK_REPORT": str(tmp_path / "report")}
    codes = crew.run(logs_alone, tmp_path / "report", folder=tmp_path, world_size=1, env=env)
    assert codes == [0], crew.output(tmp_path, 1)


class Reader(train.Hook):
    """Keeps the logged values of each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, session: train.Session, values: Mapping[str, Any]) -> None:
        self.seen.append(dict(values))


def summarises(division: str) -> None:
    train.init()
    torch.manual_seed(7)
    net = models.DIVISIONS[division](models.Net().double())
    reader = Reader()
    exchanges: list[str] = []
    gather = DTensor.redistribute

    def noted(self: DTensor, *args: Any, **kwargs: Any) -> DTensor:
        exchanges.append(threading.current_thread().name)
        return gather(self, *args, **kwargs)

    DTensor.redistribute = noted  # type: ignore[method-assign]
    hooks = [train.Summaries(net, every_steps=1, each=True), reader]
    with train.Session(model=net, hooks=hooks, total_steps=3) as session:
        for _ in session.steps():
            net.zero_grad()
            net(torch.ones(3, 5, dtype=torch.float64)).square().sum().backward()
    assert set(exchanges) == {threading.main_thread().name}
    for kind in ("weight", "gradient"):
        tensors = {name: each if kind == "weight" else each.grad for name, each in net.named_parameters()}
        norms = {name: torch.linalg.vector_norm(each.detach()) for name, each in models.full(tensors).items()}
        told = reader.seen[-1]
        assert not any(isinstance(each, DTensor) for each in told.values())
        for name, norm in norms.items():
            assert float(told[f"{kind}_norm/{name}"]) == pytest.approx(float(norm), rel=1e-5)
        together = float(torch.linalg.vector_norm(torch.stack(list(norms.values()))))
        assert float(told[f"{kind}_norm"]) == pytest.approx(together, rel=1e-5)
    train.shutdown()


@pytest.mark.parametrize("division", ["sharded", "by_tensor"])
def test_summaries_are_those_of_the_whole_tensors(tmp_path: Path, division: str) -> None:
    codes = crew.run(summarises, division, folder=tmp_path, timeout_s=120)
    assert codes == [0, 0], crew.output(tmp_path)
