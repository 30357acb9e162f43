"""`oarlock logs`: a job's output, as it was and as it comes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client import requests
    from oarlock.client.synchronous import client as clients


@command.verb("logs", short_help="Print a job's output")
@command.job_argument
@command.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Go on until the job has ended; the exit code is the job's. Ctrl-C leaves it running.",
)
@command.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="The last N lines.")
@command.option("--since", metavar="TIME", help="What came since: 10m ago, or 2026-01-31T12:00.")
@command.option("--role", metavar="ROLE", help="Only this role's tasks.")
@command.option("--index", type=int, metavar="I", help="Only the task of this index.")
@command.option("--attempt", type=int, metavar="N", help="Only this attempt's; 1 is the first.")
@command.json_option
@command.connected
def logs(
    client: clients.Client,
    job: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    role: str | None,
    index: int | None,
    attempt: int | None,
    as_json: bool,
) -> int:
    """Print what JOB's tasks have printed, in the order in which it arrived."""
    from oarlock.client import requests, verbs

    choice = requests.LogChoice(
        attempt=attempt, role=role, index=index, tail=tail, since=None if since is None else verbs.since_of(since)
    )
    if as_json:
        return _as_json(client, job, choice, follow)
    if follow:
        from oarlock.cli.following import follower

        return follower.Follower(client, client.job(job), choice, watches=True).run()
    return _stored(client, job, choice)


def _stored(client: clients.Client, job: str, choice: requests.LogChoice) -> int:
    from oarlock.cli.following import loglines
    from oarlock.data import storage

    found = client.job(job)
    style = loglines.style(
        found.spec,
        alone=choice.index is not None,
        colour=terminal.wants_colour(sys.stdout),
        clean=terminal.is_terminal(sys.stdout),
    )
    writer = loglines.Writer(style)
    for item in client.log_items(found.id, choice, blocks=True):
        if isinstance(item, storage.Line):
            sys.stdout.write(writer.text(item))
    sys.stdout.write("".join(piece.text for piece in writer.rest()))
    return 0


def _as_json(client: clients.Client, job: str, choice: requests.LogChoice, follow: bool) -> int:
    """One object a line; with --follow the last one is `{"end": ...}`."""
    from oarlock.client import verbs
    from oarlock.spec import bodies

    code = 0
    for item in client.log_items(job, choice, follow=follow):
        if isinstance(item, bodies.Ended):
            terminal.json_lines([{"end": item}])
            code = verbs.exit_code(item.phase, item.exit_code)
        else:
            terminal.json_lines([item])
    return code
