"""The checkpoint of one parameter server: its weights and its optimizer's state, in a file that outlives its process.

The file belongs to an attempt. It is written beside the training, for a tenth of the time at most, and replaced by a
rename: a server that is killed at any moment leaves a whole one. It is not synced, because it is for the loss of a
process; for the loss of a machine there are the job's own checkpoints. After a restart the workers bring the weights up
to date, so that only the optimizer's state is as old as the file.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from oarlock.train.servers.process import shard

_IDLE_TIMES = 9  # the rest after a write, in units of its duration


def place(checkpoints: str, attempt: int, number: int) -> Path:
    """Return the file of server `number`, in the job's directory of checkpoints."""
    return Path(checkpoints) / f".servers-{attempt}" / f"server-{number}.pt"


def read(path: Path) -> dict[str, Any] | None:
    """Return the values of `Snapshots.write`, or None where there is no file that can be read."""
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as cause:  # noqa: BLE001  (torch's reader raises errors of many kinds)
        sys.stderr.write(f"oarlock.train: {path} cannot be read ({cause}): the optimizer begins anew\n")
        return None
    return found


def write(path: Path, values: dict[str, Any]) -> None:
    """Replace the file."""
    with _replacing(path) as temporary:
        torch.save(values, temporary)


def beginning(path: Path) -> int | None:
    """Return the step of `note_beginning`, or None where training has not begun."""
    try:
        return int(_beginning(path).read_text())
    except (OSError, ValueError):
        return None


def note_beginning(path: Path, step: int) -> None:
    """Write down, beside the file, the step at which training began."""
    try:
        with _replacing(_beginning(path)) as temporary:
            temporary.write_text(str(step))
    except OSError as cause:
        sys.stderr.write(f"oarlock.train: {_beginning(path)} cannot be written ({cause}); training continues\n")


def _beginning(path: Path) -> Path:
    return path.with_suffix(".began")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give the name of a file that takes the place of this one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")  # a server that was replaced may write too
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Snapshots:
    """The thread that writes the file of a shard whenever there is a newer version."""

    def __init__(self, path: Path, held: shard.Shard, told: dict[str, Any]) -> None:
        self._path, self._shard, self._told = path, held, told
        self._closed = False
        _clear(path)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._shard.changed:
            self._closed = True
            self._shard.changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        self._written = -1
        while True:
            with self._shard.changed:
                self._shard.changed.wait_for(
                    lambda: self._closed or (self._shard.loaded and self._shard.version > self._written)
                )
                if self._closed:
                    return
                began = time.monotonic()
                values = self._shard.saved()
            self._written = int(values["version"])
            try:
                write(self._path, {**self._told, **values})
            except (OSError, RuntimeError) as cause:
                sys.stderr.write(
                    f"oarlock.train: the server's checkpoint was not saved ({cause}); training continues\n"
                )
            with self._shard.changed:
                rest = _IDLE_TIMES * (time.monotonic() - began)
                self._shard.changed.wait_for(lambda: self._closed, timeout=rest)


def remove(path: Path) -> None:
    """Remove the file, once training is over."""
    with contextlib.suppress(OSError):
        _beginning(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        _clear(path)
        path.parent.rmdir()


def _clear(path: Path) -> None:
    """Remove what servers left that were killed while they wrote."""
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        left.unlink(missing_ok=True)
