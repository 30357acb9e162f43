"""Simulations that a server runs as jobs: the request, the workload of recorded jobs, and the results."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from oarlock.spec import phases
from oarlock.spec.simulator import recordings

NAME = "simulation"
"""The name of each simulation's job, so that a user has one at a time."""

CAPABILITY = "simulations"
"""The capability of a server that runs simulations."""

FILE = "simulation.json"
"""The file that the job leaves: an `Outcome`."""

MOST_POLICIES = 16
MOST_RECORDED = 5000

_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time in which the recorded jobs were submitted: by default the seven days before `until`, and until now."""

    since: _Time | None = None
    until: _Time | None = None


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A simulation to run: one of `workload` (a bundled one), `recorded` and `text` (a scenario, or a CSV table).

    Without `nodes`, a recorded workload has the cluster's own nodes, and another one those that it names. `faults` are
    fields of a scenario's `faults`.
    """

    workload: _Text = ""
    recorded: Span | None = None
    text: str = ""
    nodes: _Text = ""
    policies: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MOST_POLICIES)] = ()
    seed: Annotated[int, msgspec.Meta(ge=0, lt=10**9)] = 0
    faults: dict[str, _Text] = {}


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The bundled workloads and the policies that a request may name; `offered` is false where none is taken."""

    workloads: tuple[str, ...]
    policies: tuple[str, ...]
    offered: bool


class NodeClass(msgspec.Struct, frozen=True, kw_only=True):
    """So many equal nodes of the cluster, in the fields of a scenario. Amounts of memory are bytes."""

    count: int
    gpus: int
    gpu_type: str
    gpu_memory: int
    cpus: float
    memory: int
    price_per_h: float = 0.0


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a job's submission, in seconds after the first one."""

    start: float


class RecordedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the record, as a group of one in a scenario. `lasts` is its time at work, in seconds."""

    name: str
    owner: str
    arrivals: Arrivals
    lasts: float
    spec: dict[str, Any]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of the record, the pools and the cluster's nodes: a scenario that `oarlock simulate` reads."""

    name: str
    nodes: tuple[NodeClass, ...]
    pools: tuple[dict[str, Any], ...]
    jobs: tuple[RecordedJob, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The file that the job leaves. `reports` are those of `oarlock simulate --json`."""

    reports: tuple[dict[str, Any], ...]
    titles: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    curves: tuple[recordings.Curves, ...]


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation and its job: `progress` is the last line of its log, and `outcome` is there once it has completed.

    A completed simulation without `outcome` has left no valid file.
    """

    job: str
    phase: phases.Phase
    reason: str = ""
    progress: str = ""
    outcome: Outcome | None = None
