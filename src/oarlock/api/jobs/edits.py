"""Changes of a job that has not ended: `PATCH /api/v1/jobs/JOB`. A refusal of a change gives the reason."""

from __future__ import annotations

import msgspec

from oarlock.api import routes
from oarlock.api.jobs import capabilities
from oarlock.api.security import authorisation
from oarlock.api.services import provided
from oarlock.lifecycle import stepping
from oarlock.scheduler import gangs
from oarlock.scheduler.explaining import contexts, reasons
from oarlock.spec import attempts, errors, events, intents, jobfile, plans, roles
from oarlock.spec import jobs as job_nouns
from oarlock.spec.access import users
from oarlock.spec.cluster import pooltrees
from oarlock.spec.input import edits as nouns
from oarlock.spec.input import validation
from oarlock.store import stores

_WORKER = roles.RoleName.WORKER


async def edit(call: routes.Call) -> job_nouns.Job:
    wanted = call.body(nouns.Edit)
    if wanted == nouns.Edit():
        raise errors.InvalidInput("The request changes nothing.", hint=f"Set one of {', '.join(nouns.FIELDS)}.")
    return call.access.shown(await change(call.services, call.access, call.path["job"], wanted))


async def change(
    services: provided.Services, access: authorisation.Access, name_or_id: str, wanted: nouns.Edit
) -> job_nouns.Job:
    """Change the user's job; return it. Raises InvalidInput, Conflict, Unsupported or Impossible, with the reason."""
    by = access.user.name

    def write(tx: stores.Transaction, job: job_nouns.Job) -> job_nouns.Job:
        _check(tx, job, wanted, services, name_or_id)
        now = services.clock()
        event = events.Edited(priority=wanted.priority, pool=wanted.pool, min=wanted.min, max=wanted.max, by=by)
        after = stepping.step(job, event, now)
        return job if after is job else tx.put_job(after, [event], at=now)

    job = await access.change(name_or_id, write)
    services.wakes.touched(job.id)
    return job


def _check(view: stores.View, job: job_nouns.Job, wanted: nouns.Edit, services: provided.Services, asked: str) -> None:
    """Raise InvalidInput, Conflict, Unsupported or Impossible, with the reason."""
    if job.terminal or job.intent is intents.Intent.CANCEL:
        ended = f"has ended: {job.phase}" if job.terminal else "is being canceled"
        raise errors.Conflict(f"{job.name} {ended}.", hint="Submit a new job with the other values.")
    spec = nouns.edited(job.spec, wanted)
    validation.judge(spec, stored=job.spec)
    pooltrees.check_leaf(spec.pool, view.pools())
    after = msgspec.structs.replace(job, spec=spec, pool=spec.pool)
    if (wanted.min, wanted.max, wanted.pool) != (None, None, None):
        capabilities.refuse(spec, services.about.capabilities, services.about.backend)
    if (wanted.min, wanted.max) != (None, None) and job.live is not None:
        _check_running(job, after, job.live, asked)
    nodes = view.nodes()
    if nodes and (wanted.pool, wanted.min) != (None, None):
        rules = services.rules()
        empty = plans.Snapshot(nodes=tuple(nodes), pools=tuple(view.pools()), rules=rules)
        refusal = reasons.never(gangs.gang(after, of=rules.profiles), contexts.Context(empty))
        if refusal is not None:
            detail = msgspec.to_builtins(refusal)
            raise errors.Impossible(refusal.message, hint=refusal.change or "See: oarlock pools", detail=detail)


def _check_running(before: job_nouns.Job, after: job_nouns.Job, live: attempts.Attempt, asked: str) -> None:
    """Refuse bounds that the running gang does not keep, and any while a worker comes or goes."""
    workers = [task for task in live.tasks if task.role is _WORKER and task.part is not attempts.Part.AWAY]
    role = after.spec.roles[_WORKER]
    least, most = role.min or role.count, role.max or role.count
    anew = f"alt it, change it, and resume it: oarlock halt {asked} --wait"
    if not least <= len(workers) <= most:
        raise errors.Conflict(
            f"{after.name} runs with {len(workers)} workers, and would have {least} to {most}.", hint=f"H{anew}"
        )
    if any(task.part is not attempts.Part.MEMBER or not task.holds for task in workers):
        raise errors.Conflict(
            f"A worker of {after.name} just comes or goes.", hint=f"Try again when all of them train. Or h{anew}"
        )
    if jobfile.serves(after.spec) and jobfile.reshapes(before.spec) != jobfile.reshapes(after.spec):
        now, then = ("come and go", "stay") if jobfile.reshapes(before.spec) else ("stay", "come and go")
        raise errors.Conflict(
            f"The workers of {after.name} {now}, and would {then}: its parameter servers are told at the start.",
            hint=f"H{anew}",
        )


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="PATCH",
        path="/api/v1/jobs/{job}",
        handler=edit,
        needs=users.Right.USER,
        summary="change priority, pool, or the bounds of the number of workers; 409 with the reason where it cannot be",
        body=nouns.Edit,
        answer=job_nouns.Job,
        hint="Only priority, pool, min and max of a job can be changed. Submit a new job with the other value.",
    ),
)
