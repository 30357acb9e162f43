"""The slowest worker is named where no worker waits for it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train.measuring import straggling
from oarlock.train.servers.process import paces
from oarlock.train.servers.wire import frames

SLOW_S, QUICK_S = 0.08, 0.005
MOST_STEPS = 600
MODES: dict[str, dict[str, Any]] = {
    "async": {"sync": False},
    "staleness": {"sync": False, "staleness": 2},
    "backup": {"backup": 1},
}


def learn(mode: str) -> None:
    """The last rank sleeps in each step. The training ends when it was named."""
    world = train.init()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(**MODES[mode]))
    with train.Session(model=model, optimizer=optimizer, total_steps=MOST_STEPS) as session:
        for _ in session.steps():
            time.sleep(SLOW_S if world.rank == 1 else QUICK_S)
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            if world.is_chief and session._straggler.present is not None:
                session.request_stop()
    assert session.step < MOST_STEPS, "no rank was named"


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_worker_is_named_that_no_other_waits_for(tmp_path: Path, mode: str) -> None:
    with farm.running(2) as servers:
        codes = crew.run(learn, mode, folder=tmp_path, env=farm.variables(servers))
    said = crew.output(tmp_path)
    assert codes == [0, 0], said
    assert re.findall(r"rank (\d) is slow", said) == ["1"]
    (own, least) = re.findall(r"takes it (\S+) s without waiting for others, and the fastest rank (\S+) s", said)[0]
    assert float(own) >= SLOW_S * 0.99
    assert float(least) < float(own) / straggling.RATIO


def test_a_worker_that_trains_no_more_is_not_compared() -> None:
    served = paces.Paces()
    assert served.news(0, {}) == {}, "a worker in lockstep tells nothing"
    assert served.news(0, {"own_us": 5}) == {"slowest": [0, 5, 5]}
    assert served.news(2, {"own_us": 9}) == {"slowest": [2, 9, 5]}
    assert served.news(0, {"own_us": 4}) == {"slowest": [2, 9, 4]}
    served.forget(2)
    assert served.news(0, {"own_us": 4}) == {"slowest": [0, 4, 4]}
    for wrong in (-1, 1.5, "5", 1 << 50):
        with pytest.raises(frames.Refused, match="microseconds"):
            served.news(0, {"own_us": wrong})
