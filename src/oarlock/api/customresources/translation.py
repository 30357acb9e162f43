"""The translation between OarlockJobs and our nouns: pure functions, in both directions.

spec of the object   ──> a submission; later, the change of the job that its owner wants
the job's record     ──> phase, workers, reason and conditions: the status of the object
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import msgspec

from oarlock.api.customresources import definitions
from oarlock.api.jobs import continuing, decisions, submissions
from oarlock.spec import errors, events, jobfile, jobs, phases, resources, roles, summaries
from oarlock.spec.input import edits, validation

ADMITTED, APPLIED = "Admitted", "Applied"
_WORKER = roles.RoleName.WORKER
_EDITABLE = "Only priority, pool, halt, and min and max of the workers can be changed."
_MAX_MESSAGE = 2000
_MAX_EVENT = 1000  # the API server refuses longer ones


class Wanted(msgspec.Struct, frozen=True):
    """The content of an object's spec."""

    submission: jobfile.Submission
    halt: bool


def wanted(found: resources.OarlockJob, pool: str, job: jobs.Job | None = None) -> Wanted:
    """Return the job that the object asks for. `pool` is the pool of jobs that name none. `job` is the object's job,
    where it has one already, with a name of its own if it was not made from the object. Raises InvalidInput.
    """
    raw = dict(found.spec) if isinstance(found.spec, dict) else {}
    if "name" in raw:
        raise errors.InvalidInput(
            "The job has the name of its object.", path="name", hint="Remove `name`, and set `metadata.name`."
        )
    known = {"pool": pool, **{field: value for field, value in raw.items() if value is not None}}
    told = validation.convert(
        {**known, "name": job.name if job is not None else found.metadata.name}, definitions.JobResource
    )
    fields = {name: getattr(told, name) for name in jobfile.JobSpec.__struct_fields__}
    spec = jobfile.JobSpec(**fields)
    validation.judge(spec, stored=job.spec if job is not None else None)
    submission = jobfile.Submission(spec=spec, snapshot=told.snapshot, continues=told.continues)
    return Wanted(submission, told.halt)


def change(job: jobs.Job, submission: jobfile.Submission) -> edits.Edit:
    """Return the change that makes the job what its object asks for. Raises Conflict for another field's change."""
    now, then = job.spec, submissions.completed(submission.spec)
    for name in jobfile.JobSpec.__struct_fields__:
        if name in ("name", "priority", "pool"):
            continue
        before, after = getattr(now, name), getattr(then, name)
        if name == "roles":
            before, after = _unbounded(before), _unbounded(after)
        if before != after:
            raise _fixed(name)
    if submission.snapshot != job.snapshot:
        raise _fixed("snapshot")
    if not continuing.names(submission.continues, job.continues):
        raise _fixed("continues")
    bounds = {}
    if _WORKER in then.roles:
        (least, most), (wanted_least, wanted_most) = _bounds(now), _bounds(then)
        bounds = {"min": wanted_least if wanted_least != least else None}
        bounds |= {"max": wanted_most if wanted_most != most else None}
    return edits.Edit(
        priority=then.priority if then.priority != now.priority else None,
        pool=then.pool if then.pool != now.pool else None,
        **bounds,
    )


def patch(found: resources.OarlockJob, job: jobs.Job) -> dict[str, Any]:
    """Return the merge patch that gives the object's spec the job's priority, pool, and bounds of the workers; empty
    where it has them, and where its spec cannot be read: its owner has to mend that.
    """
    try:
        before = submissions.completed(wanted(found, job.pool, job).submission.spec)
    except errors.OarlockError:
        return {}
    now = job.spec
    changed: dict[str, Any] = {name: getattr(now, name) for name in ("priority", "pool")}
    changed = {name: value for name, value in changed.items() if getattr(before, name) != value}
    if _WORKER in now.roles and _WORKER in before.roles and _bounds(now) != _bounds(before):
        least, most = _bounds(now)
        changed["roles"] = {str(_WORKER): {"min": least, "max": most}}
    return changed


def status(
    found: resources.OarlockJob, job: jobs.Job | None, facts: Sequence[resources.Condition], now: float
) -> resources.JobStatus:
    """Return the status of an object whose job this is. `facts` are the conditions that the record does not tell."""
    before = found.told()
    if job is None:
        return msgspec.structs.replace(before, conditions=conditions(before.conditions, facts, now))
    told = [*facts, *_facts(job, found.metadata.generation)]
    return resources.JobStatus(
        job=job.id,
        phase=str(job.phase),
        workers=_workers(job),
        reason=summaries.reason(job)[:_MAX_MESSAGE] or None,
        pool=job.pool,
        priority=job.spec.priority,
        attempt=job.attempt.number if job.attempt is not None else None,
        restarts=job.restarts or None,
        exit_code=job.exit_code,
        started_at=_time(job.started_at),
        ended_at=_time(job.ended_at),
        halt=before.halt,
        observed_generation=before.observed_generation,
        conditions=conditions(before.conditions, told, now),
    )


def event(record: events.Record) -> resources.Event | None:
    """Return the Event that a line of the job's log is to the readers of `kubectl describe`."""
    data, warning = record.data, False
    if record.kind == "phase":
        reason, message = _word(phases.Phase(data["to"])), data.get("reason") or f"from {data['from']} to {data['to']}"
        warning = data["to"] == phases.Phase.FAILED
    elif record.kind == "launch_failed":
        reason, message, warning = "LaunchFailed", data.get("reason", ""), True
    elif record.kind == "task_hindered":
        if not data.get("obstacle"):
            return None
        reason, message, warning = "TaskHindered", f"{data['role']}-{data['index']}: {data['obstacle']}", True
    else:
        decision = next(iter(decisions.made([record])), None)
        if decision is None:
            return None
        reason = str(decision.what).capitalize()
        message = ": ".join(part for part in (decision.text, decision.reason) if part)
    at = _time(record.at) or ""
    return resources.Event(number=record.seq, at=at, reason=reason, message=message[:_MAX_EVENT], warning=warning)


def fact(kind: str, true: bool, reason: str, message: str, of: resources.Meta) -> resources.Condition:
    return resources.Condition(
        type=kind,
        status="True" if true else "False",
        reason=reason,
        message=message[:_MAX_MESSAGE],
        observed_generation=of.generation,
    )


def sentence(error: errors.OarlockError) -> str:
    """Return the place, the cause and the next step in one line."""
    where = f"{error.path}: " if error.path else ""
    return f"{where}{error.message} {error.hint}".strip()


def reason(error: errors.OarlockError) -> str:
    """Return the error's word as Kubernetes writes reasons: `NameTaken`."""
    return "".join(part.capitalize() for part in error.code.split("_"))


def _facts(job: jobs.Job, generation: int) -> list[resources.Condition]:
    """Return the conditions that follow from the job's phase."""
    phase, message = job.phase, summaries.reason(job)[:_MAX_MESSAGE]
    return [
        resources.Condition(
            type=kind,
            status="True" if holds else "False",
            reason=_word(phase),
            message=message,
            observed_generation=generation,
        )
        for kind, holds in (
            ("Running", phase in (phases.Phase.PROCESSING, phases.Phase.STORING)),
            ("Completed", phase is phases.Phase.COMPLETED),
            ("Failed", phase in (phases.Phase.FAILED, phases.Phase.CANCELED)),
        )
    ]


def conditions(
    before: Sequence[resources.Condition], told: Sequence[resources.Condition], now: float
) -> tuple[resources.Condition, ...]:
    """Return the conditions by their types, those of before included. The time is that of the last change of status."""
    found = {one.type: one for one in before}
    for one in told:
        was = found.get(one.type)
        same = was is not None and was.status == one.status
        since = was.last_transition_time if was is not None and same else _time(now)
        found[one.type] = msgspec.structs.replace(one, last_transition_time=since or "")
    return tuple(found.values())


def _workers(job: jobs.Job) -> str:
    """Return the number of workers that run, and that the job has or asks for: `1/2`. Without workers, of all tasks."""
    role = job.spec.roles.get(_WORKER)
    asked = role.count if role is not None else sum(one.count for one in job.spec.roles.values())
    tasks = job.live.tasks if job.live is not None else ()
    counted = [task for task in tasks if role is None or task.role is _WORKER]
    running = sum(task.phase in (phases.TaskPhase.PROCESSING, phases.TaskPhase.STORING) for task in counted)
    return f"{running}/{len(counted) or asked}"


def _bounds(spec: jobfile.JobSpec) -> tuple[int, int]:
    role = spec.roles.get(_WORKER, jobfile.Role())
    return role.min or role.count, role.max or role.count


def _unbounded(given: dict[roles.RoleName, jobfile.Role]) -> dict[Any, jobfile.Role]:
    worker = given.get(_WORKER)
    return given | ({_WORKER: msgspec.structs.replace(worker, min=None, max=None)} if worker is not None else {})


def _fixed(name: str) -> errors.Conflict:
    return errors.Conflict(
        f"`{name}` cannot be changed after the submission, and the job goes on as it was. {_EDITABLE}",
        path=f"spec.{name}",
        hint="For a job with the other value, make an object of another name.",
    )


def _word(phase: phases.Phase) -> str:
    return str(phase).capitalize()


def _time(at: float | None) -> str | None:
    if at is None:
        return None
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
