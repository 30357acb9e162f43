"""What a simulation found: every job's story, who held what when, and how long decisions took. Times are seconds from
the beginning.

`Outcome` is made of the simulated world alone: the same workload, cluster, settings and seed give it again to the last
byte. What was measured on this machine stands apart, in `Decisions`.
"""

from __future__ import annotations

import msgspec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one job: it held these devices (node, indexes) from `start` to `end`, and they advanced it from
    `useful[0]` to `useful[1]`.
    """

    job: str
    attempt: int
    start: float
    end: float
    held: tuple[tuple[str, tuple[int, ...]], ...]
    devices: float  # that were held: shares of one count as such
    useful: tuple[float, float] = (0.0, 0.0)


class JobStory(msgspec.Struct, frozen=True, kw_only=True):
    """`first_start` and `ended` are None where that never came. `alone_s` is how long it would take with an equal part
    of the cluster (`fairness`), `waited_s` all the time that it held nothing.
    """

    job: str
    arrived: float
    phase: str
    reason: str = ""
    first_start: float | None = None
    ended: float | None = None
    starts: int = 0
    waited_s: float = 0.0
    held_device_s: float = 0.0
    advanced_device_s: float = 0.0
    lost_device_s: float = 0.0
    alone_s: float | None = None

    @property
    def completion_s(self) -> float | None:
        return None if self.ended is None else self.ended - self.arrived


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`devices` is how many there were; `over` when the last job ended, or the simulation was given up."""

    workload: str
    run: str  # the policy, or the name that a scenario gave it
    settings: dict[str, str]
    devices: int
    over: float
    stories: tuple[JobStory, ...]
    spans: tuple[Span, ...]
    faults: dict[str, int] = {}
    refused: dict[str, str] = {}  # by job: why it could never run; a server would not have taken it


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    """Measured: how long each plan took, and all of it together (CPU)."""

    times_s: tuple[float, ...]
    cpu_s: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    decisions: Decisions
