"""The face of the pools for `kubectl`: an OarlockPool shows a pool, and a change of its spec changes the pool.

    an object that is new or edited ──> a change of the pool, as an administrator makes it
    a pool that was changed elsewhere ──> the spec of its object
    holdings, entitlement, waiting jobs ──> the status of the object

OarlockPools belong to no namespace, so that only a cluster role gives the right to change them: it makes its holder an
administrator of the pools. The database is the truth. The status names the generation of
the object and the version of the pool that were last the same: so each side's change is known as one. Where both
have changed, the pool stays, its object gets the pool's spec, and a condition tells it.

Several installations may share a cluster. A server first writes its mark into an object that has none, and makes a pool
of it afterwards; an object with the mark of another installation is left alone. For a database that is not the one of
the mark, a lost one's follower, the object is new.

The record of a pool has the UID of its object. So a server that begins to lead knows of an object that was deleted
while none looked, and removes the pool.

All is derived anew at each look, and only the server that leads looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from oarlock.api.cluster import pools as api
from oarlock.api.customresources import definitions, supervising, translation
from oarlock.api.services import provided
from oarlock.scheduler.policies import registry
from oarlock.spec import bodies, errors, events, resources
from oarlock.spec.cluster import poolchanges, pools, pooltrees
from oarlock.spec.input import validation
from oarlock.store import stores

PERIOD_S = 2.0
"""The status is written so often, where it has changed."""
REST, MOST_PERIOD_S = 20, 15.0
"""With very many jobs less often: a look is followed by a pause of so many times its own length, up to this. What users
do to an object ends the pause."""
PAUSE_S = 5.0
ANEW_S = 30.0
"""A look follows so long after the last one, whatever has changed: the cluster's amounts are in no log."""
MOST_CHANGES = 8
"""An object that changes more often within a period waits for the next one: two servers may undo each other's work."""
DELETED_S = 1.0
"""A pool is removed so long after its object was deleted: by then discovery tells that the definition itself goes."""
APPLIED, CONFLICT = "Applied", "Conflict"
FIELDS = definitions.PoolResource.__struct_fields__

_IDENTITY = "database"
_NANO = 10**9

_log = structlog.get_logger(__name__)


class Objects(Protocol):
    """The OarlockPools of the cluster, kept current. `changed` is set whenever one has come, changed or gone."""

    @property
    def installation(self) -> str: ...

    @property
    def synced(self) -> asyncio.Event: ...

    @property
    def changed(self) -> asyncio.Event: ...

    @property
    def items(self) -> Mapping[str, resources.OarlockPool]:
        """Return the objects by name."""
        ...

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        ...

    async def renew(self) -> None:
        """Return once `items` come from a list that began after this call."""
        ...

    def take_deleted(self) -> set[str]:
        """Return the names of the objects of this installation that were deleted since the last call, and are not there
        again.
        """
        ...

    async def is_defined(self) -> bool:
        """Return whether the cluster has the kind, and does not delete it with all its objects."""
        ...

    async def create(self, name: str, spec: dict[str, Any]) -> str:
        """Make the object of a pool; return its UID. Raises Conflict where it exists."""
        ...

    async def write_spec(self, found: resources.OarlockPool, patch: dict[str, Any]) -> None:
        """Change these fields of the spec. Raises Conflict where the object has changed since."""
        ...

    async def write_status(self, found: resources.OarlockPool, status: resources.PoolStatus) -> str:
        """Replace the status; return the object's new version.

        Raises Conflict where the object has changed since, NotFound where it is gone.
        """
        ...

    async def remove(self, found: resources.OarlockPool) -> None: ...

    async def close(self) -> None: ...


def serving(
    services: provided.Services, objects: Objects, *, leads: Callable[[], bool]
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve the pools within the context, and close the objects in the end."""
    face = Face(services, objects, leads=leads)
    return supervising.serving(services, face.run, objects.close, told="pools_failed", meter="oarlockpools")


class Face:
    """Belongs to the event loop of the API. `leads` tells whether this server leads now."""

    def __init__(self, services: provided.Services, objects: Objects, *, leads: Callable[[], bool]) -> None:
        self._services = services
        self._objects = objects
        self._leads = leads
        self._led = False
        self._recorded: dict[str, tuple[int, int]] = {}  # versions before and after the UID was written into the record
        self._made: dict[str, str] = {}  # by name: the UID of the object that this server made
        self._deleted: set[str] = set()  # names of objects that were deleted, until a look has dealt with them
        self._kept: dict[str, str] = {}  # why a pool stays after the deletion of its object
        self._database: str | None = None
        self._foreign: set[str] = set()  # names of objects of other installations that were told
        self._changes: dict[str, tuple[float, int, str]] = {}  # by name: since when, how many, and the last version
        self._settled: dict[str, str] = {}  # by name: the version of the object at which nothing was left to do
        self._seen: Seen | None = None  # the database at the last look
        self._again_at = 0.0  # when a look follows although nothing has changed

    async def run(self) -> None:
        """Follow the objects, and look at the pools, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        """Look at the pools. An error of one look does not end the next one."""
        await self._objects.synced.wait()
        while True:
            self._objects.changed.clear()
            pause_s = PERIOD_S
            try:
                if self._leads() and not await self._is_idle():
                    began = time.monotonic()
                    await self._look()
                    pause_s = min(MOST_PERIOD_S, max(PERIOD_S, REST * (time.monotonic() - began)))
                self._led = self._leads()
            except errors.OarlockError as error:
                _log.warning("resources.pools_not_followed", error=str(error))
                pause_s = PAUSE_S
            except Exception as error:  # noqa: BLE001 - it is reported and counted
                self._services.report("pools_failed", {"error": error})
                self._services.meters.failed("oarlockpools")
                pause_s = PAUSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._objects.changed.wait()

    async def _is_idle(self) -> bool:
        """Return whether nothing has changed since the last look but the statuses that it wrote."""
        if not self._led or asyncio.get_running_loop().time() >= self._again_at:
            return False
        found = {name: one.metadata.resource_version for name, one in self._objects.items.items()}
        return found == self._settled and self._seen == await self._services.store.read(_seen)

    async def _look(self) -> None:
        self._again_at = 0.0  # a look that fails is followed by another one
        if not self._led:  # a watch of a server that did not lead may lag
            await self._objects.renew()
            self._objects.take_deleted()
            self._database = await self._services.store.write(_database)
        self._deleted = (self._deleted | self._objects.take_deleted()) - self._objects.items.keys()
        if not self._led:
            self._deleted, undecided = await self._services.store.read(self._absent)
            await self._forget(undecided)
        if self._deleted and not await self._is_defined():
            await self._forget(self._deleted)
            self._deleted = set()
        deleted = set(self._deleted)
        seen, declared, states = await self._services.store.read(lambda view: (_seen(view), *_states(view)))
        found, foreign = dict(self._objects.items), self._leave()
        late = self._objects.take_deleted()  # since the cluster was asked: the next look asks for these
        self._deleted = self._deleted & declared.keys() | late
        self._settled = {name: found.pop(name).metadata.resource_version for name in foreign}
        failed = bool(late)
        names = (declared.keys() | found.keys()) - (foreign - deleted) - late
        for name in sorted(names, key=lambda name: _depth(name, declared, found)):
            if not self._is_due(name, found.get(name)):
                failed = True
                continue
            try:
                done = await self._one(name, found.get(name), declared.get(name), states.get(name), name in deleted)
            except (errors.Conflict, errors.NotFound):
                self._deleted.discard(name)
                continue  # the watch tells of the object's change, and the next look does the rest
            except errors.OarlockError as error:
                failed = True
                _log.warning("resources.pool_not_followed", pool=name, error=str(error))
            else:
                self._deleted.discard(name)
                self._settled |= {name: done} if done is not None else {}
        self._seen = seen
        self._again_at = 0.0 if failed else asyncio.get_running_loop().time() + ANEW_S

    def _absent(self, view: stores.View) -> tuple[set[str], set[str]]:
        """Return the names of the pools that lost their objects while no server looked, and those of the pools whose
        objects may have gone with their definition.

        The definition has been the same all the time where some object is still there.
        """
        there = {name: found.metadata.uid for name, found in self._objects.items.items()}
        recorded = {one.name: one.object_uid for one in view.pools() if one.object_uid is not None}
        absent = recorded.keys() - there.keys()
        return (absent, set()) if any(there.get(name) == uid for name, uid in recorded.items()) else (set(), absent)

    async def _forget(self, names: set[str]) -> None:
        """Forget the objects of these pools, before any is made again: that one is absent must prove no deletion then,
        although others are there.
        """

        def forget(tx: stores.Transaction) -> None:
            for pool in tx.pools():
                if pool.name in names and pool.object_uid is not None:
                    tx.put_pool(msgspec.structs.replace(pool, object_uid=None))

        if names:
            await self._services.store.write(forget)

    async def _is_defined(self) -> bool:
        """Return whether the objects were deleted one by one.

        The cluster also deletes them with their definition, which may be there again a moment later. So it is asked at
        once, and once more.
        """
        if not await self._objects.is_defined():
            return False
        await asyncio.sleep(DELETED_S)
        return await self._objects.is_defined()

    def _leave(self) -> set[str]:
        """Return the names of the objects of other installations."""
        marks = {name: found.installation() for name, found in self._objects.items.items()}
        foreign = {name for name, mark in marks.items() if mark not in (None, self._objects.installation)}
        for name in sorted(foreign - self._foreign):
            hint = "Where it is this server's, name the installation in [kubernetes], or set the object's label."
            facts = {"pool": name, "installation": marks[name], "own": self._objects.installation, "hint": hint}
            self._services.report("pool_object_left_alone", facts)
        self._foreign = foreign
        return foreign

    def _is_due(self, name: str, found: resources.OarlockPool | None) -> bool:
        """Return whether the object has not changed too often within the last period."""
        now, version = asyncio.get_running_loop().time(), found.metadata.resource_version if found is not None else ""
        began, changes, last = self._changes.get(name, (now, 0, version))
        if now - began >= PERIOD_S:
            began, changes = now, 0
        self._changes[name] = began, changes + (version != last), version
        return changes < MOST_CHANGES

    async def _one(
        self,
        name: str,
        found: resources.OarlockPool | None,
        pool: pools.Pool | None,
        state: bodies.PoolState | None,
        deleted: bool,
    ) -> str | None:
        """Do what is left for one pool. Return the version of its object at which nothing is left, or None."""
        if found is None:
            if pool is not None and not (deleted and await self._removed(name)):
                self._made[name] = await self._objects.create(name, spec_of(pool))
            return None
        if found.metadata.deletion_timestamp is not None:
            return found.metadata.resource_version
        before = self._told(found)
        if found.installation() is None:
            await self._objects.write_status(found, before)  # else two servers could make pools of it
            return None
        ours = before.version is not None or self._made.get(name) == found.metadata.uid
        if pool is None and ours:  # the pool was removed elsewhere
            await self._objects.remove(found)
            return None
        edited, now = before.observed_generation != found.metadata.generation, self._services.clock()
        error: errors.OarlockError | None = None
        if edited:
            try:
                wanted = wanted_of(found)
                if pool is None or not same(wanted, pool):
                    if pool is not None and not self._is_known(before.version, pool):
                        await self._refuse(found, pool, before)
                        return None
                    pool = await self._services.store.write(lambda tx: _change(tx, found, wanted, pool, now))
            except (errors.Unavailable, errors.VersionMismatch):
                raise
            except errors.OarlockError as refused:
                error = refused
        elif pool is not None and not same(wanted_of(found), pool):
            await self._objects.write_spec(found, patch_of(found, pool))  # the pool was changed elsewhere
            return None
        if pool is not None and pool.object_uid != found.metadata.uid:
            shown = msgspec.structs.replace(pool, object_uid=found.metadata.uid)
            pool = await self._services.store.write(lambda tx: tx.put_pool(shown))
            self._recorded[name] = shown.version, pool.version
        status = self._status(found, before, pool, state, error)
        if status != found.told():
            return await self._objects.write_status(found, status)
        return found.metadata.resource_version

    def _is_known(self, version: int | None, pool: pools.Pool) -> bool:
        """Return whether the pool has not changed since it had this version, but for the UID of its object."""
        return version in (None, pool.version) or self._recorded.get(pool.name) == (version, pool.version)

    def _told(self, found: resources.OarlockPool) -> resources.PoolStatus:
        """Return the status with our mark. Under another mark the object has not been seen yet."""
        told, own = found.told(), {"installation": self._objects.installation, "database": self._database}
        if (told.installation, told.database) == (own["installation"], own["database"]):
            return told
        return msgspec.structs.replace(told, **own, version=None, observed_generation=None)

    async def _removed(self, name: str) -> bool:
        """Remove the pool of an object that was deleted. Return False where it stays, so that its object comes back."""
        now = self._services.clock()

        def remove(tx: stores.Transaction) -> None:
            pooltrees.check_removal(name, tx.pools(), lambda pool: api.names(tx, pool))
            tx.remove_pool(name)
            tx.tell(events.POOLS, (name,), at=now)

        try:
            await self._services.store.write(remove)
        except errors.NotFound:
            return True
        except errors.OarlockError as error:
            self._kept[name] = translation.sentence(error)
            return False
        return True

    async def _refuse(self, found: resources.OarlockPool, pool: pools.Pool, before: resources.PoolStatus) -> None:
        """Answer an edit of the object by a condition, and put the pool's own spec in its place."""
        message = (
            f"The pool was changed elsewhere meanwhile, to version {pool.version}, so that this edit was not made."
            " See its values, and edit again."
        )
        told = translation.fact(APPLIED, False, CONFLICT, message, found.metadata)
        conditions = translation.conditions(before.conditions, [told], self._services.clock())
        if conditions != before.conditions:
            await self._objects.write_status(found, msgspec.structs.replace(before, conditions=conditions))
            return  # the watch brings the object with its condition: then the spec follows
        await self._objects.write_spec(found, patch_of(found, pool))

    def _status(
        self,
        found: resources.OarlockPool,
        before: resources.PoolStatus,
        pool: pools.Pool | None,
        state: bodies.PoolState | None,
        error: errors.OarlockError | None,
    ) -> resources.PoolStatus:
        meta = found.metadata
        kept = self._kept.pop(meta.name, None)
        last = before.condition(APPLIED)
        told: list[resources.Condition] = []
        if error is not None:
            told.append(translation.fact(APPLIED, False, translation.reason(error), translation.sentence(error), meta))
        elif kept is not None:
            told.append(translation.fact(APPLIED, False, "NotRemoved", kept, meta))
        elif before.observed_generation != meta.generation and not _answers(last, meta):
            told.append(translation.fact(APPLIED, True, APPLIED, "", meta))
        made = error is None and pool is not None
        return resources.PoolStatus(
            held=_amounts(pools.amounts(state.held)) if state is not None else before.held,
            entitlement=_amounts(state.entitled) if state is not None else before.entitlement,
            limit=_amounts(pool.limit) if pool is not None else before.limit,
            running=state.running if state is not None else before.running,
            waiting=state.waiting if state is not None else before.waiting,
            installation=before.installation,
            database=before.database,
            version=pool.version if made and pool is not None else before.version,
            observed_generation=meta.generation if made else before.observed_generation,
            conditions=translation.conditions(before.conditions, told, self._services.clock()),
        )


def wanted_of(found: resources.OarlockPool) -> poolchanges.Change:
    """Return the change that makes a pool what the object asks for. Raises InvalidInput."""
    raw = found.spec if isinstance(found.spec, dict) else {}
    given = {field: value for field, value in raw.items() if value is not None}
    told = validation.convert(given, definitions.PoolResource)
    return poolchanges.Change(**{field: getattr(told, field) for field in FIELDS})


def spec_of(pool: pools.Pool) -> dict[str, Any]:
    """Return the spec of the object that shows this pool."""
    said = {field: getattr(pool, field) for field in FIELDS}
    return {field: msgspec.to_builtins(value) for field, value in said.items() if value not in (None, {}, ())}


def patch_of(found: resources.OarlockPool, pool: pools.Pool) -> dict[str, Any]:
    """Return the merge patch that makes the object's spec that of the pool."""
    now, then = found.spec if isinstance(found.spec, dict) else {}, spec_of(pool)
    patch: dict[str, Any] = {**dict.fromkeys(now.keys() - then.keys()), **then}
    for field, value in then.items():
        if isinstance(value, dict) and isinstance(now.get(field), dict):
            patch[field] = {**dict.fromkeys(now[field].keys() - value.keys()), **value}
    return patch


def same(wanted: poolchanges.Change, pool: pools.Pool) -> bool:
    """Return whether the pool has these values. Raises InvalidInput for values that no pool has."""
    after = poolchanges.changed(pools.Pool(name=pool.name), wanted)
    return msgspec.structs.replace(after, version=pool.version, object_uid=pool.object_uid) == pool


def _change(
    tx: stores.Transaction,
    found: resources.OarlockPool,
    wanted: poolchanges.Change,
    seen: pools.Pool | None,
    now: float,
) -> pools.Pool:
    """Make the change that the object asks for, unless the pool is another one than was seen.

    Raises VersionMismatch, and as `api.checked`.
    """
    if isinstance(wanted.policy, str):
        registry.named(wanted.policy)
    name, version = found.metadata.name, seen.version if seen is not None else 0
    before, _ = api.checked(tx, name, poolchanges.Change(version=version))
    version = before.version if before is not None else 0
    bare = pools.Pool(name=name, version=version, object_uid=found.metadata.uid)
    after = poolchanges.changed(bare, wanted)
    pooltrees.check(after, tx.pools(), lambda pool: api.names(tx, pool))
    tx.tell(events.POOLS, (name,), at=now)
    return tx.put_pool(after)


def _database(tx: stores.Transaction) -> str:
    """Return the identity of the database: when its first user was made. It is kept as a cursor, in nanoseconds: that
    user may be removed.
    """
    kept = tx.cursor(_IDENTITY)
    if kept is None:
        first = min((one.created_at for one in tx.users()), default=0.0)
        kept = int(fractions.Fraction(first) * _NANO)
        tx.put_cursor(_IDENTITY, kept)
    return repr(kept / _NANO)


class Seen(NamedTuple):
    """The database as the objects show it: the end of the log, and the pools."""

    seq: int
    pools: Sequence[pools.Pool]


def _seen(view: stores.View) -> Seen:
    return Seen(view.last_seq(), view.pools())


def _states(view: stores.View) -> tuple[dict[str, pools.Pool], dict[str, bodies.PoolState]]:
    declared: Sequence[pools.Pool] = view.pools()
    return {one.name: one for one in declared}, {one.pool.name: one for one in api.tree(view, declared)}


def _depth(
    name: str, declared: Mapping[str, pools.Pool], found: Mapping[str, resources.OarlockPool]
) -> tuple[int, str]:
    """Return the order of the looks: a pool after the one above it, which may be new."""
    depth, at = 0, name
    while depth <= len(declared) + len(found):
        above = declared[at].parent if at in declared else None
        if above is None and at in found and isinstance(found[at].spec, dict):
            above = found[at].spec.get("parent")
        if not isinstance(above, str):
            break
        depth, at = depth + 1, above
    return depth, name


def _answers(last: resources.Condition | None, meta: resources.Meta) -> bool:
    """Return whether the condition answers a conflict, and the only edit since is the one that put the pool's values
    in the object.
    """
    return last is not None and last.reason == CONFLICT and last.observed_generation >= meta.generation - 1


def _amounts(given: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in given.items()}
