"""`oarlock ps`: the jobs, newest first."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import bodies, jobs

PHASES = ("QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED", "FAILED", "CANCELED", "HALTED")

SHORT = {"worker": "w", "evaluator": "eval"}


@command.verb("ps", short_help="List jobs")
@command.option("--all", "-a", "everything", is_flag=True, help="All of them, not the newest 20.")
@command.option("--limit", type=click.IntRange(1), default=20, metavar="N", help="So many at most.")
@command.option("--phase", metavar="PHASE", help="Only those in this phase.")
@command.option("--pool", metavar="POOL", help="Only those of this pool.")
@command.option("--owner", metavar="USER", help="Only this user's.")
@command.option("--name", metavar="NAME", help="Only those of this name.")
@command.option("--wide", "-w", is_flag=True, help="With loss, age, owner, priority and what each has cost.")
@command.option("--everybody", is_flag=True, help="The queue: each user's jobs that run or wait, and what they hold.")
@command.option("--quiet", "-q", is_flag=True, help="Print ids alone.")
@command.json_option
@command.connected
def ps(
    client: clients.Client,
    everything: bool,
    limit: int,
    phase: str | None,
    pool: str | None,
    owner: str | None,
    name: str | None,
    wide: bool,
    everybody: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    if everybody:
        _queue(client, pool, owner, as_json=as_json)
        return
    found = client.jobs(phase=_phase(phase), pool=pool, owner=owner, name=name, limit=10**9 if everything else limit)
    if as_json:
        terminal.json_out({"items": found})
    elif quiet:
        for job in found:
            terminal.out(job.id)
    elif not found and any((phase, pool, owner, name)):
        terminal.say("No such jobs. Without --phase, --pool, --owner and --name there may be others.")
    elif not found:
        terminal.say("No jobs. Begin with: oarlock run -- python train.py")
    else:
        _table(client, found, time.time(), wide=wide)


def _queue(client: clients.Client, pool: str | None, owner: str | None, *, as_json: bool) -> None:
    found = [one for one in client.queue() if pool in (None, one.pool) and owner in (None, one.user)]
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables

    columns = [
        tables.Column("USER"),
        tables.Column("POOL"),
        tables.Column("NAME", weight=2),
        tables.Column("PHASE"),
        tables.Column("CPUS", right=True),
        tables.Column("GPUS", right=True),
        tables.Column("NODES", weight=1),
    ]
    tables.show(columns, [_queue_row(one) for one in found])


def _queue_row(one: bodies.QueueRow) -> list[str]:
    cpus = f"{one.amount.cpus_milli / 1000:g}" if one.amount.cpus_milli else ""
    gpus = f"{one.amount.devices:g}" if one.amount.devices else ""
    return [one.user, one.pool, terminal.clean(one.name), str(one.phase), cpus, gpus, " ".join(one.nodes)]


def _phase(text: str | None) -> str | None:
    from oarlock.spec import errors

    if text is None:
        return None
    if text.upper() not in PHASES:
        raise errors.InvalidInput(f"{text!r} is no phase", path="--phase", hint=f"There are: {', '.join(PHASES)}.")
    return text.upper()


def _table(client: clients.Client, found: list[jobs.Job], now: float, *, wide: bool) -> None:
    from oarlock.cli.output import progress, tables

    colours = {str(phase): colour for phase, colour in progress.PHASE_COLOURS.items()}
    columns = [
        tables.Column("ID"),
        tables.Column("NAME", weight=3, least=10),
        tables.Column("PHASE", colours=colours),
        tables.Column("INTENT"),
        tables.Column("TASKS", weight=1),
        tables.Column("POOL", weight=2),
        tables.Column("SINCE"),
        tables.Column("RAN", right=True),
        tables.Column("PROGRESS"),
        tables.Column("WHERE, OR WHY", weight=9, least=16),
    ]
    rows = [row(job, now) for job in found]
    if all(job.pool == "default" for job in found):
        for cells in rows:
            cells[5] = ""  # the only pool there is for most: no column for it
    if wide:
        currency = client.server().currency
        columns[-1:-1] = [
            tables.Column("LOSS", right=True),
            tables.Column("AGE", right=True),
            tables.Column("OWNER", weight=2),
            tables.Column("PRIORITY", right=True),
            tables.Column("COST", right=True),
        ]
        for job, cells in zip(found, rows, strict=True):
            cells[-1:-1] = _more(job, now, currency)
    tables.show(columns, rows)


def _more(job: jobs.Job, now: float, currency: str) -> list[str]:
    """What `--wide` adds."""
    from oarlock.cli.output import progress
    from oarlock.spec import prices

    cost = job.cost_at(now)
    return [
        progress.loss(job),
        age(now - job.created_at),
        job.owner,
        str(job.spec.priority),
        prices.amount_text(cost, currency) if cost else "",
    ]


def row(job: jobs.Job, now: float) -> list[str]:
    """One job's cells."""
    from oarlock.cli.output import progress
    from oarlock.spec import jobs

    return [
        jobs.short_id(job.id),
        job.name,
        progress.phase(job, now),
        intent(job),
        tasks(job),
        job.pool,
        since(job.phase_at or job.created_at, now),
        age(job.ran_s(now)) if job.started_at is not None else "",
        "" if job.terminal and job.phase != "FAILED" else progress.short(job),
        frozen(job, now) or places(job) or reason(job),
    ]


def tasks(job: jobs.Job) -> str:
    """What it has, while it has any: of an elastic gang more or fewer than were asked for."""
    counts = {name: role.count for name, role in job.spec.roles.items()}
    if job.live is not None:
        held = collections.Counter(task.role for task in job.live.tasks)
        counts = {name: held[name] for name in counts}
    return " ".join(f"{count} {SHORT.get(name, name)}" for name, count in counts.items())


def intent(job: jobs.Job) -> str:
    """Where it differs from what is."""
    settled = job.terminal or job.phase == "HALTED" or job.intent == "run"
    return "" if settled else str(job.intent)


def reason(job: jobs.Job) -> str:
    if job.phase == "QUEUED" and job.refusal is not None:
        return job.refusal.message
    verdict = job.attempt.verdict if job.attempt is not None else None
    if job.phase == "FAILED" and verdict is not None:
        return verdict.message
    return job.reason


def frozen(job: jobs.Job, now: float) -> str:
    """`until 16:40: worker-1 exited with code 1`, while its place is kept for a look inside."""
    from oarlock.cli.output import progress

    until = progress.frozen_until(job, now)
    return "" if until is None else f"until {since(until, now)}: {job.reason}"


def places(job: jobs.Job) -> str:
    """`on n0 (GPUs 0-3), n1 (GPU 2)`: what a job that runs holds; empty where it holds nothing, or is being stopped."""
    live = job.live
    if live is None or live.stop is not None or live.frozen_until is not None or job.intent != "run":
        return ""
    devices: dict[str, list[int]] = {}
    for task in live.tasks:
        devices.setdefault(task.node, []).extend(task.devices)
    told = [f"{node}{_cards(held)}" for node, held in devices.items() if node]
    return f"on {', '.join(told)}" if told else ""


def _cards(devices: list[int]) -> str:
    from oarlock.cli.verbs import submit

    held = sorted(set(devices))
    return f" (GPU{'' if len(held) == 1 else 's'} {submit.runs(held)})" if held else ""


def since(at: float, now: float) -> str:
    """The clock, or the day where that is not today: `16:03`, `21 Nov`."""
    then = time.localtime(at)
    today = time.strftime("%Y-%m-%d", then) == time.strftime("%Y-%m-%d", time.localtime(now))
    return time.strftime("%H:%M" if today else "%d %b", then)


def age(seconds: float) -> str:
    """`12s`, `3m`, `5h`, `2d`."""
    seconds = max(0.0, seconds)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"
