"""The layer between users and the store: handlers read and write jobs only through `Access`.

Users see and change their own jobs, viewers see their own jobs, and administrators see and change all jobs. A job that
a user may not see is NotFound, never Forbidden: the answers must not reveal names and ids.

`tenant` has the few facts that all users see of a job: its user, pool, name and holdings. The setting `private_jobs`
hides the names too (`oarlock.spec.access.privacy`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec

from oarlock.spec import bodies, errors, events, jobs, phases, plans, refusals
from oarlock.spec.access import privacy, users
from oarlock.spec.hints import suggestions
from oarlock.store import stores

T = TypeVar("T")

STRENGTH = {users.Right.VIEWER: 0, users.Right.USER: 1, users.Right.ADMIN: 2}
_SCAN = 5
"""The most pages of the event log that one request searches for the user's lines."""

_NAMES = 500
"""The number of newest jobs whose names are compared with a mistyped name."""


class Records(msgspec.Struct, frozen=True):
    """Lines of the event log. The log was searched up to line `seen`; more lines may follow."""

    items: list[events.Record]
    seen: int


class Access:
    """The store with the rights of one user. `names` gives the names of other users' jobs."""

    def __init__(self, store: stores.Store, user: users.User, names: privacy.Names = privacy.PUBLIC) -> None:
        self._store = store
        self.user = user
        self._names = names

    @property
    def admin(self) -> bool:
        return self.user.right is users.Right.ADMIN

    def demand(self, right: users.Right) -> None:
        """Raise Forbidden unless the user's right is at least this one."""
        if STRENGTH[self.user.right] < STRENGTH[right]:
            raise errors.Forbidden(
                f"This needs the right `{right}`; {self.user.name} has `{self.user.right}`.",
                hint="Ask an administrator of this server.",
            )

    def owner(self, asked: str | None) -> str | None:
        """Return the owner of the jobs to list: the requested one, if the user may see that owner's jobs."""
        if self.admin:
            return asked
        if asked is not None and asked != self.user.name:
            raise errors.Forbidden("You may list only your own jobs.", path="owner", hint="Leave `owner` out.")
        return self.user.name

    async def job(self, name_or_id: str) -> jobs.Job:
        """Return a job that the user may see. Raises NotFound."""
        return self.shown(await self._store.read(lambda view: self._find(view, name_or_id)))

    async def checkpoints(self, name_or_id: str) -> list[jobs.Checkpoint]:
        return await self._store.read(lambda view: view.checkpoints(self._find(view, name_or_id).id))

    async def list_jobs(self, which: stores.JobFilter) -> list[jobs.Job]:
        mine = msgspec.structs.replace(which, owner=self.owner(which.owner))
        return [self.shown(job) for job in await self._store.read(lambda view: view.jobs(mine))]

    async def list_and_count(self, which: stores.JobFilter) -> tuple[list[jobs.Job], dict[phases.Phase, int]]:
        """Return a page of the jobs that the user may see, and the number of all of them by phase, of one moment."""
        mine = msgspec.structs.replace(which, owner=self.owner(which.owner))
        found, counts = await self._store.read(lambda view: (view.jobs(mine), view.count(mine)))
        return [self.shown(job) for job in found], counts

    async def change(self, name_or_id: str, change: Callable[[stores.Transaction, jobs.Job], T]) -> T:
        """Run `change` on a job that the user may act on, within one transaction."""
        self.demand(users.Right.USER)
        return await self._store.write(lambda tx: change(tx, self._find(tx, name_or_id)))

    async def add(self, add: Callable[[stores.Transaction], T]) -> T:
        """Run `add`, which stores a new job of the user, within one transaction. Raises Unauthenticated where the user
        was removed since the request was admitted.
        """
        self.demand(users.Right.USER)

        def write(tx: stores.Transaction) -> T:
            if tx.user(self.user.name) is None:
                raise errors.Unauthenticated(
                    f"The user {self.user.name} was removed meanwhile.", hint="Ask an administrator of this server."
                )
            return add(tx)

        return await self._store.write(write)

    async def records(
        self, after: int, limit: int, *, job_id: str | None = None, kinds: Collection[str] = ()
    ) -> Records:
        """Return the next lines of the log that the user may see. The user must have access to the job `job_id`.

        Lines of a job may be chosen by their `kinds`.
        """
        found = await self._store.read(lambda view: self._records(view, after, limit, job_id, kinds))
        return Records([self._shown_record(record) for record in found.items], found.seen)

    async def shared(self, look: Callable[[stores.View], T]) -> T:
        """Read the parts that all users may see: nodes, pools and holdings."""
        return await self._store.read(look)

    async def usage_between(self, since: float, until: float) -> tuple[list[stores.Usage], list[jobs.Job]]:
        """Return the attempts that were held between, and the running jobs: the user's, or all for an administrator."""
        owner = None if self.admin else self.user.name

        def look(view: stores.View) -> tuple[list[stores.Usage], list[jobs.Job]]:
            ended = view.attempts_used(since=since, until=until, owner=owner)
            return ended, [job for job in view.active() if job.live is not None and self.sees(job)]

        return await self._store.read(look)

    async def administer(self, change: Callable[[stores.Transaction], T]) -> T:
        """Run a change of the cluster or its users within one transaction, for administrators."""
        self.demand(users.Right.ADMIN)
        return await self._store.write(change)

    async def administered(self, look: Callable[[stores.View], T]) -> T:
        """Read for an administrator."""
        self.demand(users.Right.ADMIN)
        return await self._store.read(look)

    def tenant(self, job: jobs.Job) -> bodies.Tenant:
        """Return the facts that this user may know of any user's job that holds something or waits."""
        if self.sees(job):
            return bodies.Tenant(user=job.owner, pool=job.pool, name=job.name, job=job.id)
        hidden = self._names.private
        return bodies.Tenant(user=job.owner, pool=job.pool, name=self._names.of(job), job="" if hidden else job.id)

    def shown(self, job: jobs.Job) -> jobs.Job:
        """Return the job, with the ids hidden that its refusal must not tell."""
        refusal = self.shown_refusal(job.refusal)
        return job if refusal is job.refusal else msgspec.structs.replace(job, refusal=refusal)

    def shown_refusal(self, refusal: refusals.Refusal | None) -> refusals.Refusal | None:
        """Return the refusal, without the ids of other users' jobs where names are hidden."""
        if refusal is None or not self._hides:
            return refusal
        holders = tuple(
            one if one.owner == self.user.name else msgspec.structs.replace(one, job="") for one in refusal.holders
        )
        return msgspec.structs.replace(refusal, holders=holders)

    def shown_forecast(self, forecast: plans.Forecast | None) -> plans.Forecast | None:
        """Return the forecast, without ids where names are hidden: a stop does not name the owner of its job."""
        if forecast is None or not self._hides:
            return forecast
        stops = tuple(msgspec.structs.replace(stop, job="") for stop in forecast.stops)
        return msgspec.structs.replace(forecast, refusal=self.shown_refusal(forecast.refusal), stops=stops)

    def _shown_record(self, record: events.Record) -> events.Record:
        told = record.data.get("refusal")
        if not (self._hides and told and told.get("holders")):
            return record
        mine = self.user.name
        holders = [one if one.get("owner") == mine else {**one, "job": ""} for one in told["holders"]]
        return msgspec.structs.replace(record, data={**record.data, "refusal": {**told, "holders": holders}})

    @property
    def _hides(self) -> bool:
        return self._names.private and not self.admin

    def sees(self, job: jobs.Job) -> bool:
        """Return whether the user may see the whole job."""
        return self.admin or job.owner == self.user.name

    def _find(self, view: stores.View, name_or_id: str) -> jobs.Job:
        found = view.find(name_or_id, self.user.name)
        if found is not None and not self.sees(found):  # another user's id; an own job may bear it
            mine = stores.JobFilter(owner=self.user.name, name=name_or_id, limit=1)
            found = next(iter(view.jobs(mine)), None)
        if found is None and self.admin:
            found = view.find(name_or_id)
        if found is None:
            near = self._nearest(view, name_or_id)
            hint = f"Did you mean `{near}`?" if near else "See `oarlock ps` for your jobs."
            raise errors.NotFound(f"There is no job `{name_or_id[:100]}`.", hint=hint)
        return found

    def _nearest(self, view: stores.View, name: str) -> str | None:
        """Return the closest name among the newest jobs that the user may see."""
        owner = None if self.admin else self.user.name
        return suggestions.nearest(name, {job.name for job in view.jobs(stores.JobFilter(owner=owner, limit=_NAMES))})

    def _records(
        self, view: stores.View, after: int, limit: int, job_id: str | None, kinds: Collection[str]
    ) -> Records:
        if job_id is not None or self.admin:
            items = view.records(after, job=job_id, kinds=kinds, limit=limit)
            return Records(items, items[-1].seq if items else after)
        mine = {"": True}  # all users may see nodes and pools
        items = []
        for _ in range(_SCAN):
            page = view.records(after, limit=1000)
            for record in page:
                if record.job not in mine:
                    job = view.job(record.job)
                    owner = job.owner if job is not None else record.data.get("owner")  # the line of a removal has it
                    mine[record.job] = owner == self.user.name
                after = record.seq
                if mine[record.job]:
                    items.append(record)
                if len(items) == limit:
                    return Records(items, after)
            if len(page) < 1000:
                break
        return Records(items, after)
