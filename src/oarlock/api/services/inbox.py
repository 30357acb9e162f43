"""Reports of agents, written in batches: while one transaction is under way, the next batch gathers.

A gang of a thousand tasks that registers at once costs a handful of writes of its job instead of a thousand. The
transaction fences every report: its task must be in the live attempt and in the present incarnation, else StaleTask.
Urgent reports are answered once they are durable. Progress gathers for `LINGER_S`, and only a task's newest is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from oarlock.lifecycle import stepping
from oarlock.spec import attempts, errors, events, jobs
from oarlock.store import stores

LINGER_S = 1.0
MAX_BATCH = 2000
MAX_LINGERING = 100_000


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one task, the checkpoint that becomes visible with them, and the paths of removed checkpoints."""

    key: attempts.TaskKey
    happened: tuple[events.AnyEvent, ...]
    answer: asyncio.Future[jobs.Job]
    checkpoint: jobs.Checkpoint | None = None
    unlisted: Sequence[str] = ()


class Inbox:
    """A batching writer, for one event loop. It calls `written` with the id of every job that it has written."""

    def __init__(self, store: stores.Store, clock: Callable[[], float], written: Callable[[str], None]) -> None:
        self._store = store
        self._clock = clock
        self._written = written
        self._letters: dict[str, list[Letter]] = {}
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._lingering: dict[attempts.TaskKey, events.TaskReported] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def tell(
        self,
        key: attempts.TaskKey,
        *happened: events.AnyEvent,
        checkpoint: jobs.Checkpoint | None = None,
        unlisted: Sequence[str] = (),
    ) -> jobs.Job:
        """Write the events and return the job afterwards, once it is durable. Raises StaleTask and the store's errors.

        `checkpoint` becomes visible, and the checkpoints at the paths `unlisted` are removed from the list.
        """
        answer: asyncio.Future[jobs.Job] = asyncio.get_running_loop().create_future()
        waiting = self._lingering.pop(key, None)  # it came earlier, and an event of `happened` may end the task
        happened = happened if waiting is None else (waiting, *happened)
        self._post(Letter(key=key, happened=happened, answer=answer, checkpoint=checkpoint, unlisted=unlisted))
        return await answer

    def tell_later(self, key: attempts.TaskKey, report: events.TaskReported) -> None:
        """Write progress within `LINGER_S`. A server that dies first loses it, and the next report repeats it."""
        before = self._lingering.get(key)
        if before is None and len(self._lingering) >= MAX_LINGERING:
            return
        self._lingering[key] = report if before is None else _merged(before, report)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._flush)

    async def drain(self) -> None:
        """Wait until every report is written or has failed."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()
        while self._writers:
            await asyncio.wait(list(self._writers.values()))

    def _flush(self) -> None:
        self._timer = None
        lingering, self._lingering = self._lingering, {}
        for key, report in lingering.items():
            answer: asyncio.Future[jobs.Job] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_ignore)
            self._post(Letter(key=key, happened=(report,), answer=answer))

    def _post(self, letter: Letter) -> None:
        job_id = letter.key.job
        self._letters.setdefault(job_id, []).append(letter)
        if job_id not in self._writers:
            self._writers[job_id] = asyncio.ensure_future(self._write(job_id))

    async def _write(self, job_id: str) -> None:
        """Write batches until all letters of the job are answered."""
        while letters := self._letters.pop(job_id, None):
            now, later = letters[:MAX_BATCH], letters[MAX_BATCH:]
            if later:
                self._letters[job_id] = later
            await self._write_batch(job_id, now)
        del self._writers[job_id]

    async def _write_batch(self, job_id: str, letters: list[Letter]) -> None:
        try:
            outcomes = await self._store.write(lambda tx: self._apply(tx, job_id, letters))
        except Exception as error:  # noqa: BLE001 - the senders get the error as their answer
            outcomes = [error] * len(letters)
        self._written(job_id)
        for letter, outcome in zip(letters, outcomes, strict=True):
            if letter.answer.done():  # the sender has gone
                continue
            if isinstance(outcome, jobs.Job):
                letter.answer.set_result(outcome)
            else:
                letter.answer.set_exception(outcome)

    def _apply(self, tx: stores.Transaction, job_id: str, letters: list[Letter]) -> list[jobs.Job | Exception]:
        stored = job = tx.job(job_id)
        now = self._clock()
        outcomes: list[jobs.Job | Exception] = []
        logged: list[events.AnyEvent] = []
        for letter in letters:
            if job is None or task_of(job, letter.key) is None:
                outcomes.append(stale(letter.key))
                continue
            for event in letter.happened:
                after = stepping.step(job, event, now)
                if after is not job or letter.checkpoint is not None:
                    logged.append(event)
                job = after
            for path in letter.unlisted:
                tx.remove_checkpoint(job_id, path)
            if letter.checkpoint is not None:
                tx.add_checkpoint(letter.checkpoint)
            outcomes.append(job)
        if job is not None and logged:
            job = tx.put_job(job, logged, at=now)
        elif stored is not None:
            job = stored
        return [job if isinstance(outcome, jobs.Job) and job is not None else outcome for outcome in outcomes]


def task_of(job: jobs.Job, key: attempts.TaskKey) -> attempts.Task | None:
    """Return the task of the key, or None where the key is not of the live attempt and the present incarnation."""
    live = job.live
    if live is None or live.number != key.attempt:
        return None
    task = live.task(key.role, key.index)
    return task if task is not None and task.incarnation == key.incarnation else None


def stale(key: attempts.TaskKey) -> errors.StaleTask:
    """Return the error that tells a task to end."""
    return errors.StaleTask(f"{key} is not the present incarnation of its task.", hint="End its processes, and exit.")


def _merged(before: events.TaskReported, report: events.TaskReported) -> events.TaskReported:
    """Return the newer report, completed with the fields that only the earlier one has."""
    return msgspec.structs.replace(
        report,
        phase=report.phase or before.phase,
        detail=report.detail or before.detail,
        progress=report.progress or before.progress,
        idle_s=before.idle_s if report.idle_s is None else report.idle_s,
        can_rejoin=before.can_rejoin if report.can_rejoin is None else report.can_rejoin,
        lost_round=before.lost_round if report.lost_round is None else report.lost_round,
    )


def _ignore(answer: asyncio.Future[jobs.Job]) -> None:
    """Take the error of a report without a waiting sender, so that asyncio does not log it."""
    if not answer.cancelled():
        answer.exception()
