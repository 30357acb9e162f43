"""Routes of the agents of tasks: docs/agent-protocol.md, section 2.

Every request names a task key and carries the token of this key. A task that is not in the live attempt, or not the
present incarnation, gets 410 and must end. Requests that change the record (registrations, exits, checkpoints) are
fenced again in the transaction that writes them. Logs and metrics are stored under the task key, so a stale task cannot
damage those of another.

A long poll holds a connection and a future, but no thread: `wakes` wakes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from starlette import responses

from oarlock.api import routes
from oarlock.api.agents import messages, reportedcheckpoints, reports
from oarlock.api.data import blobs
from oarlock.api.security import jobsecrets
from oarlock.api.services import inbox
from oarlock.frameworks import environments
from oarlock.lifecycle import deadlines
from oarlock.lifecycle import orders as lifecycle_orders
from oarlock.spec import attempts, errors, events, jobfile, jobs
from oarlock.spec.protocol import assignments, exitrecords

LOG_LIMIT_BYTES = 8 << 20
STACKS_LIMIT_BYTES = 8 << 20
MANIFEST_LIMIT_BYTES = 40 << 20
MAX_STACK_CHARACTERS = 64 * 1024
MAX_STACKS = 64
_STREAM = re.compile(r"(stdout|stderr)\.\d{1,4}")


async def register(call: routes.Call) -> messages.Registered:
    told = call.body(messages.Registration)
    key = call.task
    job = await present(call)
    confided = await _secrets(call, job)
    event = events.TaskRegistered(key=key, address=told.address, ports=told.ports, gpu_uuids=told.gpu_uuids)
    job = await call.services.inbox.tell(key, event)
    return messages.Registered(confided, await _rendezvous(call, job, 1), _orders(call, job))


async def secrets(call: routes.Call) -> messages.Confided:
    """Return the secrets before the registration: a task may need them to fetch its data."""
    return messages.Confided(await _secrets(call, await present(call)))


async def rendezvous(call: routes.Call) -> assignments.Rendezvous | routes.Answer:
    query = call.query(messages.RendezvousQuery)

    async def look(job: jobs.Job) -> assignments.Rendezvous | None:
        return await _rendezvous(call, job, query.round)

    found = await poll(call, query.wait, look)
    return found if found is not None else routes.Answer(204)


async def report(call: routes.Call) -> messages.Ordered:
    told = call.body(messages.TaskReport)
    key = call.task
    job = await present(call)
    now = call.services.clock()
    happened: list[events.AnyEvent] = []
    reported = reports.reported(key, told, now)
    if reported is not None and (told.exit is not None or reports.urgent(job, key, reported)):
        happened.append(reported)
    elif reported is not None:
        call.services.inbox.tell_later(key, reported)
    if told.restored is not None:
        happened.append(reportedcheckpoints.restored(key, told.restored.step, told.restored.path))
    if told.exit is not None:
        happened.append(events.TaskExited(key=key, exit=exitrecords.understand(told.exit, now=now)))
    if told.kept is not None:
        happened.append(events.TaskKept(key=key, kept=reports.bounded(told.kept)))
    short = call.services.logs.shortages(key)
    happened += reports.missing_logs(job, key, short)
    if happened:
        job = await call.services.inbox.tell(key, *happened)
    return messages.Ordered(_orders(call, job), {stream: shortage.length for stream, shortage in short.items()})


async def orders(call: routes.Call) -> assignments.Orders | routes.Answer:
    query = call.query(messages.OrdersQuery)

    async def look(job: jobs.Job) -> assignments.Orders | None:
        found = _orders(call, job)
        return found if found.version != query.seen else None

    found = await poll(call, query.wait, look)
    return found if found is not None else routes.Answer(204)


async def log(call: routes.Call) -> messages.Length | routes.Answer:
    stream = call.path["stream"]
    if not _STREAM.fullmatch(stream):
        raise errors.InvalidInput(
            f"{stream[:100]!r} is not a valid stream.", path="stream", hint="Use `stdout.N` or `stderr.N`."
        )
    job = await present(call)
    data = await call.read()
    offset = call.query(messages.OffsetQuery).offset
    try:
        length = await call.services.logs.append(call.task, stream, offset, data, at=call.services.clock())
    except errors.OffsetMismatch as error:
        if noted := reports.missing_logs(job, call.task, call.services.logs.shortages(call.task)):
            await call.services.inbox.tell(call.task, *noted)
        return routes.Answer(409, messages.Length(error.length))
    call.services.meters.log_bytes.inc(len(data))
    return messages.Length(length)


async def metrics(call: routes.Call) -> messages.Length | routes.Answer:
    number = call.path["process"]
    if not number.isascii() or not number.isdigit() or int(number[:9]) >= jobfile.MAX_NPROC:
        raise errors.InvalidInput(
            f"{number[:100]!r} is not a valid process.", path="process", hint="Use a number from 0."
        )
    await present(call)
    data = await call.read()
    try:
        length = await call.services.metrics.append(
            call.task, int(number), call.query(messages.OffsetQuery).offset, data
        )
    except errors.OffsetMismatch as error:
        return routes.Answer(409, messages.Length(error.length))
    return messages.Length(length)


async def stacks(call: routes.Call) -> messages.Heard:
    told = call.body(messages.StacksReport)
    key = call.task
    kept = {name[:100]: text[-MAX_STACK_CHARACTERS:] for name, text in list(told.stacks.items())[:MAX_STACKS]}
    event = events.StacksTaken(key=key, request=told.request, stacks=kept)
    await call.services.inbox.tell(key, event)
    return messages.Heard()


async def checkpoint(call: routes.Call) -> messages.Visible:
    """Make a checkpoint visible, after checking its place and every digest."""
    told = call.body(reportedcheckpoints.CheckpointReport)
    await present(call)
    await reportedcheckpoints.show(call.services, call.task, told)
    return messages.Visible()


async def kept(call: routes.Call) -> messages.Heard:
    told = call.body(reportedcheckpoints.RemainingCopies)
    await reportedcheckpoints.keep(call.services, call.task, await present(call), told)
    return messages.Heard()


async def blob(call: routes.Call) -> responses.FileResponse:
    """Send the job's own snapshot. Raises NotFound for another one."""
    digest = blobs.digest(call)
    job = await present(call)
    if job.snapshot != digest:
        raise errors.NotFound("The digest is not of the job's snapshot.", hint="Use the digest in the assignment.")
    return responses.FileResponse(call.services.blobs.path(digest), media_type="application/octet-stream")


async def present(call: routes.Call) -> jobs.Job:
    """Return the task's job as of a moment ago. Raises StaleTask where the task is not in the live attempt now."""
    wakes = call.services.wakes
    job = await wakes.job(call.task.job)
    if job is None or inbox.task_of(job, call.task) is None:
        job = await wakes.job_after(call.task.job, job)  # its agent ends for good
    if job is None or inbox.task_of(job, call.task) is None:
        raise inbox.stale(call.task)
    return job


async def poll(call: routes.Call, wait_s: float, look: Callable[[jobs.Job], Any]) -> Any:
    """Return the first result of `look` that is not None; return None after `wait_s`, or when the server ends."""
    services = call.services
    until = time.monotonic() + wait_s
    services.meters.waiting.inc()
    try:
        with services.wakes.listening(call.task.job) as ear:
            while True:
                job = await present(call)
                found = await look(job)
                left = until - time.monotonic()
                if found is not None or left <= 0 or services.wakes.closed:
                    return found
                await ear.wait(min(left, _next_change_s(job, call.task, services.clock())))
    finally:
        services.meters.waiting.dec()


def _next_change_s(job: jobs.Job, key: attempts.TaskKey, now: float) -> float:
    """Return the seconds until the orders change without an event."""
    live, task = job.live, inbox.task_of(job, key)
    if live is None or task is None:
        return 0.0
    times = (deadlines.stop(job, live, task), deadlines.let_go(job, live, task))
    return min((at - now for at in times if at is not None and at > now), default=messages.MAX_WAIT_S) + 0.001


def _orders(call: routes.Call, job: jobs.Job) -> assignments.Orders:
    return lifecycle_orders.orders(job, call.task, call.services.clock())


async def _rendezvous(call: routes.Call, job: jobs.Job, number: int) -> assignments.Rendezvous | None:
    """Return the rendezvous for the task once the gang is complete in round `number` or later, else None."""
    live = job.live
    if live is None or live.round < max(1, number) or not lifecycle_orders.admitted(job, call.task):
        return None
    return environments.rendezvous(job, call.task, await reportedcheckpoints.offered(call.services, job.id))


async def _secrets(call: routes.Call, job: jobs.Job) -> dict[str, messages.SecretValue]:
    """Return the values of the job's secrets, read anew. Raises Conflict for a missing one: the agent tries again."""
    if not job.spec.secrets:
        return {}
    read = await jobsecrets.reader(call.services.store, call.services.secrets, job)
    try:
        found = [(secret, read(secret.name)) for secret in job.spec.secrets]
        return {
            secret.name: messages.SecretValue(secret.form, told if isinstance(told, str) else None)
            for secret, told in found
        }
    except errors.NotFound as error:
        raise errors.Conflict(error.message, hint=error.hint) from error


def route(method: str, path: str, handler: Any, summary: str, **more: Any) -> routes.Route:
    return routes.Route(
        method=method, path=f"/agent/v1{path}", handler=handler, needs=routes.Open.TASK, summary=summary, **more
    )


_NOTHING_YET = {204: "no news within `wait` seconds"}
_ELSEWHERE = {409: "the stored length is not `offset`: continue from `length`"}

ROUTES: tuple[routes.Route, ...] = (
    route(
        "POST", "/register", register, "register at the barrier", body=messages.Registration, answer=messages.Registered
    ),
    route("GET", "/secrets", secrets, "the job's secrets, before data is fetched", answer=messages.Confided),
    route(
        "GET",
        "/rendezvous",
        rendezvous,
        "addresses and ports of all tasks, once the gang has registered",
        query=messages.RendezvousQuery,
        answer=assignments.Rendezvous,
        others=_NOTHING_YET,
        long=True,
    ),
    route("POST", "/report", report, "phase, progress, exit", body=messages.TaskReport, answer=messages.Ordered),
    route(
        "GET",
        "/orders",
        orders,
        "the orders of the task, once they differ from `seen`",
        query=messages.OrdersQuery,
        answer=assignments.Orders,
        others=_NOTHING_YET,
        long=True,
    ),
    route(
        "POST",
        "/logs/{stream}",
        log,
        "raw bytes of a stream at `offset`; answered once they are durable",
        query=messages.OffsetQuery,
        body=bytes,
        answer=messages.Length,
        others=_ELSEWHERE,
        limit_bytes=LOG_LIMIT_BYTES,
    ),
    route(
        "POST",
        "/metrics/{process}",
        metrics,
        "raw bytes of metric frames at `offset`",
        query=messages.OffsetQuery,
        body=bytes,
        answer=messages.Length,
        others=_ELSEWHERE,
        limit_bytes=LOG_LIMIT_BYTES,
    ),
    route(
        "POST",
        "/stacks",
        stacks,
        "the Python stacks that an order requested",
        body=messages.StacksReport,
        answer=messages.Heard,
        limit_bytes=STACKS_LIMIT_BYTES,
    ),
    route(
        "POST",
        "/checkpoints",
        checkpoint,
        "a checkpoint with its manifest in place",
        body=reportedcheckpoints.CheckpointReport,
        answer=messages.Visible,
        limit_bytes=MANIFEST_LIMIT_BYTES,
    ),
    route(
        "POST",
        "/checkpoints/kept",
        kept,
        "the copies that are still in the object store, after the removal of old ones",
        body=reportedcheckpoints.RemainingCopies,
        answer=messages.Heard,
        limit_bytes=MANIFEST_LIMIT_BYTES,
    ),
    route("GET", "/blobs/{digest}", blob, "the job's snapshot", answer=bytes, media="application/octet-stream"),
)
