"""Retention: old jobs go to the archive, old lines of the event log are dropped, unused snapshots and checkpoints are
deleted.

Everything may be repeated: an archived job that could not be removed is archived once more (its id tells), and is
forgotten piece by piece before its record goes, so that nothing of it is left behind without a record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from oarlock.controllers import bulkwrites, leadership
from oarlock.data import storage
from oarlock.spec import errors, jobs, phases
from oarlock.spec.checkpoints import keeping
from oarlock.spec.process import failpoints
from oarlock.store import stores

_PAGE = 200


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The periods of retention. `keep_records` are lines of the event log about jobs; `keep_cluster_records` are those
    about nodes and pools, which come at any time in a busy cluster.

    A snapshot stays for `snapshot_grace_s` after its upload even where no job names it, since the job may be on its
    way. An idempotency key is remembered for `keep_keys_s` after the removal of its job, so that a request that is
    repeated late makes no second job.
    """

    keep_jobs_s: float = 30 * 86_400.0
    keep_keys_s: float = 30 * 86_400.0
    keep_records: int = 200_000
    keep_cluster_records: int = 5_000
    snapshot_grace_s: float = 86_400.0
    period_s: float = 600.0


class Archive(Protocol):
    async def __call__(self, lines: Sequence[bytes]) -> None:
        """Append these lines of JSON, durably, before returning."""
        ...


class Checkpoints(Protocol):
    """The files of checkpoints that lie on this machine."""

    async def good(self, checkpoint: jobs.Checkpoint, *, fresh: bool = False) -> bool:
        """Return whether every digest holds; `fresh`: reading it anew, whatever is remembered of it.

        A missing one is not good.
        """
        ...

    async def known(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        """Return the paths of those that were read before and have not changed since: a light look."""
        ...

    async def gone(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        """Return the paths of those that have been removed: a light look."""
        ...

    async def delete(self, checkpoint: jobs.Checkpoint) -> None:
        """Delete the checkpoint's files. Do nothing where they are gone."""
        ...

    async def forget(self, job_id: str) -> None:
        """Delete the job's checkpoints in the server's own place. A repeated call does nothing."""
        ...


class Results(Protocol):
    async def forget(self, job_id: str) -> None:
        """Delete the job's results in the server's own place. A repeated call does nothing."""
        ...


class Retention:
    name = "retention"

    def __init__(
        self,
        store: stores.Store,
        leading: leadership.Leading,
        logs: storage.Logs,
        metrics: storage.Metrics,
        blobs: storage.Blobs,
        archive: Archive,
        checkpoints: Checkpoints,
        results: Results,
        *,
        clock: Callable[[], float],
        report: bulkwrites.Report,
        policy: Policy | None = None,
    ) -> None:
        self._store = store
        self._leading = leading
        self._logs = logs
        self._metrics = metrics
        self._blobs = blobs
        self._archive = archive
        self._checkpoints = checkpoints
        self._results = results
        self._clock = clock
        self._report = report
        self._policy = policy or Policy()
        self._due = 0.0

    def wake_at(self) -> float | None:
        return self._due if self._leading.epoch is not None else None

    async def tick(self) -> None:
        epoch, now = self._leading.epoch, self._clock()
        if epoch is None or 0 < self._due - now <= self._policy.period_s:
            return
        self._due = now + self._policy.period_s
        for part in (self._remove_old_jobs, self._prune_checkpoints, self._forget_keys, self._compact, self._sweep):
            await self._try(part, epoch, now)

    async def _try(self, part: Callable[[int, float], Awaitable[None]], epoch: int, now: float) -> None:
        """Run one part, and let its failure not keep the others from their work."""
        try:
            await part(epoch, now)
        except errors.StaleEpoch:
            raise
        except Exception as error:  # noqa: BLE001 - tried again in the next period
            self._report(part.__name__.lstrip("_"), error)

    async def _remove_old_jobs(self, epoch: int, now: float) -> None:
        old = await self._ended_before(await self._before(now - self._policy.keep_jobs_s))
        for start in range(0, len(old), _PAGE):
            part = old[start : start + _PAGE]
            await self._archive([msgspec.json.encode(job) for job in part])
            failpoints.hit("retention.after_archive")
            for job in part:
                await self._logs.forget(job.id)
                await self._metrics.forget(job.id)
                await self._checkpoints.forget(job.id)
                await self._results.forget(job.id)
            ids = [job.id for job in part]
            await self._store.write(lambda tx, ids=ids: tx.remove_jobs(ids, at=now), epoch=epoch)  # type: ignore[misc]
            failpoints.hit("retention.after_removal")

    async def _ended_before(self, then: float) -> list[jobs.Job]:
        """Return the jobs that ended before then.

        They are read page by page: of all ended jobs only these are held in memory.
        """
        found: list[jobs.Job] = []
        which = stores.JobFilter(phases=phases.TERMINAL, limit=_PAGE)
        while True:
            page = await self._store.read(lambda view, which=which: view.jobs(which))  # type: ignore[misc]
            found += [job for job in page if job.ended_at is not None and job.ended_at < then]
            if len(page) < _PAGE:
                return found
            which = msgspec.structs.replace(which, after=page[-1].id)

    async def _prune_checkpoints(self, epoch: int, now: float) -> None:
        """Delete checkpoints beyond the newest `keep` of each job, as long as one of those that stay is good."""
        kept_phases = frozenset(phases.Phase)
        which = stores.JobFilter(phases=kept_phases, limit=_PAGE)
        while True:
            page, listed = await self._store.read(lambda view, which=which: _with_checkpoints(view, which))  # type: ignore[misc]
            for job in page:
                # Those in an object store are removed by the agents that copied them there.
                here = [one for one in listed.get(job.id, ()) if "://" not in one.path]
                if here:
                    await self._prune(job, here, epoch)
            if len(page) < _PAGE:
                return
            which = msgspec.structs.replace(which, after=page[-1].id)

    async def _prune(self, job: jobs.Job, listed: list[jobs.Checkpoint], epoch: int) -> None:
        gone = await self._checkpoints.gone(listed)
        for one in listed:
            if one.path in gone:
                await self._unlist(one, epoch)
        left = [one for one in listed if one.path not in gone]
        for checkpoint in await self._spare(left, job.spec.checkpoint.keep):
            await self._unlist(checkpoint, epoch)
            failpoints.hit("retention.after_unlisting")
            await self._checkpoints.delete(checkpoint)

    async def _spare(self, listed: list[jobs.Checkpoint], keep: int) -> list[jobs.Checkpoint]:
        """Return those that may be deleted, by `keeping.spare`."""
        if len(listed) <= keep:
            return []
        known = await self._checkpoints.known(listed)
        deciding = keeping.spare(listed, keep, lambda one: one.path in known)
        try:
            question = next(deciding)
            while True:
                good = await self._checkpoints.good(question.checkpoint, fresh=question.fresh)
                question = deciding.send(good)
        except StopIteration as decided:
            spare: list[jobs.Checkpoint] = decided.value
            return spare

    async def _unlist(self, checkpoint: jobs.Checkpoint, epoch: int) -> None:
        await self._store.write(lambda tx: tx.remove_checkpoint(checkpoint.job, checkpoint.path), epoch=epoch)

    async def _forget_keys(self, epoch: int, now: float) -> None:
        before = await self._before(now - self._policy.keep_keys_s)
        await self._store.write(lambda tx: tx.forget_keys(before), epoch=epoch)

    async def _compact(self, epoch: int, now: float) -> None:
        policy = self._policy
        before, cluster_before = await self._store.read(
            lambda view: (
                view.newest_seq(policy.keep_records, of_jobs=True),
                view.newest_seq(policy.keep_cluster_records, of_jobs=False),
            )
        )
        if before or cluster_before:
            await self._store.write(lambda tx: tx.compact(before, cluster_before=cluster_before), epoch=epoch)

    async def _sweep(self, epoch: int, now: float) -> None:
        used = await self._store.read(lambda view: view.snapshots_in_use())
        await self._blobs.sweep(used, await self._before(now - self._policy.snapshot_grace_s))

    async def _before(self, then: float) -> float:
        """Return the date of `then` by the clock of that time: a wall clock that was set forward ages nothing."""
        anchor = await self._store.read(lambda view: view.clock_anchor())
        return then if anchor is None else anchor.before(then)


def _with_checkpoints(
    view: stores.View, which: stores.JobFilter
) -> tuple[list[jobs.Job], dict[str, list[jobs.Checkpoint]]]:
    """Return these jobs, and the checkpoints of those that have any."""
    found = view.jobs(which)
    return found, view.checkpoints_by_job([job.id for job in found])
