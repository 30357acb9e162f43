"""From a spec to a job that is followed: pack, say what was left out, start a server where none runs, submit, follow.

`run` and `submit` differ in where the spec comes from; from there on they are the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oarlock.cli import endings, localserver, terminal
from oarlock.client import failures, packing, verbs
from oarlock.spec import errors, jobfile, jobs, nearness, quantities

if TYPE_CHECKING:
    from oarlock.client import client as clients
    from oarlock.data import snapshots

_INTERPRETERS = ("python", "python3", "torchrun")
_SHELL_WORDS = frozenset("|&;<>()$`\\\"'*?[]{}~#=\n")
_SAID_BYTES = 1 << 20


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """`directory` None: the job needs no code."""

    directory: Path | None
    detach: bool = False
    dry_run: bool = False
    as_json: bool = False
    quiet: bool = False


def carry_out(client: clients.Client, spec: jobfile.JobSpec, choice: Choice) -> int:
    """Submit and, unless detached, follow. The exit code."""
    localserver.check_home(client.settings.home)
    snapshot = pack(client, spec, choice)
    if choice.dry_run:
        _show_request(client, spec, snapshot)
        return 0
    localserver.ensure(client.settings)
    job = _send(client, spec, snapshot)
    if choice.detach:
        _tell_submitted(job, choice)
        return 0
    from oarlock.cli import following

    if choice.as_json:
        return _follow_as_json(client, job)
    return following.Follower(client, job).run()


def pack(client: clients.Client, spec: jobfile.JobSpec, choice: Choice) -> snapshots.Snapshot | None:
    """The working directory's snapshot; raises where the script that is to run is certainly not in it."""
    if choice.directory is None:
        if spec.dependencies is not None:
            raise errors.InvalidInput(
                "the requirements file lies in the snapshot, and there is none",
                path="dependencies",
                hint="Leave out --no-snapshot.",
            )
        return None
    check_named(spec, choice.directory)
    snapshot = packing.pack(choice.directory, client.settings)
    if snapshot.left_out:
        check_kept(spec, choice.directory, client.settings.home)
    if not choice.quiet:
        tell_left_out(snapshot)
    return snapshot


def tell_left_out(snapshot: snapshots.Snapshot) -> None:
    """What is not in the snapshot, where it could be missed: what is never packed is said to nobody."""
    for group in snapshot.left_out:
        if group.why != "never packed":
            terminal.say(f"Not sent: {terminal.clean(str(group))}")
    if snapshot.unpacked_bytes >= _SAID_BYTES and not snapshot.cached:
        terminal.say(f"Packed {snapshot.count:,} files, {quantities.memory_text(snapshot.unpacked_bytes)}.")


def script_of(command: str | Sequence[str]) -> str | None:
    """The script that Python is to run, where that is certain: no shell words, no -c, no -m."""
    if isinstance(command, str):
        if any(letter in _SHELL_WORDS for letter in command):
            return None
        command = command.split()
    words = list(command)
    if len(words) < 2 or words[0].rpartition("/")[2] not in _INTERPRETERS:
        return None
    if not words[1].startswith("-") and words[1].endswith(".py"):
        return words[1]
    return words[2] if words[1] == "-u" and len(words) > 2 and words[2].endswith(".py") else None


def check_named(spec: jobfile.JobSpec, directory: Path) -> None:
    """Raises InvalidInput where a file that the job names is certain to be missing in the directory."""
    check_script(spec, directory)
    if spec.dependencies is not None and not (directory / spec.dependencies).is_file():
        raise errors.InvalidInput(
            f"there is no file {spec.dependencies!r} in {directory.absolute()}",
            path="dependencies",
            hint="Give its path within the directory.",
        )


def check_script(spec: jobfile.JobSpec, directory: Path) -> None:
    script = script_of(spec.command)
    if script is None or script.startswith("/") or _fetched(spec, script) or (directory / script).exists():
        return
    there = [path.name for path in directory.glob("*.py")]
    near = nearness.nearest(script, there)
    raise errors.InvalidInput(
        f"there is no {script!r} in {directory.absolute()}",
        path="command",
        hint=f"Did you mean `{near}`?" if near else "Go to its directory, or name it with --dir.",
    )


def check_kept(spec: jobfile.JobSpec, directory: Path, home: Path) -> None:
    """The script is there, but is it in the snapshot?"""
    script = script_of(spec.command)
    if script is None or script.startswith("/") or _fetched(spec, script):
        return
    from oarlock.data import trees

    wanted = os.path.normpath(script).encode()
    if wanted.startswith(b"..") or any(entry.path == wanted for entry in trees.walk(directory, home=home).entries):
        return
    raise errors.InvalidInput(
        f"{script!r} is left out of the snapshot",
        path="command",
        hint="It is named in .gitignore or .oarlockignore; `!" + script + "` in .oarlockignore takes it in again.",
    )


def _fetched(spec: jobfile.JobSpec, script: str) -> bool:
    """Whether it may come with the data."""
    return any(script.startswith(source.mount.rstrip("/") + "/") or script == source.mount for source in spec.data)


def _send(client: clients.Client, spec: jobfile.JobSpec, snapshot: snapshots.Snapshot | None) -> jobs.Job:
    """Upload and submit; where a local server turns out to be gone, start one and do it again."""
    key = verbs.fresh_key()
    digest = snapshot.digest if snapshot is not None else None
    for last in (False, True):
        try:
            if snapshot is not None:
                client.upload(snapshot)
            return client.submit_packed(spec, digest, key=key)
        except failures.Unsent:
            if last or client.settings.server is not None:
                raise
            terminal.say("The local server does not answer; starting it again.")
            localserver.start(client.settings.home, {})
    raise AssertionError("unreachable")


def _show_request(client: clients.Client, spec: jobfile.JobSpec, snapshot: snapshots.Snapshot | None) -> None:
    try:
        loopback = client.loopback
    except errors.ServerNotFound:
        loopback = True  # the local one that would be started
    shell = verbs.shell_of(os.environ) if loopback else {}
    submission = jobfile.Submission(spec=spec, snapshot=snapshot.digest if snapshot else None, shell=shell)
    terminal.json_out(submission)


def _tell_submitted(job: jobs.Job, choice: Choice) -> None:
    if choice.as_json:
        terminal.json_out(job)
        return
    terminal.out(job.id)
    terminal.say(f"Submitted {job.name}.")
    for line in endings.next_steps(job):
        terminal.say(line)


def _follow_as_json(client: clients.Client, job: jobs.Job) -> int:
    """For programs: nothing but the job as it was in the end."""
    ended = client.wait(job.id)
    terminal.json_out(ended)
    return verbs.exit_code(ended.phase, ended.exit_code)
