"""From a spec to a job that is followed, for `run` and `submit`: pack the code, start a server, submit, follow."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oarlock.cli.launching import launchers, localserver
from oarlock.cli.output import terminal
from oarlock.client import failures, packing, scripts, verbs
from oarlock.display import amounts
from oarlock.display.jobs import endings
from oarlock.spec import errors, jobfile, jobs
from oarlock.spec.input import quantities

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.data.snapshots import snapshots

NEIGHBOURS = 200
_SAID_BYTES = 1 << 20
_SCRIPT_CHARACTERS = 1 << 20


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `run` and `submit`.

    `directory` is None for a job without code. `continues` is the JOB or JOB@STEP from whose checkpoint it begins.
    `earlier` is the job whose code is taken, and whose variables of the shell.
    """

    directory: Path | None
    earlier: jobs.Job | None = None
    continues: str | None = None
    in_place: bool = False
    detach: bool = False
    dry_run: bool = False
    as_json: bool = False
    quiet: bool = False


def carry_out(client: clients.Client, spec: jobfile.JobSpec, choice: Choice) -> int:
    """Submit the job and, unless detached, follow it. Return the exit code."""
    localserver.check_home(client.settings.home)
    if choice.earlier is not None:
        code = packing.Code(stored=choice.earlier.snapshot)
    else:
        code = packing.code_of(choice.directory, spec, client.settings, in_place=choice.in_place)
    tell_code(code, choice)
    if not choice.quiet:
        tell_launcher(spec, choice.directory)
    if choice.dry_run:
        _show_request(client, spec, code, choice)
        return 0
    localserver.ensure(client.settings)
    job = _send(client, spec, code, choice)
    if job.continues is not None and not choice.as_json:
        one = job.continues
        said = f"{job.name} continues from step {one.step} of {one.name} ({one.job})."
        terminal.say(terminal.clean(said))
    tell_neighbours(client, job)
    if not choice.quiet:
        if choice.detach or terminal.is_terminal(sys.stderr):
            terminal.say(f"Page: {client.url}/jobs/{job.id}")
        tell_input()
    if choice.detach:
        _tell_submitted(job, choice)
        return 0
    from oarlock.cli.following import follower

    if choice.as_json:
        return _follow_as_json(client, job)
    return follower.Follower(client, job).run()


def continued(client: clients.Client, text: str) -> tuple[jobs.Job, str]:
    """Return the job that `JOB` or `JOB@STEP` names, and its name in a submission. Raises InvalidInput, NotFound."""
    try:
        name, step = verbs.continued_of(text)
        localserver.ensure(client.settings)
        earlier = client.job(name)
    except (errors.InvalidInput, errors.NotFound) as error:
        error.path = "--continue"
        raise
    return earlier, verbs.continues(earlier.id, step)


def earlier(client: clients.Client, name: str) -> jobs.Job:
    """Return the job that is submitted once more. Raises NotFound, and Conflict where the server lacks its code."""
    localserver.ensure(client.settings)
    try:
        found = client.job(name)
    except errors.NotFound as error:
        error.path = "--again"
        raise
    if found.directory is not None:
        raise errors.Conflict(
            f"{found.name} ran in its directory itself, of which the server has no copy",
            path="--again",
            hint="Submit it again from there: oarlock run --in-place",
        )
    return found


def tell_code(code: packing.Code, choice: Choice) -> None:
    """Say why the code is not recorded, or which files of the directory are not sent."""
    if code.unrecorded:
        terminal.say(terminal.clean(f"The code is not recorded: {code.unrecorded}."))
    if code.snapshot is not None and code.in_place is None and not choice.quiet:
        tell_left_out(code.snapshot)


def tell_neighbours(client: clients.Client, job: jobs.Job) -> None:
    """Say which other jobs run in the directory: this is allowed, but they write the same files."""
    if job.directory is None:
        return
    listed = client.jobs(limit=NEIGHBOURS)
    names = [one.name for one in listed if one.directory == job.directory and one.id != job.id and not one.terminal]
    if names:
        noun = "runs" if len(names) == 1 else "run"
        terminal.say(terminal.clean(f"{', '.join(names)} {noun} in {job.directory} too: they share its files."))


def tell_left_out(snapshot: snapshots.Snapshot) -> None:
    """Say which files are not in the snapshot. Files that are never packed, such as `.git`, need no mention."""
    for group in snapshot.left_out:
        if group.why != "never packed":
            terminal.say(f"Not sent: {terminal.clean(str(group))}")
    if snapshot.unpacked_bytes >= _SAID_BYTES and not snapshot.cached:
        size = quantities.memory_text(snapshot.unpacked_bytes)
        terminal.say(f"Packed {amounts.counted(snapshot.count, 'file')}, {size}.")


def tell_launcher(spec: jobfile.JobSpec, directory: Path | None) -> None:
    """Give a hint if the program starts processes of its own, which `run` could do."""
    script, text = scripts.script_of(spec.command), ""
    if script is not None and directory is not None:
        with contextlib.suppress(OSError), (directory / script).open(encoding="utf-8", errors="replace") as file:
            text = file.read(_SCRIPT_CHARACTERS)
    hint = launchers.hint(spec, script, text)
    if hint:
        terminal.say(f"Hint: {terminal.clean(hint)}")


def tell_input() -> None:
    """Say that a job does not get this command's stdin: its own is empty, and reading it fails silently.

    This is checked after the submission, when a program at the other end of the pipe has had time to write.
    """
    if terminal.holds_input(sys.stdin):
        terminal.say(
            "Hint: stdin is not sent to a job, and the job's own is closed. Put the input into a file of the directory."
        )


def _send(client: clients.Client, spec: jobfile.JobSpec, code: packing.Code, choice: Choice) -> jobs.Job:
    """Upload and submit. If the local server turns out to be gone, start one and try once more."""
    key = verbs.fresh_key()
    for last in (False, True):
        try:
            return client.submit_code(spec, code, key=key, continues=choice.continues, shell=_shell(choice))
        except (errors.InvalidInput, errors.NotFound, errors.Conflict) as error:
            error.path = "--continue" if error.path == "continues" else error.path
            raise
        except failures.Unsent:
            if last or client.settings.server is not None:
                raise
            terminal.say("The local server does not answer. Starting it again.")
            localserver.start(client.settings.home, {})
    raise AssertionError("unreachable")


def _shell(choice: Choice) -> dict[str, str] | None:
    """Return the variables of the earlier job's shell; None for those of this one."""
    return choice.earlier.shell if choice.earlier is not None else None


def _show_request(client: clients.Client, spec: jobfile.JobSpec, code: packing.Code, choice: Choice) -> None:
    try:
        loopback = client.loopback
    except errors.ServerNotFound:
        loopback = True  # the local server, which would be started
    shell = _shell(choice)
    if shell is None:
        shell = verbs.shell_of(os.environ) if loopback else {}
    submission = verbs.submission(spec, code, shell, choice.continues)
    terminal.json_out(submission)


def _tell_submitted(job: jobs.Job, choice: Choice) -> None:
    if choice.as_json:
        terminal.json_out(job)
        return
    terminal.out(job.id)
    terminal.say(f"Submitted {job.name}.")
    for line in endings.next_steps(job):
        terminal.say(terminal.clean(line))


def _follow_as_json(client: clients.Client, job: jobs.Job) -> int:
    """Wait for the end of the job, and print only its final record, for programs."""
    ended = client.wait(job.id)
    terminal.json_out(ended)
    return verbs.exit_code(ended.phase, ended.exit_code)
