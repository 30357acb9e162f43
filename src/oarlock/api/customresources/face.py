"""The face for `kubectl`: OarlockJobs of the cluster become jobs, and the status of an object tells its job's state.

    an object, its change, its end ──┐                    ┌──> submission, edit, halt, cancel: as the namespace's user
                                     ├──> reconcile(UID) ─┤
    a line of the event log ─────────┘                    └──> the status of the object

    a job without an object ──> project(job) ──> its object, and the object's UID in the job's record

After the admission the database is the truth. The UID of an object is the key of its submission, so that it makes one
job, however often it is seen. An object that is not there any more means that its job is to be canceled; no finalizer
is needed, because a list tells it also after a time without a server. The absence of an object counts only in a list
that is newer than the job's record, of the job's own cluster, and in a namespace of the settings that still belongs to
the job's owner; and the API server must say, asked for the object itself, that it is gone.

A job of the command line gets an object too, with the job's id as a label. A label proves nothing: the object counts at
the one place that the job's object has, and under the UID in the job's record. Its namespace's owner edits and cancels
the job by it. It goes with the record of the job.

Every step derives the work left from object and job, and may be repeated. Only the server that leads does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping

import msgspec
import structlog

from oarlock.api.customresources import clusterobjects, looks, supervising, telling, translation
from oarlock.api.jobs import edits, jobs
from oarlock.api.security import authorisation
from oarlock.api.services import provided
from oarlock.lifecycle import stepping
from oarlock.spec import bodies, errors, events, intents, phases, resources
from oarlock.spec import jobs as nouns
from oarlock.spec.access import users
from oarlock.spec.input import edits as changes
from oarlock.store import stores

WAIT_S = 30.0
PAUSE_S = 1.0
PASSING = (errors.Unavailable, errors.Impossible, errors.Forbidden)
"""Refusals of a change that may pass without another change of the object."""
_JOB = "j-"
"""Begins the id of a job, and no UID."""
_UNKNOWN = "The cluster of the object is not known: the right to `get` the namespace kube-system is missing."
_STILL_THERE = "The object is still there."
_UNDEFINED = "The object was deleted with its definition, not by itself."
_FOREIGN = "Its labels are those of an object that the server makes for a job. Remove them, and it becomes a job."
MOST_JOBS = 1_000_000
_PAGE = 1000

_log = structlog.get_logger(__name__)


def serving(
    services: provided.Services,
    objects: clusterobjects.Objects,
    tenants: Mapping[str, clusterobjects.Tenant],
    *,
    leads: Callable[[], bool],
    launches: Callable[[], bool],
    monotonic: Callable[[], float],
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve the objects within the context, and close them in the end."""
    run = Face(services, objects, tenants, leads=leads, launches=launches, monotonic=monotonic).run
    return supervising.serving(services, run, objects.close, told="resources_failed", meter="oarlockjobs")


class Work:
    """One look at an object. `done` says that its spec, as it is now, needs no other look."""

    def __init__(self, found: resources.OarlockJob, tenant: clusterobjects.Tenant) -> None:
        self.found = found
        self.tenant = tenant
        self.before = found.told()
        self.facts: list[resources.Condition] = []
        self.done = False
        self.halt = self.before.halt

    def fact(self, kind: str, true: bool, reason: str, message: str) -> None:
        self.facts.append(translation.fact(kind, true, reason, message, self.found.metadata))

    def admitted(self, job: nouns.Job) -> None:
        self.fact(translation.ADMITTED, True, "Admitted", f"It is the job {job.id}.")

    def refused(self, kind: str, error: errors.OarlockError) -> None:
        self.fact(kind, False, translation.reason(error), translation.sentence(error))


class Face:
    """Belongs to the event loop of the API. `leads`: whether this server leads. `launches`: whether it makes gangs."""

    def __init__(
        self,
        services: provided.Services,
        objects: clusterobjects.Objects,
        tenants: Mapping[str, clusterobjects.Tenant],
        *,
        leads: Callable[[], bool],
        launches: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._services = services
        self._objects = objects
        self._tenants = tenants
        self._leads = leads
        self._looks = looks.Looks(launches=launches, monotonic=monotonic)
        self._jobs: dict[str, str] = {}  # ids of jobs by UID
        self._uids: dict[str, str] = {}
        self._seen: set[str] = set()  # UIDs of objects that were there, so that they are of this cluster
        self._clusters: dict[str, str | None] = {}  # by namespace
        self._undefined: set[str] = set()  # ids of jobs whose objects went with the definition
        self._left: set[tuple[str, str]] = set()  # namespaces and reasons that were told
        self._telling = telling.Telling(services, objects, waits=self._looks.waits, monotonic=monotonic)
        objects.listen(self._looks.touch)

    async def run(self) -> None:
        """Serve the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        await self._objects.synced.wait()
        while True:
            try:
                if self._leads():
                    await self._lead()
            except errors.OarlockError as error:
                _log.warning("resources.not_followed", error=str(error))
            await asyncio.sleep(PAUSE_S)

    async def _lead(self) -> None:
        """Look at everything, then at all that changes, as long as this server leads."""
        end = await self._look()
        told = await self._telling.begin(end)
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(self._follow(told, end)), group.create_task(self._telling.run())]
            while self._leads():
                for uid in self._looks.take():
                    group.create_task(self._reconcile(uid))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await self._looks.bell.wait()
            for task in following:
                task.cancel()

    async def _look(self) -> int:
        """Touch all objects, and those that are gone and whose job has not ended. Return the log's present end.

        The jobs are read before the list begins: an object that the list lacks was there, and is not any more.
        """
        seq, found = await self._services.store.read(lambda view: (view.last_seq(), _not_over(view)))
        await self._objects.renew()
        self._clusters.clear()
        for job in found:
            if job.resource is not None:
                self._know(job.resource.uid, job.id)
        named = (job.resource.uid if job.resource is not None else job.id for job in found)
        for uid in (*self._objects.items, *named):
            self._looks.touch(uid)
        return seq

    async def _follow(self, told: int, seq: int) -> None:
        """Touch the objects of the jobs that the log names behind `seq`; what it says behind `told` is to be told."""
        store = self._services.store
        while True:
            try:
                told = await self._catch_up(told, seq)
                await store.wait(seq, WAIT_S)
                for record in await store.read(functools.partial(_records, after=seq)):
                    told = seq = record.seq
                    if record.job in self._uids:
                        self._looks.tell(self._uids[record.job])
                    elif record.job and record.kind == "submitted":
                        self._looks.tell(record.job)
                    self._telling.note(record, self._uids.get(record.job))
            except errors.Gone:
                told = seq = await self._look()
                self._telling.skip(seq)
            except errors.OarlockError as error:
                _log.warning("resources.log_not_followed", error=str(error))
                await asyncio.sleep(PAUSE_S)

    async def _catch_up(self, told: int, end: int) -> int:
        """Note the lines from `told` to `end`, also those of jobs that have ended; return `end`."""
        found = None
        while told < end and found != []:
            found = await self._services.store.read(functools.partial(_with_uids, after=told, end=end))
            for record, uid in found:
                told = record.seq
                self._telling.note(record, uid if uid in self._objects.items else None)
        return end

    def _know(self, uid: str, job: str) -> None:
        self._jobs[uid], self._uids[job] = job, uid

    def _forget(self, uid: str) -> None:
        self._uids.pop(self._jobs.pop(uid, ""), None)
        self._seen.discard(uid)

    async def _reconcile(self, uid: str) -> None:
        pause_s: float | None = None
        try:
            pause_s = await self._one(uid)
        except Exception as error:  # noqa: BLE001 - one object must not keep the others from being served
            self._services.report("resource_failed", {"uid": uid, "error": error})
            pause_s = looks.AGAIN_MOST_S
        finally:
            self._looks.done(uid, pause_s)

    async def _one(self, uid: str) -> float | None:
        """Do what is left for one object. Return the least pause after which it is tried again, or None."""
        if uid.startswith(_JOB):
            return await self._project(uid)
        found = self._objects.items.get(uid)
        if found is None:
            return await self._one_that_is_absent(uid, await self._job(uid, None))
        if (job_id := self._objects.projected(found)) is not None:
            return await self._one_of_ours(found, job_id)
        tenant = self._tenants.get(found.metadata.namespace)
        if tenant is None:  # beside the pods; it may belong to another installation, or have lost its labels
            return await self._one_of_ours(found, self._jobs[uid]) if uid in self._jobs else None
        job = await self._job(uid, found)
        if job is not None and job.owner != tenant.user:
            return await self._told(_given_away(found, job, tenant), job)
        if await self._is_going(found, job):
            return None
        if job is None and self._objects.is_made(
            found
        ):  # for a job of another installation, which shares the namespace
            return None
        work = Work(found, tenant)
        if job is None and work.before.job is None:
            job = await self._admit(work)
        elif job is None:
            work.fact(translation.ADMITTED, False, "Removed", f"The record of {work.before.job} has been removed.")
        elif work.before.observed_generation != found.metadata.generation:
            job = await self._apply(work, job)
        return await self._told(work, job)

    async def _one_of_ours(self, found: resources.OarlockJob, job_id: str) -> float | None:
        """Do what is left for an object with the labels of those that the server makes, as `_one` does."""
        job = await self._read(job_id)
        if job is None:  # its record was removed, and the object goes with it
            self._forget(found.metadata.uid)
            return await self._remove(found)
        if not self._is_of(found, job):
            tenant = self._tenants.get(found.metadata.namespace)
            if tenant is None:
                return None
            work = Work(found, tenant)
            work.fact(translation.ADMITTED, False, "ForeignLabel", _FOREIGN)
            return await self._told(work, None)
        self._know(found.metadata.uid, job.id)
        if job.resource is None:
            job = await self._recorded(job, await self._resource(found))
        tenant = self._tenants.get(found.metadata.namespace)
        if tenant is not None and tenant.user != job.owner:
            return await self._told(_given_away(found, job, tenant), job)
        if await self._is_going(found, job):
            return None
        work = Work(found, clusterobjects.Owner(job.owner, job.pool))
        if work.before.observed_generation is None and found.metadata.generation <= 1:
            work.admitted(job)
            work.done = True
        elif work.before.observed_generation != found.metadata.generation:
            job = await self._apply(work, job)
        elif await self._shows_change(work, job):
            return None  # the watch tells of the object's new generation
        return await self._told(work, job)

    async def _shows_change(self, work: Work, job: nouns.Job) -> bool:
        """Write a change of the job that was made elsewhere into the object's spec: else the next edit of the object
        would undo it. Return whether it was written. An edit that was refused stays to be seen.
        """
        applied = work.before.condition(translation.APPLIED)
        refused = applied is not None and applied.status != "True"
        patch = {} if job.terminal or refused else translation.patch(work.found, job)
        if not patch:
            return False
        try:
            await self._objects.write_spec(work.found, patch)
        except (errors.NotFound, errors.Conflict):  # the watch tells of the object's end or change
            return True
        except errors.OarlockError as error:
            _log.warning("resources.spec_not_written", name=work.found.metadata.name, error=str(error))
            return False
        return True

    async def _is_going(self, found: resources.OarlockJob, job: nouns.Job | None) -> bool:
        """Return whether the object is being deleted; then the job is canceled."""
        self._seen.add(found.metadata.uid)
        if found.metadata.deletion_timestamp is None:
            return False
        if job is not None and not job.terminal:
            await self._cancel(job)
        return True

    async def _told(self, work: Work, job: nouns.Job | None) -> float | None:
        """Write the status after a look. Return the least pause after which the object is tried again, or None."""
        found = work.found
        status = translation.status(found, job, work.facts, self._services.clock())
        if work.done:
            generation = found.metadata.generation
            status = msgspec.structs.replace(status, observed_generation=generation, halt=work.halt)
        return await self._tell(found, status) or (None if work.done or not work.facts else looks.AGAIN_FIRST_S)

    async def _project(self, job_id: str) -> float | None:
        """Make the object of a job that has none, and write its UID into the record. The job runs without one, too."""
        job = await self._read(job_id)
        if job is None or job.terminal or job.resource is not None:
            return None
        try:
            found = await self._objects.project(job)
            if found is not None:
                await self._recorded(job, found)
                self._undefined.discard(job_id)
            elif job_id in self._undefined:
                return looks.AGAIN_FIRST_S  # the definition may come back
        except errors.OarlockError as error:
            namespace, _ = self._objects.place(job)
            if (told := (namespace, translation.reason(error))) not in self._left:
                self._left.add(told)
                facts = {"namespace": namespace, "job": job.id, "reason": translation.sentence(error)}
                self._services.report("job_not_projected", facts)
            return looks.AGAIN_FIRST_S
        return None

    async def _recorded(self, job: nouns.Job, found: resources.Resource) -> nouns.Job:
        """Return the job with this object in its record."""
        if job.terminal or job.resource is not None:
            return job
        at = self._services.clock()
        stored = await self._services.store.write(lambda tx: _record_object(tx, job.id, found, at))
        if stored is not None and stored.resource == found:
            self._know(found.uid, job.id)
            self._looks.touch(found.uid)
        return stored or job

    def _is_of(self, found: resources.OarlockJob, job: nouns.Job) -> bool:
        """Return whether the object with the job's labels is the one that was made for the job."""
        meta = found.metadata
        if job.resource is not None:
            return job.resource.uid == meta.uid
        return self._objects.place(job) == (meta.namespace, meta.name)

    async def _resource(self, found: resources.OarlockJob) -> resources.Resource:
        meta = found.metadata
        cluster, definition = await self._cluster(meta.namespace), await self._objects.definition()
        return resources.Resource(meta.namespace, meta.name, meta.uid, cluster, definition)

    async def _remove(self, found: resources.OarlockJob) -> float | None:
        try:
            await self._objects.remove(found)
        except errors.OarlockError as error:
            _log.warning("resources.object_not_removed", name=found.metadata.name, error=str(error))
            return looks.AGAIN_FIRST_S
        return None

    async def _one_that_is_absent(self, uid: str, job: nouns.Job | None) -> float | None:
        """Cancel the job of an object that was deleted. Return the pause until this is tried again, or None."""
        if job is None or job.terminal:
            self._forget(uid)
            return None
        try:
            why = await self._doubt(uid, job)
        except errors.OarlockError as error:
            _log.warning("resources.absence_unknown", job=job.id, error=str(error))
            return looks.AGAIN_FIRST_S
        if why is None:
            await self._cancel(job)
            return None
        if why == _STILL_THERE:
            return looks.AGAIN_FIRST_S
        if why == _UNDEFINED and await self._made_anew(job):
            self._forget(uid)
            return None
        if job.resource is not None and (told := (job.resource.namespace, why)) not in self._left:
            self._left.add(told)
            facts = {"namespace": told[0], "job": job.id, "reason": why, "hint": f"oarlock cancel {job.id}"}
            self._services.report("jobs_left_alone", facts)
        return None

    async def _doubt(self, uid: str, job: nouns.Job) -> str | None:
        """Return why the absence of its object may be no deletion, or None."""
        assert job.resource is not None
        namespace, cluster = job.resource.namespace, job.resource.cluster
        if not self._objects.follows(namespace):
            return "The settings do not name this namespace, so that its objects are not known."
        tenant = self._tenants.get(namespace)
        if tenant is not None and tenant.user != job.owner:
            return f"The namespace belongs to {tenant.user} now, and the job to {job.owner}."
        present = await self._objects.cluster(namespace)
        if cluster is not None and present is not None:
            if cluster != present:
                return "The object is in another cluster than that of the settings."
        elif uid not in self._seen:
            return _UNKNOWN
        if await self._objects.uid(job.resource) == uid:
            return _STILL_THERE
        definition, before = await self._objects.present_definition(), job.resource.definition
        if definition == "" or (definition is not None and before is not None and definition != before):
            return _UNDEFINED
        return None

    async def _made_anew(self, job: nouns.Job) -> bool:
        """Let a job that was submitted without an object get another one: the first was made for it alone, and has
        gone with its definition. Return False for an object that a user had applied.
        """
        gone, at = job.resource, self._services.clock()
        if gone is None or self._objects.place(job) != (gone.namespace, gone.name):
            return False
        await self._services.store.write(lambda tx: _forget_object(tx, job.id, gone, at))
        self._undefined.add(job.id)
        self._looks.touch(job.id)
        return True

    async def _cluster(self, namespace: str) -> str | None:
        if namespace not in self._clusters:
            self._clusters[namespace] = await self._objects.cluster(namespace)
        return self._clusters[namespace]

    async def _tell(self, found: resources.OarlockJob, status: resources.JobStatus) -> float | None:
        if status == found.told():
            return None
        try:
            await self._objects.write_status(found, status)
        except (errors.NotFound, errors.Conflict):  # the watch tells of the object's end or change
            return looks.AGAIN_FIRST_S
        except errors.OarlockError as error:
            _log.warning("resources.status_not_written", name=found.metadata.name, error=str(error))
            return looks.AGAIN_FIRST_S
        return None

    async def _admit(self, work: Work) -> nouns.Job | None:
        """Submit the job. An object that cannot become one gets a condition with the reason, and is tried again."""
        meta, services = work.found.metadata, self._services
        try:
            resource = await self._resource(work.found)
            access = await self._access(work.tenant)
            told = translation.wanted(work.found, work.tenant.pool)
            job, _ = await jobs.admit(services, access, told.submission, key(meta.uid), resource)
            self._know(meta.uid, job.id)
            services.wakes.touched(job.id)
            if told.halt:
                job = await jobs.wish(services, access, job.id, bodies.Wanted(intents.Intent.HALT))
        except errors.OarlockError as error:
            work.refused(translation.ADMITTED, error)
            return None
        work.admitted(job)
        work.done, work.halt = True, told.halt
        return job

    async def _apply(self, work: Work, job: nouns.Job) -> nouns.Job:
        """Make the job what a changed spec asks for, as far as a job can be changed; return the job."""
        services = self._services
        admitted = work.before.condition(translation.ADMITTED)
        if admitted is None or admitted.status != "True":  # the answer to the submission was lost
            work.admitted(job)
        try:
            access = await self._access(work.tenant)
            told = translation.wanted(work.found, work.tenant.pool, job)
            change = translation.change(job, told.submission)
            if change != changes.Edit():
                job = await edits.change(services, access, job.id, change)
            if told.halt != (work.before.halt or False):
                intent = intents.Intent.HALT if told.halt else intents.Intent.RUN
                job = await jobs.wish(services, access, job.id, bodies.Wanted(intent))
        except errors.OarlockError as error:
            work.refused(translation.APPLIED, error)
            work.done = job.terminal or not isinstance(error, PASSING)
            return job
        work.fact(translation.APPLIED, True, "Applied", "")
        work.done, work.halt = True, told.halt
        return job

    async def _cancel(self, job: nouns.Job) -> None:
        access = authorisation.Access(self._services.store, users.User(name=job.owner, right=users.Right.USER))
        why = bodies.Wanted(intents.Intent.CANCEL, reason="its OarlockJob was deleted")
        with contextlib.suppress(errors.Conflict, errors.NotFound):  # it has ended meanwhile
            await jobs.wish(self._services, access, job.id, why)

    async def _access(self, tenant: clusterobjects.Tenant) -> authorisation.Access:
        """Return the rights of the namespace's user. Raises Forbidden where there is no such user."""
        name = tenant.user
        user = await self._services.store.read(lambda view: view.user(name))
        if user is None:
            raise errors.Forbidden(
                f"The user {name} of this namespace is not known.", hint=f"Make it: oarlock users add {name}"
            )
        return authorisation.Access(self._services.store, user, self._services.forecaster.names)

    async def _job(self, uid: str, found: resources.OarlockJob | None) -> nouns.Job | None:
        """Return the job that this object made."""
        if uid not in self._jobs and found is not None and found.metadata.namespace in self._tenants:
            owner = self._tenants[found.metadata.namespace].user
            made = await self._services.store.read(lambda view: _submitted(view, uid, owner))
            if made is not None:
                self._know(uid, made)
        return await self._read(self._jobs[uid]) if uid in self._jobs else None

    async def _read(self, job_id: str) -> nouns.Job | None:
        return await self._services.store.read(lambda view: view.job(job_id))


def key(uid: str) -> str:
    """Return the idempotency key of the submission by an object."""
    return f"oarlockjob-{uid}"


def _given_away(found: resources.OarlockJob, job: nouns.Job, tenant: clusterobjects.Tenant) -> Work:
    """Return the look at an object whose namespace has another user than its job: no act on it reaches the job."""
    work = Work(found, tenant)
    refused = errors.Conflict(
        f"The job {job.id} of this object belongs to {job.owner}, and the namespace now to {tenant.user}.",
        hint="It goes on as it was. For a job of the new user, make an object of another name.",
    )
    work.refused(translation.ADMITTED, refused)
    return work


def _submitted(view: stores.View, uid: str, user: str) -> str | None:
    """Return the job of the object, also that of another user: the settings may have named one before."""
    for name in (user, *(one.name for one in view.users() if one.name != user)):
        if (found := view.submitted(name, key(uid))) is not None:
            return found[0]
    return None


def _records(view: stores.View, after: int) -> list[events.Record]:
    return view.records(after, limit=_PAGE)


def _with_uids(view: stores.View, after: int, end: int) -> list[tuple[events.Record, str | None]]:
    """Return the next lines of the log up to `end`, each with the UID of its job's object."""
    found = [record for record in _records(view, after) if record.seq <= end]
    theirs = view.jobs_by_id({record.job for record in found if record.job})
    uids = {job.id: job.resource.uid for job in theirs.values() if job.resource is not None}
    return [(record, uids.get(record.job)) for record in found]


def _not_over(view: stores.View) -> list[nouns.Job]:
    return view.jobs(stores.JobFilter(phases=phases.NOT_OVER, limit=MOST_JOBS))


def _forget_object(tx: stores.Transaction, job_id: str, gone: resources.Resource, at: float) -> None:
    job = tx.job(job_id)
    if job is not None and job.resource == gone:
        tx.put_job(msgspec.structs.replace(job, resource=None), at=at)


def _record_object(tx: stores.Transaction, job_id: str, found: resources.Resource, at: float) -> nouns.Job | None:
    job = tx.job(job_id)
    event = events.Projected(resource=found)
    after = stepping.step(job, event, at) if job is not None else None
    return job if after is job or after is None else tx.put_job(after, [event], at=at)
