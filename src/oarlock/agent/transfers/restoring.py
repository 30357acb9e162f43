"""The fetching of a remote checkpoint to this disk, before the processes start.

The agent fetches the best checkpoint that the server offers and that can be read. One that is in the checkpoints'
directory already is used from there. Tasks that share the directory fetch it once, under a lock. A rename makes the
checkpoint appear as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time

from oarlock.agent import files
from oarlock.agent.protocol import client
from oarlock.agent.transfers import helpercommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.journal import Journal

MANIFEST_LIMIT_BYTES = 32 << 20
LOCK_POLL_S = 0.1
LOCK = ".restoring.lock"
ATTEMPT = re.compile(r"^attempt-\d+-")


def is_remote(path: str) -> bool:
    return not path.startswith("/")


def local_paths(task: Assignment, offered: list[str]) -> list[str]:
    """Return the paths on this machine of the `offered` checkpoints that need no fetching, best first."""
    places = [(path, local_path(task, path) if is_remote(path) else path) for path in offered]
    return [place for path, place in places if place is not None and (not is_remote(path) or complete(place))]


class Restoring:
    def __init__(
        self, task: Assignment, helper: helpercommand.HelperCommand, state: AgentState, journal: Journal
    ) -> None:
        self._task, self._helper, self._state, self._journal = task, helper, state, journal

    def bring(self, offered: list[str], env: dict[str, str]) -> list[str]:
        """Fetch one checkpoint, trying the best first; return the paths for the processes, best first.

        Failed if none of the offered checkpoints can be fetched: the agent must not decide to start from the first
        step.
        """
        os.makedirs(self._task.checkpoints, exist_ok=True)
        with self._alone():
            failures = []
            for number, path in enumerate(offered):
                if not is_remote(path):
                    if complete(path):
                        break
                    continue
                try:
                    self._fetch(path, env)
                    break
                except (helpercommand.Failed, OSError, ValueError) as error:
                    failures.append(f"{path}: {error}")
                    self._journal.say(f"checkpoint {path} cannot be restored: {error}")
                    self._state.detail = f"checkpoint {number + 1}/{len(offered)} cannot be fetched"
            found = local_paths(self._task, offered)
        if not found and failures:
            raise helpercommand.Failed("download_failed", f"no checkpoint can be restored: {failures[0]}")
        return found

    def _fetch(self, url: str, env: dict[str, str]) -> None:
        place = local_path(self._task, url)
        if place is None:
            raise ValueError("its name is not valid for a directory")
        if complete(place):
            return
        name = os.path.basename(place)
        draft = os.path.join(self._task.checkpoints, f".restoring-{name}")
        _remove(draft)
        self._helper.run(["fetch", url, draft], f"checkpoint {name}", "download_failed", env, "restore")
        if not complete(draft):
            raise ValueError("the fetched files do not match their manifest")
        _remove(place)  # incomplete, and of the same name
        os.rename(draft, place)
        _remove(os.path.join(self._task.checkpoints, f"..restoring-{name}.oarlock-fetch"))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock this directory for one task at a time. The lock ends with its process."""
        with open(os.path.join(self._task.checkpoints, LOCK), "a", encoding="utf-8") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._state.detail = "waiting for another task that restores a checkpoint"
                    if self._state.closing:
                        raise client.Abandoned from None
                    time.sleep(LOCK_POLL_S)
            yield


def local_path(task: Assignment, url: str) -> str | None:
    """Return the local path for a remote checkpoint; None if it cannot have one. Another job's counts as attempt 0."""
    place, _, name = url.rstrip("/").rpartition("/")
    if place.rpartition("/")[2] != task.key.job:
        name = ATTEMPT.sub("attempt-0-", name)
    try:
        return files.inside(task.checkpoints, name)
    except ValueError:
        return None


def complete(path: str) -> bool:
    """Return whether the manifest is there and every shard has its size. The library checks the digests."""
    try:
        text = files.read_bytes(os.path.join(path, "manifest.json"), MANIFEST_LIMIT_BYTES).decode("utf-8")
        shards = json.loads(text)["shards"]
        return all(os.path.getsize(files.inside(path, shard["file"])) == shard["bytes"] for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _remove(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)
