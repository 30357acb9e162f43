"""Logged values that are on a GPU, from their copy there until they are numbers.

The script's thread copies each value on its GPU, and marks the place in the stream behind which the copy is made. The
thread of the reports waits for these marks, and for nothing else. Nobody waits for a whole GPU: while a script captures
a CUDA graph, that would end the capture. For the same reason the thread asks CUDA to keep its calls apart from captures
of other threads. This module works without torch.

A value that ranks have divided among them (a DTensor) is taken as it lies here, in the script's thread: to complete it
is an exchange, which belongs to a place that all ranks reach, and never to this thread or to `log`, which a script may
call on one rank alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from oarlock.train import errors
from oarlock.train.reporting.rows import Row

NUMBERS = frozenset((float, int, bool))
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal


class Fetching:
    """The values of one process. `held` belongs to the script's thread, `fetched` may be called from any, in turns."""

    def __init__(self) -> None:
        self._marks: dict[tuple[Any, int], Any] = {}  # an event for each stream of each GPU
        self._streams: dict[Any, Any] = {}  # of each GPU, for the fetching
        self._thread = threading.local()

    def held(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return numbers, and copies on a GPU: the script may change its tensors before they are fetched.

        Raises ReportError for a value that is not one number.
        """
        row = tuple(_held(name, value) for name, value in values.items())
        for device in {value.device for value in row if type(value) not in NUMBERS}:
            if device.type == "cuda":
                self._mark(device)
        return row

    def fetched(self, queued: Sequence[tuple[int, float, tuple[str, ...], tuple[Any, ...]]]) -> list[Row]:
        """Return rows of numbers. Values on GPUs are fetched with one copy for each device."""
        waiting: dict[Any, list[Any]] = {}
        for *_, values in queued:
            for value in values:
                if type(value) not in NUMBERS:
                    waiting.setdefault(value.device, []).append(value)
        numbers: dict[int, float] = {}
        for device, tensors in waiting.items():
            torch = sys.modules["torch"]
            with self._aside(device):
                stacked = torch.stack([tensor.reshape(()).to(torch.float64) for tensor in tensors])
                numbers.update(zip(map(id, tensors), stacked.tolist()))
        if not numbers:
            return [Row(*row) for row in queued]
        return [
            Row(step, when, names, tuple(numbers.get(id(value), value) for value in values))
            for step, when, names, values in queued
        ]

    def keep_apart(self) -> None:
        """Keep the calls of this thread apart from captures of others, once the script uses CUDA."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or getattr(self._thread, "apart", False) or not cuda.is_initialized():
            return
        self._thread.apart = True
        if threading.current_thread() is not threading.main_thread():
            _keep_apart(sys.modules["torch"])

    def _mark(self, device: Any) -> None:
        cuda = sys.modules["torch"].cuda
        stream = cuda.current_stream(device)
        mark = self._marks.get((device, stream.cuda_stream))
        if mark is None:
            mark = self._marks[device, stream.cuda_stream] = cuda.Event(blocking=True)
        mark.record(stream)

    def _aside(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        """Wait for the marks of this device, and return the context of a stream of its own."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        torch = sys.modules["torch"]
        self.keep_apart()
        for (place, _), mark in list(self._marks.items()):
            if place == device:
                mark.synchronize()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._streams[device])
        return context


def _keep_apart(torch: Any) -> None:
    """Let calls of this thread, such as an allocation, go on while another thread captures a CUDA graph."""
    if not torch.version.cuda:
        return
    with contextlib.suppress(OSError, AttributeError):
        runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
        mode = ctypes.c_int(_THREAD_LOCAL)
        runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _held(name: str, value: Any) -> Any:
    if type(value) in NUMBERS:
        return value
    try:
        if not hasattr(value, "detach"):
            return float(value)
        if value.numel() != 1:
            raise errors.ReportError(f"{name} has {value.numel()} elements; log one number, for example {name}.mean()")
        value = _here(name, value.detach())
        return float(value) if value.device.type == "cpu" else value.clone()
    except (TypeError, ValueError) as cause:
        raise errors.ReportError(
            f"{name} is a {type(value).__name__}; log a number or a tensor of one element"
        ) from cause


def _here(name: str, value: Any) -> Any:
    """Return the value of a DTensor that this rank has whole, and other tensors as they are.

    Raise ReportError for a part of a value.
    """
    placements = getattr(value, "placements", None)
    if placements is None:
        return value
    if all(one.is_replicate() or value.device_mesh.size(place) == 1 for place, one in enumerate(placements)):
        return value.to_local()
    raise errors.ReportError(
        f"{name} is divided among the ranks ({', '.join(map(str, placements))}), and only all of them together can "
        f"complete it; log {name}.full_tensor(), which all ranks must call, also those that do not log"
    )
