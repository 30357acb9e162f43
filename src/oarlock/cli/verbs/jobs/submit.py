"""`oarlock submit FILE` makes a job of a job file; `oarlock plan FILE` tells when and where the job would start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.launching import localserver
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.spec import jobfile


@command.verb("submit", short_help="Submit a job file")
@click.argument("file", type=click.Path(), required=False)
@command.option("--follow", is_flag=True, help="Follow the job to its end. The exit code is the job's.")
@command.option(
    "--continue",
    "continues",
    metavar="JOB[@STEP]",
    show_default="the newest of JOB",
    help="Checkpoint of another job to begin from.",
)
@command.option("--again", metavar="JOB", help="Earlier job to take the code from; without FILE its job file, too.")
@command.option("--dir", "directory", type=click.Path(), show_default="the job file's", help="Directory to send.")
@command.option("--in-place", is_flag=True, help="Run in the directory itself, on this machine, and not in a copy.")
@command.option("--no-snapshot", is_flag=True, help="Send no code.")
@command.option("--name", "-n", metavar="NAME", help="Name of the job, instead of the job file's.")
@command.option("--dry-run", is_flag=True, help="Print the request, and do not send it.")
@command.option("--quiet", "-q", is_flag=True, help="Do not list the files that are not sent.")
@command.json_option
@command.connected
def submit(
    client: clients.Client,
    file: str | None,
    follow: bool,
    continues: str | None,
    again: str | None,
    directory: str | None,
    in_place: bool,
    no_snapshot: bool,
    name: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Submit the job that FILE describes, with the directory in which FILE lies.

    With --again an earlier job is submitted once more: its code with FILE, or its code and its job file.
    """
    from oarlock.cli.launching import submitting

    for option, given in (("--dir", directory), ("--in-place", in_place), ("--no-snapshot", no_snapshot)):
        if again is not None and given:
            raise errors.InvalidInput(f"{option} and --again both name the code", path=option, hint="Give one of them.")
    earlier = submitting.earlier(client, again) if again is not None else None
    if file is not None:
        spec = _named(_load(file), name)
    elif earlier is not None:
        spec = _named(earlier.spec, name)
    else:
        raise errors.InvalidInput("there is no job file", hint="Name one: oarlock submit FILE; or a job: --again JOB")
    where = None if no_snapshot or file is None else Path(directory) if directory is not None else Path(file).parent
    choice = submitting.Choice(
        directory=where,
        earlier=earlier,
        in_place=in_place,
        continues=submitting.continued(client, continues)[1] if continues is not None else None,
        detach=not follow,
        dry_run=dry_run,
        as_json=as_json,
        quiet=quiet,
    )
    return submitting.carry_out(client, spec, choice)


@command.verb("plan", short_help="Tell when and where a job file would start: now, later or never")
@click.argument("file", type=click.Path())
@command.option("--backend", type=click.Choice(["local", "kubernetes"]), help="Backend that the server must have.")
@command.option("--output", "-o", type=click.Choice(["yaml"]), help="Print the Kubernetes objects of the job instead.")
@command.json_option
@command.connected
def plan(client: clients.Client, file: str, backend: str | None, output: str | None, as_json: bool) -> int:
    """Tell when and where the job that FILE describes would start: now, later or never.

    Now: the nodes and the price. Later: the jobs that hold the resources, the smallest change that would start it now,
    and the expected start. Never: the reason. The exit code is 0 for now and later, 1 for never.

    With --output yaml the server prints the objects that it would create on Kubernetes.
    """
    from oarlock.client import scripts
    from oarlock.display.jobs import forecasts

    spec = _load(file)
    scripts.check_named(spec, Path(file).parent)
    localserver.ensure(client.settings)
    if backend is not None:
        _check_backend(client, backend)
    if output is not None:
        _print_manifests(client, spec, as_json)
        return 0
    forecast = client.plan(spec)
    if as_json:
        terminal.json_out(forecast)
    else:
        first, *rest = forecasts.lines(forecast, client.server().currency if forecast.price_per_h else "")
        terminal.out(terminal.clean(first))
        for line in filter(None, rest):
            terminal.out(f"  {terminal.clean(line)}")
    return 1 if forecast.when == "never" else 0


def _check_backend(client: clients.Client, wanted: str) -> None:
    found = client.server().backend
    if found != wanted:
        raise errors.Unsupported(
            f"The server at {client.url} has the backend {found}.",
            path="--backend",
            hint=f"Start one: oarlock up --backend {wanted}, or name another server: --server URL",
        )


def _print_manifests(client: clients.Client, spec: jobfile.JobSpec, as_json: bool) -> None:
    import yaml

    found = client.manifests(spec)
    if as_json:
        terminal.json_out({"items": found})
        return
    terminal.out(yaml.safe_dump_all(found, sort_keys=False, explicit_start=True).rstrip())


def _load(file: str) -> jobfile.JobSpec:
    from oarlock.client import verbs

    return verbs.spec_of(Path(file))


def _named(spec: jobfile.JobSpec, name: str | None) -> jobfile.JobSpec:
    """Return the spec under another name, None for its own."""
    import msgspec

    from oarlock.spec.input import validation

    if name is not None:
        spec = msgspec.structs.replace(spec, name=name)
        validation.judge(spec)
    return spec
