"""`oarlock set`: change a job that has been submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors, roles

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.spec import jobs


@command.verb("set", short_help="Change the priority, the pool or the number of workers of a job")
@command.job_argument
@command.option("--priority", type=int, metavar="N", help="Priority, from 0 to 1000.")
@command.option("--pool", metavar="POOL", help="Resource pool.")
@command.option("--min", "least", type=int, metavar="N", help="Fewest workers to start with.")
@command.option("--max", "most", type=int, metavar="N", help="Most workers to grow to.")
@command.json_option
@command.connected
def set_job(
    client: clients.Client,
    job: str,
    priority: int | None,
    pool: str | None,
    least: int | None,
    most: int | None,
    as_json: bool,
) -> None:
    """Change a JOB that has not ended. The next plan goes by the new values; the job is not restarted for them.

    Other fields of a job cannot be changed: its tasks were made from them. --min and --max of a running job must leave
    room for the workers that it has. Halt the job to change them beyond that.
    """
    given = {"priority": priority, "pool": pool, "min": least, "max": most}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise errors.InvalidInput("no field to change was given", hint="Give --priority, --pool, --min or --max.")
    after = client.set(job, **changes)
    if as_json:
        terminal.json_out(after)
    else:
        terminal.say(terminal.clean(f"{after.name} has {_words(after)}."))


def _words(job: jobs.Job) -> str:
    """Return `priority 80, pool research, 2 to 8 workers`."""
    said = f"priority {job.spec.priority}, pool {job.pool}"
    worker = job.spec.roles.get(roles.RoleName.WORKER)
    if worker is None:
        return said
    least, most = worker.min or worker.count, worker.max or worker.count
    return f"{said}, {least if least == most else f'{least} to {most}'} worker{'' if most == 1 else 's'}"
