"""A parameter server that dies where the workers also have a process group, as under strategy `auto`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train.servers import addresses
from oarlock.train.servers.process import desks, server
from oarlock.train.strategies import automatic, choices

STEPS = 30
LAST = 12  # pushes that the first server answers to both workers, the trials of the measurement included


@contextmanager
def dying() -> Iterator[addresses.Addresses]:
    """Run a server that dies after it has answered rank 0, and before it answers rank 1. Another takes its place."""
    answered = threading.Event()

    class Desk(desks.Desk):
        def _step(self, head: Any) -> None:
            super()._step(head)
            if self._service is made[0].service and head.fields["base"] == LAST and self._place.rank == 0:
                answered.set()

        def _answer(self, fields: dict[str, Any], body: Any = ()) -> None:
            if (
                self._service is made[0].service
                and "wish" in fields
                and fields["version"] == LAST + 1
                and self._place.rank == 1
            ):
                answered.wait()
                made[0].close()
                made.append(server.Server(("127.0.0.1", made[0].port), farm.TOKEN))
                threads.append(threading.Thread(target=made[1].serve))
                threads[1].start()
            super()._answer(fields, body)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(desks, "Desk", Desk)
        made = [server.Server(("127.0.0.1", 0), farm.TOKEN)]
        threads = [threading.Thread(target=made[0].serve)]
        threads[0].start()
        try:
            yield addresses.Addresses((f"127.0.0.1:{made[0].port}",), farm.TOKEN)
        finally:
            answered.set()
            for one in made:
                one.close()
            for thread in threads:
                thread.join()
    assert len(made) == 2, "the first server died"


def served(folder: Path) -> None:
    automatic.may_win = lambda *_: True
    automatic.predict = lambda ranks: {"none": 2.0, "ps": 1.0}  # type: ignore[assignment]
    world = train.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    train.data_parallel(model, optimizer)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(world.rank)).double()
    with train.Session(model=model, optimizer=optimizer, total_steps=STEPS) as session:
        for _ in session.steps():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            assert len(set(map(str, world.gather(model[0].weight.tolist())))) == 1
    torch.save(model.state_dict(), folder / f"taught-{world.rank}.pt")
    train.shutdown()


def test_a_worker_with_its_answer_helps_the_new_server_of_the_others(tmp_path: Path) -> None:
    """The first has the last weights and waits for the other one, which waits for a server that lacks them."""
    results = []
    for name in ("disturbed", "calm"):
        folder = tmp_path / name
        folder.mkdir()
        with dying() if name == "disturbed" else farm.running() as servers:
            env = {**farm.variables(servers), choices.VARIABLE: '{"kind": "auto"}'}
            assert crew.run(served, folder, folder=folder, env=env, timeout_s=120) == [0, 0], crew.output(folder)
        results += [torch.load(folder / f"taught-{rank}.pt", weights_only=True) for rank in range(2)]
    for rank in range(2):
        for key, disturbed in results[rank].items():
            assert torch.equal(disturbed, results[2 + rank][key]), key
