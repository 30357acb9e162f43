"""The result of a simulation: the story of each job, the holdings over time, and the duration of decisions.

Times are seconds from the beginning. `Outcome` depends only on the simulated world: the same workload, cluster,
settings and seed give the same one, to the last byte. Measurements on this machine are separate, in `Decisions`.
"""

from __future__ import annotations

import msgspec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job: it held these devices (node, indexes) from `start` to `end`.

    From `useful[0]` to `useful[1]` they advanced the job.
    """

    job: str
    attempt: int
    start: float
    end: float
    held: tuple[tuple[str, tuple[int, ...]], ...]
    devices: float  # number held, with shares of devices
    useful: tuple[float, float] = (0.0, 0.0)


class JobStory(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one job.

    `first_start` and `ended` are None if they never came. `alone_s` is its duration alone with an equal part of the
    cluster (`fairness`), and `waited_s` all the time in which it held nothing.
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
    """The simulated part of the result. `over` is when the last job ended, or the simulation was given up."""

    workload: str
    run: str  # the policy, or the name that a scenario gave it
    settings: dict[str, str]
    devices: int
    over: float
    stories: tuple[JobStory, ...]
    spans: tuple[Span, ...]
    faults: dict[str, int] = {}
    refused: dict[str, str] = {}  # by job: why it could never run; a server would have refused it


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    """Measured: the seconds of each plan, and the CPU seconds of the whole simulation."""

    times_s: tuple[float, ...]
    cpu_s: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    decisions: Decisions
