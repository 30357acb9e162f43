"""`auto` where the job has parameter servers, which are one more choice."""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path
from typing import Any

import torch
from tests.train import crew
from tests.train.servers import farm
from tests.train.strategies.test_automatic import learn, some_steps
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.servers import addresses
from oarlock.train.servers.workers import remotes
from oarlock.train.strategies import automatic, choices, dataparallel
from oarlock.train.strategies.parameterservers import ParameterServers


def beside_servers() -> None:
    """The choice falls on the servers, or not although they were tried."""
    results = {}
    for kind in ("ps", "none", "allreduce"):
        steps = {"none": 2.0, "ps": 1.0 if kind == "ps" else 3.0}
        automatic.may_win = lambda *_: True
        automatic.predict = lambda ranks, steps=steps: steps  # type: ignore[assignment]
        if kind == "allreduce":
            os.environ[choices.VARIABLE] = '{"kind": "allreduce"}'
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        train.data_parallel(model, optimizer)
        torch.manual_seed(2)
        some_steps(model, optimizer, 6, 60)
        results[kind] = torch.cat([each.detach().flatten() for each in model.parameters()])
        assert bool(optimizer._optimizer_step_pre_hooks) == (kind == "ps"), "then the servers make the step"
        os.environ[addresses.VARIABLE] = os.environ["OTHERS"]  # a server holds one model
    for kind, result in results.items():
        assert torch.equal(result, results["allreduce"]), kind
    train.shutdown()


def test_beside_servers_the_weights_are_those_of_allreduce(tmp_path: Path) -> None:
    """With two workers the mean of two numbers is exact, so the bits are the same."""
    with farm.running(2) as servers, farm.running() as others:
        env = {**farm.variables(servers), "OTHERS": others.servers[0], choices.VARIABLE: '{"kind": "auto"}'}
        assert crew.run(beside_servers, folder=tmp_path, env=env) == [0, 0], crew.output(tmp_path)


def test_servers_that_were_tried_hold_no_memory_of_the_exchange() -> None:
    """It is pinned, as large as the model, and they may not be chosen."""
    made, remote = ParameterServers(), object.__new__(remotes.Remote)
    remote._staged = {0: torch.zeros(4)}
    made._staging._kept[0] = torch.zeros(4)
    made._servers.append(remote)
    held = [weakref.ref(each) for each in (remote._staged[0], made._staging._kept[0])]
    made.drop()
    assert [each() for each in held] == [None, None]


def pairs_of_models(folder: Path) -> None:
    """Two models of one script: other shapes, or equal ones with other weights. The servers seem fast to each."""
    automatic.may_win = lambda *_: True
    automatic.predict = lambda ranks: {kind: 1.0 if kind == "ps" else 2.0 for kind in ("none", *ranks[0].exchange_s)}  # type: ignore[assignment]
    for width in (6, 3):
        results = []
        for kind in ("auto", "allreduce"):
            os.environ[choices.VARIABLE] = json.dumps({"kind": kind})
            torch.manual_seed(1)
            pair = [nn.Linear(6, 6).double(), nn.Linear(6, width).double()]
            optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in pair]
            for model, optimizer in zip(pair, optimizers, strict=True):
                train.data_parallel(model, optimizer)
            x = torch.ones(2, 6).double() + train.rank()
            for _ in range(14):
                for model, optimizer in zip(pair, optimizers, strict=True):
                    optimizer.zero_grad()
                    (model(x) - 1).square().mean().backward()
                    optimizer.step()
            results.append(torch.cat([each.detach().flatten() for model in pair for each in model.parameters()]))
            if kind == "auto":
                chosen = [dataparallel.strategy_of(model).choice()["exchange"] for model in pair]  # type: ignore[union-attr]
                assert chosen == ["ps", "none"], chosen
        assert torch.equal(*results), "each model has its own weights"
        os.environ[addresses.VARIABLE] = os.environ["OTHERS"]  # for the next pair
    train.shutdown()


def test_the_servers_hold_one_of_two_models(tmp_path: Path) -> None:
    with farm.running() as servers, farm.running() as others:
        env = {**farm.variables(servers), "OTHERS": others.servers[0]}
        env[choices.VARIABLE] = '{"kind": "auto"}'
        assert crew.run(pairs_of_models, tmp_path, folder=tmp_path, env=env, timeout_s=120) == [0, 0], crew.output(
            tmp_path
        )
    assert "parameter servers cannot be used: parameter servers hold one model" in crew.output(tmp_path)


def refused_by_the_servers() -> None:
    """On one rank alone: while it connects, then while it exchanges."""
    automatic.may_win = lambda *_: True
    for broken in ("open", "take"):
        sound = getattr(remotes.Remote, broken)

        def fails(self: Any, *args: Any) -> None:
            raise errors.ServerError("the server is not there")

        if train.rank() == 1:
            setattr(remotes.Remote, broken, fails)
        torch.manual_seed(1)
        model = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        train.data_parallel(model, optimizer)
        some_steps(model, optimizer, 6, 14)
        setattr(remotes.Remote, broken, sound)
        assert dataparallel.strategy_of(model).choice() == {"exchange": "none"}  # type: ignore[union-attr]
        assert len(set(map(tuple, train.init().gather(model.weight.flatten().tolist())))) == 1
        os.environ[addresses.VARIABLE] = os.environ["OTHERS"]
    train.shutdown()


def test_servers_that_one_rank_cannot_use_are_no_choice(tmp_path: Path) -> None:
    """Training goes on with dense allreduce, on all ranks."""
    with farm.running() as servers, farm.running() as others:
        env = {**farm.variables(servers), "OTHERS": others.servers[0]}
        env[choices.VARIABLE] = '{"kind": "auto"}'
        assert crew.run(refused_by_the_servers, folder=tmp_path, env=env, timeout_s=120) == [0, 0], crew.output(
            tmp_path
        )
    assert crew.output(tmp_path).count("parameter servers cannot be used: the server is not there") == 2


def test_servers_are_a_choice_only_where_the_job_has_them() -> None:
    there = {addresses.VARIABLE: "127.0.0.1:1", addresses.TOKEN: "x"}
    assert choices.choose(None, None, {}).kind == "allreduce"
    assert choices.choose("auto", None, there).kind == "auto"
    assert choices.choose("auto", "auto", there).kind == "auto"
    assert choices.choose("auto", "bf16", there) == choices.Choice("allreduce", "bf16"), "servers do not compress"
    assert choices.choose("allreduce", None, there).kind == "allreduce"
    for open_ in ({}, {"OARLOCK_STRATEGY": '{"compression": "none"}'}, {"OARLOCK_STRATEGY": '{"kind": "auto"}'}):
        assert not addresses.meets(open_), "its ranks have a process group"
        assert addresses.meets({**open_, "OARLOCK_INCARNATION": "2"}), "a successor joins others that use the servers"
    assert addresses.meets({"OARLOCK_STRATEGY": '{"kind": "ps"}'})
    for idle in ("allreduce", "none"):
        told = {"OARLOCK_STRATEGY": f'{{"kind": "{idle}"}}', "OARLOCK_INCARNATION": "2"}
        assert not addresses.meets(told), "the survivors wait for the successor in a process group"


def served(folder: Path, steps: int, stop: int | None) -> None:
    learn(folder, "ps", steps, stop, compression=None)
    train.shutdown()


def test_a_resumed_run_goes_on_with_its_servers(tmp_path: Path) -> None:
    """The servers of a new attempt know nothing: weights and momentum come from the checkpoint."""
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder in (whole, parted):
        folder.mkdir()
    for folder, stop, codes in ((whole, None, [0, 0]), (parted, 20, [143, 143]), (parted, None, [0, 0])):
        with farm.running(2) as servers:
            env = {**farm.variables(servers), choices.VARIABLE: '{"kind": "auto"}'}
            assert crew.run(served, folder, 40, stop, folder=folder, env=env) == codes, crew.output(folder)
    assert "parameter servers, as chosen before" in crew.output(parted)
    one, other = (torch.load(folder / "final.pt") for folder in (whole, parted))
    assert one["choice"] == other["choice"] == {"exchange": "ps"}
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name
