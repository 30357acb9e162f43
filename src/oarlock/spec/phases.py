"""The phases of a job and of a task, and which may follow which."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The phase of a job, derived from its tasks' phases within an attempt."""

    QUEUED = "QUEUED"  # waits for a place, or for its back-off
    DEPLOYING = "DEPLOYING"  # holdings are taken, tasks are being made
    DOWNLOADING = "DOWNLOADING"  # at least one task fetches code or data; none has started the user's process
    PROCESSING = "PROCESSING"  # the barrier was passed, the user's processes run
    STORING = "STORING"  # the deciding tasks have succeeded, results are being uploaded
    COMPLETED = "COMPLETED"  # for ever
    FAILED = "FAILED"  # for ever
    CANCELED = "CANCELED"  # for ever
    HALTED = "HALTED"  # nothing runs, the checkpoint is kept; resume goes back to QUEUED


class TaskPhase(StrEnum):
    """The phase of one task, within one incarnation."""

    PENDING = "PENDING"  # placed, not yet made
    DEPLOYING = "DEPLOYING"  # made by the backend, not yet heard of
    DOWNLOADING = "DOWNLOADING"  # its agent fetches
    REGISTERED = "REGISTERED"  # at the barrier
    PROCESSING = "PROCESSING"  # the user's process runs
    STORING = "STORING"  # ended well, uploads
    SUCCEEDED = "SUCCEEDED"  # exit code 0
    FAILED = "FAILED"  # any other end that was not our own doing
    STOPPED = "STOPPED"  # the end that our own signal caused: neutral


TERMINAL = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.CANCELED})
"""A job in one of these never changes again."""

NOT_OVER = frozenset(Phase) - TERMINAL

RUNNING = frozenset({Phase.DEPLOYING, Phase.DOWNLOADING, Phase.PROCESSING, Phase.STORING})
"""A job in one of these has an attempt and holdings."""

ENDED = frozenset({TaskPhase.SUCCEEDED, TaskPhase.FAILED, TaskPhase.STOPPED})
"""A task in one of these has no process left that the agent knows of."""

FORWARD: tuple[Phase, ...] = (Phase.QUEUED, Phase.DEPLOYING, Phase.DOWNLOADING, Phase.PROCESSING, Phase.STORING)
"""Within an attempt a job only moves right along this line."""

ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.DEPLOYING, Phase.CANCELED, Phase.HALTED, Phase.FAILED}),
    **{
        phase: frozenset(FORWARD[place + 1 :]) | TERMINAL | {Phase.HALTED, Phase.QUEUED}
        for place, phase in enumerate(FORWARD)
        if place > 0
    },
    Phase.HALTED: frozenset({Phase.QUEUED, Phase.CANCELED}),
    **{phase: frozenset[Phase]() for phase in TERMINAL},
}
"""Which phase may follow which. Back to QUEUED means the end of an attempt."""
