"""`oarlock halt`, `resume`, `cancel` and `rm`: requests for several jobs. An error of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oarlock.cli import command, complaints
from oarlock.cli.output import terminal
from oarlock.spec import errors, intents, phases

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.spec import jobs as nouns

_REASON = {"metavar": "TEXT", "default": "", "help": "Reason, stored in the job's record."}
_WAIT_HELP = "Wait until no task of the jobs runs."


@command.verb("halt", short_help="Stop jobs, to be resumed later")
@command.jobs_argument
@command.option("--reason", **_REASON)
@command.option("--wait", is_flag=True, help=_WAIT_HELP)
@command.json_option
@command.connected
def halt(client: clients.Client, jobs: Sequence[str], reason: str, wait: bool, as_json: bool) -> int:
    """Stop JOBs and keep their checkpoints. `oarlock resume` continues from there."""
    return _each(
        jobs,
        lambda job: _wanted(client, client.halt(job, reason), wait),
        lambda job: _stopped(job, "is to halt"),
        as_json,
    )


@command.verb("resume", short_help="Continue halted jobs")
@command.jobs_argument
@command.option("--reason", **_REASON)
@command.json_option
@command.connected
def resume(client: clients.Client, jobs: Sequence[str], reason: str, as_json: bool) -> int:
    """Continue halted JOBs from their last good checkpoint.

    A job that has ended can be continued by a new one: oarlock run --continue JOB
    """
    unstopped: set[str] = set()

    def act(name: str) -> nouns.Job:
        job = client.job(name)
        if job.intent is intents.Intent.RUN and not job.terminal:
            unstopped.add(job.id)
        return _resumed(client, name, job, reason, as_json)

    def said(job: nouns.Job) -> str:
        return f"is {job.phase}: it was not halted" if job.id in unstopped else f"goes on: {job.phase}"

    return _each(jobs, act, said, as_json)


@command.verb("cancel", short_help="Stop jobs for good")
@command.jobs_argument
@command.option("--reason", **_REASON)
@command.option("--wait", is_flag=True, help=_WAIT_HELP)
@command.json_option
@command.connected
def cancel(client: clients.Client, jobs: Sequence[str], reason: str, wait: bool, as_json: bool) -> int:
    """Stop JOBs for good. Their records, logs and checkpoints stay until `oarlock rm`."""
    return _each(
        jobs,
        lambda job: _wanted(client, client.cancel(job, reason), wait),
        lambda job: _stopped(job, "is to be canceled"),
        as_json,
    )


@command.verb("rm", short_help="Remove jobs that have ended")
@command.jobs_argument
@command.option("--force", "-f", is_flag=True, help="First cancel jobs that have not ended.")
@command.json_option
@command.connected
def rm(client: clients.Client, jobs: Sequence[str], force: bool, as_json: bool) -> int:
    """Remove JOBs that have ended: record, logs, metrics, and the checkpoints in the server's own place."""
    return _each(jobs, lambda job: _remove(client, job, force), lambda job: "is removed", as_json)


def _resumed(client: clients.Client, name: str, job: nouns.Job, reason: str, as_json: bool) -> nouns.Job:
    """Resume the job, which may share its `name` with a newer one by now. Say first if it starts again, for want of a
    checkpoint.
    """
    if job.phase is phases.Phase.HALTED and not as_json and not client.checkpoints(job.id):
        terminal.say(f"{terminal.clean(job.name)} has no checkpoint: it starts again from its first step.")
    try:
        return client.resume(job.id, reason)
    except errors.OarlockError as error:
        error.hint = error.hint.replace(job.id, name)  # the next step names the job as it was typed
        raise


def _wanted(client: clients.Client, job: nouns.Job, wait: bool) -> nouns.Job:
    return client.wait(job.id) if wait else job


def _remove(client: clients.Client, name: str, force: bool) -> nouns.Job:
    job = client.job(name)
    if force and not job.terminal:
        client.cancel(job.id, "rm --force")
        job = client.wait(job.id)
    client.remove(job.id)
    return job


def _each(
    names: Sequence[str], act: Callable[[str], nouns.Job], said: Callable[[nouns.Job], str], as_json: bool
) -> int:
    code = 0
    done = []
    for name in names:
        try:
            job = act(name)
        except errors.Unavailable:
            raise
        except errors.OarlockError as error:
            code = max(code, complaints.tell(error, as_json=as_json))
        else:
            done.append(job)
            if not as_json:
                terminal.say(f"{terminal.clean(job.name)} {said(job)}.")
    if as_json:
        terminal.json_out({"items": done})
    return code


def _stopped(job: nouns.Job, wanted: str) -> str:
    """Return the phase of a job that has stopped, else the request."""
    return f"is {job.phase}" if job.terminal or job.phase is phases.Phase.HALTED else wanted
