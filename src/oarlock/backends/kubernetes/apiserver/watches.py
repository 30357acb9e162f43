"""One kind of object, kept current by a list and a watch.

    list ──> items ──> watch from the list's version ──> ADDED, MODIFIED, DELETED, BOOKMARK ──> the watch ends ──┐
      ^                     ^                                                                                    │
      │                     └───────── from the version of the last event or bookmark ───────────────────────────┤
      └───────────────────── 410 Gone: the version is too old, or the list is too old ───────────────────────────┘

Each item is kept as `keep` returns it, by UID: a cluster has far more pods of others than pods of ours, and only a few
numbers of those count. `entered` is called for each item that is new or changed, `missing` for each item that was there
and is not any more, once. `keep` only looks: the first pages of a list may come to nothing.

An answer to a request of our own may come before the watch tells the same: `put` adds it at once. A list that began
before does not remove it again, and an event that was overtaken does not bring a deleted object back.

A watch may hang, or be served by an API server that lags. `renew` lists anew, for a decision from the absence of an
object.

An event may get lost on its way, and after a restore of etcd no event tells what is not there any more. So each watch
lists anew now and then, at a time of its own, and heals by that. An item that is as it was is not `entered` again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

import msgspec
import structlog

from oarlock.backends.kubernetes.apiserver import answers, client, nesting, objects
from oarlock.spec import errors

WATCH_S = (240, 480)
"""A watch is asked to end after so many seconds, at random between these, so that servers share the load."""
RELIST_S = (600.0, 1200.0)
"""A list is replaced by a new one after so many seconds, at random between these, so that no two watches do so at the
same time for long."""
PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 5.0
REMEMBERED = 10_000
"""UIDs of deleted objects that are remembered, so that a late answer does not bring one back."""

O = TypeVar("O", bound=objects.HasMeta)  # noqa: E741  (an object)
K = TypeVar("K")

_log = structlog.get_logger(__name__)


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Watch(Generic[O, K]):
    """`items` is current once `synced` is set; `fresh_at` is when it was last known to be so (monotonic)."""

    def __init__(
        self,
        api: client.Client,
        path: str,
        kind: type[O],
        keep: Callable[[O], K | None],
        *,
        monotonic: Callable[[], float],
        params: client.Params | None = None,
        changed: Callable[[], object] = lambda: None,
        entered: Callable[[K], object] = lambda item: None,
        missing: Callable[[str, K, O | None], object] = lambda uid, was, last: None,
        pause_most_s: float = PAUSE_MOST_S,
    ) -> None:
        self.items: dict[str, K] = {}
        self.synced = asyncio.Event()
        self.fresh_at = 0.0
        self._api = api
        self._path = path
        self._kind = kind
        self._keep = keep
        self._monotonic = monotonic
        self._params = dict(params or {})
        self._changed = changed
        self._entered = entered
        self._missing = missing
        self._pause_most_s = pause_most_s
        self._version = ""
        self._relist_at = 0.0  # monotonic
        self._put: dict[str, None] = {}  # UIDs of items that `put` added during a list
        self._listing = False
        self._deleted: dict[str, None] = {}
        self._renewals: list[asyncio.Future[None]] = []
        self._asked = asyncio.Event()

    def put(self, found: O) -> None:
        """Add an object that the API server has just returned, unless the watch knows more."""
        uid = found.metadata.uid
        if self._listing:
            self._put[uid] = None
        if uid not in self.items and uid not in self._deleted:
            self._set(found)

    async def run(self) -> NoReturn:
        """Follow the cluster until cancelled. Whatever fails is tried again."""
        failures = 0
        while True:
            try:
                while not self._version or self._renewals or self._monotonic() >= self._relist_at:
                    await self._list()
                await self._follow_until_asked()
                failures = 0
                await asyncio.sleep(PAUSE_FIRST_S)  # something on the way may end each watch at once
            except errors.Gone:
                self._version = ""
            except errors.OarlockError as error:
                failures += 1
                _log.warning("kubernetes.watch_failed", path=self._path, error=str(error))
                pause_s = min(self._pause_most_s, PAUSE_FIRST_S * 2.0 ** min(failures - 1, 10))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def renew(self) -> None:
        """Return once the items come from a list that began after this call."""
        listed = asyncio.get_running_loop().create_future()
        self._renewals.append(listed)
        self._asked.set()
        await listed

    async def _list(self) -> None:
        """Replace the items by a list that is not older than its request. Where it fails, the watch goes on."""
        self._relist_at = self._monotonic() + random.uniform(*RELIST_S)
        self._asked.clear()
        renewals = list(self._renewals)
        self._put.clear()
        self._listing = True
        try:
            found: dict[str, K] = {}
            version = ""
            async for page in self._api.pages(self._path, self._kind, self._params):
                version = page.metadata.resource_version
                for item in page.items or ():
                    kept = self._keep(item)
                    if kept is not None:
                        known = self.items.get(item.metadata.uid)
                        found[item.metadata.uid] = known if known is not None and known == kept else kept
        finally:
            self._listing = False
        gone = self.items.keys() - found.keys() - self._put.keys()
        for uid in self._put:
            if uid in self.items:
                found.setdefault(uid, self.items[uid])
        before, self.items = self.items, found
        self._version = version
        for uid in gone:
            self._forget(uid, before[uid], None)
        for uid, kept in found.items():
            if before.get(uid) is not kept:
                self._entered(kept)
        self._is_fresh()
        self.synced.set()
        self._changed()
        for listed in renewals:
            self._renewals.remove(listed)
            if not listed.done():
                listed.set_result(None)

    async def _follow_until_asked(self) -> None:
        """Follow the cluster until the watch ends, or is broken off for a list that was asked for or is due."""
        following, asked = (asyncio.ensure_future(one) for one in (self._follow(), self._asked.wait()))
        due_s = self._relist_at - self._monotonic()
        try:
            await asyncio.wait((following, asked), timeout=due_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (following, asked):
                one.cancel()
            [ended, _] = await asyncio.gather(following, asked, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def _follow(self) -> None:
        asked = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": random.randint(*WATCH_S),
        }
        lines = self._api.lines(self._path, asked)
        async with contextlib.aclosing(lines):
            async for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = nesting.decode(line, _Event)
            if event.type == "ERROR":
                raise answers.error(msgspec.json.decode(event.object, type=objects.Status))
            if event.type == "BOOKMARK":  # the object has a version alone; the fields that it must have are null
                self._version = msgspec.json.decode(event.object, type=objects.Bare).metadata.resource_version
                self._is_fresh()
                return
            found = nesting.decode(event.object, self._kind)
        except msgspec.MsgspecError as error:
            raise errors.Unavailable(
                f"an event of a watch cannot be read: {error}", hint="It is read again."
            ) from error
        self._version = found.metadata.resource_version
        self._is_fresh()
        if self._delete(found) if event.type == "DELETED" else self._set(found):
            self._changed()

    def _set(self, found: O) -> bool:
        """Keep the object as it is now. One that no longer counts is missing from then on. Return whether it counts
        or did so.
        """
        uid = found.metadata.uid
        kept = self._keep(found)
        if kept is not None:
            self.items[uid] = kept
            self._entered(kept)
        elif (was := self.items.pop(uid, None)) is not None:
            self._missing(uid, was, found)
        else:
            return False
        return True

    def _delete(self, last: O) -> bool:
        uid = last.metadata.uid
        was = self.items.pop(uid, None)
        if was is None:
            was = self._keep(last)
        self._forget(uid, was, last)
        return was is not None

    def _forget(self, uid: str, was: K | None, last: O | None) -> None:
        self._deleted[uid] = None
        while len(self._deleted) > REMEMBERED:
            del self._deleted[next(iter(self._deleted))]
        if was is not None:
            self._missing(uid, was, last)

    def _is_fresh(self) -> None:
        self.fresh_at = self._monotonic()
