# Made by `make sdk` from `asynchronous/jobverbs.py`: change that file, not this one.
"""The verbs about jobs: submit, look, wait, act."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oarlock.client import execution, packing, requests, verbs
from oarlock.client.synchronous import caller, session, waiting
from oarlock.spec import bodies, errors, intents, jobfile, phases, plans

# Names, not modules: the methods below bear the modules' names.
from oarlock.spec.events import Record
from oarlock.spec.input import edits
from oarlock.spec.jobs import Job

if TYPE_CHECKING:
    from oarlock.data.snapshots import snapshots

_PAGE = 1000


class JobVerbs(caller.Caller):
    """Verbs about jobs."""

    def run(
        self,
        command: str | Sequence[str],
        *,
        directory: str | Path | None = ".",
        in_place: bool = False,
        **fields: Any,
    ) -> Job:
        """Submit a command, with other fields of the job file as keywords: `roles={"worker": {"count": 2}}`.

        Raises as `submit` does, and InvalidInput where the script is not in the directory.
        """
        wanted = command if isinstance(command, str) else list(command)
        return self.submit({"command": wanted, **fields}, directory=directory, in_place=in_place)

    def submit(
        self,
        wanted: verbs.Wanted,
        *,
        directory: str | Path | None = ".",
        in_place: bool = False,
        shell: Mapping[str, str] | None = None,
        key: str | None = None,
        continues: str | None = None,
    ) -> Job:
        """Pack `directory` (None: the job needs no code), upload the snapshot if the server lacks it, and submit.

        With `in_place` the job runs in the directory itself, on this machine, and the snapshot only records the code.
        On a local server the job inherits the variables of `shell`, by default some of this process. The same `key`
        again gives the same job. With `continues`, `JOB` or `JOB@STEP`, the job begins from that checkpoint of another
        job. Raises InvalidInput, TooLarge, Unsupported, Impossible and NameTaken; Conflict where there is no such
        checkpoint.
        """
        spec = verbs.spec_of(wanted)
        place = Path(directory) if directory is not None else None
        code = waiting.in_thread(packing.code_of, place, spec, self.settings, in_place=in_place)
        return self.submit_code(spec, code, shell=shell, key=key, continues=continues)

    def continue_job(
        self,
        job: str,
        *,
        step: int | None = None,
        command: str | Sequence[str] | None = None,
        directory: str | Path | None = None,
        **fields: Any,
    ) -> Job:
        """Submit a job that begins from a checkpoint of another job, its best or that of `step`, with the present code.

        Without a command, the job takes the fields of the other job, changed by `fields`, and runs in place if the
        other did. Without a directory, it takes the directory of the other job's code. Raises as `submit` does.
        """
        earlier = self.job(job)
        wanted = verbs.fields_of(earlier) if command is None else {"command": command}
        return self.submit(
            {**wanted, **fields},
            directory=verbs.directory_of(earlier) if directory is None else directory,
            in_place=command is None and earlier.directory is not None,
            continues=verbs.continues(earlier.id, step),
        )

    def submit_code(
        self,
        spec: jobfile.JobSpec,
        code: packing.Code,
        *,
        shell: Mapping[str, str] | None = None,
        key: str | None = None,
        continues: str | None = None,
    ) -> Job:
        """Submit with the code that `packing.code_of` has made of a directory."""
        if code.snapshot is not None:
            self.upload(code.snapshot)
        if shell is None:
            shell = verbs.shell_of(os.environ) if self.loopback else {}
        request = requests.submit(verbs.submission(spec, code, shell, continues), key or verbs.fresh_key())
        return self._sender.send(request)

    def submit_packed(
        self,
        spec: jobfile.JobSpec,
        digest: str | None,
        *,
        shell: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Job:
        """Submit with a snapshot that the server already has."""
        if shell is None:
            shell = verbs.shell_of(os.environ) if self.loopback else {}
        submission = jobfile.Submission(spec=spec, snapshot=digest, shell=dict(shell))
        return self._sender.send(requests.submit(submission, key or verbs.fresh_key()))

    def upload(self, packed: snapshots.Snapshot) -> bool:
        """Send a snapshot unless the server has it; return whether it was sent."""
        try:
            self._sender.send(requests.has_blob(packed.digest))
            return False
        except errors.NotFound:
            self._sender.send(requests.put_blob(packed.digest, packed.path))
            return True

    def plan(self, wanted: verbs.Wanted) -> plans.Forecast:
        """Return the forecast for this job: now, later or never, and why."""
        return self._sender.send(requests.plan(jobfile.Submission(spec=verbs.spec_of(wanted))))

    def manifests(self, wanted: verbs.Wanted) -> tuple[dict[str, Any], ...]:
        """Return the Kubernetes objects that a launch of this job would create. Raises Unsupported elsewhere."""
        found = self._sender.send(requests.manifests(jobfile.Submission(spec=verbs.spec_of(wanted))))
        return found.items

    def jobs(self, *, phase: phases.Phase | str | None = None, limit: int = 100, **chosen: Any) -> list[Job]:
        """Return at most `limit` jobs, newest first.

        The choice is one of `owner`, `pool`, `name`, `continues` (jobs that began from this job), `text` (a part of the
        name or the command), `since` and `until` (Unix seconds of the submission). `sort` is created, name, owner, pool
        or phase, with `ascending` in that order.
        """
        found: list[Job] = []
        after: str | None = None
        while len(found) < limit:
            page = self._sender.send(
                requests.list_jobs(phase=phase, **chosen, after=after, limit=min(limit - len(found), 1000))
            )
            found += page.items
            if page.next is None or not page.items:
                break
            after = page.next
        return found

    def summaries(
        self, *, phases: Iterable[phases.Phase | str] = (), after: str | None = None, limit: int = 100, **chosen: Any
    ) -> bodies.SummaryPage:
        """Return a page of jobs in short, chosen as `jobs` does, and the number of jobs in each phase.

        The next page takes the `next` of this one as `after`. Raises Gone where that job was removed since.
        """
        request = requests.summaries(phase=tuple(phases), **chosen, after=after, limit=limit)
        return self._sender.send(request)

    def job(self, job: str) -> Job:
        """Return the job with this id, or the newest job with this name. Raises NotFound."""
        return self._sender.send(requests.job(job))

    def why(self, job: str) -> bodies.Why:
        """Return why the job is in its phase, in three lines."""
        return self._sender.send(requests.why(job))

    def decisions(self, job: str) -> bodies.DecisionList:
        """Return all decisions about the job, with their reasons."""
        return self._sender.send(requests.decisions(job))

    def speed(self, job: str) -> bodies.Speed:
        """Return the speed of the job by number of devices: measured, and fitted to the measurements."""
        return self._sender.send(requests.speed(job))

    def events(self, job: str, *, kinds: Iterable[str] = ()) -> list[Record]:
        """Return the job's lines of the event log, oldest first; only those of `kinds`, if any are given."""
        found: list[Record] = []
        after: int | None = None
        chosen = tuple(kinds)
        while True:
            page = self._sender.send(requests.job_events(job, after, _PAGE, chosen))
            found += page.items
            if len(page.items) < _PAGE:
                return found
            after = page.next

    def watch(self, *, after: int | None = None, timeout_s: float | None = None) -> Iterator[Record]:
        """Yield the event log of all jobs that the user may see, as it grows, for `timeout_s` or without end.

        Raises Gone when the lines after `after` were compacted: list the jobs again.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while until is None or time.monotonic() < until:
            left = verbs.EVENT_WAIT_S if until is None else max(0.0, min(verbs.EVENT_WAIT_S, until - time.monotonic()))
            page = self._sender.send(requests.event_log(after, left))
            for record in page.items:
                yield record
            after = page.next

    def news(self, *, after: int, wait_s: float = 0.0) -> bodies.RecordPage:
        """Return the next lines of the event log, and wait up to `wait_s` for one. Raises Gone as `watch` does."""
        return self._sender.send(requests.event_log(after, wait_s))

    def wait(self, job: str, *, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended or is halted, and return it. Raises TimeoutError."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.job(job)
            if found.terminal or found.phase is phases.Phase.HALTED:
                return found
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{job} is still {found.phase}")
            self._sleep(verbs.POLL_S)

    def halt(self, job: str, reason: str = "") -> Job:
        """Stop the job. It keeps its checkpoint, and `resume` continues from there."""
        return self._sender.send(requests.intend(job, intents.Intent.HALT, reason))

    def resume(self, job: str, reason: str = "") -> Job:
        """Let a halted job continue. Raises Conflict for a job that has ended."""
        return self._sender.send(requests.intend(job, intents.Intent.RUN, reason))

    def cancel(self, job: str, reason: str = "") -> Job:
        """Stop the job for good."""
        return self._sender.send(requests.intend(job, intents.Intent.CANCEL, reason))

    def set(self, job: str, **changes: Any) -> Job:
        """Change `priority`, `pool`, or `min` and `max` of the workers. Raises Conflict where that cannot be."""
        return self._sender.send(requests.edit(job, edits.Edit(**changes)))

    def remove(self, job: str) -> None:
        """Remove an ended job: its record, logs, metrics and checkpoints. Raises Conflict while it is active."""
        self._sender.send(requests.remove(job))

    def exec(
        self, job: str, command: Sequence[str], *, role: str | None = None, index: int | None = None, stdin: bytes = b""
    ) -> execution.Result:
        """Run a command inside a running or frozen task. Raises Conflict where the job has none."""
        place = self._sender.place
        target = requests.exec_target(job, role=role, index=index, tty=False, rows=24, columns=80)
        with session.Session(place, target, command) as opened:
            return opened.finish(stdin)

    def exec_session(
        self,
        job: str,
        command: Sequence[str],
        *,
        role: str | None = None,
        index: int | None = None,
        tty: bool = False,
        rows: int = 24,
        columns: int = 80,
    ) -> session.Session:
        """Return a session that runs a command piece by piece, for terminals."""
        target = requests.exec_target(job, role=role, index=index, tty=tty, rows=rows, columns=columns)
        return session.Session(self._sender.place, target, command)
