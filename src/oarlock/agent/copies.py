"""Copies whole checkpoints to where the job wants them, and only then lets the server hear of them.

A thread of its own reads the same event files as the shipper, so that a server that is away holds up no copy. What a
process has saved is held by hard links at once: the library may remove it while it is under way. Of those that wait
only the newest is copied. One that cannot be copied is reported where it lies on this machine, which is better than
nowhere; so is the last one where a stop, or a failure, leaves it no time.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import threading

from oarlock.agent import checkpoints, client, errand, events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board
    from oarlock.agent.journal import Journal

LOOK_EVERY_S = 0.2
MEMORY = ".copies-read.json"
"""Remembers which copies were read back, for whichever task removes old ones next."""


class Copies:
    """`begin` with the processes, `finish` once they have ended; `take` gives what may be reported by now."""

    def __init__(self, task: Assignment, errands: errand.Errands, board: Board, journal: Journal) -> None:
        self._task, self._errands, self._board, self._journal = task, errands, board, journal
        wanted = task.checkpoint_copies or {}
        self._to, self._keep = str(wanted.get("to") or "").rstrip("/"), int(wanted.get("keep") or 1)
        self._events = events.Events(task.report, task.nproc)
        self._waiting: Held | None = None
        self._ready: collections.deque[dict[str, Any]] = collections.deque()
        self._env: dict[str, str] = {}
        self._over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def begin(self, secrets: dict[str, str]) -> None:
        self._env = errand.helper_environment(self._task.env, secrets)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> None:
        """Nothing more will be saved: end with what is there now."""
        self._over = True
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        if self.busy:
            self._thread.join(timeout_s)

    def take(self) -> list[dict[str, Any]]:
        """Checkpoint events for the server, oldest first."""
        taken = []
        while self._ready:
            taken.append(self._ready.popleft())
        return taken

    def _run(self) -> None:
        while True:
            over = self._over  # read before the files: what is in them now is then all there will be
            while self._look():
                pass
            held, self._waiting = self._waiting, None
            if held is not None:
                self._copy(held)
                held.release()
            elif over:
                break
            else:
                self._wake.wait(LOOK_EVERY_S)
        shutil.rmtree(self._holding_place(), ignore_errors=True)
        self._board.wake()

    def _look(self) -> bool:
        """Take in what is new; whether there was anything."""
        found = self._events.poll()
        for event in found:
            if self._waiting is not None:
                self._journal.say(f"checkpoint {self._waiting.path} is not copied: a newer one is there")
                self._waiting.release()
            self._waiting = Held(event, self._holding_place())
        return bool(found)

    def _copy(self, held: Held) -> None:
        url = f"{self._to}/{held.name}"
        try:
            manifest = checkpoints.verified(held.place, held.event.get("manifest_sha256"))
            self._errands.run(["store", held.place, url], f"copy of {held.name}", "store_failed", self._env, "copy")
        except (errand.Failed, client.Abandoned, OSError, ValueError, RecursionError) as error:
            self._journal.say(f"checkpoint {held.path} was not copied to {self._to}: {error}")
            self._ready.append(held.event)
            return
        self._ready.append(dict(held.event, path=url, manifest=manifest))
        try:
            memory = os.path.join(self._task.checkpoints, MEMORY)
            arguments = ["prune", self._to, "--keep", str(self._keep), "--memory", memory]
            said = self._errands.run(arguments, "removal of old copies", "store_failed", self._env, "prune")
            self._ready.append({"event": checkpoints.KEPT, "names": json.loads(said)["kept"]})
        except (errand.Failed, client.Abandoned) as error:
            self._journal.say(f"old copies in {self._to} were not removed: {error}")
        except (ValueError, KeyError, TypeError) as error:
            self._journal.say(f"the removal of old copies did not say which ones are there: {error!r}")

    def _holding_place(self) -> str:
        key = self._task.key
        return os.path.join(self._task.checkpoints, f".copying-{key.role}-{key.index}")


class Held:
    """A checkpoint's files under links of our own; `place` is its own directory where links cannot be made."""

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
