"""Jobs: submission, reading, intents, removal. The handlers start nothing: they write intent, and controllers act.

A submission is checked against the present facts: the spec itself, the capabilities of the backend, the limits of the
pool, and the nodes. A job that can never run is refused with the numbers. The job is durable before the answer, under
the client's idempotency key: the same key again gives the same job.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.api.jobs import capabilities, continuing, inplace
from oarlock.api.services import provided
from oarlock.data.transfers import homeguard, schemes
from oarlock.frameworks import mpi
from oarlock.lifecycle import stepping
from oarlock.scheduler import gangs
from oarlock.scheduler.explaining import contexts, reasons
from oarlock.spec import (
    bodies,
    checkpointlocations,
    errors,
    events,
    intents,
    jobfile,
    jobs,
    phases,
    plans,
    pooltrees,
    sizes,
    users,
    validation,
)
from oarlock.store import stores

MAX_PAGE = 1000
MAX_KEY_CHARACTERS = 200
MAX_REASON_CHARACTERS = 500
MAX_SHELL_BYTES = 128 * 1024
MAX_DIRECTORY_BYTES = 4096
NAME_TRIES = 8
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INTERPRETERS = {"python", "python3", "torchrun", "sh", "bash", "env", "exec", "mpirun", "mpiexec", "uv", "poetry"}
_NOT_OVER = frozenset(phase for phase in phases.Phase if phase not in phases.TERMINAL)

Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]
Text = Annotated[str, msgspec.Meta(max_length=200)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Seq = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


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
    submission = call.body(jobfile.Submission)
    services = call.services
    key = call.headers.get("idempotency-key", "")
    if len(key) > MAX_KEY_CHARACTERS or not key.isprintable():
        raise errors.InvalidInput(
            "The idempotency key is too long or not printable.", path="Idempotency-Key", hint="Use a UUID."
        )
    digest = hashlib.sha256(msgspec.json.encode(submission)).hexdigest()
    owner = call.access.user.name
    earlier = await call.access.shared(lambda view: _earlier(view, owner, key, digest)) if key else None
    if earlier is not None:
        return routes.Answer(200, call.access.shown(earlier))
    await judge(services, call, submission)
    wanted = submission.continues
    source = await continuing.find(services, call.access, wanted) if wanted is not None else None
    for attempt in range(NAME_TRIES):
        job = draft(services, owner, submission)
        try:
            job, fresh = await _add(call, job, source, key, digest)
        except errors.NameTaken as error:
            if submission.spec.name is not None:
                raise errors.NameTaken(
                    f"You have an active job named `{submission.spec.name}`.",
                    path="name",
                    hint=f"Choose another --name, or end it: oarlock cancel {submission.spec.name}",
                ) from error
            if attempt == NAME_TRIES - 1:
                raise
        else:
            return routes.Answer(201 if fresh else 200, call.access.shown(job))
    raise AssertionError("unreachable")


async def _add(
    call: routes.Call, job: jobs.Job, source: continuing.Source | None, key: str, digest: str
) -> tuple[jobs.Job, bool]:
    """Store the job, with a copy of the checkpoint that it continues from; return it, and whether it is new."""
    if source is None:
        return await call.access.add(lambda tx: _insert(tx, job, key, digest))
    checkpoints = call.services.checkpoints
    continued, held = await continuing.begin(call.services, job, source)
    try:
        stored, fresh = await call.access.add(lambda tx: _insert(tx, continued, key, digest, held))
    except BaseException:
        await checkpoints.drop(held)
        raise
    if not fresh:
        await checkpoints.drop(held)
    return stored, fresh


async def show_all(call: routes.Call) -> bodies.JobPage:
    which = await chosen(call)
    found = await call.access.list_jobs(which)
    return bodies.JobPage(tuple(found), following(found, which))


async def chosen(call: routes.Call) -> stores.JobFilter:
    """Return the filter of a `ListQuery`. Raises NotFound for an unknown job in `continues`."""
    query = call.query(ListQuery)
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
        after=query.after,
        limit=query.limit,
    )


def following(found: Sequence[jobs.Job], which: stores.JobFilter) -> str | None:
    """Return the `next` of a page."""
    return found[-1].id if len(found) == which.limit else None


async def show(call: routes.Call) -> jobs.Job:
    return await call.access.job(call.path["job"])


async def forget(call: routes.Call) -> None:
    """Remove the job: first its files, then its record, so that the request can be repeated after a failure."""
    services = call.services
    job = await call.access.job(call.path["job"])
    if not job.terminal:
        raise errors.Conflict(f"{job.name} is {job.phase}.", hint=f"End it first: oarlock cancel {job.name}")
    await services.logs.forget(job.id)
    await services.metrics.forget(job.id)
    await services.checkpoints.forget(job.id)
    await services.results.forget(job.id)
    await call.access.change(job.id, lambda tx, ended: tx.remove_jobs([ended.id], at=services.clock()))
    services.wakes.touched(job.id)


async def want(call: routes.Call) -> jobs.Job:
    wanted = call.body(bodies.Wanted)
    services = call.services
    validation.text(wanted.reason, MAX_REASON_CHARACTERS)
    if wanted.intent not in (intents.Intent.HALT, intents.Intent.CANCEL, intents.Intent.RUN):
        raise errors.InvalidInput(
            f"Only the scheduler sets the intent `{wanted.intent}`.", path="intent", hint="Use halt, cancel or run."
        )
    by = call.access.user.name

    def write(tx: stores.Transaction, job: jobs.Job) -> jobs.Job:
        if _settled(tx, job, wanted.intent):
            return job
        if wanted.intent is intents.Intent.RUN:
            continuing.check_resume(tx, job)
        now = services.clock()
        event = events.Intended(intent=wanted.intent, by=by, reason=wanted.reason)
        after = stepping.step(job, event, now)
        return job if after == job else tx.put_job(after, [event], at=now)

    job = await call.access.change(call.path["job"], write)
    services.wakes.touched(job.id)
    return call.access.shown(job)


async def checkpoints(call: routes.Call) -> bodies.CheckpointList:
    listed = await call.access.checkpoints(call.path["job"])
    absent = await call.services.checkpoints.absent(listed)
    return bodies.CheckpointList(tuple(one for one in listed if one.path not in absent))


def _settled(view: stores.View, job: jobs.Job, intent: intents.Intent) -> bool:
    """Return whether the job has this intent already. Raises Conflict where it can no longer have it."""
    if job.terminal:
        if intent is intents.Intent.CANCEL and job.phase is phases.Phase.CANCELED:
            return True
        hint = (
            _again(view, job) if intent is intents.Intent.RUN else f"It no longer runs. See it: oarlock show {job.name}"
        )
        raise errors.Conflict(f"{job.name} has ended: {job.phase}.", hint=hint)
    if intent is intents.Intent.RUN and job.intent is intents.Intent.CANCEL:
        raise errors.Conflict(f"{job.name} is being canceled.", hint=_again(view, job))
    return job.intent is intent


def _again(view: stores.View, job: jobs.Job) -> str:
    """Return the next step for an ended job that should run again."""
    if view.checkpoints(job.id):
        return f"Continue from its checkpoint in a new job: oarlock run --continue {job.name}"
    return "Submit it again: it has no checkpoint to continue from."


async def judge(
    services: provided.Services, call: routes.Call, submission: jobfile.Submission, *, possible: bool = True
) -> None:
    """Refuse an invalid submission. With `possible`, also refuse one that can never run or that lacks its snapshot."""
    spec = submission.spec
    validation.judge(spec)
    _judge_shell(submission.shell)
    _judge_left_out(submission.left_out)
    _judge_sent_from(submission.sent_from)
    capabilities.refuse(spec, services.about.capabilities, services.about.backend)
    await inplace.refuse(submission.in_place, services.about.capabilities, services.about.backend)
    for place, secret in enumerate(spec.secrets):
        try:
            services.secrets.read(secret.name, call.access.user.name, admin=call.access.admin)
        except errors.NotFound as error:
            raise errors.InvalidInput(error.message, path=f"secrets[{place}].name", hint=error.hint) from error
    await _judge_places(services, spec)
    if submission.continues is not None:
        await continuing.find(services, call.access, submission.continues)
    if submission.snapshot is not None:
        if not _DIGEST.fullmatch(submission.snapshot):
            raise errors.InvalidInput(
                "The snapshot is not named by a digest.",
                path="snapshot",
                hint="Use `sha256:` and 64 hexadecimal digits.",
            )
        if not await services.blobs.has(submission.snapshot):
            raise errors.InvalidInput(
                "The server does not have this snapshot.", path="snapshot", hint="Upload it: PUT /api/v1/blobs/DIGEST"
            )
    elif spec.dependencies is not None and possible and submission.in_place is None:
        raise errors.InvalidInput(
            "The requirements file must be in the snapshot, and the job has no snapshot.",
            path="dependencies",
            hint="Upload a snapshot.",
        )
    gang = gangs.gang(draft(services, "", submission))
    nodes, declared = await call.access.shared(lambda view: (view.nodes(), view.pools()))
    pooltrees.check_leaf(spec.pool, declared)
    if possible and nodes:
        empty = plans.Snapshot(nodes=tuple(nodes), pools=tuple(declared), rules=services.rules)
        refusal = reasons.never(gang, contexts.Context(empty))
        if refusal is not None:
            raise errors.Impossible(
                refusal.message,
                hint=refusal.change or "See the nodes: oarlock nodes",
                detail=msgspec.to_builtins(refusal),
            )


async def _judge_places(services: provided.Services, spec: jobfile.JobSpec) -> None:
    """Refuse places within the server's home, and directories of this machine that tasks cannot write.

    Only tasks have the credentials to check an object store.
    """
    await asyncio.to_thread(_keep_out_of_home, services.about.home, spec)
    for path, place in (("checkpoint.to", spec.checkpoint.to), ("results", spec.results)):
        if place is None or checkpointlocations.elsewhere(place):
            continue
        why = await services.checkpoints.unwritable(checkpointlocations.path(place))
        if why:
            raise errors.InvalidInput(
                f"Nothing can be stored at {place}: {why}.",
                path=path,
                hint="Choose a directory that the server's user can write. By default the server's own is used.",
            )


def _judge_left_out(left_out: tuple[jobfile.LeftOut, ...]) -> None:
    if len(left_out) > jobfile.MAX_LEFT_OUT:
        raise errors.TooLarge(
            "The submission names too many files that are left out.",
            path="left_out",
            hint=f"Name at most {jobfile.MAX_LEFT_OUT} paths.",
        )
    for one in left_out:
        validation.text(one.path, jobfile.MAX_LEFT_OUT_CHARACTERS)
        validation.text(one.why, jobfile.MAX_LEFT_OUT_CHARACTERS)


def _keep_out_of_home(home: str, spec: jobfile.JobSpec) -> None:
    """Refuse places within the home. This blocks, because it resolves links.

    Checkpoints may go to the server's own directory, where each job has a folder.
    """
    places = [(f"data[{place}].source", source.source) for place, source in enumerate(spec.data)]
    places += [("results", spec.results)] if spec.results is not None else []
    places += [("checkpoint.to", spec.checkpoint.to)] if spec.checkpoint.to is not None else []
    for path, place in places:
        try:
            schemes.of(place)
            if path.startswith("data"):
                homeguard.check_source(place, home)
            else:
                homeguard.check_destination(place, home, ("checkpoints",) if path == "checkpoint.to" else ())
        except errors.InvalidInput as error:
            error.path = path
            raise


def _judge_sent_from(directory: str) -> None:
    try:
        validation.text(directory, MAX_DIRECTORY_BYTES)
    except errors.InvalidInput as error:
        error.path = "sent_from"
        raise


def _judge_shell(shell: dict[str, str]) -> None:
    if sum(len(name) + len(value) for name, value in shell.items()) > MAX_SHELL_BYTES:
        raise errors.TooLarge(
            "The shell's variables are too large.", path="shell", hint="Send only variables such as PATH."
        )
    for name, value in shell.items():
        if not name or "=" in name:
            raise errors.InvalidInput(
                f"{name[:100]!r} is not a valid name of a variable.", path="shell", hint="Use a name such as PATH."
            )
        for text in (name, value):
            try:
                validation.text(text, MAX_SHELL_BYTES)
            except errors.InvalidInput as error:
                error.path = "shell"
                raise


def draft(services: provided.Services, owner: str, submission: jobfile.Submission) -> jobs.Job:
    """Return the job that the submission would become."""
    now = services.clock()
    spec = mpi.with_launcher(sizes.filled(submission.spec))
    return jobs.Job(
        id=provided.fresh_id(services, now),
        name=spec.name or f"{_stem(spec.command)}-{_suffix(services.entropy)}",
        owner=owner,
        spec=spec,
        created_at=now,
        pool=spec.pool,
        snapshot=submission.snapshot,
        shell=submission.shell,
        directory=submission.in_place.directory if submission.in_place is not None else None,
        left_out=submission.left_out,
        sent_from=submission.sent_from,
        phase_at=now,
    )


def _stem(command: str | tuple[str, ...]) -> str:
    """Return the name of the script, else of the program: `my-train` for `python -u my_train.py --lr 1`."""
    words = command.split() if isinstance(command, str) else list(command)
    words = words[: words.index("-c")] if "-c" in words else words  # a program follows, not a name
    named = [word for word in words if not word.startswith("-") and "=" not in word]
    scripts = [word for word in named if word.endswith((".py", ".sh"))]
    stems = [
        word.rstrip("/").rpartition("/")[2].removesuffix(".py").removesuffix(".sh") for word in scripts[:1] or named
    ]
    stem = next((stem for stem in stems if stem and stem not in _INTERPRETERS), next(iter(stems), "job"))
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "job"


def _suffix(entropy: Callable[[int], bytes]) -> str:
    letters = "bcdfghjkmnpqrstvwxz23456789abcde"
    return "".join(letters[byte & 31] for byte in entropy(4))


def _short(view: stores.View, job: jobs.Job) -> jobs.Job:
    """Return an unnamed job with its script's name alone, where no active job of its owner has this name.

    So `oarlock logs train` means the job that was started last.
    """
    if job.spec.name is not None:
        return job
    name = _stem(job.spec.command)
    same = stores.JobFilter(owner=job.owner, name=name, phases=_NOT_OVER, limit=1)
    return job if view.jobs(same) else msgspec.structs.replace(job, name=name)


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
    added = tx.add_job(_short(tx, job), at=job.created_at, idempotency_key=key, request_sha256=digest)
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
    routes.Route(
        method="GET",
        path="/api/v1/jobs",
        handler=show_all,
        needs=users.Right.VIEWER,
        summary="jobs, newest first",
        query=ListQuery,
        answer=bodies.JobPage,
    ),
    routes.Route(method="GET", path=_JOB, handler=show, needs=users.Right.VIEWER, summary="one job", answer=jobs.Job),
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
    routes.Route(
        method="GET",
        path=f"{_JOB}/checkpoints",
        handler=checkpoints,
        needs=users.Right.VIEWER,
        summary="the visible checkpoints, best first",
        answer=bodies.CheckpointList,
    ),
)
