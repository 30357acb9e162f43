"""`oarlock run`: a job made of a command, flags and the working directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command
from oarlock.cli.launching import flags

if TYPE_CHECKING:
    from oarlock.spec import jobfile, jobs


@command.verb(
    "run",
    short_help="Submit the working directory with a command, and follow it",
    context_settings={"allow_interspersed_args": False},
    no_args_is_help=True,
    epilog="Examples: oarlock run --workers 2 -- python train.py --epochs 5; oarlock run --continue train@50",
)
@click.argument("words", nargs=-1, metavar="[--] COMMAND...", type=click.UNPROCESSED)
@command.option(
    "--continue",
    "continues",
    metavar="JOB[@STEP]",
    show_default="the newest of JOB",
    help="Checkpoint of another job to begin from. Without COMMAND the new job also takes the fields of JOB.",
)
@command.option(
    "--file", "-f", "job_file", type=click.Path(), help="Job file to begin with. Flags override its fields."
)
@command.option(
    "--dir", "directory", type=click.Path(), show_default="this one, or the continued job's", help="Directory to send."
)
@command.option("--in-place", is_flag=True, help="Run in the directory itself, on this machine, and not in a copy.")
@command.option("--no-snapshot", is_flag=True, help="Send no code.")
@command.option("--snapshot-limit", metavar="SIZE", show_default="100M", help="Most bytes of code to send.")
@command.option("--detach", "-d", is_flag=True, help="Print the job's id, and do not follow the job.")
@command.option("--dry-run", is_flag=True, help="Print the request, and do not send it.")
@command.option("--quiet", "-q", is_flag=True, help="Do not list the files that are not sent.")
@command.json_option
@flags.job_flags
@command.server_options
def run(
    words: tuple[str, ...],
    continues: str | None,
    job_file: str | None,
    directory: str | None,
    in_place: bool,
    no_snapshot: bool,
    snapshot_limit: str | None,
    detach: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    server: str | None,
    token: str | None,
    **given: Any,
) -> int:
    """Submit the working directory with COMMAND, and follow it to its end.

    With --continue JOB the new job begins from a checkpoint of JOB. Without COMMAND it also takes the fields of JOB,
    changed by the flags, and the present content of the directory from which the code of JOB was sent.

    The exit code is the job's. Ctrl-C asks whether to stop the job or to leave it running.
    """
    from oarlock.cli.launching import submitting
    from oarlock.spec import errors

    with command.open_client(server, token, snapshot_limit=snapshot_limit) as client:
        earlier, wanted = submitting.continued(client, continues) if continues is not None else (None, None)
        alike = earlier if not words and job_file is None else None  # the command line has only flags for the new job
        spec = _spec(words, job_file, given, alike)
        place = Path(directory) if directory is not None else _directory(alike)
        choice = submitting.Choice(
            directory=None if no_snapshot else place,
            continues=wanted,
            in_place=in_place or (alike is not None and alike.directory is not None),
            detach=detach,
            dry_run=dry_run,
            as_json=as_json,
            quiet=quiet,
        )
        try:
            return submitting.carry_out(client, spec, choice)
        except errors.InvalidInput as error:
            raise flags.blamed(error, given) from error


def _directory(alike: jobs.Job | None) -> Path | None:
    from oarlock.client import verbs
    from oarlock.spec import errors

    if alike is None:
        return Path()
    try:
        return verbs.directory_of(alike)
    except errors.InvalidInput as error:
        error.path, error.hint = "--dir", "Name the directory with --dir."
        raise


def _spec(
    words: tuple[str, ...], job_file: str | None, given: dict[str, Any], alike: jobs.Job | None
) -> jobfile.JobSpec:
    from oarlock.client import verbs
    from oarlock.spec import errors
    from oarlock.spec.input import validation

    base: Any = verbs.fields_of(alike) if alike is not None else {}
    if job_file is not None:
        base = validation.fields(verbs.read_file(Path(job_file)), source=job_file)
    if not words and "command" not in base:
        raise errors.InvalidInput(
            "there is no command to run", hint="Write it after `--`: oarlock run -- python train.py"
        )
    raw = flags.merged(base, given, words, os.environ)
    try:
        return validation.decode(raw)
    except errors.InvalidInput as error:
        raise flags.blamed(error, given) from error
