"""The guardian of every live job: observes the backend, records the facts, and carries out the actions that follow.

In one tick it records the facts that the backend knows and the record does not (ends, disappearances), and those that
time has made true. Then, from the record alone, it kills, launches, releases and forgets tasks. Each side effect may be
repeated and each record is checked against the stored job, so that the guardian may die between any two lines and be
followed by another. A failed action is tried again later, for each job by itself.

A task that was made and is not there any more is lost. So a new leader observes the backend anew before it believes
that: its own view may be from a time before another leader made the task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from oarlock.backends import backends
from oarlock.controllers import bulkwrites, leadership, rosters
from oarlock.controllers.guarding import assigning, launching, leftovers
from oarlock.lifecycle import noticing, stepping, wanting
from oarlock.scheduler import pricing
from oarlock.spec import attempts, events, holdings, jobs
from oarlock.spec.process import failpoints
from oarlock.spec.reconciling import actions, observations
from oarlock.store import stores

REREAD_S = 2.0
"""How often jobs with a `hang_timeout` are read again: the log does not tell how long a task has stood still."""

KILL_AGAIN_S = 1.0
RETRY_FIRST_S = 0.5
RETRY_MOST_S = 15.0
LEFTOVER_TRIES = 5
"""How often leftovers that cannot be stored are tried before their task is declared gone without them."""

MOST_NOTES = 8
"""Decisions that may follow from each other in one round: a blame, then nothing. More is a defect."""

T = TypeVar("T")

Seen = dict[str, list[observations.Observed]]


class Guardian:
    name = "guardian"

    def __init__(
        self,
        store: stores.Store,
        backend: backends.Backend,
        leading: leadership.Leading,
        leftovers: leftovers.Leftovers,
        settings: assigning.Settings,
        *,
        clock: Callable[[], float],
        report: bulkwrites.Report,
        owner: launching.OwnerOf | None = None,
        references: launching.ReferencesOf | None = None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._leading = leading
        self._leftovers = leftovers
        self._launching = launching.Launching(
            backend, settings, clock=clock, report=report, owner=owner, references=references
        )
        leading.when_over(self._launching.cancel_all)
        self._clock = clock
        self._report = report
        self._roster = rosters.Roster(store)
        self._reread_at = 0.0
        self._killed_at: dict[attempts.TaskKey, float] = {}
        self._failures: dict[str, int] = {}
        self._retry_at: dict[str, float] = {}
        self._undelivered: dict[attempts.TaskKey, int] = {}
        self._looks: dict[str, _Look] = {}
        self._due: float | None = 0.0
        self._renewed: int | None = None  # the epoch since whose beginning the backend was observed anew

    def wake_at(self) -> float | None:
        return self._due

    def is_launching(self) -> bool:
        """Return whether gangs are being made, or wait for their turn."""
        return self._launching.goes_on

    async def tick(self) -> None:
        epoch, now = self._leading.epoch, self._clock()
        if epoch is None:
            self._launching.cancel_all()
            self._due = None
            return
        await self._tell(self._launching.take(), epoch, now)
        if self._renewed != epoch:
            await self._backend.renew()
            self._renewed = epoch
        seen = _by_job(await self._backend.observe())
        await self._roster.refresh()
        await self._reread(now)
        strangers = await self._strangers(seen)
        live = [job for job in self._roster.jobs.values() if job.live is not None and not self._is_being_made(job)]
        known = {job.id: look for job in live if (look := self._last_look(job, seen, now)) is not None}
        guarded = {job.id: job for job in live if job.id not in known}
        due = await self._record(guarded, seen, epoch, now)
        for job_id in guarded:
            if (job := self._roster.jobs.get(job_id)) is not None:
                guarded[job_id] = job
        wanted = [(job, wanting.wants(job, seen.get(job.id, ()), now)) for job in (*guarded.values(), *strangers)]
        self._looks = known | {
            job.id: _looked(job, seen.get(job.id, []), now, found)
            for job, found in wanted
            if job.id in guarded and job.id not in due and _only_launches(found)
        }
        wanted = [(look.job, look.found) for look in known.values()] + wanted
        await self._act([(job, found) for job, found in wanted if found and self._may_act(job.id, now)], epoch, now)
        self._forget(seen)
        self._due = self._next_due(seen, now)

    async def close(self) -> None:
        """Let the launches come to their end, and record them. Called once no tick is under way."""
        await self._launching.close()
        epoch = self._leading.epoch
        if epoch is not None:
            await self._tell(self._launching.take(), epoch, self._clock())

    # Observing

    def _is_being_made(self, job: jobs.Job) -> bool:
        """Return whether a launch of the job is begun and not recorded yet. Nothing else is done for the job meanwhile.
        The launch of an attempt that is to end is broken off.
        """
        if not self._launching.is_begun(job.id):
            return False
        if job.live is None or job.live.stop is not None:
            self._launching.cancel(job.id)
            return self._launching.is_begun(job.id)
        return True

    def _last_look(self, job: jobs.Job, seen: Seen, now: float) -> _Look | None:
        """Return the last look at the job where a new one would find the same.

        It would while record, observations and time have not changed. Most gangs run, and in a burst most wait for
        their turn to be launched: a thousand cost little.
        """
        known = self._looks.get(job.id)
        if (
            known is not None
            and known.job is job
            and known.at <= now
            and (known.until is None or now < known.until)
            and known.seen == seen.get(job.id, [])
        ):
            return known
        return None

    async def _reread(self, now: float) -> None:
        if not 0 <= now - self._reread_at < REREAD_S:
            self._reread_at = now
            await self._roster.reread(
                job.id
                for job in self._roster.jobs.values()
                if job.live is not None and job.spec.hang_timeout is not None
            )

    async def _strangers(self, seen: Seen) -> list[jobs.Job]:
        """Handle jobs that the backend knows although they have no attempt: at rest, waiting, or removed.

        A removed job leaves no record to decide by: its tasks are ended and forgotten here.
        """
        ids = [job_id for job_id in seen if (job := self._roster.jobs.get(job_id)) is None or job.live is None]
        if not ids:
            return []
        stored = await self._store.read(lambda view: view.jobs_by_id(ids))
        for job_id in ids:
            if job_id not in stored:
                await self._clear(job_id, seen[job_id])
        return [job for job in stored.values() if job.live is None]

    async def _clear(self, job_id: str, seen: list[observations.Observed]) -> None:
        try:
            running = [one.key for one in seen if one.state is not observations.State.GONE]
            if running:
                await self._backend.kill(running)
                return
            for number in sorted({one.key.attempt for one in seen}):
                await self._backend.discard(job_id, number)
        except Exception as error:  # noqa: BLE001 - tried again in the next round
            self._report(job_id, error)

    # Recording

    async def _record(self, guarded: dict[str, jobs.Job], seen: Seen, epoch: int, now: float) -> list[str]:
        """Bring the record up to date with the observations and the time; return the ids of the jobs that changed."""
        due = [
            job_id
            for job_id, job in guarded.items()
            if noticing.notices(job, seen.get(job_id, ())) or _notes(job, seen.get(job_id, ()), now)
        ]
        ready = [job_id for job_id in due if await self._delivered(guarded[job_id], seen.get(job_id, ()), now)]
        if not ready:
            return due
        failpoints.hit("guardian.before_record")

        def record(tx: stores.Transaction, job_id: str) -> jobs.Job | None:
            return _recorded(tx, job_id, seen.get(job_id, ()), now, self._leftovers.missing)

        self._roster.adopt(await bulkwrites.each(self._store, ready, record, epoch=epoch, report=self._report))
        failpoints.hit("guardian.after_record")
        return due

    async def _delivered(self, job: jobs.Job, seen: Sequence[observations.Observed], now: float) -> bool:
        """Return whether all that ended tasks have left has reached logs and metrics, or was tried often enough."""
        delivered = True
        for event in noticing.notices(job, seen):
            if isinstance(event, events.TaskGone):
                delivered = await self._deliver(job, event.key, now) and delivered
        return delivered

    async def _deliver(self, job: jobs.Job, key: attempts.TaskKey, now: float) -> bool:
        if self._undelivered.get(key, 0) >= LEFTOVER_TRIES:
            return True
        if self._undelivered.get(key) and not self._may_act(job.id, now):
            return False
        try:
            await self._leftovers.deliver(job, key)
        except Exception as error:  # noqa: BLE001 - tried again, and in the end done without
            self._undelivered[key] = self._undelivered.get(key, 0) + 1
            self._failed(job.id, error, now)
            return False
        return True

    # Acting

    async def _act(self, wanted: list[tuple[jobs.Job, tuple[actions.Action, ...]]], epoch: int, now: float) -> None:
        """Carry out ends before beginnings, so that places are free early."""
        released: list[tuple[str, int]] = []
        for job, found in wanted:
            for action in found:
                match action:
                    case actions.Kill():
                        await self._kill(job, action, now)
                    case actions.Vacate():
                        await self._vacate(job, action, epoch, now)
                    case actions.Release(attempt=number):
                        released.append((job.id, number))
                    case actions.Discard(attempt=number):
                        await self._discard(job.id, number, now)
        await self._release(released, epoch, now)
        launches = [(job, action) for job, found in wanted for action in found if isinstance(action, actions.Launch)]
        if launches:
            await self._launch(launches, epoch, now)

    async def _kill(self, job: jobs.Job, action: actions.Kill, now: float) -> None:
        keys = [task.key(job.id, action.attempt) for task in action.tasks]
        keys = [key for key in keys if not 0 <= now - self._killed_at.get(key, -KILL_AGAIN_S) < KILL_AGAIN_S]
        if not keys:
            return
        self._killed_at.update(dict.fromkeys(keys, now))
        failpoints.hit("guardian.before_kill")
        try:
            await self._backend.kill(keys)
        except Exception as error:  # noqa: BLE001 - the platform's; asked again after a while
            self._failed(job.id, error, now)
        failpoints.hit("guardian.after_kill")

    async def _launch(self, launches: list[tuple[jobs.Job, actions.Launch]], epoch: int, now: float) -> None:
        """Begin as many launches as the backend can make at the same time: the others follow once some have ended.
        Gangs that are bound in part come first: their time runs.
        """
        launches = sorted(launches, key=lambda launch: launch[1].until or math.inf)
        known = {node.name: node for node in await self._store.read(lambda view: view.nodes())}
        for job, action in launches:
            if self._leading.epoch != epoch:
                return
            held = self._roster.held.get(job.id, ())
            if {task.name for task in action.tasks} - {claim.task for claim in held}:
                continue  # the job was read after the holdings: the next refresh brings them together
            if not await self._launching.begin(job, action, held, known, lambda: self._leading.epoch == epoch):
                break
        await self._tell(self._launching.take(), epoch, now)

    async def _tell(self, outcomes: list[tuple[str, events.AnyEvent]], epoch: int, now: float) -> None:
        if outcomes:
            self._roster.adopt(await bulkwrites.tell(self._store, outcomes, epoch=epoch, at=now, report=self._report))

    async def _release(self, released: list[tuple[str, int]], epoch: int, now: float) -> None:
        """Free the attempt's holdings and end it, in one transaction; then let the backend forget it."""
        if not released:
            return

        def free(tx: stores.Transaction, item: tuple[str, int]) -> jobs.Job | None:
            return _freed(tx, *item, now)

        done = await self._free(released, free, epoch)
        self._roster.adopt(done)
        for (job_id, number), job in zip(released, done, strict=True):
            if job is not None:
                self._failures.pop(job_id, None)
                await self._discard(job_id, number, now)
        # Where nothing was released, the stored job is another one, perhaps by a change without a line in the log.
        await self._roster.reread(job_id for (job_id, _), job in zip(released, done, strict=True) if job is None)

    async def _vacate(self, job: jobs.Job, action: actions.Vacate, epoch: int, now: float) -> None:
        """Free the holdings of tasks that have left for good, in one transaction with the record of it."""
        keys = tuple(task.key(job.id, action.attempt) for task in action.tasks)

        def free(tx: stores.Transaction, item: tuple[str, int]) -> tuple[jobs.Job, tuple[holdings.Holding, ...]] | None:
            return _vacated(tx, item[0], keys, now)

        (written,) = await self._free([(job.id, action.attempt)], free, epoch)
        if written is not None:
            self._roster.hold(*written)
        else:
            await self._roster.reread([job.id])

    async def _free(
        self,
        released: Sequence[tuple[str, int]],
        free: Callable[[stores.Transaction, tuple[str, int]], T],
        epoch: int,
    ) -> list[T | None]:
        """Let `free` write to the store for each attempt, a job's id and a number."""
        failpoints.hit("guardian.before_release")
        written = await bulkwrites.each(
            self._store, released, free, epoch=epoch, report=self._report, named=lambda item: item[0]
        )
        failpoints.hit("guardian.after_release")
        return written

    async def _discard(self, job_id: str, number: int, now: float) -> None:
        failpoints.hit("guardian.before_discard")
        try:
            await self._backend.discard(job_id, number)
        except Exception as error:  # noqa: BLE001 - the platform's; asked again after a while
            self._failed(job_id, error, now)
        failpoints.hit("guardian.after_discard")

    # Failures, and the next look

    def _failed(self, job_id: str, error: Exception, now: float) -> None:
        failures = self._failures.get(job_id, 0)
        self._failures[job_id] = failures + 1
        self._retry_at[job_id] = now + min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(failures, 10))
        self._report(job_id, error)

    def _may_act(self, job_id: str, now: float) -> bool:
        return not 0 < self._retry_at.get(job_id, 0.0) - now <= RETRY_MOST_S

    def _forget(self, seen: Seen) -> None:
        """Drop the notes of jobs that no longer exist."""
        if self._killed_at or self._undelivered:
            keys = {one.key for listed in seen.values() for one in listed}
            self._killed_at = {key: at for key, at in self._killed_at.items() if key in keys}
            self._undelivered = {key: tries for key, tries in self._undelivered.items() if key in keys}
        known = self._roster.jobs.keys() | seen.keys()
        self._failures = {job_id: count for job_id, count in self._failures.items() if job_id in known}
        self._retry_at = {job_id: at for job_id, at in self._retry_at.items() if job_id in known}

    def _next_due(self, seen: Seen, now: float) -> float | None:
        live = [job for job in self._roster.jobs.values() if job.live is not None]
        times = [
            known.until
            if (known := self._looks.get(job.id)) is not None and known.job is job
            else wanting.next_wake(job, seen.get(job.id, ()), now)
            for job in live
        ]
        times += [at for at in self._retry_at.values() if at > now]
        times += [at + KILL_AGAIN_S for at in self._killed_at.values()]
        if any(job.spec.hang_timeout is not None for job in live):
            times.append(self._reread_at + REREAD_S)
        return min((at for at in times if at is not None and at > now), default=None)


class _Look(NamedTuple):
    """A job at `at`, with the observations, the actions found, and the time until which nothing changes by itself."""

    job: jobs.Job
    seen: list[observations.Observed]
    at: float
    until: float | None
    found: tuple[actions.Action, ...]


def _looked(job: jobs.Job, seen: list[observations.Observed], now: float, found: tuple[actions.Action, ...]) -> _Look:
    return _Look(job, seen, now, wanting.next_wake(job, seen, now), found)


def _only_launches(found: tuple[actions.Action, ...]) -> bool:
    """Return whether nothing is left to do but launches, which may have to wait for their turn."""
    return all(isinstance(action, actions.Launch) for action in found)


def _by_job(observed: Iterable[observations.Observed]) -> Seen:
    seen: Seen = {}
    for one in observed:
        seen.setdefault(one.key.job, []).append(one)
    return seen


def _notes(job: jobs.Job, seen: Sequence[observations.Observed], now: float) -> list[events.AnyEvent]:
    return [action.event for action in wanting.wants(job, seen, now) if isinstance(action, actions.Note)]


def _recorded(
    tx: stores.Transaction,
    job_id: str,
    seen: Sequence[observations.Observed],
    now: float,
    missing: Callable[[attempts.TaskKey], int],
) -> jobs.Job | None:
    """Return the job with all observations and due changes, decided again from the stored job.

    `missing` gives the number of bytes of a gone task's logs that could not be recovered.
    """
    stored = job = tx.job(job_id)
    if job is None:
        return None
    happened: list[events.AnyEvent] = []
    for _ in range(MOST_NOTES):
        before = job
        for event in _with_gaps(noticing.notices(job, seen), missing) or _notes(job, seen, now):
            after = stepping.step(job, event, now)
            happened += [event] if after is not job else []
            job = after
        if job is before:
            break
    return tx.put_job(job, happened, at=now) if job is not stored else stored


def _with_gaps(notices: Sequence[events.AnyEvent], missing: Callable[[attempts.TaskKey], int]) -> list[events.AnyEvent]:
    """Return the notices, each TaskGone after the number of log bytes that are lost for good."""
    found: list[events.AnyEvent] = []
    for event in notices:
        if isinstance(event, events.TaskGone):
            found.append(events.LogsMissing(key=event.key, missing=missing(event.key)))
        found.append(event)
    return found


def _freed(tx: stores.Transaction, job_id: str, number: int, now: float) -> jobs.Job | None:
    job = tx.job(job_id)
    event = events.Released(attempt=number)
    after = stepping.step(job, event, now) if job is not None else None
    if job is None or after is None or after is job:
        return None
    tx.release(job_id, number)
    if job.live is not None:
        tx.add_usage(_usage(job, job.live, now))
    return tx.put_job(after, [event], at=now)


def _vacated(
    tx: stores.Transaction, job_id: str, keys: tuple[attempts.TaskKey, ...], now: float
) -> tuple[jobs.Job, tuple[holdings.Holding, ...]] | None:
    job = tx.job(job_id)
    if job is None:
        return None
    number, names = keys[0].attempt, {f"{key.role}-{key.index}" for key in keys}
    left = tuple(claim for claim in tx.holdings(job_id) if claim.attempt == number and claim.task not in names)
    event = events.Vacated(
        attempt=number,
        tasks=keys,
        held=sum((claim.amount for claim in left), holdings.Resources()),
        price_per_h=pricing.Book(tx.nodes()).per_hour(left),
    )
    after = stepping.step(job, event, now)
    if after is job:
        return None
    tx.release(job_id, number, names)
    return tx.put_job(after, [event], at=now), left


def _usage(job: jobs.Job, live: attempts.Attempt, now: float) -> stores.Usage:
    spent = live.spent_at(now)
    return stores.Usage(
        owner=job.owner,
        pool=job.pool,
        job=job.id,
        attempt=live.number,
        started_at=live.started_at,
        ended_at=now,
        gpu_type=", ".join(live.gpu_types),
        device_seconds=spent.device_s,
        useful_seconds=spent.useful_s,
        cpu_seconds=spent.cpu_s,
        cost=spent.cost,
    )
