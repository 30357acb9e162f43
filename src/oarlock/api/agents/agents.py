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
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from starlette import responses

from oarlock.api import routes
from oarlock.api.agents import reportedcheckpoints
from oarlock.api.data import blobs
from oarlock.api.services import inbox
from oarlock.data import storage
from oarlock.frameworks import environments
from oarlock.lifecycle import deadlines
from oarlock.lifecycle import orders as lifecycle_orders
from oarlock.spec import assignments, attempts, errors, events, exitrecords, jobfile, jobs, phases, users

MAX_WAIT_S = 60.0
LOG_LIMIT_BYTES = 8 << 20
STACKS_LIMIT_BYTES = 8 << 20
MANIFEST_LIMIT_BYTES = 40 << 20
MAX_STACK_CHARACTERS = 64 * 1024
MAX_STACKS = 64
MAX_DETAIL_CHARACTERS = 500
MAX_TYPE_CHARACTERS = 100
MAX_EXAMPLES = 5
MAX_REASONS = 10
MAX_EXAMPLE_CHARACTERS = 200
MAX_MEASURE = 1e12
MAX_COUNT = 1 << 20
_STREAM = re.compile(r"(stdout|stderr)\.\d{1,4}")
_REPORTED = {phase.value: phase for phase in (phases.Phase.DOWNLOADING, phases.Phase.PROCESSING, phases.Phase.STORING)}

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of a task. The agent's routes ignore unknown fields: either side may be newer."""

    address: Annotated[str, msgspec.Meta(max_length=255)]
    ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=1024)] = ()
    pid: int | None = None
    host: str = ""
    agent_version: str = ""
    python: str = ""


class SecretValue(msgspec.Struct, frozen=True):
    """The value of a secret, and the form in which the task gets it."""

    form: jobfile.SecretForm = msgspec.field(name="as")
    value: str = ""


class Registered(msgspec.Struct, frozen=True):
    """The answer to a registration. `rendezvous` is null until the whole gang has registered."""

    secrets: dict[str, SecretValue]
    rendezvous: assignments.Rendezvous | None
    orders: assignments.Orders


class ProgressEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a task: its step, and the measurements of the training library. Times are in Unix seconds."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    time: float | None = None
    total_steps: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    examples_per_s: float | None = None
    loss: float | None = None
    epoch: float | None = None
    step_s: float | None = None
    sync_s: float | None = None
    ranks: int | None = None
    local: int | None = None
    accumulate: int | None = None
    noise: float | None = None
    gpu_type: str | None = None


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that the task has loaded."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    path: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of the training library in a process."""

    can_rejoin: bool = False


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report of a task. It has the fields that have changed."""

    phase: str | None = None
    progress: ProgressEvent | None = None
    idle_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    detail: str | None = None
    hello: Hello | None = None
    restored: Restored | None = None
    exit: exitrecords.ExitRecord | None = None
    kept: attempts.Kept | None = None


class Ordered(msgspec.Struct, frozen=True):
    """The answer to a report. `logs` has the stored lengths of streams with lost bytes, to continue from."""

    orders: assignments.Orders
    logs: dict[str, int] = {}


class Length(msgspec.Struct, frozen=True):
    """The stored length of a stream in bytes."""

    length: int


class StacksReport(msgspec.Struct, frozen=True):
    """Python stacks by process, for the request of this number."""

    request: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    stacks: dict[str, str]


class Visible(msgspec.Struct, frozen=True):
    """The checkpoint is visible."""

    visible: bool = True


class Confided(msgspec.Struct, frozen=True):
    """The secrets of the job, by name."""

    secrets: dict[str, SecretValue]


class Heard(msgspec.Struct, frozen=True):
    """The report has arrived."""

    heard: bool = True


class RendezvousQuery(msgspec.Struct, frozen=True):
    round: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 1
    wait: Wait = 0.0


class OrdersQuery(msgspec.Struct, frozen=True):
    seen: str = ""
    wait: Wait = 0.0


class OffsetQuery(msgspec.Struct, frozen=True):
    offset: Offset


async def register(call: routes.Call) -> Registered:
    told = call.body(Registration)
    key = call.task
    job = await present(call)
    confided = await _secrets(call, job)
    event = events.TaskRegistered(
        key=key,
        address=told.address,
        ports=told.ports,
    )
    job = await call.services.inbox.tell(key, event)
    return Registered(confided, await _rendezvous(call, job, 1), _orders(call, job))


async def secrets(call: routes.Call) -> Confided:
    """Return the secrets before the registration: a task may need them to fetch its data."""
    return Confided(await _secrets(call, await present(call)))


async def rendezvous(call: routes.Call) -> assignments.Rendezvous | routes.Answer:
    query = call.query(RendezvousQuery)

    async def look(job: jobs.Job) -> assignments.Rendezvous | None:
        return await _rendezvous(call, job, query.round)

    found = await poll(call, query.wait, look)
    return found if found is not None else routes.Answer(204)


async def report(call: routes.Call) -> Ordered:
    told = call.body(TaskReport)
    key = call.task
    job = await present(call)
    now = call.services.clock()
    happened: list[events.AnyEvent] = []
    reported = _reported(key, told, now)
    if reported is not None and (told.exit is not None or _urgent(job, key, reported)):
        happened.append(reported)
    elif reported is not None:
        call.services.inbox.tell_later(key, reported)
    if told.restored is not None:
        happened.append(reportedcheckpoints.restored(key, told.restored.step, told.restored.path))
    if told.exit is not None:
        happened.append(
            events.TaskExited(
                key=key,
                exit=exitrecords.understand(told.exit, now=now),
            )
        )
    if told.kept is not None:
        happened.append(
            events.TaskKept(
                key=key,
                kept=_bounded(told.kept),
            )
        )
    short = call.services.logs.shortages(key)
    happened += _missing(job, key, short)
    if happened:
        job = await call.services.inbox.tell(key, *happened)
    return Ordered(_orders(call, job), {stream: shortage.length for stream, shortage in short.items()})


async def orders(call: routes.Call) -> assignments.Orders | routes.Answer:
    query = call.query(OrdersQuery)

    async def look(job: jobs.Job) -> assignments.Orders | None:
        found = _orders(call, job)
        return found if found.version != query.seen else None

    found = await poll(call, query.wait, look)
    return found if found is not None else routes.Answer(204)


async def log(call: routes.Call) -> Length | routes.Answer:
    stream = call.path["stream"]
    if not _STREAM.fullmatch(stream):
        raise errors.InvalidInput(
            f"{stream[:100]!r} is not a valid stream.", path="stream", hint="Use `stdout.N` or `stderr.N`."
        )
    job = await present(call)
    data = await call.read()
    offset = call.query(OffsetQuery).offset
    try:
        length = await call.services.logs.append(call.task, stream, offset, data, at=call.services.clock())
    except errors.OffsetMismatch as error:
        if noted := _missing(job, call.task, call.services.logs.shortages(call.task)):
            await call.services.inbox.tell(call.task, *noted)
        return routes.Answer(409, Length(error.length))
    call.services.meters.log_bytes.inc(len(data))
    return Length(length)


async def metrics(call: routes.Call) -> Length | routes.Answer:
    number = call.path["process"]
    if not number.isascii() or not number.isdigit() or int(number[:9]) >= jobfile.MAX_NPROC:
        raise errors.InvalidInput(
            f"{number[:100]!r} is not a valid process.", path="process", hint="Use a number from 0."
        )
    await present(call)
    data = await call.read()
    try:
        length = await call.services.metrics.append(call.task, int(number), call.query(OffsetQuery).offset, data)
    except errors.OffsetMismatch as error:
        return routes.Answer(409, Length(error.length))
    return Length(length)


async def stacks(call: routes.Call) -> Heard:
    told = call.body(StacksReport)
    key = call.task
    kept = {name[:100]: text[-MAX_STACK_CHARACTERS:] for name, text in list(told.stacks.items())[:MAX_STACKS]}
    event = events.StacksTaken(
        key=key,
        request=told.request,
        stacks=kept,
    )
    await call.services.inbox.tell(key, event)
    return Heard()


async def checkpoint(call: routes.Call) -> Visible:
    """Make a checkpoint visible, after checking its place and every digest."""
    told = call.body(reportedcheckpoints.CheckpointReport)
    await present(call)
    await reportedcheckpoints.show(call.services, call.task, told)
    return Visible()


async def kept(call: routes.Call) -> Heard:
    told = call.body(reportedcheckpoints.RemainingCopies)
    await reportedcheckpoints.keep(call.services, call.task, await present(call), told)
    return Heard()


async def blob(call: routes.Call) -> responses.FileResponse:
    """Send the job's own snapshot. Raises NotFound for another one."""
    digest = blobs.digest(call)
    job = await present(call)
    if job.snapshot != digest:
        raise errors.NotFound("The digest is not of the job's snapshot.", hint="Use the digest in the assignment.")
    return responses.FileResponse(call.services.blobs.path(digest), media_type="application/octet-stream")


async def present(call: routes.Call) -> jobs.Job:
    """Return the task's job as of a moment ago. Raises StaleTask where the task is not in the live attempt."""
    job = await call.services.wakes.job(call.task.job)
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
    return min((at - now for at in times if at is not None and at > now), default=MAX_WAIT_S) + 0.001


def _orders(call: routes.Call, job: jobs.Job) -> assignments.Orders:
    return lifecycle_orders.orders(job, call.task, call.services.clock())


async def _rendezvous(call: routes.Call, job: jobs.Job, number: int) -> assignments.Rendezvous | None:
    """Return the rendezvous for the task once the gang is complete in round `number` or later, else None."""
    live = job.live
    if live is None or live.round < max(1, number) or not lifecycle_orders.admitted(job, call.task):
        return None
    return environments.rendezvous(job, call.task, await reportedcheckpoints.offered(call.services, job.id))


async def _secrets(call: routes.Call, job: jobs.Job) -> dict[str, SecretValue]:
    """Return the values of the job's secrets, read anew. Raises Conflict for a missing one: the agent tries again."""
    if not job.spec.secrets:
        return {}
    owner = await call.services.store.read(lambda view: view.user(job.owner))
    admin = owner is not None and owner.right is users.Right.ADMIN
    try:
        return {
            secret.name: SecretValue(secret.form, call.services.secrets.read(secret.name, job.owner, admin=admin))
            for secret in job.spec.secrets
        }
    except errors.NotFound as error:
        raise errors.Conflict(error.message, hint=error.hint) from error


def _reported(key: attempts.TaskKey, told: TaskReport, now: float) -> events.TaskReported | None:
    if told.phase is None and told.progress is None and told.idle_s is None and told.detail is None and not told.hello:
        return None
    if told.phase is not None and told.phase not in _REPORTED:
        raise errors.InvalidInput(
            f"{told.phase[:100]!r} is not a phase that a task reports.",
            path="phase",
            hint=f"Use one of {', '.join(_REPORTED)}.",
        )
    return events.TaskReported(
        key=key,
        phase=told.phase,
        detail=(told.detail or "")[:MAX_DETAIL_CHARACTERS],
        progress=_progress(told.progress, now),
        idle_s=told.idle_s,
        can_rejoin=told.hello.can_rejoin if told.hello is not None else None,
    )


def _missing(job: jobs.Job, key: attempts.TaskKey, short: Mapping[str, storage.Shortage]) -> list[events.AnyEvent]:
    """Return the event that bytes of the task's logs are lost, unless the record has it already."""
    task, missing = inbox.task_of(job, key), sum(shortage.missing for shortage in short.values())
    if task is None or task.log_gap == missing:
        return []
    return [events.LogsMissing(key=key, missing=missing)]


def _progress(told: ProgressEvent | None, now: float) -> attempts.Progress | None:
    if told is None:
        return None
    return attempts.Progress(
        step=told.step,
        at=told.time if told.time is not None else now,
        total_steps=told.total_steps,
        examples_per_s=told.examples_per_s,
        loss=told.loss,
        epoch=told.epoch,
        step_s=_measure(told.step_s),
        sync_s=_measure(told.sync_s),
        ranks=_count(told.ranks),
        local=_count(told.local),
        accumulate=_count(told.accumulate),
        noise=_measure(told.noise),
        gpu_type=(told.gpu_type or "")[:MAX_TYPE_CHARACTERS],
    )


def _bounded(told: attempts.Kept) -> attempts.Kept:
    """Return the report, shortened to the size that a record may have."""
    short = tuple(
        msgspec.structs.replace(
            one,
            why=one.why[:MAX_EXAMPLE_CHARACTERS],
            examples=tuple(text[:MAX_EXAMPLE_CHARACTERS] for text in one.examples[:MAX_EXAMPLES]),
        )
        for one in told.not_kept[:MAX_REASONS]
    )
    return msgspec.structs.replace(
        told,
        not_kept=short,
        removed=tuple(life[:MAX_EXAMPLE_CHARACTERS] for life in told.removed[:MAX_EXAMPLES]),
        failure=told.failure[:MAX_DETAIL_CHARACTERS],
    )


def _measure(value: float | None) -> float | None:
    """Return a plausible number, else None: a user's process may report any number, and decisions use it."""
    return value if value is not None and 0 <= value < MAX_MEASURE else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 < value <= MAX_COUNT else None


def _urgent(job: jobs.Job, key: attempts.TaskKey, reported: events.TaskReported) -> bool:
    """Return whether the report is urgent: a new phase, or another answer about rejoining. Progress can wait."""
    task = inbox.task_of(job, key)
    return task is None or (
        (reported.phase is not None and reported.phase != task.phase.value)
        or (reported.can_rejoin is not None and reported.can_rejoin != task.can_rejoin)
    )


def _route(method: str, path: str, handler: Any, summary: str, **more: Any) -> routes.Route:
    return routes.Route(
        method=method, path=f"/agent/v1{path}", handler=handler, needs=routes.Open.TASK, summary=summary, **more
    )


_NOTHING_YET = {204: "no news within `wait` seconds"}
_ELSEWHERE = {409: "the stored length is not `offset`: continue from `length`"}

ROUTES: tuple[routes.Route, ...] = (
    _route("POST", "/register", register, "register at the barrier", body=Registration, answer=Registered),
    _route("GET", "/secrets", secrets, "the job's secrets, before data is fetched", answer=Confided),
    _route(
        "GET",
        "/rendezvous",
        rendezvous,
        "addresses and ports of all tasks, once the gang has registered",
        query=RendezvousQuery,
        answer=assignments.Rendezvous,
        others=_NOTHING_YET,
        long=True,
    ),
    _route("POST", "/report", report, "phase, progress, exit", body=TaskReport, answer=Ordered),
    _route(
        "GET",
        "/orders",
        orders,
        "the orders of the task, once they differ from `seen`",
        query=OrdersQuery,
        answer=assignments.Orders,
        others=_NOTHING_YET,
        long=True,
    ),
    _route(
        "POST",
        "/logs/{stream}",
        log,
        "raw bytes of a stream at `offset`; answered once they are durable",
        query=OffsetQuery,
        body=bytes,
        answer=Length,
        others=_ELSEWHERE,
        limit_bytes=LOG_LIMIT_BYTES,
    ),
    _route(
        "POST",
        "/metrics/{process}",
        metrics,
        "raw bytes of metric frames at `offset`",
        query=OffsetQuery,
        body=bytes,
        answer=Length,
        others=_ELSEWHERE,
        limit_bytes=LOG_LIMIT_BYTES,
    ),
    _route(
        "POST",
        "/stacks",
        stacks,
        "the Python stacks that an order requested",
        body=StacksReport,
        answer=Heard,
        limit_bytes=STACKS_LIMIT_BYTES,
    ),
    _route(
        "POST",
        "/checkpoints",
        checkpoint,
        "a checkpoint with its manifest in place",
        body=reportedcheckpoints.CheckpointReport,
        answer=Visible,
        limit_bytes=MANIFEST_LIMIT_BYTES,
    ),
    _route(
        "POST",
        "/checkpoints/kept",
        kept,
        "the copies that are still in the object store, after the removal of old ones",
        body=reportedcheckpoints.RemainingCopies,
        answer=Heard,
        limit_bytes=MANIFEST_LIMIT_BYTES,
    ),
    _route("GET", "/blobs/{digest}", blob, "the job's snapshot", answer=bytes, media="application/octet-stream"),
)
