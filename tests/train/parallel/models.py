"""Models that several processes hold together, trained in float64, as the processes of a crew."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from tests.train import scripts
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from oarlock import train

TENSOR = {"first": ColwiseParallel(), "last": RowwiseParallel()}


class Net(nn.Module):
    """Layers whose rows two and three ranks cannot divide evenly, and a buffer that is never divided."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 1)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.last(self.first(x).tanh()) * 1.0


def sharded(net: Net) -> Any:
    mesh = train.device_mesh()
    for layer in (net.first, net.last):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def at_the_root(net: Net) -> Any:
    """FSDP2 whose parameters all stay gathered after a forward pass: torch expects a backward pass behind it."""
    return fully_shard(net, mesh=train.device_mesh())


def gathered(net: Net) -> Any:
    """FSDP2 of layers whose parameters stay gathered, too."""
    net = sharded(net)
    net.set_reshard_after_forward(False)
    return net


def by_tensor(net: Net) -> Any:
    net.first, net.last = nn.Linear(5, 12), nn.Linear(12, 1)  # torch divides them evenly alone
    return parallelize_module(
        net.double(), train.device_mesh(), {"first": ColwiseParallel(), "last": RowwiseParallel()}
    )


def both(net: Net) -> Any:
    """Tensor parallelism over two ranks, and FSDP2 over the others: two dimensions."""
    mesh = train.device_mesh(data=train.world_size() // 2, tensor=2)
    net.first, net.last = nn.Linear(5, 12), nn.Linear(12, 1)
    parallelize_module(net.double(), mesh["tensor"], TENSOR)
    return fully_shard(net, mesh=mesh["data"])


def replicated(net: Net) -> Any:
    """FSDP2 whose pieces each have a replica on another rank."""
    return fully_shard(net, mesh=train.device_mesh(replica=2, data=train.world_size() // 2))


def whole(net: Net) -> Any:
    return train.data_parallel(net)


DIVISIONS = {each.__name__: each for each in (sharded, at_the_root, gathered, by_tensor, both, replicated, whole)}


def full(state: Any) -> Any:
    """Return the state with whole tensors. All ranks call it."""
    if isinstance(state, DTensor):
        return state.full_tensor().clone()
    if isinstance(state, dict):
        return {name: full(each) for name, each in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state


def learn(
    folder: Path,
    division: str,
    *,
    stop: int | None = None,
    total_steps: int = 30,
    evaluate: bool = False,
    **options: Any,
) -> None:
    """Train on the same batch on every rank, and save the whole state at the begin and the end as folder/NAME.pt.

    `evaluate`: before the session and at the end of each step, so that a save follows a forward pass.
    """
    world = train.init()
    torch.manual_seed(7)
    net = DIVISIONS[division](Net().double())
    optimizer = torch.optim.AdamW(net.parameters(), 0.02, foreach=False)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 9])
    torch.manual_seed(100 * world.world_size + world.rank)  # the state of the generators comes from the checkpoint
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(24, 5, dtype=torch.float64, generator=generator)
    y = x.square().sum(1, keepdim=True)
    hooks = [scripts.Interrupt(stop, 15, rank=world.world_size - 1)] if stop else []
    state = {"model": net, "optimizer": optimizer, "scheduler": scheduler}
    given = {"checkpoints": folder / "checkpoints", "every_steps": 3, "total_steps": total_steps, "hooks": hooks}
    if evaluate:
        _evaluate(net, x)
    with train.Session(**state, **given, **options) as session:
        keep(folder / "begin.pt", net, optimizer, session.step)
        for _ in session.steps():
            loss = nn.functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.log(loss=loss)
            if evaluate:
                _evaluate(net, x)
        keep(folder / "end.pt", net, optimizer, session.step)


@torch.no_grad()
def _evaluate(net: Any, x: torch.Tensor) -> None:
    net(x)


def keep(path: Path, net: Any, optimizer: Any, step: int) -> None:
    kept = {"model": full(dict(net.state_dict())), "optimizer": full(optimizer.state_dict()), "step": step}
    if train.is_chief():
        torch.save(kept, path)


class Application:
    """A model and its optimizer as one object, as scripts for torch.distributed.checkpoint have it."""

    def __init__(self, net: Any, optimizer: Any) -> None:
        self.net, self.optimizer = net, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.net, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.net, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class Hidden:
    """An object whose divided tensors cannot be seen from outside."""

    def __init__(self, net: Any) -> None:
        self.state_dict = lambda: net.state_dict()
        self.load_state_dict = lambda state: None


def keep_otherwise(folder: Path, way: str) -> None:
    """Train one step and save, in another `way` than with model= and optimizer=. A second run finds the same values."""
    train.init()
    torch.manual_seed(7)
    net = sharded(Net().double())
    optimizer = torch.optim.Adam(net.parameters(), 0.02, foreach=False)
    options: dict[str, Any] = {"checkpoints": folder / "checkpoints", "total_steps": 1}
    ways = {
        "application": {"application": Application(net, optimizer)},
        "per_rank": {"per_rank": {"net": net, "optimizer": optimizer}},
        "hidden": {"model": Hidden(net)},
    }
    with train.Session(**options, **ways[way]) as session:
        for _ in session.steps():
            net(torch.ones(3, 5, dtype=torch.float64)).sum().backward()
            optimizer.step()
        found = folder / "before.pt"
        keep(folder / "after.pt" if found.exists() else found, net, optimizer, session.step)


SLOW_S = 0.05


def tell_figures(folder: Path, way: str) -> None:
    """Train 20 steps in which rank 1 is slow, and save the figures of each rank as folder/figures-RANK.pt."""
    world = train.init()
    torch.manual_seed(7)
    x = torch.randn(8, 5, dtype=torch.float64)
    step, trained, parallel = WAYS[way](world, x)
    with train.Session(per_rank=trained, strategy=parallel, total_steps=20) as session:
        for _ in session.steps():
            if world.rank == 1:
                time.sleep(SLOW_S)
            step()
    figures = parallel.figures
    told = {"exchanges": figures.exchanges, "waited_s": figures.waiting.total_s, "sent_bytes": figures.sent_bytes}
    torch.save(told, folder / f"figures-{world.rank}.pt")


def _of_net(world: train.World, x: torch.Tensor, divide: Any) -> Any:
    net = divide(Net().double())

    def step() -> None:
        net(x).square().mean().backward()
        net.zero_grad()

    return step, {"net": net}, train.ModelParallel(net)


def _pipelined(world: train.World, x: torch.Tensor) -> Any:
    part = (nn.Linear(5, 6) if world.rank == 0 else nn.Linear(6, 1)).double()
    stage = PipelineStage(part, world.rank, 2, world.device)
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    given: dict[str, Any] = {"args": (x,)} if world.rank == 0 else {"kwargs": {"target": x[:, :1], "losses": []}}
    return (
        lambda: schedule.step(*given.get("args", ()), **given.get("kwargs", {})),
        {"part": part},
        train.ModelParallel(),
    )


def _messages(world: train.World, x: torch.Tensor) -> Any:
    first, second = train.rank_of("worker", 0), train.rank_of("worker", 1)
    parallel, part = train.ModelParallel(), nn.Linear(5, 5).double()

    def step() -> None:
        if world.rank == first:
            parallel.send(part(x), second)
            assert parallel.receive(torch.empty(3), second).tolist() == [0.0, 1.0, 2.0]
        else:
            parallel.receive(torch.empty_like(x), first)
            parallel.send(torch.arange(3.0), first)

    return step, {"part": part}, parallel


WAYS: dict[str, Any] = {
    "fsdp": lambda world, x: _of_net(world, x, sharded),
    "tensor": lambda world, x: _of_net(world, x, by_tensor),
    "pipeline": _pipelined,
    "messages": _messages,
}
