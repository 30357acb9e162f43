"""The reports of checkpoints, in order, by their own thread, because the server may verify one for a long time."""

from __future__ import annotations

import json
import os
import queue
import threading

from oarlock.agent import files
from oarlock.agent.protocol import client
from oarlock.agent.transfers import digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.journal import Journal

MANIFEST_LIMIT_BYTES = 32 << 20
KEPT = "kept"
"""The event that lists the copies left after old ones were removed. The agent itself makes it."""


class Checkpoints:
    """A queue of events and the thread that posts them. `waiting`: the number not answered yet."""

    def __init__(
        self, task: Assignment, connect: Callable[[], client.Client], state: AgentState, journal: Journal
    ) -> None:
        self._task, self._connect, self._state, self._journal = task, connect, state, journal
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.waiting = 0

    def post(self, event: dict[str, Any]) -> None:
        self.waiting += 1
        self._queue.put(event)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        server = self._connect()
        try:
            while True:
                event = self._queue.get()
                try:
                    self._send(server, event)
                except (OSError, ValueError, RecursionError) as error:
                    self._journal.say(f"checkpoint {event.get('path')} was not reported: {error}")
                self.waiting -= 1
        except client.Stale:
            self._state.mark_stale()

    def _send(self, server: client.Client, event: dict[str, Any]) -> None:
        if event.get("event") == KEPT:
            server.ask("POST", "/checkpoints/kept", {"names": event["names"]})
            return
        path = str(event.get("path") or "")
        manifest = event.get("manifest") or manifest_of(path, event.get("manifest_sha256"))
        answer = server.ask("POST", "/checkpoints", dict(event, path=path, manifest=manifest))
        if not answer.ok:
            said = answer.json().get("error", "")
            self._journal.say(f"checkpoint {path} was refused with {answer.status}: {said}")


def verified(directory: str, expected: object, *, partly: bool = False) -> object:
    """Read every shard and return the manifest. ValueError or OSError if a digest does not match.

    `partly`: the shards of other tasks' ranks are not here.
    """
    manifest = manifest_of(directory, expected)
    shards = manifest.get("shards") if isinstance(manifest, dict) else None
    if not isinstance(shards, list) or not shards:
        raise ValueError("its manifest names no shards")
    verify(directory, shards, partly=partly)
    return manifest


def verify(directory: str, shards: list[Any], *, partly: bool = False) -> None:
    """Read the shards. ValueError or OSError if a digest does not match, or none is there."""
    here = os.listdir(directory) if partly else None
    for shard in shards:
        name, sha256 = (str(shard.get(field)) for field in ("file", "sha256")) if isinstance(shard, dict) else ("", "")
        if here is not None and name not in here:
            continue
        if digests.sha256_of(files.inside(directory, name)) != sha256:
            raise ValueError(f"{name} does not have the digest that the manifest gives")


def manifest_of(directory: str, expected: object) -> object:
    """Return the manifest. ValueError if it cannot be read, or is not the announced one."""
    path = os.path.join(directory, "manifest.json")
    text = files.read_bytes(path, MANIFEST_LIMIT_BYTES)
    if not text:
        raise ValueError("its manifest cannot be read")
    if expected and digests.sha256_of(path) != str(expected).rpartition(":")[2]:
        raise ValueError("its manifest does not have the digest that was announced")
    return json.loads(text.decode("utf-8"))
