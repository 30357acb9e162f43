"""The stops of a plan, as wishes in the words that the job's record will keep.

preempted by urgent: 240 s of work are lost
resized from 4 to 8 workers: 16 GPUs are idle
moved from n0, n1 to n2: all of it fits one node
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oarlock.spec import events, holdings, intents, jobs, plans, roles

SHOWN_NODES = 4
SCHEDULER = "scheduler"

_PLURAL = {roles.RoleName.PS: ("parameter server", "parameter servers")}


def of(plan: plans.Plan, known: Mapping[str, jobs.Job]) -> list[tuple[str, events.AnyEvent]]:
    """Return each job to stop, with its wish. Jobs that are gone or not running are left out."""
    told: list[tuple[str, events.AnyEvent]] = []
    for preemption in plan.preemptions:
        other = known.get(preemption.by)
        by = other.name if other is not None else preemption.by or SCHEDULER
        told.append((preemption.job, _wish(intents.Intent.PREEMPT, preemption.reason, by=by)))
    for resize in plan.resizes:
        if (job := known.get(resize.job)) is not None and job.live is not None:
            told.append((resize.job, _wish(intents.Intent.RESIZE, resized(job, resize), to=resize.to)))
    for move in plan.moves:
        if (job := known.get(move.job)) is not None and job.live is not None:
            places = f"from {_nodes(task.node for task in job.live.tasks)} to {_nodes(one.node for one in move.to)}"
            reason = _sentence(f"moved {places}", move.reason)
            told.append((move.job, _wish(intents.Intent.RESIZE, reason, to=move.to)))
    return told


def resized(job: jobs.Job, resize: plans.Resize) -> str:
    """Return the sentence for the record of a job that gets another size."""
    return _sentence(f"resized {_sizes(job, resize.to)}", resize.reason)


def _wish(
    intent: intents.Intent, reason: str, *, by: str = SCHEDULER, to: tuple[holdings.Holding, ...] = ()
) -> events.Intended:
    return events.Intended(intent=intent, by=by, reason=reason, to=to)


def _sizes(job: jobs.Job, to: Sequence[holdings.Holding]) -> str:
    """Return `from 4 to 8 workers`, role by role; those that stay as they are are left out."""
    assert job.live is not None
    parts = []
    for name in job.spec.roles:
        before = sum(task.role is name and task.holds for task in job.live.tasks)
        after = sum(one.role == name for one in to)
        if before != after:
            one, many = _PLURAL.get(name, (str(name), f"{name}s"))
            parts.append(f"from {before} to {after} {one if after == 1 else many}")
    return " and ".join(parts) or "within its nodes"


def _nodes(names: Iterable[str]) -> str:
    found = sorted(set(names))
    more = f" and {len(found) - SHOWN_NODES} more" if len(found) > SHOWN_NODES else ""
    return ", ".join(found[:SHOWN_NODES]) + more


def _sentence(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what
