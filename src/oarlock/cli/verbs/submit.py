"""`oarlock submit FILE` and `oarlock plan FILE`: a job file becomes a job, or the answer to what would become of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.launching import localserver
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import jobfile, plans, refusals

SHOWN_NODES = 16


@command.verb("submit", short_help="Submit a job file")
@click.argument("file", type=click.Path())
@command.option("--follow", is_flag=True, help="Follow it to its end; the exit code is the job's.")
@command.option(
    "--continue", "continues", metavar="JOB[@STEP]", help="Begin from this checkpoint of another job, its newest, else."
)
@command.option("--dir", "directory", type=click.Path(), help="The directory to send; the job file's, else.")
@command.option("--in-place", is_flag=True, help="Run in the directory itself, on this machine, not in copies of it.")
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
    continues: str | None,
    directory: str | None,
    in_place: bool,
    no_snapshot: bool,
    name: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Submit the job that FILE describes, with the directory that FILE lies in."""
    from oarlock.cli.launching import submitting

    spec = _load(file, name)
    where = None if no_snapshot else Path(directory) if directory is not None else Path(file).parent
    choice = submitting.Choice(
        directory=where,
        in_place=in_place,
        continues=submitting.continued(client, continues)[1] if continues is not None else None,
        detach=not follow,
        dry_run=dry_run,
        as_json=as_json,
        quiet=quiet,
    )
    return submitting.carry_out(client, spec, choice)


@command.verb("plan", short_help="Say what would happen to a job file: now, later or never")
@click.argument("file", type=click.Path())
@command.json_option
@command.connected
def plan(client: clients.Client, file: str, as_json: bool) -> int:
    """Say what would happen to the job that FILE describes: now, later (and when) or never, and why.

    Now: where, and what it would cost. Later: who holds what it needs, the smallest change that would start it now, and
    when it should start. The exit code is 0 for now and later, 1 for never.
    """
    from oarlock.client import scripts

    spec = _load(file, None)
    scripts.check_named(spec, Path(file).parent)
    localserver.ensure(client.settings)
    forecast = client.plan(spec)
    if as_json:
        terminal.json_out(forecast)
    else:
        _tell(client, forecast)
    return 1 if forecast.when == "never" else 0


def _load(file: str, name: str | None) -> jobfile.JobSpec:
    import msgspec

    from oarlock.client import verbs
    from oarlock.spec import validation

    spec = verbs.spec_of(Path(file))
    if name is not None:
        spec = msgspec.structs.replace(spec, name=name)
        validation.judge(spec)
    return spec


def _tell(client: clients.Client, forecast: plans.Forecast) -> None:
    word = str(forecast.when).capitalize()
    terminal.out(f"{word}: {terminal.clean(forecast.message)}")
    for line in _places(forecast):
        terminal.out(f"  {terminal.clean(line)}")
    refusal = forecast.refusal
    held = _held_by(refusal) if refusal is not None else ""
    later = forecast.expected if forecast.when == "later" else ""
    place = (
        f"It would be number {forecast.position} of {forecast.waiting} waiting jobs." if forecast.waiting > 1 else ""
    )
    change = refusal.change if refusal is not None else ""
    for line in (held, forecast.makes_way, change, f"{later} {place if later else ''}".strip()):
        if line:
            terminal.out(f"  {terminal.clean(line)}")
    if forecast.price_per_h:
        from oarlock.spec import prices

        price = prices.amount_text(forecast.price_per_h, client.server().currency)
        terminal.out(f"  It costs about {price} an hour.")


def _places(forecast: plans.Forecast) -> list[str]:
    """A line for each node: `n0: worker-0, worker-1 (GPUs 0-1)`."""
    tasks: dict[str, list[str]] = {}
    devices: dict[str, list[int]] = {}
    for holding in forecast.placement:
        tasks.setdefault(holding.node, []).append(f"{holding.role}-{holding.index}")
        devices.setdefault(holding.node, []).extend(holding.devices)
    lines = []
    for node, names in list(tasks.items())[:SHOWN_NODES]:
        held = f" (GPU{'' if len(devices[node]) == 1 else 's'} {runs(devices[node])})" if devices[node] else ""
        lines.append(f"{node}: {', '.join(names)}{held}")
    more = len(tasks) - len(lines)
    return [*lines, f"and {more} more node{'' if more == 1 else 's'}"] if more > 0 else lines


def runs(numbers: list[int]) -> str:
    """Return numbers in short: `0-3, 6`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _held_by(refusal: refusals.Refusal) -> str:
    """Who has what it needs."""
    resource = next((name for name in ("gpus", "cpus", "memory") if refusal.needed.get(name)), "cpus")
    told = [
        f"{one.name} ({_amount(resource, one.amount[resource])})" for one in refusal.holders if resource in one.amount
    ]
    return f"Held by {', '.join(told)}." if told and refusal.code == "no_capacity" else ""


def _amount(resource: str, value: float) -> str:
    from oarlock.spec import quantities

    if resource == "memory":
        return quantities.memory_text(value)
    return f"{value:g} {'CPU' if resource == 'cpus' else 'GPU'}{'' if value == 1 else 's'}"
