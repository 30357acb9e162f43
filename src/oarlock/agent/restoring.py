"""Brings a checkpoint that lies elsewhere onto this disk before the processes start.

The best of those that the server offers and that can be had; where it lies in the checkpoints' directory already, it is
used from there. Tasks that share the directory fetch once, by a lock. A checkpoint appears as a whole, by a rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time

from oarlock.agent import client, errand, files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board
    from oarlock.agent.journal import Journal

MANIFEST_LIMIT_BYTES = 32 << 20
LOCK_POLL_S = 0.1
LOCK = ".restoring.lock"
ATTEMPT = re.compile(r"^attempt-\d+-")


def elsewhere(path: str) -> bool:
    return "://" in path


def needed(offered: list[str]) -> bool:
    return any(elsewhere(path) for path in offered)


def at_hand(task: Assignment, offered: list[str]) -> list[str]:
    """What of `offered` can be restored without fetching anything, as paths of this machine, best first."""
    places = [(path, here(task, path) if elsewhere(path) else path) for path in offered]
    return [place for path, place in places if place is not None and (not elsewhere(path) or whole(place))]


class Restoring:
    def __init__(self, task: Assignment, errands: errand.Errands, board: Board, journal: Journal) -> None:
        self._task, self._errands, self._board, self._journal = task, errands, board, journal

    def bring(self, offered: list[str], env: dict[str, str]) -> list[str]:
        """The paths to offer to the processes, best first.

        Fetches from the best on, until one is there. Failed where something was offered and nothing can be had: to
        begin again from the first step is not for us to decide.
        """
        os.makedirs(self._task.checkpoints, exist_ok=True)
        with self._alone():
            failures = []
            for number, path in enumerate(offered):
                if not elsewhere(path):
                    if whole(path):
                        break
                    continue
                try:
                    self._fetch(path, env)
                    break
                except (errand.Failed, OSError, ValueError) as error:
                    failures.append(f"{path}: {error}")
                    self._journal.say(f"checkpoint {path} cannot be restored: {error}")
                    self._board.detail = f"checkpoint {number + 1}/{len(offered)} cannot be fetched"
            found = at_hand(self._task, offered)
        if not found and failures:
            raise errand.Failed("download_failed", f"no checkpoint can be restored: {failures[0]}")
        return found

    def _fetch(self, url: str, env: dict[str, str]) -> None:
        place = here(self._task, url)
        if place is None:
            raise ValueError("it has no name that a directory could have")
        if whole(place):
            return
        name = os.path.basename(place)
        draft = os.path.join(self._task.checkpoints, f".restoring-{name}")
        _remove(draft)
        self._errands.run(["fetch", url, draft], f"checkpoint {name}", "download_failed", env, "restore")
        if not whole(draft):
            raise ValueError("what was fetched is not what its manifest says")
        _remove(place)  # torn, and of the same name
        os.rename(draft, place)
        _remove(os.path.join(self._task.checkpoints, f"..restoring-{name}.oarlock-fetch"))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One task at a time in this directory; the lock dies with its process."""
        with open(os.path.join(self._task.checkpoints, LOCK), "a", encoding="utf-8") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._board.detail = "waiting for another task that restores a checkpoint"
                    if self._board.closing:
                        raise client.Abandoned from None
                    time.sleep(LOCK_POLL_S)
            yield


def here(task: Assignment, url: str) -> str | None:
    """Where a checkpoint of another place lies on this machine, or would. One of another job counts as of attempt 0."""
    place, _, name = url.rstrip("/").rpartition("/")
    if place.rpartition("/")[2] != task.key.job:
        name = ATTEMPT.sub("attempt-0-", name)
    try:
        return files.inside(task.checkpoints, name)
    except ValueError:
        return None


def whole(path: str) -> bool:
    """Whether the manifest is there and every shard has its size. Digests are the library's: it reads all bytes."""
    try:
        text = files.read_bytes(os.path.join(path, "manifest.json"), MANIFEST_LIMIT_BYTES).decode("utf-8")
        shards = json.loads(text)["shards"]
        return all(os.path.getsize(files.inside(path, shard["file"])) == shard["bytes"] for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _remove(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)
