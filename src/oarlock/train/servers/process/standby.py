"""The newest state of one parameter server in memory that outlives its process, for its successor on the same host.

A file of /dev/shm holds two versions of the weights and of the optimizer's state: the present one, which updates change
in place, and a copy of it. An update begins once the copy is complete, and after the update a thread makes the next
copy, while the workers compute. So a server that is killed at any moment leaves its newest complete version: within an
update that is the copy, and else the present one. Each version has a stamp, which is cleared before the first change
and set after the last one.

While workers see the weights (showing.py), these lie in a file of their own, beside it.

Only a server with an optimizer that keeps state needs this: weights alone come back from the workers. The other
conditions are enough free memory in /dev/shm, parameters on the CPU, and no tables that travel by row, of which an
update changes little. Where one is missing, and on another host, the successor has the server's checkpoint
(snapshots.py).

The living server holds a lock on its file. The file is removed when training is over, and at SIGTERM. What a crash
leaves is removed by later processes of the same user (segments.py).
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import json
import math
import mmap
import os
import queue
import secrets
import stat
import struct
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from oarlock.train.servers.model import openings, optimizers
from oarlock.train.servers.process import pushes
from oarlock.train.servers.wire import memory
from oarlock.train.sharing import segments

PRESENT, COPY = 0, 1
_STAMP = struct.Struct("<QII")  # one more than the version, 0 while there is none; length and checksum of the words
_WORDS_AT = 4096
_ALIGNED = 64

Spec = tuple[str, tuple[int, ...]]
"""The type and the shape of a tensor."""


def place(token: str, number: int) -> Path | None:
    """Return the file of server `number`, which none finds without the token of the attempt. None where no memory may
    be shared.
    """
    mark = hashlib.sha256(f"{number} {token}".encode()).hexdigest()[:32]
    return segments.FOLDER / f"{segments.KEPT}{mark}" if segments.place() else None


def fits(opening: openings.Opening, device: torch.device) -> bool:
    """Return whether the state of such a server may be kept."""
    return device.type == "cpu" and not any(piece.by_row for piece in opening.pieces)


def shown(path: Path) -> Path:
    """Return the file of the weights that workers see."""
    return path.with_name(f"{path.name}{segments.SHOWN}")


def read(path: Path) -> dict[str, Any] | None:
    """Return the values of `Shard.saved` and the words of `Standby`, or None where no complete version is there."""
    try:
        file, mapped = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the predecessor lives
            return _version(path, mapped, PRESENT) or _version(path, mapped, COPY)
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, RuntimeError, struct.error) as cause:
        sys.stderr.write(f"oarlock.train: {path} cannot be read ({cause}): the server's checkpoint takes its place\n")
        return None


def remove(path: Path) -> None:
    """Remove the files of a server."""
    for each in (path, shown(path)):
        with contextlib.suppress(OSError):
            each.unlink()


class Standby:
    """The memory in which a shard keeps its state. The shard calls `begin` before each change and `end` after it, one
    at a time. `opening` is the mark by which a successor knows that it has the same model.
    """

    def __init__(self, path: Path, opening: str) -> None:
        self._path, self._opening = path, opening
        self._versions: _Versions | None = None
        self._placed: list[Any] = []  # the values of the optimizer's state
        self._entries = "[]"
        self._over = False
        self._is_named = True  # there may be files, those of a predecessor too
        self._copied = threading.Event()
        self._copied.set()
        self._copies: queue.SimpleQueue[tuple[_Versions, pushes.Flats, int, bytes] | None] = queue.SimpleQueue()
        threading.Thread(target=self._copy, daemon=True).start()

    def name_beside(self) -> Path:
        """Return the name for the file of weights that workers see, which exists from now on."""
        self._is_named = True
        return shown(self._path)

    def begin(self) -> None:
        """Wait for the copy of the present version, which is not complete from now on."""
        if self._versions is not None and not self._over:
            self._copied.wait()
            self._versions.clear(PRESENT)

    def end(
        self,
        version: int,
        told: Mapping[str, Any],
        weights: pushes.Flats,
        state: Sequence[optimizers.Slot],
        *,
        seen: bool,
    ) -> pushes.Flats:
        """Keep this version, and return the weights in their place: the kept memory, unless workers see them where they
        are. Values of the `state` move there, too. `told` are plain values. Without enough memory nothing is kept.
        """
        if self._over:
            return weights
        try:
            return self._end(version, told, weights, state, seen=seen)
        except (OSError, KeyError, ValueError) as cause:
            self.forget()
            self._over = True
            sys.stderr.write(
                f"oarlock.train: the server's state is not kept in shared memory ({cause}): a server that takes its "
                "place begins with its checkpoint\n"
            )
            return weights

    def forget(self) -> None:
        """Remove the files. The memory stays as long as it is used."""
        if self._versions is not None:
            self._copied.wait()
        self.unname()
        if self._versions is not None:
            self._versions.close()
        self._versions, self._placed, self._is_named = None, [], False

    def unname(self) -> None:
        """Remove the names of the files, unless another server has taken them."""
        if self._is_named and (self._versions is None or self._versions.has_its_name()):
            remove(self._path)

    def close(self) -> None:
        """Keep nothing more, and leave the files."""
        self._over = True
        self._copies.put(None)

    def _end(
        self,
        version: int,
        told: Mapping[str, Any],
        weights: pushes.Flats,
        state: Sequence[optimizers.Slot],
        *,
        seen: bool,
    ) -> pushes.Flats:
        moved = len(state) != len(self._placed) or any(
            slot.values[slot.name] is not each for slot, each in zip(state, self._placed)
        )
        if moved:
            self._entries = json.dumps(optimizers.entries_of(state))
        shape = {"flats": [_spec(each) for each in weights], "entries": self._entries, "seen": seen}
        text = repr({**told, **shape, "opening": self._opening, "version": version}).encode()
        versions = self._versions
        if moved or versions is None or len(text) > versions.most_words:
            versions = self._made(weights, state, text)
        if not seen:
            for place, ours in zip(versions.weights[PRESENT], weights):
                if place.data_ptr() != ours.data_ptr():
                    place.copy_(ours)
            weights = versions.weights[PRESENT]
        versions.stamp(PRESENT, version, text)
        if not versions.in_place:
            versions.put_in_place()
            if self._versions is not None:
                self._versions.close()
        self._versions, self._is_named = versions, True
        if not seen:
            with contextlib.suppress(OSError):
                shown(self._path).unlink()
        self._copied.clear()
        self._copies.put((versions, weights, version, text))
        return weights

    def _made(self, weights: pushes.Flats, state: Sequence[optimizers.Slot], text: bytes) -> _Versions:
        """Return memory for these tensors, with the state in it."""
        tensors = [slot for slot in state if slot.is_tensor]
        specs = [_spec(each) for each in weights], [_spec(slot.values[slot.name]) for slot in tensors]
        versions = self._versions
        if versions is None or versions.specs != specs or len(text) > versions.most_words:
            versions = _Versions(self._path, specs, 2 * len(text) + _WORDS_AT)
        for slot, place in zip(tensors, versions.state[PRESENT]):
            if slot.values[slot.name] is not place:
                slot.values[slot.name] = place.copy_(slot.values[slot.name])
        self._placed = [slot.values[slot.name] for slot in state]
        return versions

    def _copy(self) -> None:
        """Make a copy of each version."""
        while (asked := self._copies.get()) is not None:
            versions, weights, version, text = asked
            try:
                versions.clear(COPY)
                for place, ours in zip(versions.weights[COPY], weights):
                    place.copy_(ours)
                versions.bodies[COPY].copy_(versions.bodies[PRESENT])
                versions.stamp(COPY, version, text)
            finally:
                self._copied.set()


class _Versions:
    """A new file with two versions of tensors of these types and shapes: the weights, and the optimizer's state. It has
    a name of its own until `put_in_place`. Raises OSError where there is not enough memory.
    """

    def __init__(self, path: Path, specs: tuple[list[Spec], list[Spec]], most_words: int) -> None:
        self.specs, self.most_words, self.in_place = specs, -(-most_words // _ALIGNED) * _ALIGNED, False
        self._path, self._name = path, path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        _, weights_bytes = _offsets(specs[0])
        _, state_bytes = _offsets(specs[1])
        size = _WORDS_AT + 2 * (self.most_words + weights_bytes + state_bytes)
        segments.spare(size)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._name, flags, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._file, 0, size)
            self._map = mmap.mmap(self._file, size)
        except OSError:
            self._name.unlink()
            os.close(self._file)
            raise
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.weights: list[pushes.Flats] = []
        self.state: list[list[torch.Tensor]] = []
        self.bodies: list[torch.Tensor] = []
        """The bytes of each version's state."""
        for which in (PRESENT, COPY):
            start = _start(which, self.most_words, weights_bytes + state_bytes)
            self.weights.append(_tensors(whole[start : start + weights_bytes], specs[0]))
            self.bodies.append(whole[start + weights_bytes : start + weights_bytes + state_bytes])
            self.state.append(_tensors(self.bodies[which], specs[1]))

    def clear(self, which: int) -> None:
        """Say that this version is not complete."""
        _STAMP.pack_into(self._map, which * _STAMP.size, 0, 0, 0)

    def stamp(self, which: int, version: int, words: bytes) -> None:
        """Say that this version is complete."""
        start = _WORDS_AT + which * self.most_words
        self._map[start : start + len(words)] = words
        struct.pack_into("<Q", self._map, 2 * _STAMP.size, self.most_words)
        _STAMP.pack_into(self._map, which * _STAMP.size, version + 1, len(words), zlib.crc32(words))
        os.utime(self._file)  # what is old and not locked was left by a crash

    def put_in_place(self) -> None:
        """Take the place of the server's last file."""
        self._name.replace(self._path)
        self.in_place = True

    def has_its_name(self) -> bool:
        with contextlib.suppress(OSError):
            return self._path.stat().st_ino == os.fstat(self._file).st_ino
        return False

    def close(self) -> None:
        os.close(self._file)


def _opened(path: Path) -> tuple[int, mmap.mmap]:
    """Return the descriptor and the memory of a file. Raises OSError unless it is a plain file of this user alone."""
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise OSError("it is not a plain file of this user alone")
        return file, mmap.mmap(file, found.st_size)
    except (OSError, ValueError):
        os.close(file)
        raise


def _version(path: Path, mapped: mmap.mmap, which: int) -> dict[str, Any] | None:
    """Return one version of a file, None where it is not complete."""
    stamp, length, checksum = _STAMP.unpack_from(mapped, which * _STAMP.size)
    (most_words,) = struct.unpack_from("<Q", mapped, 2 * _STAMP.size)
    start = _WORDS_AT + which * most_words
    text = mapped[start : start + length]
    if not stamp or zlib.crc32(text) != checksum:
        return None
    values: dict[str, Any] = ast.literal_eval(text.decode())
    weights = values["flats"]
    state = [(dtype, tuple(shape)) for _, _, dtype, shape, _ in json.loads(values["entries"]) if dtype is not None]
    weights_bytes, state_bytes = _offsets(weights)[1], _offsets(state)[1]
    start = _start(which, most_words, weights_bytes + state_bytes)
    whole = torch.frombuffer(mapped, dtype=torch.uint8)
    flats = _tensors(whole[start : start + weights_bytes], weights)
    if values["seen"] and which == PRESENT:
        try:
            file, seen = _opened(shown(path))
        except OSError:
            return None
        os.close(file)
        flats = _packed(torch.frombuffer(seen, dtype=torch.uint8), weights)
    tensors = _tensors(whole[start + weights_bytes : start + weights_bytes + state_bytes], state)
    return {**values, "weights": [each.clone() for each in flats], "tensors": [each.clone() for each in tensors]}


def _spec(tensor: torch.Tensor) -> Spec:
    return memory.name_of(tensor.dtype), tuple(tensor.shape)


def _start(which: int, most_words: int, body_bytes: int) -> int:
    return _WORDS_AT + 2 * most_words + which * body_bytes


def _bytes(spec: Spec) -> int:
    return memory.TYPES[spec[0]].itemsize * math.prod(spec[1])


def _offsets(specs: Sequence[Spec]) -> tuple[list[int], int]:
    """Return where each of these tensors begins, and the bytes of all."""
    found, taken = [], 0
    for spec in specs:
        found.append(taken)
        taken += -(-_bytes(spec) // _ALIGNED) * _ALIGNED
    return found, taken


def _tensors(body: torch.Tensor, specs: Sequence[Spec]) -> list[torch.Tensor]:
    return [
        body[offset : offset + _bytes(spec)].view(memory.TYPES[spec[0]]).view(spec[1])
        for offset, spec in zip(_offsets(specs)[0], specs)
    ]


def _packed(body: torch.Tensor, specs: Sequence[Spec]) -> list[torch.Tensor]:
    """Return tensors that lie without gaps, as those that workers see."""
    found, taken = [], 0
    for spec in specs:
        found.append(body[taken : taken + _bytes(spec)].view(memory.TYPES[spec[0]]).view(spec[1]))
        taken += _bytes(spec)
    return found
