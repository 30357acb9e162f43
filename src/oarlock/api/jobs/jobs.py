"""Jobs: submission, reading, intents, removal. The handlers start nothing: they write intent, and controllers act.

A new job is durable before the answer, under the client's idempotency key: the same key again gives the same job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.api.jobs import continuing, submissions
from oarlock.api.security import authorisation
from oarlock.api.services import provided
from oarlock.lifecycle import stepping
from oarlock.spec import bodies, errors, events, intents, jobfile, jobs, phases, resources
from oarlock.spec.access import users
from oarlock.spec.cluster import pooltrees
from oarlock.spec.input import validation
from oarlock.store import stores

MAX_PAGE = 1000
MAX_KEY_CHARACTERS = 200
MAX_REASON_CHARACTERS = 500
NAME_TRIES = 8

Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]
Text = Annotated[str, msgspec.Meta(max_length=200)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Seq = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


_AT_PHASE = ":"


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    phase: tuple[phases.Phase, ...] = ()
    owner: str | None = None
    pool: str | None = None
    name: str | None = None
    continues: str | None = None
    text: Text | None = None
    since: Time | None = None
    until: Time | None = None
    sort: stores.Sort = stores.Sort.CREATED
    ascending: bool = False
    after: str | None = None
    limit: Limit = 100


async def submit(call: routes.Call) -> routes.Answer:
    submission, key = call.body(jobfile.Submission), call.headers.get("idempotency-key", "")
    if len(key) > MAX_KEY_CHARACTERS or not key.isprintable():
        raise errors.InvalidInput(
            "The idempotency key is too long or not printable.", path="Idempotency-Key", hint="Use a UUID."
        )
    job, fresh = await admit(call.services, call.access, submission, key)
    return routes.Answer(201 if fresh else 200, call.access.shown(job))


async def admit(
    services: provided.Services,
    access: authorisation.Access,
    submission: jobfile.Submission,
    key: str,
    resource: resources.Resource | None = None,
) -> tuple[jobs.Job, bool]:
    """Judge and store the job of the user; return it, and whether it is new. The same key gives the same job."""
    digest = hashlib.sha256(msgspec.json.encode(submission)).hexdigest()
    owner = access.user.name
    earlier = await access.shared(lambda view: _earlier(view, owner, key, digest)) if key else None
    if earlier is not None:
        return earlier, False
    await submissions.judge(services, access, submission)
    wanted = submission.continues
    source = await continuing.find(services, access, wanted) if wanted is not None else None
    for attempt in range(NAME_TRIES):
        job = msgspec.structs.replace(submissions.draft(services, owner, submission), resource=resource)
        try:
            return await _add(services, access, job, source, key, digest)
        except errors.NameTaken as error:
            if submission.spec.name is not None:
                raise errors.NameTaken(
                    f"You have an active job named `{submission.spec.name}`.",
                    path="name",
                    hint=f"Choose another --name, or end it: oarlock cancel {submission.spec.name}",
                ) from error
            if attempt == NAME_TRIES - 1:
                raise
    raise AssertionError("unreachable")


async def _add(
    services: provided.Services,
    access: authorisation.Access,
    job: jobs.Job,
    source: continuing.Source | None,
    key: str,
    digest: str,
) -> tuple[jobs.Job, bool]:
    """Store the job, with a copy of the checkpoint that it continues from; return it, and whether it is new."""
    if source is None:
        return await access.add(lambda tx: _insert(tx, job, key, digest))
    continued, held = await continuing.begin(services, job, source)
    try:
        stored, fresh = await access.add(lambda tx: _insert(tx, continued, key, digest, held))
    except BaseException:
        await services.checkpoints.drop(held)
        raise
    if not fresh:
        await services.checkpoints.drop(held)
    return stored, fresh


async def show_all(call: routes.Call) -> bodies.JobPage:
    which = await chosen(call)
    found = await call.access.list_jobs(which)
    return bodies.JobPage(tuple(found), following(found, which))


async def chosen(call: routes.Call) -> stores.JobFilter:
    """Return the filter of a `ListQuery`. Raises NotFound for an unknown job in `continues`."""
    query = call.query(ListQuery)
    after, _, phase = (query.after or "").partition(_AT_PHASE)
    if phase and phase not in phases.Phase.__members__:
        raise errors.InvalidInput("This is not the `next` of a page.", path="after", hint="List from the first page.")
    return stores.JobFilter(
        phases=frozenset(query.phase) or None,
        owner=query.owner,
        pool=query.pool,
        name=query.name,
        continues=(await call.access.job(query.continues)).id if query.continues is not None else None,
        text=query.text,
        since=query.since,
        until=query.until,
        sort=query.sort,
        ascending=query.ascending,
        after=after or None,
        after_phase=phases.Phase(phase) if phase else None,
        limit=query.limit,
    )


def following(found: Sequence[jobs.Job], which: stores.JobFilter) -> str | None:
    """Return the `next` of a page."""
    if len(found) != which.limit or not found:
        return None
    last = found[-1]
    return f"{last.id}{_AT_PHASE}{last.phase}" if which.sort is stores.Sort.PHASE else last.id


async def show(call: routes.Call) -> jobs.Job:
    return await call.access.job(call.path["job"])


async def forget(call: routes.Call) -> None:
    """Remove the job: first its files, then its record, so that the request can be repeated after a failure."""
    services = call.services
    job = await call.access.job(call.path["job"])
    if not job.terminal:
        raise errors.Conflict(f"{job.name} is {job.phase}.", hint=f"End it first: oarlock cancel {call.path['job']}")
    await services.logs.forget(job.id)
    await services.metrics.forget(job.id)
    await services.checkpoints.forget(job.id)
    await services.results.forget(job.id)
    await call.access.change(job.id, lambda tx, ended: tx.remove_jobs([ended.id], at=services.clock()))
    services.wakes.touched(job.id)


async def want(call: routes.Call) -> jobs.Job:
    wanted = call.body(bodies.Wanted)
    validation.text(wanted.reason, MAX_REASON_CHARACTERS)
    if wanted.intent not in (intents.Intent.HALT, intents.Intent.CANCEL, intents.Intent.RUN):
        raise errors.InvalidInput(
            f"Only the scheduler sets the intent `{wanted.intent}`.", path="intent", hint="Use halt, cancel or run."
        )
    return call.access.shown(await wish(call.services, call.access, call.path["job"], wanted))


async def wish(
    services: provided.Services, access: authorisation.Access, name_or_id: str, wanted: bodies.Wanted
) -> jobs.Job:
    """Write the intent of the user for the job; return the job. Raises Conflict where it can no longer have it."""
    by = access.user.name

    def write(tx: stores.Transaction, job: jobs.Job) -> jobs.Job:
        if _settled(tx, job, wanted.intent, name_or_id):
            return job
        if wanted.intent is intents.Intent.RUN:
            continuing.check_resume(tx, job, visible=services.checkpoints.visible)
        now = services.clock()
        event = events.Intended(intent=wanted.intent, by=by, reason=wanted.reason)
        after = stepping.step(job, event, now)
        return job if after == job else tx.put_job(after, [event], at=now)

    job = await access.change(name_or_id, write)
    services.wakes.touched(job.id)
    return job


async def checkpoints(call: routes.Call) -> bodies.CheckpointList:
    listed = await call.access.checkpoints(call.path["job"])
    absent = await call.services.checkpoints.absent(listed)
    return bodies.CheckpointList(tuple(one for one in listed if one.path not in absent))


def _settled(view: stores.View, job: jobs.Job, intent: intents.Intent, asked: str) -> bool:
    """Return whether the job has this intent already. Raises Conflict where it can no longer have it, with a next step
    that names the job as it was `asked` for.
    """
    if job.terminal:
        if intent is intents.Intent.CANCEL and job.phase is phases.Phase.CANCELED:
            return True
        seen = f"It no longer runs. See it: oarlock show {asked}"
        hint = _again(view, job, asked) if intent is intents.Intent.RUN else seen
        raise errors.Conflict(f"{job.name} has ended: {job.phase}.", hint=hint)
    if intent is intents.Intent.RUN and job.intent is intents.Intent.CANCEL:
        raise errors.Conflict(f"{job.name} is being canceled.", hint=_again(view, job, asked))
    return job.intent is intent


def _again(view: stores.View, job: jobs.Job, asked: str) -> str:
    """Return the next step for an ended job that should run again."""
    if view.checkpoints(job.id):
        return f"Continue from its checkpoint in a new job: oarlock run --continue {asked}"
    return "Submit it again: it has no checkpoint to continue from."


def _earlier(view: stores.View, owner: str, key: str, digest: str) -> jobs.Job | None:
    """Return the job that this key made, or None.

    Raises Conflict where the key was used for another submission, and Gone where the job was removed.
    """
    found = view.submitted(owner, key) if key else None
    if found is None:
        return None
    job_id, before = found
    if before != digest:
        raise errors.Conflict(
            "This idempotency key was used for another submission.", path="Idempotency-Key", hint="Use a new one."
        )
    earlier = view.job(job_id)
    if earlier is None:
        raise errors.Gone(
            f"This idempotency key made job {job_id}, which has been removed.",
            path="Idempotency-Key",
            hint="Use a new key for a new job: a key is remembered for 30 days after the removal of its job.",
        )
    return earlier


def _insert(
    tx: stores.Transaction, job: jobs.Job, key: str, digest: str, held: jobs.Checkpoint | None = None
) -> tuple[jobs.Job, bool]:
    """Add the job unless its key made one before; return the stored job, and whether it is new."""
    earlier = _earlier(tx, job.owner, key, digest)
    if earlier is not None:
        return earlier, False
    pooltrees.check_leaf(job.pool, tx.pools())  # checked again: the pool may have changed meanwhile
    added = tx.add_job(submissions.short(tx, job), at=job.created_at, idempotency_key=key, request_sha256=digest)
    if held is not None:
        tx.add_checkpoint(held)
    return added, True


_JOB = "/api/v1/jobs/{job}"

ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="POST",
        path="/api/v1/jobs",
        handler=submit,
        needs=users.Right.USER,
        summary="submit a job; the same Idempotency-Key again gives the same job, or 410 after its removal",
        body=jobfile.Submission,
        answer=jobs.Job,
        status=201,
        others={200: "the job that this idempotency key made before"},
        headers=("Idempotency-Key",),
    ),
    routes.look("/api/v1/jobs", show_all, "jobs, newest first", bodies.JobPage, query=ListQuery),
    routes.look(_JOB, show, "one job", jobs.Job),
    routes.Route(
        method="DELETE",
        path=_JOB,
        handler=forget,
        needs=users.Right.USER,
        summary="remove an ended job: its record, and its logs, metrics, checkpoints and results in the server's home",
        status=204,
    ),
    routes.Route(
        method="PUT",
        path=f"{_JOB}/intent",
        handler=want,
        needs=users.Right.USER,
        summary="halt, cancel, or run (resume)",
        body=bodies.Wanted,
        answer=jobs.Job,
    ),
    routes.look(f"{_JOB}/checkpoints", checkpoints, "the visible checkpoints, best first", bodies.CheckpointList),
)
