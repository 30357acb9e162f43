"""The facts about a job: the input of `lifecycle.step`, and the lines of the job's record.

An event may be told once or many times: `step` gives the same job each time. Events about a task carry its incarnation,
and events about an attempt its number, so that news of an earlier life changes nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oarlock.spec import attempts, curves, holdings, intents, refusals, resources
from oarlock.spec.cluster import provisioning


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Root of all events."""


class Intended(Event, frozen=True, kw_only=True, tag="intended"):
    """A wish for the job, by its owner (`halt`, `cancel`, `run` to resume) or by the scheduler, which gives the gang's
    new place with a `resize`.
    """

    intent: intents.Intent
    by: str = ""
    reason: str = ""
    to: tuple[holdings.Holding, ...] = ()


class Edited(Event, frozen=True, kw_only=True, tag="edited"):
    """The job's owner, or an administrator, has changed these fields of it."""

    priority: int | None = None
    pool: str | None = None
    min: int | None = None
    max: int | None = None
    by: str = ""


class Refused(Event, frozen=True, kw_only=True, tag="refused"):
    """The scheduler could not place the gang now."""

    refusal: refusals.Refusal


class NodesRequested(Event, frozen=True, kw_only=True, tag="nodes_requested"):
    """Nodes for the waiting gang are requested, or an autoscaler has answered; None: they are no longer wanted."""

    request: provisioning.NodeRequest | None


class Projected(Event, frozen=True, kw_only=True, tag="projected"):
    """The job has an object in its Kubernetes cluster now."""

    resource: resources.Resource


class Admitted(Event, frozen=True, kw_only=True, tag="admitted"):
    """The scheduler placed the gang: holdings are taken in the same transaction; attempt `attempt` begins."""

    attempt: int
    holdings: tuple[holdings.Holding, ...]
    reason: str = ""  # why now and why there, one line
    batch: curves.Batch | None = None
    price_per_h: float = 0.0  # of all that it holds
    gpu_types: tuple[str, ...] = ()  # of the devices, sorted


class Reshaped(Event, frozen=True, kw_only=True, tag="reshaped"):
    """The scheduler gives the running attempt more workers, or takes some away; the others live on.

    The holdings of `added` are taken in the same transaction. Those of `removed` are given back once they are gone.
    `held`, `price_per_h` and `gpu_types` are of all that it holds then; `round` is the one in which that was decided.
    """

    attempt: int
    round: int
    added: tuple[holdings.Holding, ...] = ()
    removed: tuple[str, ...] = ()  # `worker-1`
    reason: str = ""
    held: holdings.Resources
    price_per_h: float = 0.0
    gpu_types: tuple[str, ...] = ()


class Vacated(Event, frozen=True, kw_only=True, tag="vacated"):
    """Nothing of these tasks runs, and they have left for good: their holdings are freed in the same transaction.

    `held` and `price_per_h` are of all that the attempt still holds.
    """

    attempt: int
    tasks: tuple[attempts.TaskKey, ...]
    held: holdings.Resources
    price_per_h: float = 0.0


class BatchDecided(Event, frozen=True, kw_only=True, tag="batch_decided"):
    """The scheduler gives the running attempt another batch size; its processes hear of it and take it up."""

    attempt: int
    batch: curves.Batch


class Measured(Event, frozen=True, kw_only=True, tag="measured"):
    """Its speed was measured at a shape that was not known, or anew: the curve as fitted to all of it. Not logged."""

    curve: curves.Curve


class Launched(Event, frozen=True, kw_only=True, tag="launched"):
    """The backend has made and bound all tasks of the gang; or `tasks`, where some are replaced in place."""

    attempt: int
    tasks: tuple[attempts.TaskKey, ...] = ()


class LaunchFailed(Event, frozen=True, kw_only=True, tag="launch_failed"):
    """The backend could not make all tasks, and was asked to tear down the others. The platform is at fault."""

    attempt: int
    reason: str


class TaskEvent(Event, frozen=True, kw_only=True):
    """Root of events about one incarnation of one task of the job."""

    key: attempts.TaskKey


class TaskRegistered(TaskEvent, frozen=True, kw_only=True, tag="task_registered"):
    """The agent stands at the barrier. `ports` are those of its block that it found free, `gpu_uuids` the devices that
    the platform chose for it.
    """

    address: str
    ports: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()


class TaskReported(TaskEvent, frozen=True, kw_only=True, tag="task_reported"):
    """The agent tells its phase and progress."""

    phase: str | None = None
    detail: str = ""
    progress: attempts.Progress | None = None
    idle_s: float | None = None
    can_rejoin: bool | None = None
    lost_round: int | None = None


class TaskHindered(TaskEvent, frozen=True, kw_only=True, tag="task_hindered"):
    """The backend sees an obstacle: an image that cannot be pulled, a lost node, a pod that does not end. Empty: it has
    passed.
    """

    obstacle: str = ""


class TaskExited(TaskEvent, frozen=True, kw_only=True, tag="task_exited"):
    """The agent, or the backend that read its exit record, tells how the task ended."""

    exit: attempts.Exit


class TaskKept(TaskEvent, frozen=True, kw_only=True, tag="task_kept"):
    """The agent tells which files of the working directory it has kept; for a failure after the exit."""

    kept: attempts.Kept


class TaskGone(TaskEvent, frozen=True, kw_only=True, tag="task_gone"):
    """The backend confirms that nothing of this task runs. Without an exit before it: the failure "exit unknown"."""


class CheckpointRestored(TaskEvent, frozen=True, kw_only=True, tag="checkpoint_restored"):
    """The processes go on from this checkpoint: it was the best of those offered that held."""

    step: int
    path: str = ""


class LogsMissing(TaskEvent, frozen=True, kw_only=True, tag="logs_missing"):
    """So many acknowledged bytes of the task's logs are gone from the server's disk; 0: they are there again."""

    missing: int


class StacksTaken(TaskEvent, frozen=True, kw_only=True, tag="stacks_taken"):
    request: int
    stacks: dict[str, str]


class StopDecided(Event, frozen=True, kw_only=True, tag="stop_decided"):
    """The attempt is to end, with this cause: settled blame, a time-out, a hang, an intent. Found by `wants`, noted by
    the guardian.
    """

    attempt: int
    cause: attempts.Cause
    message: str
    task: str = ""


class Ousted(Event, frozen=True, kw_only=True, tag="ousted"):
    """These tasks of an elastic gang hang, and the others wait for them: they leave, and are ended by force."""

    attempt: int
    tasks: tuple[attempts.TaskKey, ...]
    message: str = ""


class StacksAsked(Event, frozen=True, kw_only=True, tag="stacks_asked"):
    """A task hangs: every rank's stacks have been asked for, before the attempt is stopped."""

    attempt: int
    task: str
    message: str


class Released(Event, frozen=True, kw_only=True, tag="released"):
    """Nothing of the attempt runs any more; its holdings are freed in the same transaction. Ends the attempt."""

    attempt: int


class CheckpointVisible(Event, frozen=True, kw_only=True, tag="checkpoint_visible"):
    checkpoint_step: int
    attempt: int
    path: str


class ClockStepped(Event, frozen=True, kw_only=True, tag="clock_stepped"):
    """The wall clock was set, or the machine slept: the dates that durations count from have moved by so much.

    Unlike other events it must be told once: the anchor that is written with it sees to that.
    """

    by_s: float
    slept_s: float = 0.0  # of that, while the machine slept


AnyEvent = (
    Intended
    | Edited
    | Refused
    | NodesRequested
    | Projected
    | Admitted
    | Reshaped
    | Vacated
    | BatchDecided
    | Measured
    | Launched
    | LaunchFailed
    | TaskRegistered
    | TaskReported
    | TaskHindered
    | TaskExited
    | TaskKept
    | TaskGone
    | LogsMissing
    | StacksTaken
    | StopDecided
    | StacksAsked
    | Ousted
    | Released
    | CheckpointVisible
    | CheckpointRestored
    | ClockStepped
)


NODES, POOLS = "nodes", "pools"
"""The kinds of the lines that are of no job: nodes or pools have changed. Their data has `names`, the first of them."""
MOST_NAMES = 20


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the event log. `seq` is given under one lock, in commit order; `kind` an event's tag, or `submitted`,
    `phase`, `removed`; or `nodes` or `pools`, with an empty `job`.

    `version` is the job's after it. Progress reports are not logged.
    """

    seq: int
    at: float
    job: str
    kind: str
    version: int
    data: dict[str, Any] = {}
