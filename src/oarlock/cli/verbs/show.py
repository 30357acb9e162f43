"""`oarlock show`: one job's whole story, and `oarlock why`: its state and the reason in three lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import phases

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import attempts, bodies, events, jobs

SHOWN_EVENTS = 15
SHOWN_STACK_LINES = 40
SHOWN_DIGEST = len("sha256:") + 12
SHOWN_CHECKPOINTS = 5
MOST_TOLD = 1000
"""The most characters of an event's facts that `--events` prints."""
FOLDED = ("task_", "checkpoint_", "stacks_", "batch_", "refused")
"""Beginnings of the kinds of events that come in numbers: alike ones between two others are one line."""


@command.verb("show", short_help="Tell one job's whole story")
@command.job_argument
@command.option(
    "--events",
    "all_events",
    is_flag=True,
    help="Every line of its event log; else the last of them, alike ones as one.",
)
@command.option("--stacks", is_flag=True, help="Stacks in full.")
@command.json_option
@command.connected
def show(client: clients.Client, job: str, all_events: bool, stacks: bool, as_json: bool) -> None:
    """Tell JOB's whole story."""
    found = client.job(job)
    if as_json:
        terminal.json_out(
            {
                "job": found,
                "cost": found.cost_at(time.time()),
                "decisions": client.decisions(found.id).items,
                "speed": client.speed(found.id),
                "events": client.events(found.id),
                "checkpoints": client.checkpoints(found.id),
                "continued_by": [job.id for job in client.jobs(continues=found.id)],
            }
        )
        return
    now = time.time()
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
    from oarlock.cli.output import progress
    from oarlock.cli.verbs import ps

    on = terminal.wants_colour(sys.stdout)
    shown = progress.phase(job, now)
    phase = terminal.coloured(shown, progress.PHASE_COLOURS[shown], "bold", on=on)
    intent = f" (wanted: {ps.intent(job)})" if ps.intent(job) else ""
    terminal.out(f"{terminal.coloured(terminal.clean(job.name), 'bold', on=on)}  {phase}{intent}  {job.id}")
    reason = ps.places(job) or ps.reason(job)
    if reason:
        terminal.paragraph(terminal.clean(reason))
    reading = progress.read(job)
    if reading is not None:
        unicode = terminal.speaks_unicode(sys.stdout)
        drawn = progress.bar(reading.fraction, 24, unicode=unicode) + "  " if reading.fraction is not None else ""
        terminal.paragraph(f"{drawn}{'  '.join(progress.facts(reading))}")
    times = [f"submitted {moment(job.created_at)}"]
    if job.started_at is not None:
        times.append(f"started {moment(job.started_at)}")
    if job.ended_at is not None:
        times.append(
            f"ended {moment(job.ended_at)} after {_duration(job.ended_at - (job.started_at or job.created_at))}"
        )
    elif job.phase is phases.Phase.HALTED:
        times.append(
            f"halted {moment(job.phase_at)}" + (f", ran {_duration(job.processed_s)}" if job.started_at else "")
        )
    elif job.started_at is not None:
        times.append(f"ran {_duration(job.ran_s(now))} so far")
    terminal.paragraph(", ".join(times))
    restarts = f", restarts {job.restarts} of {job.spec.max_restarts}"
    code = f", exit code {job.exit_code}" if job.exit_code is not None else ""
    terminal.paragraph(f"owner {terminal.clean(job.owner)}, pool {job.pool}{restarts}{code}")


def _continued(client: clients.Client, job: jobs.Job) -> None:
    """From which job's checkpoint it began, and which jobs began from one of its own."""
    if job.continues is not None:
        one = job.continues
        terminal.out(f"  continues {one.job} ({terminal.clean(one.name)}) from step {one.step}")
    for other in client.jobs(continues=job.id):
        step = other.continues.step if other.continues is not None else ""
        terminal.out(f"  continued by {other.id} ({terminal.clean(other.name)}) from step {step}")


def _cost(client: clients.Client, job: jobs.Job, now: float) -> None:
    """What it has cost so far; nothing where nothing has a price."""
    from oarlock.spec import prices

    live, cost = job.live, job.cost_at(now)
    if not cost and (live is None or not live.price_per_h):
        return
    currency = client.server().currency
    hourly = f" so far, {prices.amount_text(live.price_per_h, currency)} an hour" if live is not None else ""
    terminal.out(f"  cost {prices.amount_text(cost, currency)}{hourly}")


def _speed(found: bodies.Speed) -> None:
    """The speed curve, one line for each size."""
    if not found.items:
        return
    noise = f", gradient noise {found.noise:,.0f} examples" if found.noise is not None else ""
    _title(f"Speed ({found.unit} per second{noise})")
    wide = max(len(_rate(one.per_s)) for one in found.items)
    for one in found.items:
        kind = one.gpu_type or f"device{'' if one.devices == 1 else 's'}"
        devices = f"{one.devices} {kind}"
        where = f" on {one.nodes} nodes" if one.nodes > 1 else ""
        servers = f", {one.servers} server{'' if one.servers == 1 else 's'}" if one.servers else ""
        taken = f", {one.local} at once" if one.local else ""
        taken += f", beside {one.beside}" if one.beside else ""
        how = f"measured {one.measured} time{'' if one.measured == 1 else 's'}" if one.measured else "expected"
        terminal.out(f"  {devices + where + servers:<28} {_rate(one.per_s):>{wide}}  {how}{taken}")


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _decisions(found: bodies.DecisionList) -> None:
    if not found.items:
        return
    _title("Decisions")
    if not found.complete:
        terminal.out("  ... earlier ones are kept no longer")
    for one in found.items:
        reason = f": {terminal.clean(one.reason)}" if one.reason else ""
        again = f" (said {one.count} times until {moment(one.until)})" if one.count > 1 else ""
        kind = f"{one.what} {one.code}".strip()
        terminal.paragraph(f"{moment(one.at)}  {kind:<20} {terminal.clean(one.text)}{reason}{again}", hang=10)


def _spec(job: jobs.Job) -> None:
    """What was asked for, in the job file's words; defaults are not repeated."""
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
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )


def _loss(client: clients.Client, job: jobs.Job) -> None:
    from oarlock.cli.output import progress
    from oarlock.cli.verbs import metrics
    from oarlock.spec import errors

    if job.attempt is None:
        return
    try:
        found = client.metrics(job.id, ["loss"], points=200).series
    except errors.OarlockError:
        return
    values = found[0].values if found else []
    if len(values) > 1:
        unicode = terminal.speaks_unicode(sys.stdout)
        line = metrics.sparkline(values, 44, unicode=unicode)
        terminal.out(f"  loss {line} {progress.number(values[0])} to {progress.number(values[-1])}")


def _attempt(attempt: attempts.Attempt, all_stacks: bool, before: tuple[str, ...]) -> None:
    from oarlock.cli.output import tables

    _title(f"Attempt {attempt.number}")
    parts = [f"began {moment(attempt.started_at)}"]
    if attempt.ended_at is not None:
        parts.append(f"lasted {_duration(attempt.ended_at - attempt.started_at)}")
    if attempt.restore_step is not None:
        parts.append(f"from step {attempt.restore_step}")
    if attempt.round > 1:
        parts.append(f"round {attempt.round}")
    if attempt.frozen_until is not None and attempt.ended_at is None:
        parts.append(f"frozen until {moment(attempt.frozen_until)}")
    terminal.paragraph(", ".join(parts))
    columns = [tables.Column(title) for title in ("  TASK", "PHASE", "NODE", "GPUS", "STEP", "EXIT")]
    columns.append(tables.Column("DETAIL", weight=9))
    tables.show(columns, [_task_row(task) for task in attempt.tasks])
    _verdict(attempt, before)
    for taken in attempt.stacks:
        _stacks(taken, all_stacks)


def _task_row(task: attempts.Task) -> list[str]:
    exited = task.exit
    incarnation = f" (start {task.incarnation})" if task.incarnation > 1 else ""
    return [
        "  " + task.name + incarnation,
        str(task.phase),
        task.node,
        ",".join(map(str, task.devices)),
        str(task.progress.step) if task.progress is not None else "",
        f"{exited.code} {exited.cause}" if exited is not None else "",
        task.detail,
    ]


def _verdict(attempt: attempts.Attempt, before: tuple[str, ...]) -> None:
    """`before`: the last lines of the attempt before, which are not repeated."""
    verdict = attempt.verdict
    if verdict is None:
        if attempt.stop_message:
            terminal.paragraph(f"ending: {terminal.clean(attempt.stop_message)}")
        return
    who = f" {verdict.task}:" if verdict.task and verdict.task not in verdict.message else ""
    if verdict.message:
        terminal.paragraph(f"{verdict.cause}:{who} {terminal.clean(verdict.message)}")
    if verdict.last_lines and verdict.last_lines == before:
        terminal.out("    | (the same last lines as in the attempt before)")
    else:
        for line in verdict.last_lines:
            terminal.out(f"    | {terminal.clean(line)}")
    if verdict.hint:
        terminal.out(f"  hint: {terminal.clean(verdict.hint)}")
    if attempt.no_restart:
        terminal.paragraph(f"no restart: {terminal.clean(attempt.no_restart)}")


def _stacks(taken: attempts.Stacks, in_full: bool) -> None:
    for process, text in taken.stacks.items():
        terminal.out(f"  stacks of {taken.task}, process {process}, at {moment(taken.at)}:")
        lines = text.splitlines()
        shown = lines if in_full else lines[:SHOWN_STACK_LINES]
        for line in shown:
            terminal.out(f"    | {terminal.clean(line)}")
        if len(shown) < len(lines):
            terminal.out(f"    | ... {len(lines) - len(shown)} more lines: --stacks")


def _results(client: clients.Client, job: jobs.Job) -> None:
    from oarlock.cli.following import results

    where = results.place(client, job) if not job.spec.results else None  # else the spec says it
    if where is not None:
        _title("Results")
        terminal.out(f"  {terminal.clean(where)}")


def _checkpoints(found: Sequence[jobs.Checkpoint]) -> None:
    from oarlock.spec import quantities

    if not found:
        return
    _title("Checkpoints")
    folders = {one.path.rpartition("/")[0] for one in found}
    if len(folders) == 1:
        terminal.paragraph(f"in {terminal.clean(folders.pop())}")
    for one in found[:SHOWN_CHECKPOINTS]:
        size = quantities.memory_text(one.bytes)
        terminal.out(f"  step {one.step}, attempt {one.attempt}, {size}, {moment(one.at)}")
    if len(found) > SHOWN_CHECKPOINTS:
        terminal.out(f"  and {len(found) - SHOWN_CHECKPOINTS} older ones")


def _events(found: Sequence[events.Record], all_events: bool) -> None:
    _title("Events")
    lines = [(record, 1) for record in found] if all_events else folded(found)
    shown = lines if all_events else lines[-SHOWN_EVENTS:]
    if len(shown) < len(found):
        told = sum(count for _, count in shown)
        left = len(found) - told
        earlier = f"{left} earlier one{'' if left == 1 else 's'}" if left else "alike ones are one line"
        terminal.out(f"  ... {earlier}: --events")
    for record, count in shown:
        kind = record.kind + (f" x{count}" if count > 1 else "")
        line = f"{moment(record.at)}  {kind:<22} {terminal.clean(_told(record.data.items()))}".rstrip()
        if all_events:
            terminal.paragraph(line, hang=10)
        else:
            terminal.out(terminal.cut(f"  {line}", terminal.columns(sys.stdout)))


def folded(found: Sequence[events.Record]) -> list[tuple[events.Record, int]]:
    """The last of several alike events, and how many they were: those of a kind of which there are many (`FOLDED`), as
    far as no event of another sort lies between.
    """
    lines: dict[tuple[int, str], tuple[events.Record, int]] = {}
    others = 0
    for record in found:
        alone = not record.kind.startswith(FOLDED)
        others += alone
        key = (others, "" if alone else record.kind)
        _, count = lines.pop(key, (record, 0))
        lines[key] = record, count + 1
    return list(lines.values())


def _told(facts: Iterable[tuple[str, Any]]) -> str:
    """The short facts of an event, its task by name; long ones are in --json."""
    from oarlock.spec import checkpointlocations

    short = {name: value for name, value in facts if isinstance(value, (str, int, float)) and value != ""}
    said = []
    if {"role", "index"} <= short.keys():
        said.append(f"{short.pop('role')}-{short.pop('index')}")
        if short.get("incarnation") == 1:
            del short["incarnation"]
    for name, value in short.items():
        said.append(f"{name}={checkpointlocations.short(str(value)) if name == 'path' else value}")
    return terminal.cut(" ".join(said), MOST_TOLD)


def _title(text: str) -> None:
    terminal.out()
    terminal.out(terminal.coloured(text, "bold", on=terminal.wants_colour(sys.stdout)))


def _duration(seconds: float) -> str:
    from oarlock.spec import quantities

    return quantities.duration_text(max(0.0, seconds))


def moment(at: float) -> str:
    """Local time, with the day where it is not today."""
    then = time.localtime(at)
    same_day = time.strftime("%Y-%m-%d", then) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", then)


@command.verb("why", short_help="Say in three lines why a job is where it is")
@command.job_argument
@command.json_option
@command.connected
def why(client: clients.Client, job: str, as_json: bool) -> None:
    """Say why JOB is where it is, and what would change that.

    Of a job that waits: what it waits for, with the numbers; who holds that, and the smallest change that would start
    it now; when it should start, and its place among those that wait.
    """
    found = client.why(job)
    if as_json:
        terminal.json_out(found)
        return
    for line in found.lines:
        terminal.out(terminal.clean(line))
