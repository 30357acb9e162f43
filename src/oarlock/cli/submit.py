"""`oarlock submit FILE` and `oarlock plan FILE`: a job file becomes a job, or the answer to what would become of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oarlock.cli import command, localserver, terminal

if TYPE_CHECKING:
    from oarlock.client import client as clients
    from oarlock.spec import jobfile, plans


@command.verb("submit", short_help="Submit a job file")
@click.argument("file", type=click.Path())
@command.option("--follow", is_flag=True, help="Follow it to its end; the exit code is the job's.")
@command.option("--dir", "directory", type=click.Path(), help="The directory to send; the job file's, else.")
@command.option("--no-snapshot", is_flag=True, help="Send no code.")
@command.option("--name", "-n", metavar="NAME", help="In the place of the file's.")
@command.option("--dry-run", is_flag=True, help="Print the request that would be sent.")
@command.option("--quiet", "-q", is_flag=True, help="Do not say what was left out.")
@command.json_option
@command.connected
def submit(
    client: clients.Client,
    file: str,
    follow: bool,
    directory: str | None,
    no_snapshot: bool,
    name: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Submit the job that FILE describes, with the directory that FILE lies in."""
    from oarlock.cli import submitting

    spec = _load(file, name)
    where = None if no_snapshot else Path(directory) if directory is not None else Path(file).parent
    choice = submitting.Choice(directory=where, detach=not follow, dry_run=dry_run, as_json=as_json, quiet=quiet)
    return submitting.carry_out(client, spec, choice)


@command.verb("plan", short_help="Say what would happen to a job file: now, later or never")
@click.argument("file", type=click.Path())
@command.json_option
@command.connected
def plan(client: clients.Client, file: str, as_json: bool) -> int:
    """Say what would happen to the job that FILE describes: now, later (and when) or never, and why.

    The exit code is 0 for now and later, 1 for never.
    """
    from oarlock.cli import submitting

    spec = _load(file, None)
    submitting.check_named(spec, Path(file).parent)
    localserver.ensure(client.settings)
    forecast = client.plan(spec)
    if as_json:
        terminal.json_out(forecast)
    else:
        _tell(forecast)
    return 1 if forecast.when == "never" else 0


def _load(file: str, name: str | None) -> jobfile.JobSpec:
    import msgspec

    from oarlock.client import verbs
    from oarlock.spec import judging

    spec = verbs.spec_of(Path(file))
    if name is not None:
        spec = msgspec.structs.replace(spec, name=name)
        judging.judge(spec)
    return spec


def _tell(forecast: plans.Forecast) -> None:
    import time

    from oarlock.spec import quantities

    word = str(forecast.when).capitalize()
    when = ""
    if forecast.when == "later" and forecast.start is not None:
        when = f", in about {quantities.duration_text(max(0.0, forecast.start - time.time()))}"
    terminal.out(f"{word}{when}: {terminal.clean(forecast.message)}")
    for holding in forecast.placement:
        devices = f", GPU {', '.join(map(str, holding.devices))}" if holding.devices else ""
        terminal.out(f"  {holding.role}-{holding.index} on {terminal.clean(holding.node)}{devices}")
    if forecast.refusal is not None and forecast.refusal.change:
        terminal.out(f"  {terminal.clean(forecast.refusal.change)}")
