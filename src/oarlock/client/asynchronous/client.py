"""The SDK: `oarlock.AsyncClient` and `oarlock.Client`, with the verbs of the command line.

    async with oarlock.AsyncClient() as client:     with oarlock.Client() as client:
        job = await client.run("python train.py")       job = client.run("python train.py")
        async for line in client.logs(job.id):          for line in client.logs(job.id):
            print(line.text)                                print(line.text)

Every verb builds a request (`oarlock.client.requests`), and a sender carries it out. The server's errors are raised as
the same classes of `oarlock.spec.errors`. `AsyncClient` is the source; `make sdk` makes `Client` from it.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oarlock.client import answers, execution, failures, following, packing, requests, settings, verbs
from oarlock.client.asynchronous import sender, session, waiting
from oarlock.data import storage
from oarlock.spec import bodies, errors, intents, jobfile, phases, plans

# Names, not modules: the methods below bear the modules' names.
from oarlock.spec.events import Record
from oarlock.spec.jobs import Checkpoint, Job
from oarlock.spec.pools import Pool
from oarlock.spec.users import Right, User

if TYPE_CHECKING:
    import httpx

    from oarlock.client import downloads
    from oarlock.data.snapshots import snapshots

__all__ = ["AsyncClient"]


class AsyncClient:
    """A client of one server; close it, or use it in `with` (`async with`).

    `server` and `token` default to OARLOCK_SERVER, OARLOCK_TOKEN or config.toml, then to the local server of
    OARLOCK_HOME. Nothing is sent before the first verb. Every verb may raise `ServerNotFound` (no server answers),
    `Unauthenticated`, `Forbidden` and `Unavailable`; a verb's own docstring names further errors. Threads may share a
    `Client`; an `AsyncClient` belongs to one event loop.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        timeout_s: float = 30.0,
        told: settings.Settings | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: waiting.Sleep = waiting.sleep,
    ) -> None:
        self.settings = told or settings.from_environment(server=server, token=token, ca_file=ca_file)
        self._sleep = sleep
        self._sender = sender.AsyncSender(self.settings, timeout_s=timeout_s, transport=transport, sleep=sleep)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._sender.close()

    @property
    def url(self) -> str:
        return self._sender.place.url

    @property
    def loopback(self) -> bool:
        """Whether the server is on this machine."""
        return self._sender.place.loopback

    def clock_skew_s(self, clock: Callable[[], float] = time.time) -> float | None:
        """Return the seconds that the server's clock is ahead, by its last answer; None before the first answer."""
        from email.utils import parsedate_to_datetime

        try:
            return parsedate_to_datetime(self._sender.server_date or "").timestamp() - clock()
        except (ValueError, TypeError):
            return None

    # Submitting

    async def run(
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
        return await self.submit({"command": wanted, **fields}, directory=directory, in_place=in_place)

    async def submit(
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
        code = await waiting.in_thread(packing.code_of, place, spec, self.settings, in_place=in_place)
        return await self.submit_code(spec, code, shell=shell, key=key, continues=continues)

    async def continue_job(
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
        earlier = await self.job(job)
        wanted = verbs.fields_of(earlier) if command is None else {"command": command}
        return await self.submit(
            {**wanted, **fields},
            directory=verbs.directory_of(earlier) if directory is None else directory,
            in_place=command is None and earlier.directory is not None,
            continues=verbs.continues(earlier.id, step),
        )

    async def submit_code(
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
            await self.upload(code.snapshot)
        if shell is None:
            shell = verbs.shell_of(os.environ) if self.loopback else {}
        request = requests.submit(verbs.submission(spec, code, shell, continues), key or verbs.fresh_key())
        return await self._sender.send(request)

    async def submit_packed(
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
        return await self._sender.send(requests.submit(submission, key or verbs.fresh_key()))

    async def upload(self, packed: snapshots.Snapshot) -> bool:
        """Send a snapshot unless the server has it; return whether it was sent."""
        try:
            await self._sender.send(requests.has_blob(packed.digest))
            return False
        except errors.NotFound:
            await self._sender.send(requests.put_blob(packed.digest, packed.path))
            return True

    async def plan(self, wanted: verbs.Wanted) -> plans.Forecast:
        """Return the forecast for this job: now, later or never, and why."""
        return await self._sender.send(requests.plan(jobfile.Submission(spec=verbs.spec_of(wanted))))

    # Looking

    async def jobs(self, *, phase: phases.Phase | str | None = None, limit: int = 100, **chosen: Any) -> list[Job]:
        """Return at most `limit` jobs, newest first.

        The choice is one of `owner`, `pool`, `name`, `continues` (jobs that began from this job), `text` (a part of the
        name or the command), `since` and `until` (Unix seconds of the submission). `sort` is created, name, owner, pool
        or phase, with `ascending` in that order.
        """
        found: list[Job] = []
        after: str | None = None
        while len(found) < limit:
            page = await self._sender.send(
                requests.list_jobs(phase=phase, **chosen, after=after, limit=min(limit - len(found), 1000))
            )
            found += page.items
            if page.next is None or not page.items:
                break
            after = page.next
        return found

    async def summaries(
        self, *, phases: Iterable[phases.Phase | str] = (), after: str | None = None, limit: int = 100, **chosen: Any
    ) -> bodies.SummaryPage:
        """Return a page of jobs in short, chosen as `jobs` does, and the number of jobs in each phase.

        The next page takes the `next` of this one as `after`. Raises Gone where that job was removed since.
        """
        request = requests.summaries(phase=tuple(phases), **chosen, after=after, limit=limit)
        return await self._sender.send(request)

    async def job(self, job: str) -> Job:
        """Return the job with this id, or the newest job with this name. Raises NotFound."""
        return await self._sender.send(requests.job(job))

    async def why(self, job: str) -> bodies.Why:
        """Return why the job is in its phase, in three lines."""
        return await self._sender.send(requests.why(job))

    async def decisions(self, job: str) -> bodies.DecisionList:
        """Return all decisions about the job, with their reasons."""
        return await self._sender.send(requests.decisions(job))

    async def speed(self, job: str) -> bodies.Speed:
        """Return the speed of the job by number of devices: measured, and fitted to the measurements."""
        return await self._sender.send(requests.speed(job))

    async def events(self, job: str) -> list[Record]:
        """Return the job's lines of the event log, oldest first."""
        found: list[Record] = []
        after: int | None = None
        while True:
            page = await self._sender.send(requests.job_events(job, after))
            found += page.items
            if not page.items:
                return found
            after = page.next

    async def logs(
        self,
        job: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
        until: float | None = None,
        stream: str | None = None,
        role: str | None = None,
        index: int | None = None,
        attempt: int | None = None,
        on_contact: Callable[[errors.OarlockError | None], None] | None = None,
    ) -> AsyncIterator[storage.Line]:
        """Yield lines, merged by time of arrival; with `follow` until the job has ended and all lines have come.

        While following, the client waits for a lost server, and no line is lost or repeated. `on_contact` gets the
        error of a loss, and None when the server is back.
        """
        choice = requests.LogChoice(
            attempt=attempt, role=role, index=index, stream=stream, tail=tail, since=since, until=until
        )
        async for item in self.log_items(job, choice, follow=follow, on_contact=on_contact):
            if isinstance(item, storage.Line):
                yield item

    async def log_items(
        self,
        job: str,
        choice: requests.LogChoice,
        *,
        follow: bool = False,
        blocks: bool = False,
        on_contact: Callable[[errors.OarlockError | None], None] | None = None,
    ) -> AsyncIterator[storage.Line | bodies.Ended]:
        """Yield lines as `logs` does, and last the end of the job. With `blocks`, one `Lines` may hold many lines."""
        cursor = following.Cursor(choice)
        losses = 0
        while True:
            try:
                request = requests.logs(job, cursor.choice(), follow=follow, blocks=blocks and not cursor.started)
                reader = following.Reader()
                async with self._sender.content(request) as (_, chunks):
                    if losses >= following.TOLD_LOSSES and on_contact is not None:
                        on_contact(None)
                    losses = 0
                    async for chunk in chunks:
                        for item in reader.feed(chunk):
                            if isinstance(item, bodies.Ended):
                                yield item
                                return
                            line = cursor.unseen(item)
                            if line is not None:
                                yield line
                    if not follow:
                        return
                    failure: errors.OarlockError = failures.Lost("the server closed the log")
            except errors.Unavailable as error:
                failure = error
                if not follow or following.hopeless(error, losses, cursor):
                    raise
            losses += 1
            if on_contact is not None and losses == following.TOLD_LOSSES:
                on_contact(failure)
            await self._sleep(following.pause_s(losses))
            self._sender.forget_place()

    async def log_page(
        self,
        job: str,
        choice: requests.LogChoice | None = None,
        *,
        at: str = "end",
        before: int = 0,
        after: int = 0,
    ) -> storage.LogPage:
        """Return the lines of the log before and after a place.

        A place is `start`, `end`, TASK:ATTEMPT:INCARNATION:STREAM:OFFSET of a line, or `before` or `after` of another
        page. Raises NotFound where there is no such line.
        """
        return await self._sender.send(requests.log_page(job, choice or requests.LogChoice(), at, before, after))

    async def search_log(
        self,
        job: str,
        search: storage.LogSearch,
        choice: requests.LogChoice | None = None,
        *,
        at: str = "start",
        limit: int = 1,
    ) -> storage.LogHits:
        """Return the number of lines of the log that have a text, and the first `limit` of them from a place on.

        Raises InvalidInput for a regular expression that RE2 does not know.
        """
        return await self._sender.send(requests.search_log(job, choice or requests.LogChoice(), search, at, limit))

    async def metrics(
        self,
        job: str,
        names: Sequence[str] = (),
        *,
        points: int | None = None,
        steps: tuple[int | None, int | None] = (None, None),
    ) -> answers.Metrics:
        """Return the series of each task and name, each thinned to at most `points`.

        `steps` are the first and the last step; None leaves that end open.
        """
        return await self._sender.send(requests.metrics(job, names, points, steps))

    async def metric_names(self, job: str) -> list[str]:
        """Return the names of all metrics of the job."""
        return list((await self._sender.send(requests.metric_names(job))).names)

    async def checkpoints(self, job: str) -> list[Checkpoint]:
        """Return the visible checkpoints, best first."""
        page = await self._sender.send(requests.checkpoints(job))
        return list(page.items)

    async def files(self, job: str, path: str = "") -> answers.FileList:
        """List the files of a job at and below `path`: kept files, results, checkpoints and logs, as one tree.

        Raises NotFound where there is no such path.
        """
        from oarlock.client import downloads, elsewhere

        under = path.strip("/")
        found = await self._sender.send(requests.files(job, under))
        items = list(found.items)
        while found.next is not None:
            found = await self._sender.send(requests.files(job, under, found.next))
            items += found.items
        whole = downloads.whole(found, items)
        return await waiting.in_thread(elsewhere.added, whole, under, same_machine=self.loopback)

    async def download(
        self,
        job: str,
        path: str = "",
        to: str | Path | None = None,
        *,
        overwrite: bool = False,
        progress: downloads.Progress | None = None,
    ) -> answers.Downloaded:
        """Download the files at and below `path`; without a path, the kept files and the results.

        `to` is a directory, by default the present one, or `JOB-files` without a path. Files that are there already are
        not sent again, and an interrupted download continues. Raises NotFound, and Conflict where another file is in
        the way and must not be overwritten.
        """
        from oarlock.client import downloads
        from oarlock.client.asynchronous import downloading

        found = await self.job(job)
        listed = downloads.chosen(await self.files(found.id, path), path, found.name)
        place = downloads.default_place(found.name, path, to)
        wanted, present = downloads.targets(listed, path.strip("/"), place, overwrite=overwrite)
        downloads.check_room(wanted, place)
        size = await downloading.AsyncDownloads(found.id, self._sender, self._sleep).run(wanted, progress)
        return answers.Downloaded(to=str(place), files=len(wanted), bytes=size, present=present)

    async def watch(self, *, after: int | None = None, timeout_s: float | None = None) -> AsyncIterator[Record]:
        """Yield the event log of all jobs that the user may see, as it grows, for `timeout_s` or without end.

        Raises Gone when the lines after `after` were compacted: list the jobs again.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while until is None or time.monotonic() < until:
            left = verbs.EVENT_WAIT_S if until is None else max(0.0, min(verbs.EVENT_WAIT_S, until - time.monotonic()))
            page = await self._sender.send(requests.event_log(after, left))
            for record in page.items:
                yield record
            after = page.next

    async def news(self, *, after: int, wait_s: float = 0.0) -> bodies.RecordPage:
        """Return the next lines of the event log, and wait up to `wait_s` for one. Raises Gone as `watch` does."""
        return await self._sender.send(requests.event_log(after, wait_s))

    async def wait(self, job: str, *, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended or is halted, and return it. Raises TimeoutError."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = await self.job(job)
            if found.terminal or found.phase is phases.Phase.HALTED:
                return found
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{job} is still {found.phase}")
            await self._sleep(verbs.POLL_S)

    # Acting

    async def halt(self, job: str, reason: str = "") -> Job:
        """Stop the job. It keeps its checkpoint, and `resume` continues from there."""
        return await self._sender.send(requests.intend(job, intents.Intent.HALT, reason))

    async def resume(self, job: str, reason: str = "") -> Job:
        """Let a halted job continue. Raises Conflict for a job that has ended."""
        return await self._sender.send(requests.intend(job, intents.Intent.RUN, reason))

    async def cancel(self, job: str, reason: str = "") -> Job:
        """Stop the job for good."""
        return await self._sender.send(requests.intend(job, intents.Intent.CANCEL, reason))

    async def remove(self, job: str) -> None:
        """Remove an ended job: its record, logs, metrics and checkpoints. Raises Conflict while it is active."""
        await self._sender.send(requests.remove(job))

    async def exec(
        self, job: str, command: Sequence[str], *, role: str | None = None, index: int | None = None, stdin: bytes = b""
    ) -> execution.Result:
        """Run a command inside a running or frozen task. Raises Conflict where the job has none."""
        place = self._sender.place
        target = requests.exec_target(job, role=role, index=index, tty=False, rows=24, columns=80)
        async with session.AsyncSession(place, target, command) as opened:
            return await opened.finish(stdin)

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
    ) -> session.AsyncSession:
        """Return a session that runs a command piece by piece, for terminals."""
        target = requests.exec_target(job, role=role, index=index, tty=tty, rows=rows, columns=columns)
        return session.AsyncSession(self._sender.place, target, command)

    # The cluster and the server

    async def nodes(self) -> list[bodies.NodeState]:
        """Return the nodes and their holdings."""
        page = await self._sender.send(requests.nodes())
        return list(page.items)

    async def queue(self) -> list[bodies.QueueRow]:
        """Return the running and waiting jobs of all users: user, pool, name and held amounts."""
        page = await self._sender.send(requests.queue())
        return list(page.items)

    async def pools(self) -> bodies.PoolList:
        """Return the pools in the order of the drawn tree, and the capacity that they divide."""
        return await self._sender.send(requests.pools())

    async def set_pool(self, name: str, **fields: Any) -> Pool:
        """Make the pool or change these fields of it (`oarlock.spec.poolchanges.Change`), as an administrator.

        Raises InvalidInput and Conflict with the numbers, VersionMismatch where `version` is not the present one.
        """
        return await self._sender.send(requests.set_pool(name, verbs.change_of(fields)))

    async def remove_pool(self, name: str) -> None:
        """Remove a pool, as an administrator. Raises Conflict while it has jobs or pools below it."""
        await self._sender.send(requests.remove_pool(name))

    async def usage(self, *, since: float | None = None, by: str = "user") -> list[bodies.UsageRow]:
        """Return device-hours and CPU-hours by `user` or `pool`, of attempts that run or ended after `since`."""
        page = await self._sender.send(requests.usage(since, by))
        return list(page.items)

    async def server(self) -> bodies.Server:
        """Return facts about the server, and the user of this client."""
        return await self._sender.send(requests.server())

    async def secrets(self) -> list[bodies.SecretInfo]:
        """Return the secrets that the user's jobs may name, without their values."""
        page = await self._sender.send(requests.secrets())
        return list(page.items)

    async def set_secret(
        self,
        name: str,
        value: str | None = None,
        *,
        server: bool = False,
        everyone: bool = False,
        users: tuple[str, ...] = (),
    ) -> bodies.SecretInfo:
        """Make or replace a secret of the user; None keeps the present value.

        Administrators make secrets of the server with `server`, and share them with `users` or `everyone`.
        """
        told = bodies.NewSecret(value=value, server=server, everyone=everyone, users=users)
        return await self._sender.send(requests.set_secret(name, told))

    async def remove_secret(self, name: str, *, server: bool = False) -> None:
        """Remove a secret of the user, or with `server` one of the server."""
        await self._sender.send(requests.remove_secret(name, server))

    async def shutdown(self) -> None:
        """End the server, as an administrator. Running jobs go on."""
        await self._sender.send(requests.shutdown())

    async def users(self) -> list[User]:
        """Return all users, as an administrator."""
        page = await self._sender.send(requests.list_users())
        return list(page.items)

    async def add_user(self, name: str, right: Right | str = Right.USER) -> User:
        """Add a user, as an administrator. Raises Conflict where the name is taken."""
        return await self._sender.send(requests.add_user(name, Right(right)))

    async def add_token(self, user: str, note: str = "") -> bodies.ShownToken:
        """Make a token of a user, as an administrator. Only this answer shows the token."""
        return await self._sender.send(requests.add_token(user, note))

    async def remove_token(self, user: str, sha256: str) -> None:
        """Revoke a token, as an administrator. Raises NotFound."""
        await self._sender.send(requests.remove_token(user, sha256))

    async def login_code(self) -> bodies.LoginCode:
        """Make a code that begins one session within a minute. Only this answer shows it."""
        return await self._sender.send(requests.make_login_code())

    async def begin_session(self, secret: str, note: str = "") -> bodies.ShownSession:
        """Begin a session with a login code or a token. Raises Unauthenticated for one that is used or not valid."""
        return await self._sender.send(requests.begin_session(bodies.NewSession(secret, note)))

    async def sessions(self) -> list[bodies.SessionInfo]:
        """Return the sessions of the user."""
        page = await self._sender.send(requests.list_sessions())
        return list(page.items)

    async def end_session(self, sha256: str = "current") -> None:
        """End a session of the user, by default the one of this client. Raises NotFound."""
        await self._sender.send(requests.end_session(sha256))
