"""`oarlock ps`: the jobs, newest first; with --everybody the whole queue."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors, phases

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import bodies, jobs


@command.verb("ps", short_help="List jobs")
@command.option("--all", "-a", "everything", is_flag=True, help="List all jobs.")
@command.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of jobs to list."
)
@command.option("--phase", metavar="PHASE", help="List only jobs in this phase.")
@command.option("--pool", metavar="POOL", help="List only jobs of this pool.")
@command.option("--owner", metavar="USER", help="List only jobs of this user.")
@command.option("--name", metavar="NAME", help="List only jobs of this name.")
@command.option("--wide", "-w", is_flag=True, help="Add columns: loss, age, owner, priority, cost.")
@command.option(
    "--everybody",
    is_flag=True,
    help="List the running and waiting jobs of all users, with the resources that they hold.",
)
@command.option("--quiet", "-q", is_flag=True, help="Print only the jobs' ids.")
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
        terminal.say("No jobs. Start one: oarlock run -- python train.py")
    else:
        _table(client, found, time.time(), wide=wide)


def _queue(client: clients.Client, pool: str | None, owner: str | None, *, as_json: bool) -> None:
    found = [one for one in client.queue() if pool in (None, one.pool) and owner in (None, one.user)]
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables
    from oarlock.display import columns

    tables.show(columns.QUEUE, [_queue_row(one) for one in found])


def _queue_row(one: bodies.QueueRow) -> list[str]:
    cpus = f"{one.amount.cpus_milli / 1000:g}" if one.amount.cpus_milli else ""
    gpus = f"{one.amount.devices:g}" if one.amount.devices else ""
    return [one.user, one.pool, one.name, _marked(str(one.phase)), cpus, gpus, " ".join(one.nodes)]


def _phase(text: str | None) -> str | None:
    if text is None:
        return None
    if text.upper() not in list(phases.Phase):
        hint = f"The phases are {', '.join(phases.Phase)}."
        raise errors.InvalidInput(f"{text[:60]!r} is not a phase", path="--phase", hint=hint)
    return text.upper()


def _table(client: clients.Client, found: list[jobs.Job], now: float, *, wide: bool) -> None:
    from oarlock.cli.output import tables
    from oarlock.display import columns, jobcells

    rows = [jobcells.row(job, now) for job in found]
    for cells in rows:
        cells[columns.PHASE] = _marked(cells[columns.PHASE])
    if all(job.pool == "default" for job in found):
        for cells in rows:
            cells[columns.POOL] = ""  # most servers have only this pool: no column for it
    if wide:
        currency = client.server().currency
        for job, cells in zip(found, rows, strict=True):
            cells[-1:-1] = jobcells.more(job, now, currency)
    tables.show(columns.JOBS_WIDE if wide else columns.JOBS, rows)


def _marked(phase: str) -> str:
    """Return the phase, behind its glyph where a person reads it on a terminal."""
    from oarlock.display import marks

    return marks.word(phase, unicode=terminal.is_terminal(sys.stdout) and terminal.speaks_unicode(sys.stdout))
