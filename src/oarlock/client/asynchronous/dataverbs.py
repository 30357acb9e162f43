"""The verbs about the data of a job: its log, metrics, checkpoints and files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oarlock.client import answers, failures, following, requests
from oarlock.client.asynchronous import caller, session, waiting
from oarlock.spec import bodies, errors, tasklogs

# A name, not a module: a method below bears the module's name.
from oarlock.spec.jobs import Checkpoint

if TYPE_CHECKING:
    from oarlock.client import downloads


class AsyncDataVerbs(caller.AsyncCaller):
    """Verbs about the data of a job."""

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
    ) -> AsyncIterator[tasklogs.Line]:
        """Yield lines, merged by time of arrival; with `follow` until the job has ended and all lines have come.

        While following, the client waits for a lost server, and no line is lost or repeated. `on_contact` gets the
        error of a loss, and None when the server is back.
        """
        choice = requests.LogChoice(
            attempt=attempt, role=role, index=index, stream=stream, tail=tail, since=since, until=until
        )
        async for item in self.log_items(job, choice, follow=follow, on_contact=on_contact):
            if isinstance(item, tasklogs.Line):
                yield item

    async def log_items(
        self,
        job: str,
        choice: requests.LogChoice,
        *,
        follow: bool = False,
        blocks: bool = False,
        on_contact: Callable[[errors.OarlockError | None], None] | None = None,
    ) -> AsyncIterator[tasklogs.Line | bodies.Ended]:
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
    ) -> tasklogs.LogPage:
        """Return the lines of the log before and after a place.

        A place is `start`, `end`, TASK:ATTEMPT:INCARNATION:STREAM:OFFSET of a line, or `before` or `after` of another
        page. Raises NotFound where there is no such line.
        """
        return await self._sender.send(requests.log_page(job, choice or requests.LogChoice(), at, before, after))

    async def search_log(
        self,
        job: str,
        search: tasklogs.LogSearch,
        choice: requests.LogChoice | None = None,
        *,
        at: str = "start",
        limit: int = 1,
    ) -> tasklogs.LogHits:
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
        ranks: int | None = None,
    ) -> answers.Metrics:
        """Return the series of each task and name, each thinned to at most `points`.

        `steps` are the first and the last step; None leaves that end open. `ranks` is the most series of each name,
        from the first rank that has reported it; None for all.
        """
        return await self._sender.send(requests.metrics(job, names, points, steps, ranks))

    async def new_metrics(
        self, job: str, after: str = "", *, points: int | None = None, group: int = 0
    ) -> answers.Metrics:
        """Return the points that have arrived since the answer with this `after`, without a text since the beginning.

        None is left out, and one may come twice. There are about `points` at once, and none where nothing is new. A
        job of many processes has several `groups` of them: ask for each one, with an `after` of its own.
        """
        return await self._sender.send(requests.new_metrics(job, after, points, group))

    async def metric_names(self, job: str) -> list[str]:
        """Return the names of all metrics of the job."""
        return list((await self._sender.send(requests.metric_names(job))).names)

    async def tensorboard(self, job: str) -> bodies.TensorBoard:
        """Return the state of the TensorBoard that runs beside the job."""
        return await self._sender.send(requests.tensorboard(job))

    def tensorboard_connection(self, job: str) -> session.AsyncSession:
        """Return one connection to that TensorBoard: `send` its input, and read `output`."""
        return session.AsyncSession(self._sender.place, requests.tensorboard_target(job))

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

        found = await self._sender.send(requests.job(job))
        listed = downloads.chosen(await self.files(found.id, path), path, found.name)
        place = downloads.default_place(found.name, path, to)
        wanted, present = downloads.targets(listed, path.strip("/"), place, overwrite=overwrite)
        downloads.check_room(wanted, place)
        size = await downloading.AsyncDownloads(found.id, self._sender, self._sleep).run(wanted, progress)
        return answers.Downloaded(to=str(place), files=len(wanted), bytes=size, present=present)
