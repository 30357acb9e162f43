"""The story of the jobs for `kubectl describe`: lines of the event log become Events of the objects, in their order.

    the log ──> note(line) ──> a queue ──> the cluster
                                              └──> the cursor: the line up to which the store knows them as written

The next leader, or this server after a restart, begins at the cursor: so it tells the lines that nothing has told, as
those of a job that ended while no server looked at the cluster. The last ones may be written twice, under one name.
A line that cannot be told is reported and passed over: it must not stop each of the next leaders.
They wait while gangs are launched (`looks`), unless too many do.
Events tell a story, and the status the state: where the cluster is much slower than the log, some are left out. The
server's log says so, and how many they were once all others are written.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import structlog

from oarlock.api.customresources import clusterobjects, translation
from oarlock.api.services import provided
from oarlock.spec import errors, events, resources
from oarlock.store import stores

CURSOR = "oarlockjob-events"
MOST_UNTOLD = 10_000
"""Events that wait to be written."""
KEEP_EVERY_S = 2.0
PAUSE_S = 0.2
"""Between two looks whether an Event still waits for launches."""

_log = structlog.get_logger(__name__)


class Telling:
    """Belongs to one event loop. `waits` says whether an Event waits that could have been told since then."""

    def __init__(
        self,
        services: provided.Services,
        objects: clusterobjects.Objects,
        *,
        waits: Callable[[float], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._waits = waits
        self._monotonic = monotonic
        self._store = services.store
        self._report = services.report
        self._objects = objects
        self._untold: asyncio.Queue[tuple[str, resources.Event, float]] = asyncio.Queue(MOST_UNTOLD)
        self._noted = self._told = self._kept = 0  # places in the log
        self._writing = False
        self._left_out = 0  # Events, since the queue was full

    async def begin(self, end: int) -> int:
        """Forget what waits, and return the place in the log up to which Events were told; `end` is the log's end."""
        kept = await self._store.read(lambda view: view.cursor(CURSOR))
        at = end if kept is None else min(kept, end)
        self._untold = asyncio.Queue(MOST_UNTOLD)
        self._noted = self._told = at
        self._kept = at if kept is not None else -1
        self._writing = False
        self._left_out = 0
        return at

    def note(self, record: events.Record, uid: str | None) -> None:
        """Take the next line of the log. `uid` is that of the object of its job; None for one without."""
        self._noted = record.seq
        try:
            event = translation.event(record) if uid is not None else None
        except Exception as error:  # noqa: BLE001 - it is reported
            self._report("resource_failed", {"uid": uid, "error": error})
            return
        if uid is None or event is None:
            return
        if self._untold.full():
            self._leave_out()
        else:
            self._untold.put_nowait((uid, event, self._monotonic()))

    def _leave_out(self) -> None:
        if not self._left_out:
            _log.warning("resources.events_left_out", waiting=self._untold.qsize())
        self._left_out += 1

    def skip(self, seq: int) -> None:
        """Leave out the lines up to this one."""
        self._noted = max(self._noted, seq)

    async def run(self) -> None:
        """Write the Events, and keep the cursor, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell())
            group.create_task(self._keep())

    async def _tell(self) -> None:
        while True:
            uid, event, since = await self._untold.get()
            self._writing = True
            await self._turn(since)
            found = self._objects.items.get(uid)
            if found is not None:
                try:
                    await self._objects.tell(found, event)
                except errors.OarlockError as error:
                    _log.warning("resources.event_not_written", name=found.metadata.name, error=str(error))
                except Exception as error:  # noqa: BLE001 - it is reported
                    self._report("resource_failed", {"uid": uid, "error": error})
            self._told, self._writing = event.number, False
            if self._left_out and self._untold.empty():
                _log.warning("resources.events_were_left_out", count=self._left_out)
                self._left_out = 0

    async def _turn(self, since: float) -> None:
        """Return once it is the turn of an Event that was noted then."""
        while self._waits(since) and self._untold.qsize() < MOST_UNTOLD // 2:  # noqa: ASYNC110 - nothing tells of the end
            await asyncio.sleep(PAUSE_S)

    async def _keep(self) -> None:
        while True:
            at = self._told if self._writing or not self._untold.empty() else self._noted
            try:
                if at > self._kept:
                    await self._store.write(functools.partial(_put, at=at))
                    self._kept = at
            except errors.OarlockError as error:
                _log.warning("resources.cursor_not_kept", error=str(error))
            await asyncio.sleep(KEEP_EVERY_S)


def _put(tx: stores.Transaction, at: int) -> None:
    tx.put_cursor(CURSOR, at)
