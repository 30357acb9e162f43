"""What goes into the scheduler and what comes out: plain numbers, no server needed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from oarlock.spec import holdings, jobfile, nodes, pools, refusals


class GangTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task to be placed."""

    role: str
    index: int
    amount: holdings.Resources
    ports: int = 0  # size of its port block, where the node has a port range
    gpu_types: tuple[str, ...] = ()  # acceptable, in order; empty: any
    gpu_memory_bytes: int = 0


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits for a place: admitted as one, or not at all."""

    job: str
    name: str
    pool: str
    tasks: tuple[GangTask, ...]
    submitted_at: float
    priority: int = 50
    placement: jobfile.Placement = jobfile.Placement.PACK
    topology: jobfile.Topology | None = None
    not_before: float | None = None
    refusal: refusals.Refusal | None = None  # the last one written


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A job that holds something."""

    job: str
    name: str
    pool: str
    holdings: tuple[holdings.Holding, ...]
    started_at: float
    expected_end: float | None = None  # from its time-out or its progress, where known
    priority: int = 50
    preemptible: bool = True


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one instant, frozen."""

    nodes: tuple[nodes.Node, ...]
    pools: tuple[pools.Pool, ...] = ()
    waiting: tuple[Gang, ...] = ()
    running: tuple[Running, ...] = ()


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    holdings: tuple[holdings.Holding, ...]  # attempt 0: whoever commits fills in the number


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler decided."""

    launches: tuple[Launch, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    refusals: dict[str, refusals.Refusal] = {}


class When(StrEnum):
    NOW = "now"
    LATER = "later"
    NEVER = "never"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of `oarlock plan FILE`.

    `start` is Unix seconds, None where no end of what holds the place is known.
    """

    when: When
    message: str
    refusal: refusals.Refusal | None = None
    start: float | None = None
    placement: tuple[holdings.Holding, ...] = ()
