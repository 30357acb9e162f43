"""Claims on the real GPUs of this machine, over all homes: one for each device, passed to the agent that uses it. Tasks
that hold shares of a device have a claim each, and claims of one home may stand side by side.

The agent's copy of the claim outlives this server; this server's copy outlives the agent, until all of its task is
confirmed gone. A device that another home has claimed is not listed among our node's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence

from oarlock.backends.local import gpus
from oarlock.spec import attempts, errors

CLAIM_TRIES = 20
CLAIM_PAUSE_S = 0.05
"""Another home that only looks whether a device is free has it for a moment."""

Claim = Callable[[str], int | None]


class Devices:
    """`claim` takes a device whole, `share` a share of it for this home."""

    def __init__(self, found: gpus.Gpus, claim: Claim, share: Claim) -> None:
        self._found = found
        self._claim = claim
        self._share = share
        self._held: dict[attempts.TaskKey, dict[str, int]] = {}

    def offered(self, ours: Collection[str]) -> list[gpus.Gpu]:
        """Return the devices that are free or our own. `ours` are the uuids that our tasks have by their own record."""
        return [gpu for gpu in self._found.look() if gpu.uuid in ours or self._is_free(gpu.uuid)]

    def exist(self) -> bool:
        return bool(self._found.look())

    def uuids(self, indexes: Collection[int]) -> tuple[str, ...]:
        """Return the devices by their indexes. Raise Unavailable for one that is not there (any more)."""
        found = {gpu.index: gpu.uuid for gpu in self._found.look()}
        missing = [index for index in indexes if index not in found]
        if missing:
            raise errors.Unavailable(f"GPU {missing[0]} is not there", hint="Look at `nvidia-smi`; it is tried again.")
        return tuple(found[index] for index in indexes)

    def take(self, key: attempts.TaskKey, uuids: Sequence[str], *, shared: bool = False) -> list[int]:
        """Claim these devices, or a share of each, for a task and return the descriptors for its agent.

        Raises Unavailable, holding none then.
        """
        held = self._held.setdefault(key, {})
        for uuid in uuids:
            fd = held.get(uuid) or self._claim_soon(uuid, shared)
            if fd is None:
                self.release(key)
                raise errors.Unavailable(
                    f"GPU {uuid} is in use by another Oarlock home on this machine",
                    hint="It is tried again; `oarlock ps` with the other OARLOCK_HOME shows by what.",
                )
            held[uuid] = fd
        return list(held.values())

    def keep(self, key: attempts.TaskKey, uuids: Sequence[str], *, shared: bool = False) -> None:
        """Take over the claims of an agent that is gone while something of the task still runs, where we can."""
        held = self._held.setdefault(key, {}) if uuids else {}
        for uuid in uuids:
            if uuid not in held and (fd := self._try(uuid, shared)) is not None:
                held[uuid] = fd

    def release(self, key: attempts.TaskKey) -> None:
        for fd in self._held.pop(key, {}).values():
            os.close(fd)

    def close(self) -> None:
        for key in list(self._held):
            self.release(key)

    def _is_free(self, uuid: str) -> bool:
        if any(uuid in held for held in self._held.values()):
            return True
        fd = self._try(uuid, False)
        if fd is not None:
            os.close(fd)
        return fd is not None

    def _claim_soon(self, uuid: str, shared: bool) -> int | None:
        for _ in range(CLAIM_TRIES):
            if (fd := self._try(uuid, shared)) is not None:
                return fd
            time.sleep(CLAIM_PAUSE_S)
        return None

    def _try(self, uuid: str, shared: bool) -> int | None:
        try:
            return self._share(f"gpu-{uuid}") if shared else self._claim(f"gpu-{uuid}")
        except OSError as error:
            raise errors.Unavailable(
                f"GPU {uuid} cannot be claimed on this machine: {error}", hint="Look at the locks in /run/lock or /tmp."
            ) from error
