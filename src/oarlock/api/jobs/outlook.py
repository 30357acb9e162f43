"""The outlook of a job: `plan` before its submission, and `why` from then on.

Both run the scheduler on the present cluster and queue. They store nothing.
"""

from __future__ import annotations

import msgspec

from oarlock.api import routes
from oarlock.api.jobs import capabilities, submissions
from oarlock.api.services import forecaster, provided
from oarlock.scheduler import gangs, wording
from oarlock.scheduler.explaining import reasons
from oarlock.scheduler.provisioning import requesting
from oarlock.spec import attempts, bodies, errors, intents, jobfile, phases, plans, refusals, summaries
from oarlock.spec import jobs as nouns
from oarlock.spec.access import users
from oarlock.spec.input import edits, validation

PLANNED = "j-planned"
"""The id of a job in manifests that are only shown."""
_STEPS_S = ((600.0, 60.0), (60.0, 30.0), (10.0, 10.0))
"""The least duration of a sentence, and the step to which it is told; a shorter one is told to the second."""


async def plan(call: routes.Call) -> plans.Forecast:
    submission = call.body(jobfile.Submission)
    services = call.services
    await submissions.judge(services, call.access, msgspec.structs.replace(submission, snapshot=None), possible=False)
    job = submissions.draft(services, call.access.user.name, submission)
    async with services.forecast_turns.of(call.access.user.name):
        forecast = await services.forecaster.plan(call.access, services.rules(), services.clock(), job)
    shown = call.access.shown_forecast(forecast)
    assert shown is not None
    return shown


async def manifests(call: routes.Call) -> bodies.Manifests:
    """Render the objects of a submission. They have a fixed id, so that equal job files give equal manifests."""
    submission = call.body(jobfile.Submission)
    services = call.services
    if services.manifests is None:
        raise errors.Unsupported(
            f"This server runs its tasks on the backend {services.about.backend}, which makes no manifests.",
            hint="Ask a server that runs them on Kubernetes: oarlock up --backend kubernetes, or oarlock login URL",
        )
    await submissions.judge(services, call.access, msgspec.structs.replace(submission, snapshot=None), possible=False)
    job = submissions.draft(services, call.access.user.name, submission)
    name = submission.spec.name or submissions.stem(submission.spec.command)
    planned = msgspec.structs.replace(job, id=PLANNED, name=name, snapshot=submission.snapshot)
    return bodies.Manifests(tuple(await services.manifests(planned)))


async def why(call: routes.Call) -> bodies.Why:
    job, services = await call.access.job(call.path["job"]), call.services
    now = services.clock()
    found = None
    if forecaster.waits(job):
        found = await services.forecaster.of(call.access, services.rules(), now, job)
    waiting = job.phase is phases.Phase.QUEUED
    refusal = (found.refusal if found is not None else job.refusal) if waiting else None
    forecast = call.access.shown_forecast(_offered(services, job, found))
    return bodies.Why(
        phase=job.phase,
        reason=job.reason,
        refusal=call.access.shown_refusal(refusal),
        forecast=forecast,
        lines=explain(job, forecast, now, call.path["job"]),
        ends=_ends(call, refusal, found) if refusal is not None else (),
    )


def _ends(
    call: routes.Call, refusal: refusals.Refusal, forecast: plans.Forecast | None
) -> tuple[bodies.ExpectedEnd, ...]:
    """Return the expected ends of the jobs that hold the missing resources, without the ids that are hidden.

    They are those of the plan behind `forecast`. Without one they are unknown, and no second forecast is awaited.
    """
    services, shown = call.services, call.access.shown_refusal(refusal)
    if shown is None or not refusal.holders:
        return ()
    known = services.forecaster.ends(forecast)
    return tuple(
        bodies.ExpectedEnd(user=one.owner, pool=one.pool, name=one.name, job=one.job, end=end, latest=latest)
        for one, (end, latest) in zip(
            shown.holders, (known.get(holder.job, (None, None)) for holder in refusal.holders), strict=True
        )
    )


def _offered(services: provided.Services, job: nouns.Job, forecast: plans.Forecast | None) -> plans.Forecast | None:
    """Return the forecast, without the edits that the job's own file or the backend would refuse."""
    if forecast is None:
        return None
    kept = tuple(
        one if _takes(services, job, one.edit) else msgspec.structs.replace(one, edit=None) for one in forecast.remedies
    )
    return msgspec.structs.replace(forecast, remedies=kept)


def _takes(services: provided.Services, job: nouns.Job, edit: edits.Edit | None) -> bool:
    try:
        spec = edits.edited(job.spec, edit or edits.Edit())
        validation.judge(spec, stored=job.spec)
        capabilities.refuse(spec, services.about.capabilities, services.about.backend)
    except errors.OarlockError:
        return False
    return True


def explain(job: nouns.Job, forecast: plans.Forecast | None, now: float, asked: str) -> tuple[str, ...]:
    """Return three lines about a job. Their commands name it as the reader has `asked` for it: by id, or by name.

    For a waiting job: the missing resources; their holders and the change that would help; the expected start and the
    place in the queue. For another job: its phase, the reason, and the next step.
    """
    lately = _about(now - job.phase_at)
    where = (
        f"{job.name} ended {lately} ago: {job.phase}."
        if job.terminal
        else f"{job.name} has been {job.phase} for {lately}."
    )
    verdict = job.attempt.verdict if job.attempt is not None else None
    if forecast is not None:
        return _waiting(job, forecast, where, now)
    if job.phase is phases.Phase.FAILED and verdict is not None:
        last = next(
            (line for line in reversed(verdict.last_lines) if any(map(str.isalnum, line))), ""
        )  # skip lines without letters or digits
        return where, verdict.message or job.reason, last or f"Look at its output: oarlock logs {asked}"
    live = job.live
    if live is not None and live.frozen_until is not None:
        left = _about(live.frozen_until - now)
        where = f"{job.name} has failed, and its place is kept for {left} more."
        change = f"Look inside: oarlock exec {asked} -- sh. Then free it: oarlock cancel {asked}"
        return where, job.reason or "One of its tasks failed.", change
    if job.phase is phases.Phase.HALTED:
        return where, _sentence(job.reason) or "Its owner halted it.", f"Resume it: oarlock resume {asked}"
    if job.terminal:
        return where, _sentence(job.reason) or _ran(job), f"Look at its output: oarlock logs {asked}"
    if live is not None:
        return where, _placed(job, live, now), _end(job, now, asked)
    return where, _sentence(job.reason) or "The next plan decides about it.", f"Follow it: oarlock show {asked}"


def _waiting(job: nouns.Job, forecast: plans.Forecast, where: str, now: float) -> tuple[str, ...]:
    refusal = forecast.refusal
    verdict = job.attempt.verdict if job.attempt is not None else None  # `job.reason` becomes the next refusal
    failure = _sentence(verdict.message) if job.platform_failures and verdict is not None else ""
    if refusal is None:
        return where, f"{failure} {forecast.message}".lstrip(), "It starts with the next plan."
    nodes = requesting.told(job.node_request, now) if job.node_request is not None else ""
    told = [nodes, reasons.held_by(refusal, now), forecast.makes_way, refusal.change]
    rank = wording.ordinal(forecast.position)
    place = f"It is {rank} of {forecast.waiting:,} waiting jobs." if forecast.position else ""
    place = "No other job waits." if forecast.waiting == 1 else place
    return (
        " ".join(filter(None, [f"{job.name} has waited {_about(now - job.phase_at)}.", failure, refusal.message])),
        " ".join(filter(None, told)) or "No single change that was tried would start it now.",
        " ".join(filter(None, [forecast.expected, place])) or "It can never start as it is.",
    )


def _placed(job: nouns.Job, live: attempts.Attempt, now: float) -> str:
    """Return the resources that the job holds, since when and why; or why it is being stopped. The obstacle of a task
    comes in place of the resources, and is told beside the reason for the stop.
    """
    obstacle = _obstacle(job, now)
    if job.intent is not intents.Intent.RUN or live.stop is not None:
        stopped = _sentence(job.reason or live.stop_message) or "It is being stopped."
        return f"{stopped} {obstacle}".rstrip()
    if obstacle:
        return obstacle
    tasks = [task for task in live.tasks if task.holds]
    devices = sum(len(task.devices) for task in tasks)
    held = f"{wording.shown('gpus', devices)} on " if devices else ""
    nodes = wording.named(dict.fromkeys(task.node for task in tasks), "more nodes")
    reason = f" It was admitted for this reason: {live.reason.rstrip('.')}." if live.reason else ""
    return f"It has held {held}{nodes} for {_about(now - live.started_at)}.{reason}"


def _obstacle(job: nouns.Job, now: float) -> str:
    late = summaries.hindered(job)
    if late is None:
        return ""
    return f"{late.name}: {late.obstacle.rstrip('.')}. It has been so for {_about(now - late.obstacle_at)}."


def _about(seconds: float) -> str:
    """Return a duration in a sentence, roughly: the same sentence stands for some time on a page that is open."""
    step = next((step for least, step in _STEPS_S if seconds >= least), 1.0)
    return wording.about(round(max(0.0, seconds) / step) * step)


def _end(job: nouns.Job, now: float, asked: str) -> str:
    end, latest = gangs.expected_end(job), gangs.latest_end(job)
    told = ""
    if forecaster.tells(job) and end is not None and end > now:
        told = f"It should end in about {_about(end - now)}. "
    elif latest is not None and latest > now:
        told = f"Its time-out ends it within {_about(latest - now)}. "
    return f"{told}Follow it: oarlock logs {asked} -f"


def _ran(job: nouns.Job) -> str:
    """Return how long the attempts of an ended job lasted together."""
    if not job.attempts:
        return "It has never run."
    lasted_s = sum((one.ended_at or one.started_at) - one.started_at for one in job.attempts)
    several = f", in {len(job.attempts)} attempts" if len(job.attempts) > 1 else ""
    return f"It ran for {_about(lasted_s)}{several}."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="POST",
        path="/api/v1/plan",
        handler=plan,
        needs=users.Right.VIEWER,
        summary="forecast for a submission: now, later or never, and why",
        body=jobfile.Submission,
        answer=plans.Forecast,
    ),
    routes.Route(
        method="POST",
        path="/api/v1/plan/manifests",
        handler=manifests,
        needs=users.Right.VIEWER,
        summary="the Kubernetes objects that would be created for the submission; 409 on another backend",
        body=jobfile.Submission,
        answer=bodies.Manifests,
    ),
    routes.look("/api/v1/jobs/{job}/why", why, "why the job is in its phase, in three lines", bodies.Why),
)
