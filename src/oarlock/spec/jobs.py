"""A job: a training run, as submitted, and the record of its intent, its phase and its attempts."""

from __future__ import annotations

import msgspec

from oarlock.spec import attempts, curves, holdings, intents, jobfile, phases, refusals, resources
from oarlock.spec.cluster import provisioning

Attempt = attempts.Attempt  # a job has a field of that module's name
End = attempts.End

SHORT_ID = 6
"""The last letters of an id, which are drawn by chance: enough to tell the jobs of a list apart."""

KEPT_ATTEMPTS = 20
"""Attempts kept in the record itself; earlier ones are in the event log."""


def short_id(job_id: str) -> str:
    """Return the end of an id, which is taken in its place."""
    return job_id.removeprefix("j-")[-SHORT_ID:]


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of another job from which a job began. The other job may have been removed since."""

    job: str
    name: str
    step: int
    attempt: int
    path: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`version` grows with every write (compare and swap). Times are Unix seconds, given by the server's clock."""

    id: str
    name: str
    owner: str
    spec: jobfile.JobSpec
    created_at: float
    pool: str = "default"
    snapshot: str | None = None
    sent_from: str = ""  # the directory that its code was sent from, on the machine of its submitter
    continues: Continued | None = None
    shell: dict[str, str] = {}
    directory: str | None = None  # in which it runs in place; else each task has a copy of the snapshot
    left_out: tuple[jobfile.LeftOut, ...] = ()  # of the directory, not in the snapshot
    intent: intents.Intent = intents.Intent.RUN
    phase: phases.Phase = phases.Phase.QUEUED
    reason: str = ""  # why it waits, stops or has ended, one line; empty while it runs
    phase_at: float = 0.0
    attempts: tuple[attempts.Attempt, ...] = ()
    restarts: int = 0  # of its own making: counted against max_restarts
    last_end: End | None = None  # the last one of its own making
    reached_step: int | None = None  # the farthest step that any attempt has come to
    platform_failures: int = 0  # in a row: they back off and spend nothing
    not_before: float | None = None
    refusal: refusals.Refusal | None = None
    node_request: provisioning.NodeRequest | None = None  # while it waits for nodes that an autoscaler may add
    started_at: float | None = None  # first PROCESSING
    processed_s: float = 0.0  # PROCESSING time of the attempts that have ended: counts against `timeout`
    served_s: float = 0.0  # device-seconds (CPU-seconds without devices) held by the attempts that have ended
    cost: float = 0.0  # of the attempts that have ended
    stopped_at: float | None = None  # when it was last released because the scheduler had stopped it
    destined: tuple[holdings.Holding, ...] = ()  # where it is to go, while it is stopped for a resize or a move
    lasts_s: float | None = None  # seconds that it still needed when it was last known
    curve: curves.Curve | None = None  # its speed, as measured and fitted so far
    ended_at: float | None = None
    exit_code: int | None = None
    resource: resources.Resource | None = None  # its object in a Kubernetes cluster
    version: int = 0

    @property
    def attempt(self) -> Attempt | None:
        """The present attempt, or the last one."""
        return self.attempts[-1] if self.attempts else None

    @property
    def live(self) -> Attempt | None:
        """The attempt that has not been released yet."""
        last = self.attempt
        return last if last is not None and last.ended_at is None else None

    def ran_s(self, now: float) -> float:
        """Return the seconds of PROCESSING of all its attempts by `now`; not those in which it waited to go on."""
        live = self.live
        if live is None or live.processing_at is None:
            return self.processed_s
        until = min(now, live.stop_at) if live.stop_at is not None else now
        return self.processed_s + max(0.0, until - live.processing_at)

    @property
    def running_from(self) -> float | None:
        """The time from which `ran_s` counts, None while it stands still: the start, had it never paused."""
        live = self.live
        if live is None or live.processing_at is None or live.stop_at is not None:
            return None
        return live.processing_at - self.processed_s

    def cost_at(self, now: float) -> float:
        """Return the cost of all attempts until `now`."""
        live = self.live
        return self.cost + (live.cost_at(now) if live is not None else 0.0)

    def outcome(self, attempt: Attempt) -> phases.Phase | None:
        """Return how an attempt ended, None while it runs.

        FAILED also where the job started again; QUEUED where it was stopped and the job waited again, as after a
        preemption or a resize.
        """
        if attempt.ended_at is None:
            return None
        if attempt.failed:
            return phases.Phase.FAILED
        if attempt.led_to is not None:
            return attempt.led_to
        last = self.attempts[-1].number == attempt.number
        return self.phase if last and self.phase in phases.TERMINAL | {phases.Phase.HALTED} else phases.Phase.QUEUED

    @property
    def terminal(self) -> bool:
        return self.phase in phases.TERMINAL


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A visible checkpoint: one that was reported by the attempt that was current, and whose manifest is in place."""

    job: str
    step: int
    attempt: int
    round: int
    path: str
    manifest_sha256: str
    bytes: int
    at: float
