"""The preemption of our pods by another scheduler, in a cluster where the pods do not say it.

From 1.26 on a pod has the condition `DisruptionTarget` before it is deleted. Before, the scheduler deletes the pod and
writes an Event about it. So for each pod that others delete without such a condition the Events are asked for, a few
times within some seconds: the Event comes after the deletion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors

REASON = "Preempted"
PAUSES_S = (0.2, 1.0, 4.0)
"""Before each time that the Events are asked for. A preempted pod has its grace, 30 s and more, for its end."""
MOST = 1000
"""The most pods that are remembered: those of the gangs that are being removed now."""

_log = structlog.get_logger(__name__)


class Preemptions:
    """Belongs to one event loop. `changed` is called once a reason is known."""

    def __init__(self, api: client.Client, namespace: str, *, changed: Callable[[], object]) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._changed = changed
        self._found: dict[str, str] = {}  # by UID; empty: not known, or not yet
        self._asking: set[asyncio.Task[None]] = set()

    def of(self, uid: str) -> str:
        """Return the words of the scheduler that has preempted this pod; empty where none has, as far as is known."""
        return self._found.get(uid, "")

    def ask(self, uid: str) -> None:
        """Ask once about this pod."""
        if uid in self._found:
            return
        if len(self._found) >= MOST:
            del self._found[next(iter(self._found))]
        self._found[uid] = ""
        task = asyncio.create_task(self._ask(uid), name=f"events of {uid}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _ask(self, uid: str) -> None:
        chosen = {"fieldSelector": f"involvedObject.uid={uid},reason={REASON}"}
        try:
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                for event in await self._api.list(self._path, objects.Event, chosen):
                    self._found[uid] = event.message or REASON
                    self._changed()
                    return
        except errors.OarlockError as error:  # the rights of an older installation
            _log.warning("kubernetes.events_unknown", pod=uid, why=str(error))
