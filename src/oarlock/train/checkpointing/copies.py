"""Copies of a state in memory, from which a checkpoint is written while the training changes the state.

The memory of one copy is used again for the next one: fresh memory costs several times as much as the copying, because
the system gives it out page by page. Huge pages, where the system has them, save a fifth of the copying. Tensors that
share memory share it in the copy too, so that both are stored alike. The memory for a GPU's state is pinned.
"""

from __future__ import annotations

import contextlib
import copy
import mmap
from collections.abc import Mapping
from typing import Any

import torch

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_HUGE_PAGE = 2 << 20


class Copies:
    """The memory for one copy. A new copy overwrites the one before."""

    def __init__(self) -> None:
        self._unused: dict[tuple[int, bool], list[torch.UntypedStorage]] = {}
        self._used: list[tuple[tuple[int, bool], torch.UntypedStorage]] = []
        self._made: dict[tuple[str, int], torch.UntypedStorage] = {}
        self._streams: set[torch.cuda.Stream] = set()  # on which copies from GPUs are under way

    def of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the state, with all its tensors on the CPU."""
        self._unused = {}
        for kind, storage in self._used:
            self._unused.setdefault(kind, []).append(storage)
        self._used, self._made = [], {}
        with torch.no_grad():
            made: dict[str, Any] = self._copied(dict(state))
        for stream in self._streams:
            stream.synchronize()
        self._streams.clear()
        self._unused = {}
        return made

    def _copied(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, dict):
            made = copy.copy(value)  # of its own type, with the versions of the modules that torch hangs on it
            for key, each in value.items():
                made[key] = self._copied(each)
            return made
        if type(value) in (list, tuple):
            return type(value)(self._copied(each) for each in value)
        return copy.copy(value)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        strided = type(tensor) in _PLAIN_TENSORS and tensor.layout is torch.strided
        if not strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return tensor.detach().clone()
        storage = self._storage(tensor.untyped_storage())
        return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
            storage,
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )

    def _storage(self, source: torch.UntypedStorage) -> torch.UntypedStorage:
        place = str(source.device), source.data_ptr()
        if place in self._made:
            return self._made[place]
        kind = source.nbytes(), source.device.type == "cuda"
        unused = self._unused.get(kind)
        held = unused.pop() if unused else _memory(*kind)
        if source.device.type == "cuda":
            held.copy_(source, non_blocking=True)
            self._streams.add(torch.cuda.current_stream(source.device))
        else:
            _copy(source, held)
        self._used.append((kind, held))
        if source.nbytes():
            self._made[place] = held
        return held


def _copy(source: torch.UntypedStorage, held: torch.UntypedStorage) -> None:
    if source.device.type == "cpu" and source.nbytes() % 4 == 0:
        _numbers(held).copy_(_numbers(source))  # bytes take an eighth longer
    else:
        held.copy_(source)


def _numbers(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.float32, device="cpu").set_(storage, 0, (storage.nbytes() // 4,))


def _memory(size: int, pinned: bool) -> torch.UntypedStorage:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if pinned or size < _HUGE_PAGE or advice is None:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned).untyped_storage()
    try:
        pages = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as cause:
        raise MemoryError(f"no memory for a copy of {size} bytes") from cause
    aligned = -torch.frombuffer(pages, dtype=torch.uint8).data_ptr() % _HUGE_PAGE
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(advice, aligned, size // _HUGE_PAGE * _HUGE_PAGE)  # the kernel fills a huge page as a whole
    return torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=aligned).untyped_storage()
