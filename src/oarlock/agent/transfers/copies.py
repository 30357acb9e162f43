"""The copying of whole checkpoints to the job's chosen place. The server hears of a checkpoint after it is copied.

A separate thread reads the same event files as the shipper, so that an absent server delays no copy. Each checkpoint is
held by hard links at once, because the library may remove it during the copy. Only the newest checkpoint that waits is
copied. A checkpoint that cannot be copied is reported at its place on this machine. So is the last one, if a stop or a
failure leaves no time for its copy. Where the processes write to the place itself (a volume that the server does not
see), a checkpoint is only verified, and old ones are removed.

If the directory is `separate` for each task, each agent stores the shards of its own ranks, and the chief's agent the
manifest, once every shard is in the store and has its digest. The helper waits for a slow store itself. One that fails
soon is tried again while there is no newer checkpoint. A checkpoint that does not become whole is not reported: its
shards end with their pods.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import threading
import time

from oarlock.agent import files
from oarlock.agent.protocol import client, events
from oarlock.agent.transfers import checkpoints, helpercommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.journal import Journal

LOOK_EVERY_S = 0.2
COPIED = ".copied"
"""The file with the name of the checkpoint that was dealt with last, for the library: it saves the next one then."""
TRIES = 5
TRY_AGAIN_S = 2.0
SOON_S = 60.0
"""A helper that fails later has been patient with the store, or would fail late again."""
MEMORY = ".copies-read.json"
"""The file that records which copies were read back, for the next removal of old copies."""


class Copies:
    """The copies of one task. `begin` with the processes, `finish` after them; `take` returns the events to report."""

    def __init__(
        self, task: Assignment, helper: helpercommand.HelperCommand, state: AgentState, journal: Journal
    ) -> None:
        self._task, self._helper, self._state, self._journal = task, helper, state, journal
        wanted = task.checkpoint_copies or {}
        self._to, self._keep = str(wanted.get("to") or "").rstrip("/"), int(wanted.get("keep") or 1)
        self._separate = bool(wanted.get("separate"))
        kinds = ("checkpoint", "shards") if self._separate else ("checkpoint",)
        self._events = events.Events(task.report, task.nproc, kinds)
        self._waiting: HeldCheckpoint | None = None
        self._ready: collections.deque[dict[str, Any]] = collections.deque()
        self._env: dict[str, str] = {}
        self._over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def begin(self, secrets: dict[str, str]) -> None:
        self._env = helpercommand.helper_environment(self._task.env, secrets)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> None:
        """End after the checkpoints that exist now: no further one will be saved."""
        self._over = True
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        if self.busy:
            self._thread.join(timeout_s)

    def take(self) -> list[dict[str, Any]]:
        """Return the checkpoint events for the server, oldest first."""
        taken = []
        while self._ready:
            taken.append(self._ready.popleft())
        return taken

    def _run(self) -> None:
        while True:
            over = self._over  # read before the files: if it is true, they no longer grow
            while self._look():
                pass
            held, self._waiting = self._waiting, None
            if held is not None:
                if self._separate:
                    self._copy_own(held)
                else:
                    self._copy(held)
                held.release()
            elif over:
                break
            else:
                self._wake.wait(LOOK_EVERY_S)
        shutil.rmtree(self._holding_place(), ignore_errors=True)
        self._state.wake()

    def _look(self) -> bool:
        """Read the new events; return whether there were any."""
        found = self._events.poll()
        for event in found:
            if self._waiting is not None:
                self._journal.say(f"checkpoint {self._waiting.path} is not copied: there is a newer one")
                self._waiting.release()
            self._waiting = HeldCheckpoint(event, self._holding_place())
        return bool(found)

    def _copy(self, held: HeldCheckpoint) -> None:
        url = f"{self._to}/{held.name}"
        try:
            manifest = checkpoints.verified(held.place, held.event.get("manifest_sha256"))
            if url != held.path:  # the processes have not written it there themselves
                self._helper.run(["store", held.place, url], f"copy of {held.name}", "store_failed", self._env, "copy")
        except (helpercommand.Failed, client.Abandoned, OSError, ValueError, RecursionError) as error:
            self._journal.say(f"checkpoint {held.path} was not copied to {self._to}: {error}")
            self._ready.append(held.event)
            return
        self._ready.append(dict(held.event, path=url, manifest=manifest))
        self._prune()

    def _copy_own(self, held: HeldCheckpoint) -> None:
        """Store the shards that are here. The chief's agent waits for the others, and adds the manifest."""
        url = f"{self._to}/{held.name}"
        try:
            if held.event.get("event") == "checkpoint":
                manifest = checkpoints.verified(held.place, held.event.get("manifest_sha256"), partly=True)
                arguments = ["complete", held.place, url, "--memory", self._memory]
                self._helper.run(arguments, f"copy of {held.name}", "store_failed", self._env, "copy")
                self._ready.append(dict(held.event, path=url, manifest=manifest))
                self._prune()
            else:
                checkpoints.verify(held.place, held.event.get("shards") or [])
                self._store(held, url)
        except (helpercommand.Failed, client.Abandoned, OSError, ValueError, RecursionError) as error:
            self._journal.say(f"checkpoint {held.path} was not stored at {url}: {error}")
        try:
            files.write_atomically(os.path.join(self._task.checkpoints, COPIED), held.name)
        except OSError as error:
            self._journal.say(f"{COPIED} could not be written: {error}")

    def _store(self, held: HeldCheckpoint, url: str) -> None:
        """Store the shards, and try it again soon after a failure while there is no newer checkpoint."""
        for left in reversed(range(TRIES)):
            began_at = time.monotonic()
            try:
                self._helper.run(["store", held.place, url], f"copy of {held.name}", "store_failed", self._env, "copy")
                return
            except helpercommand.Failed as error:
                if not left or time.monotonic() - began_at > SOON_S or self._look():
                    raise
                self._journal.say(f"{error}; it is tried again")
                self._wake.wait(TRY_AGAIN_S)

    def _prune(self) -> None:
        try:
            arguments = ["prune", self._to, "--keep", str(self._keep), "--memory", self._memory]
            said = self._helper.run(arguments, "removal of old copies", "store_failed", self._env, "prune")
            self._ready.append({"event": checkpoints.KEPT, "names": json.loads(said)["kept"]})
        except (helpercommand.Failed, client.Abandoned) as error:
            self._journal.say(f"old copies in {self._to} were not removed: {error}")
        except (ValueError, KeyError, TypeError) as error:
            self._journal.say(f"the removal of old copies did not name the copies that are left: {error!r}")

    @property
    def _memory(self) -> str:
        return os.path.join(self._task.checkpoints, MEMORY)

    def _holding_place(self) -> str:
        key = self._task.key
        return os.path.join(self._task.checkpoints, f".copying-{key.role}-{key.index}")


class HeldCheckpoint:
    """A checkpoint held by hard links at `place`. If links cannot be made, `place` is the checkpoint itself."""

    def __init__(self, event: dict[str, Any], holding_place: str) -> None:
        self.event = event
        self.path = str(event.get("path") or "")
        self.name = os.path.basename(self.path.rstrip("/"))
        self._links = os.path.join(holding_place, self.name)
        self.place = self._links if self._linked() else self.path

    def _linked(self) -> bool:
        try:
            shutil.rmtree(self._links, ignore_errors=True)
            os.makedirs(self._links, mode=0o700)
            for entry in os.scandir(self.path):
                if entry.is_file(follow_symlinks=False):
                    os.link(entry.path, os.path.join(self._links, entry.name))
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> None:
        shutil.rmtree(self._links, ignore_errors=True)
