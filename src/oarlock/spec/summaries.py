"""A job in short, for lists: the facts of one line, made from the whole record.

A job of 64 tasks is 42 kB of JSON, its summary less than 1 kB. The server makes the summaries of a page of jobs; the
command line makes them from the records that it has.
"""

from __future__ import annotations

import collections
import shlex

import msgspec

from oarlock.spec import attempts, intents, jobs, phases

LINE_CHARACTERS = 300
COMMAND_CHARACTERS = 200
"""The most characters of the command in a summary."""
PLACES = 64
"""The most nodes in a summary; `nodes` counts all."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The newest progress of a job. `fraction` is None if the last step is unknown, `left_s` also if no task runs."""

    step: int
    total_steps: int | None = None
    loss: float | None = None
    examples_per_s: float | None = None
    fraction: float | None = None
    left_s: float | None = None


class Place(msgspec.Struct, frozen=True):
    """A node on which tasks of the job run, with the devices that they hold there."""

    node: str
    devices: tuple[int, ...]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A job in short. Times are Unix seconds.

    `tasks` counts by role the tasks that the job has, or asks for while it has none. `wanted` is the intent, unless the
    job is in that state already. `reason` tells why the job waits, stops or has ended. `places` is empty for a job that
    holds nothing or is being stopped. `frozen_until` is set while a failed job keeps its place for inspection.
    """

    id: str
    name: str
    owner: str
    pool: str
    phase: phases.Phase
    phase_at: float
    created_at: float
    command: str
    tasks: dict[str, int]
    wanted: intents.Intent | None = None
    reason: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float = 0.0
    running_from: float | None = None  # the time from which `ran_s` counts; None while it stands still
    places: tuple[Place, ...] = ()
    nodes: int = 0
    frozen_until: float | None = None
    reading: Reading | None = None
    priority: int = 0
    cost: float = 0.0
    price_per_h: float = 0.0
    gpus: float = 0.0  # of all tasks: held, or asked for while the job holds nothing
    restarts: int = 0
    exit_code: int | None = None
    blamed: str = ""  # the task to blame for the last failure
    last_line: str = ""  # of that task, of a job that has failed

    @property
    def terminal(self) -> bool:
        return self.phase in phases.TERMINAL


def of(job: jobs.Job, now: float) -> Summary:
    """Return the job in short, as of `now`."""
    live = job.live
    verdict = job.attempt.verdict if job.attempt is not None else None
    places = _places(job)
    return Summary(
        id=job.id,
        name=job.name,
        owner=job.owner,
        pool=job.pool,
        phase=job.phase,
        phase_at=job.phase_at or job.created_at,
        created_at=job.created_at,
        command=command(job)[:COMMAND_CHARACTERS],
        tasks=_tasks(job),
        wanted=wanted(job),
        reason=reason(job),
        started_at=job.started_at,
        ended_at=job.ended_at,
        ran_s=job.ran_s(now),
        running_from=job.running_from,
        places=places[:PLACES],
        nodes=len(places),
        frozen_until=frozen_until(job, now),
        reading=read(job),
        priority=job.spec.priority,
        cost=job.cost_at(now),
        price_per_h=live.price_per_h if live is not None else 0.0,
        gpus=_gpus(job),
        restarts=job.restarts,
        exit_code=job.exit_code,
        blamed=verdict.task if verdict is not None else "",
        last_line=_last_line(verdict) if verdict is not None and job.phase is phases.Phase.FAILED else "",
    )


def _last_line(verdict: attempts.Verdict) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(verdict.last_lines) if line.strip()), "")[:LINE_CHARACTERS]


def command(job: jobs.Job) -> str:
    """Return the command as one line of a shell."""
    words = job.spec.command
    return words if isinstance(words, str) else shlex.join(words)


def wanted(job: jobs.Job) -> intents.Intent | None:
    """Return the intent, unless the job is already in that state."""
    settled = job.terminal or job.phase is phases.Phase.HALTED or job.intent is intents.Intent.RUN
    return None if settled else job.intent


def reason(job: jobs.Job) -> str:
    """Return the reason why the job is in its phase."""
    if job.phase is phases.Phase.QUEUED and job.refusal is not None:
        return job.refusal.message
    verdict = job.attempt.verdict if job.attempt is not None else None
    if job.phase is phases.Phase.FAILED and verdict is not None:
        return verdict.message
    late = hindered(job)
    return "; ".join(filter(None, [job.reason, f"{late.name}: {late.obstacle}" if late is not None else ""]))


def hindered(job: jobs.Job) -> attempts.Task | None:
    """Return the first task with an obstacle, which its backend has seen since `obstacle_at`."""
    return next((task for task in job.live.tasks if task.obstacle), None) if job.live is not None else None


def frozen_until(job: jobs.Job, now: float) -> float | None:
    """Return the time until which a failed job keeps its place; None if it keeps none at `now`."""
    until = job.live.frozen_until if job.live is not None else None
    return until if until is not None and until > now else None


def read(job: jobs.Job) -> Reading | None:
    """Return the progress of the present or last attempt, as its first task with a report has it."""
    tasks = job.attempt.tasks if job.attempt is not None else ()
    for task in tasks:
        told = task.progress
        if told is None:
            continue
        total = told.total_steps or None
        return Reading(
            step=told.step,
            total_steps=total,
            loss=told.loss,
            examples_per_s=told.examples_per_s,
            fraction=min(1.0, told.step / total) if total else None,
            left_s=task.left_s if job.live is not None else None,
        )
    return None


def _tasks(job: jobs.Job) -> dict[str, int]:
    """Return the number of tasks by role. An elastic gang may have fewer than it asks for."""
    counts = {str(name): role.count for name, role in job.spec.roles.items()}
    if job.live is not None:
        held = collections.Counter(str(task.role) for task in job.live.tasks if task.holds)
        counts = {name: held[name] for name in counts}
    return counts


def _gpus(job: jobs.Job) -> float:
    if job.live is not None:
        return job.live.held.devices
    return sum(role.gpus * role.count for role in job.spec.roles.values())


def _places(job: jobs.Job) -> tuple[Place, ...]:
    live = job.live
    stops = job.intent is not intents.Intent.RUN
    if live is None or live.stop is not None or live.frozen_until is not None or stops:
        return ()
    return tuple(Place(node, tuple(sorted(held))) for node, held in _devices(live).items() if node)


def _devices(attempt: attempts.Attempt) -> dict[str, list[int]]:
    devices: dict[str, list[int]] = {}
    for task in attempt.tasks:
        if not task.holds:
            continue
        devices.setdefault(task.node, []).extend(task.devices)
    return devices
