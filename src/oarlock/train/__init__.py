"""The training library, which a training script imports.

    from oarlock import train

    world = train.init()
    model = train.data_parallel(Net())
    batches = train.Batches((images, labels), batch_size=32, seed=1)
    with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
        for x, y in session.steps(batches, epochs=5):
            ...
            session.log(loss=loss)

The same script runs alone, under torchrun and under Oarlock. Names are resolved on first use. So the import of this
package is cheap, and torch is imported only with a name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.train.batches import Batches, outlast_sigterm
    from oarlock.train.batchsizes import Batch
    from oarlock.train.compression.dgc import DGC
    from oarlock.train.compression.powersgd import PowerSGD
    from oarlock.train.errors import (
        CheckpointError,
        DivergedError,
        ReportError,
        ServerError,
        StateError,
        TrainError,
        WorldError,
    )
    from oarlock.train.hooks import EarlyStopping, NaNGuard, Profiler, StopAtStep, Summaries
    from oarlock.train.moments import Hook
    from oarlock.train.session import Session
    from oarlock.train.stopping import Stopped
    from oarlock.train.strategies.allreduce import AllReduce
    from oarlock.train.strategies.dataparallel import data_parallel, no_sync
    from oarlock.train.strategies.ingraph import InGraph
    from oarlock.train.strategies.modelparallel import ModelParallel
    from oarlock.train.strategies.parameterservers import ParameterServers
    from oarlock.train.strategies.strategy import Strategy
    from oarlock.train.worlds import World, device, device_mesh, init, is_chief, rank, rank_of, shutdown, world_size

_HOMES = {
    "AllReduce": "strategies.allreduce",
    "DGC": "compression.dgc",
    "Batch": "batchsizes",
    "Batches": "batches",
    "CheckpointError": "errors",
    "DivergedError": "errors",
    "EarlyStopping": "hooks",
    "Hook": "moments",
    "InGraph": "strategies.ingraph",
    "ModelParallel": "strategies.modelparallel",
    "NaNGuard": "hooks",
    "PowerSGD": "compression.powersgd",
    "Profiler": "hooks",
    "ReportError": "errors",
    "ParameterServers": "strategies.parameterservers",
    "ServerError": "errors",
    "Session": "session",
    "StateError": "errors",
    "StopAtStep": "hooks",
    "Stopped": "stopping",
    "Strategy": "strategies.strategy",
    "Summaries": "hooks",
    "TrainError": "errors",
    "World": "worlds",
    "WorldError": "errors",
    "data_parallel": "strategies.dataparallel",
    "device": "worlds",
    "device_mesh": "worlds",
    "init": "worlds",
    "is_chief": "worlds",
    "no_sync": "strategies.dataparallel",
    "outlast_sigterm": "batches",
    "rank": "worlds",
    "rank_of": "worlds",
    "shutdown": "worlds",
    "world_size": "worlds",
}

__all__ = [
    "DGC",
    "AllReduce",
    "Batch",
    "Batches",
    "CheckpointError",
    "DivergedError",
    "EarlyStopping",
    "Hook",
    "InGraph",
    "ModelParallel",
    "NaNGuard",
    "ParameterServers",
    "PowerSGD",
    "Profiler",
    "ReportError",
    "ServerError",
    "Session",
    "StateError",
    "StopAtStep",
    "Stopped",
    "Strategy",
    "Summaries",
    "TrainError",
    "World",
    "WorldError",
    "data_parallel",
    "device",
    "device_mesh",
    "init",
    "is_chief",
    "no_sync",
    "outlast_sigterm",
    "rank",
    "rank_of",
    "shutdown",
    "world_size",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"oarlock.train has no {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(import_module(f"oarlock.train.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
