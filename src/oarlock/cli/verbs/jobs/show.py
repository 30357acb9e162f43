"""`oarlock show`: one job's whole story, and `oarlock why`: its state and the reason for it in three lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.display import amounts, durations
from oarlock.spec import errors, phases

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.spec import attempts, bodies, events, jobs

SHORT_UUID = len("GPU-") + 8
SHOWN_EVENTS = 15
SHOWN_STACK_LINES = 40
SHOWN_DIGEST = len("sha256:") + 12
SHOWN_CHECKPOINTS = 5
MOST_FACTS = 1000
"""The most characters of an event's facts that `--events` prints."""


@command.verb("show", short_help="Show one job's whole story")
@command.job_argument
@command.option(
    "--events",
    "all_events",
    is_flag=True,
    help="Print every event, in full. Without it the last ones are shown, and like ones share a line.",
)
@command.option("--stacks", is_flag=True, help="Print stacks in full.")
@command.json_option
@command.connected
def show(client: clients.Client, job: str, all_events: bool, stacks: bool, as_json: bool) -> None:
    """Show JOB's whole story: its spec, decisions, attempts, checkpoints and events."""
    found = client.job(job)
    now = time.time()
    if as_json:
        terminal.json_out(
            {
                "job": found,
                "cost": found.cost_at(now),
                "decisions": client.decisions(found.id).items,
                "speed": client.speed(found.id),
                "events": client.events(found.id),
                "checkpoints": client.checkpoints(found.id),
                "continued_by": [job.id for job in client.jobs(continues=found.id)],
            }
        )
        return
    _head(found, now)
    _continued(client, found)
    _cost(client, found, now)
    _loss(client, found)
    _spec(found)
    if found.curve is not None:
        _speed(client.speed(found.id))
    _decisions(client.decisions(found.id))
    before: tuple[str, ...] = ()
    for attempt in found.attempts:
        _attempt(attempt, stacks, before)
        before = attempt.verdict.last_lines if attempt.verdict is not None else ()
    _results(client, found)
    _checkpoints(client.checkpoints(found.id))
    _events(client.events(found.id), all_events)


def _head(job: jobs.Job, now: float) -> None:
    from oarlock.display import bars, marks
    from oarlock.display.jobs import progress
    from oarlock.display.tables import jobcells
    from oarlock.spec import summaries

    on, unicode = terminal.wants_colour(sys.stdout), terminal.speaks_unicode(sys.stdout)
    shown = progress.phase(job, now)
    word = marks.word(shown, unicode=unicode and terminal.is_terminal(sys.stdout))
    phase = terminal.coloured(word, marks.PHASES[shown].colour, "bold", on=on)
    wanted = summaries.wanted(job)
    intent = f" (wanted: {wanted})" if wanted else ""
    terminal.out(f"{terminal.coloured(terminal.clean(job.name), 'bold', on=on)}  {phase}{intent}  {job.id}")
    reason = jobcells.places(summaries.of(job, now)) or summaries.reason(job)
    if reason:
        terminal.paragraph(terminal.clean(reason))
    reading = summaries.read(job)
    if reading is not None:
        drawn = bars.progress(reading.fraction, 24, unicode=unicode) + "  " if reading.fraction is not None else ""
        terminal.paragraph(f"{drawn}{'  '.join(progress.facts(reading))}")
    times = [f"submitted {_moment(job.created_at)}"]
    if job.started_at is not None:
        times.append(f"started {_moment(job.started_at)}")
    if job.ended_at is not None:
        took = durations.text(job.ended_at - (job.started_at or job.created_at))
        times.append(f"ended {_moment(job.ended_at)} after {took}")
    elif job.phase is phases.Phase.HALTED:
        ran = f", ran {durations.text(job.processed_s)}" if job.started_at else ""
        times.append(f"halted {_moment(job.phase_at)}{ran}")
    elif job.started_at is not None:
        times.append(f"ran {durations.text(job.ran_s(now))} so far")
    terminal.paragraph(", ".join(times))
    restarts = f", restarts {job.restarts} of {job.spec.max_restarts}"
    code = f", exit code {job.exit_code}" if job.exit_code is not None else ""
    terminal.paragraph(f"owner {terminal.clean(job.owner)}, pool {job.pool}{restarts}{code}")


def _continued(client: clients.Client, job: jobs.Job) -> None:
    """Print the job from whose checkpoint this one began, and the jobs that began from a checkpoint of this one."""
    if job.continues is not None:
        one = job.continues
        terminal.paragraph(f"continues {one.job} ({terminal.clean(one.name)}) from step {one.step}")
    for other in client.jobs(continues=job.id):
        step = other.continues.step if other.continues is not None else ""
        terminal.paragraph(f"continued by {other.id} ({terminal.clean(other.name)}) from step {step}")


def _cost(client: clients.Client, job: jobs.Job, now: float) -> None:
    """Print the cost so far, unless the machines have no price."""
    from oarlock.spec.cluster import prices

    live, cost = job.live, job.cost_at(now)
    if not cost and (live is None or not live.price_per_h):
        return
    currency = client.server().currency
    hourly = f" so far, {prices.amount_text(live.price_per_h, currency)} an hour" if live is not None else ""
    terminal.paragraph(f"cost {prices.amount_text(cost, currency)}{hourly}")


def _loss(client: clients.Client, job: jobs.Job) -> None:
    from oarlock.display import bars

    if job.attempt is None:
        return
    try:
        found = client.metrics(job.id, ["loss"], points=200).series
    except errors.OarlockError:
        return
    values = found[0].values if found else []
    if len(values) > 1:
        course = bars.sparkline(values, 44, unicode=terminal.speaks_unicode(sys.stdout))
        terminal.paragraph(f"loss {course} {amounts.number(values[0])} to {amounts.number(values[-1])}")


def _spec(job: jobs.Job) -> None:
    """Print the fields that the job file set, in its own words."""
    import msgspec

    _title("Spec")
    raw = msgspec.to_builtins(job.spec)
    raw.pop("name", None)
    for field, value in raw.items():
        for line in _yaml(field, value):
            indent = len(line) - len(line.lstrip())
            terminal.paragraph(terminal.clean(line.lstrip()), indent=2 + indent)
    if job.directory is not None:
        terminal.paragraph(f"runs in place in {terminal.clean(job.directory)}")
    if job.snapshot:
        terminal.out(f"  snapshot: {job.snapshot[:SHOWN_DIGEST]}")


def _yaml(field: str, value: Any) -> list[str]:
    import shlex

    if field == "command" and not isinstance(value, str):
        return [f"command: {shlex.join(value)}"]
    if isinstance(value, dict) and value and all(isinstance(inner, dict) for inner in value.values()):
        return [f"{field}:", *(f"  {name}: {_flow(inner)}" for name, inner in value.items())]
    return [f"{field}: {_flow(value)}"]


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(inner) for inner in value) + "]"
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _speed(found: bodies.Speed) -> None:
    """Print the speed curve, one line for each size."""
    if not found.items:
        return
    noise = f", gradient noise {found.noise:,.0f} examples" if found.noise is not None else ""
    _title(f"Speed ({found.unit} per second{noise})")
    wide = max(len(amounts.rate(one.per_s)) for one in found.items)
    for one in found.items:
        devices = f"{one.devices} {one.gpu_type}" if one.gpu_type else amounts.counted(one.devices, "device")
        nodes = f" on {one.nodes} nodes" if one.nodes > 1 else ""
        servers = f", {amounts.counted(one.servers, 'server')}" if one.servers else ""
        taken = f", {one.local} at once" if one.local else ""
        taken += f", beside {one.beside}" if one.beside else ""
        how = f"measured {amounts.counted(one.measured, 'time')}" if one.measured else "expected"
        terminal.out(f"  {devices + nodes + servers:<28} {amounts.rate(one.per_s):>{wide}}  {how}{taken}")


def _decisions(found: bodies.DecisionList) -> None:
    if not found.items:
        return
    _title("Decisions")
    if not found.complete:
        terminal.out("  ... earlier ones are no longer stored")
    for one in found.items:
        reason = f": {terminal.clean(one.reason)}" if one.reason else ""
        again = f" ({one.count} times until {_moment(one.until)})" if one.count > 1 else ""
        kind = f"{one.what} {one.code}".strip()
        terminal.paragraph(f"{_moment(one.at)}  {kind:<20} {terminal.clean(one.text)}{reason}{again}", hang=10)


def _attempt(attempt: attempts.Attempt, all_stacks: bool, before: tuple[str, ...]) -> None:
    from oarlock.cli.output import tables
    from oarlock.display.jobs import progress
    from oarlock.display.tables import columns

    _title(f"Attempt {attempt.number}")
    parts = [f"began {_moment(attempt.started_at)}"]
    if attempt.ended_at is not None:
        parts.append(f"lasted {durations.text(attempt.ended_at - attempt.started_at)}")
    if attempt.restore_step is not None:
        parts.append(f"from step {attempt.restore_step}")
    if attempt.round > 1:
        parts.append(f"round {attempt.round}")
    if attempt.frozen_until is not None and attempt.ended_at is None:
        parts.append(f"frozen until {_moment(attempt.frozen_until)}")
    terminal.paragraph(", ".join(parts))
    tables.show(columns.TASKS, [_task_row(task) for task in attempt.tasks])
    told = next((task.progress for task in attempt.tasks if task.progress and task.progress.step_s is not None), None)
    if told is not None:
        terminal.paragraph(", ".join(progress.speed(told)))
    _verdict(attempt, before)
    for taken in attempt.stacks:
        _stacks(taken, all_stacks)


def _task_row(task: attempts.Task) -> list[str]:
    exited = task.exit
    obstacle = f"{task.obstacle} (since {_moment(task.obstacle_at)})" if task.obstacle else ""
    incarnation = f" (start {task.incarnation})" if task.incarnation > 1 else ""
    return [
        "  " + task.name + incarnation,
        str(task.phase),
        task.node,
        ",".join(uuid[:SHORT_UUID] for uuid in task.gpu_uuids) or ",".join(map(str, task.devices)),
        str(task.progress.step) if task.progress is not None else "",
        f"{exited.code} {exited.cause}" if exited is not None else "",
        "; ".join(filter(None, [obstacle, task.detail])),
    ]


def _verdict(attempt: attempts.Attempt, before: tuple[str, ...]) -> None:
    """Print the end of the attempt. `before` has the last lines of the attempt before, which are not repeated."""
    from oarlock.display.jobs import ranks

    verdict = attempt.verdict
    if verdict is None:
        if attempt.stop_message:
            terminal.paragraph(f"ending: {terminal.clean(attempt.stop_message)}")
        return
    task = f" {verdict.task}:" if verdict.task and verdict.task not in verdict.message else ""
    if verdict.message:
        terminal.paragraph(f"{verdict.cause}:{task} {terminal.clean(verdict.message)}")
    if verdict.last_lines and verdict.last_lines == before:
        terminal.out("    | (the same last lines as in the attempt before)")
    else:
        for line in verdict.last_lines:
            terminal.out(f"    | {terminal.clean(line)}")
    for line in ranks.failed_beside(attempt):
        terminal.paragraph(line)
    if verdict.hint:
        terminal.paragraph(f"hint: {terminal.clean(verdict.hint)}")
    if attempt.no_restart:
        terminal.paragraph(f"no restart: {terminal.clean(attempt.no_restart)}")


def _stacks(taken: attempts.Stacks, in_full: bool) -> None:
    for process, text in taken.stacks.items():
        terminal.paragraph(f"stacks of {taken.task}, process {process}, at {_moment(taken.at)}:")
        lines = text.splitlines()
        shown = lines if in_full else lines[:SHOWN_STACK_LINES]
        for line in shown:
            terminal.out(f"    | {terminal.clean(line)}")
        if len(shown) < len(lines):
            terminal.out(f"    | ... {len(lines) - len(shown)} more lines: --stacks")


def _results(client: clients.Client, job: jobs.Job) -> None:
    from oarlock.cli.following import results

    place = results.place(client, job) if not job.spec.results else None  # else it is in the spec above
    if place is not None:
        _title("Results")
        terminal.paragraph(terminal.clean(place))


def _checkpoints(found: Sequence[jobs.Checkpoint]) -> None:
    from oarlock.spec.input import quantities

    if not found:
        return
    _title("Checkpoints")
    folders = {one.path.rpartition("/")[0] for one in found}
    if len(folders) == 1:
        terminal.paragraph(f"in {terminal.clean(folders.pop())}")
    for one in found[:SHOWN_CHECKPOINTS]:
        size = quantities.memory_text(one.bytes)
        terminal.out(f"  step {one.step}, attempt {one.attempt}, {size}, {_moment(one.at)}")
    if len(found) > SHOWN_CHECKPOINTS:
        terminal.out(f"  and {amounts.counted(len(found) - SHOWN_CHECKPOINTS, 'older one')}")


def _events(found: Sequence[events.Record], all_events: bool) -> None:
    from oarlock.display.jobs import eventlines

    _title("Events")
    lines = [(record, 1) for record in found] if all_events else eventlines.folded(found)
    shown = lines if all_events else lines[-SHOWN_EVENTS:]
    if len(shown) < len(found):
        left = len(found) - sum(count for _, count in shown)
        earlier = amounts.counted(left, "earlier one") if left else "events of one kind share a line"
        terminal.out(f"  ... {earlier}: --events")
    for record, count in shown:
        kind = record.kind + (f" x{count}" if count > 1 else "")
        facts = terminal.cut(terminal.clean(eventlines.facts(record.data)), MOST_FACTS)
        line = f"{_moment(record.at)}  {kind:<22} {facts}".rstrip()
        if all_events:
            terminal.paragraph(line, hang=10)
        else:
            width = terminal.line_width(sys.stdout)
            terminal.out(f"  {line}" if width is None else terminal.cut(f"  {line}", width))


def _title(text: str) -> None:
    terminal.out()
    terminal.out(terminal.coloured(text, "bold", on=terminal.wants_colour(sys.stdout)))


def _moment(at: float) -> str:
    return durations.moment(at, time.time())


@command.verb("why", short_help="Say in three lines why a job is in its state")
@command.job_argument
@command.json_option
@command.connected
def why(client: clients.Client, job: str, as_json: bool) -> None:
    """Say why JOB is in its state, and how that could change.

    For a waiting job the lines say: the resources that it waits for; the jobs that hold them, and the smallest change
    that would start it now; its expected start, and its place in the queue.
    """
    found = client.why(job)
    if as_json:
        terminal.json_out(found)
        return
    for line in found.lines:
        terminal.out(terminal.clean(line))
