"""The machine's GPUs, through NVML where there is one, and the words by which jobs ask for them.

Everything that knows NVIDIA is in this file. Without nvidia-ml-py, without a driver or without a GPU there are none.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class Gpu(msgspec.Struct, frozen=True):
    """`index` counts in the order of the bus, as NVML does and CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


class Gpus(Protocol):
    def look(self) -> Sequence[Gpu]:
        """Return the devices that work now. Blocks; may be called from any thread, one at a time."""
        ...


class Pretended:
    """A fixed list: none, or the devices of a test."""

    def __init__(self, gpus: Sequence[Gpu] = ()) -> None:
        self.gpus = gpus

    def look(self) -> Sequence[Gpu]:
        return self.gpus


class Nvml:
    """`visible` is the server's own CUDA_VISIBLE_DEVICES: devices hidden from the server are not handed out."""

    def __init__(self, visible: str | None = None, library: Any = None) -> None:
        self._visible = visible
        self._library = library  # `pynvml`, imported at the first look
        self._ready: bool | None = None

    def look(self) -> Sequence[Gpu]:
        if self._ready is None:
            self._ready = self._start()
        return visible(self._ask(), self._visible) if self._ready else []

    def _start(self) -> bool:
        try:
            if self._library is None:
                if sys.platform == "linux":
                    ctypes.CDLL("libnvidia-ml.so.1")  # without the driver, the package need not be imported
                import pynvml  # only machines with a GPU need the package

                self._library = pynvml
            self._library.nvmlInit()
        except (ImportError, OSError):
            return False
        except self._library.NVMLError:
            return False
        return True

    def _ask(self) -> list[Gpu]:
        nvml = self._library
        found: list[Gpu] = []
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            return []
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
                found.append(
                    Gpu(index, _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)), memory)
                )
            except nvml.NVMLError:
                continue  # fallen off the bus: it is not there
        return found


def visible(found: Sequence[Gpu], variable: str | None) -> list[Gpu]:
    """Return the devices that CUDA_VISIBLE_DEVICES names: by index or beginning of a uuid, up to the first unknown
    name.
    """
    if variable is None:
        return list(found)
    kept: list[Gpu] = []
    for word in (word.strip() for word in variable.split(",")):
        named = [gpu for gpu in found if _names(word, gpu)]
        if len(named) != 1 or named[0] in kept:
            break
        kept.append(named[0])
    return sorted(kept, key=lambda gpu: gpu.index)


def _names(word: str, gpu: Gpu) -> bool:
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
