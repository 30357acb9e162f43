"""Who we are among the processes that train together.

What torchrun or Oarlock put into the environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) becomes a
`World`. With none of them there is a world of one, without a process group, and every exchange below is the identity:
code that uses a `World` never asks whether it is alone.

The library's own small exchanges travel in a gloo group of their own, between CPUs: they neither wait for the GPU nor
mix with the order of the model's collectives.
"""

from __future__ import annotations

import atexit
import datetime as dt
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oarlock.train import errors

if TYPE_CHECKING:
    import torch

TIMEOUT_S = 1800.0
SHARED_BACKEND = "gloo"
"""Where GPUs are shared two processes of a gang may be on one, which NCCL refuses."""


@dataclass(frozen=True)
class World:
    """One process's place: `rank` of `world_size`, `local_rank` on its host, the device it computes on."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def gather(self, value: object) -> list[Any]:
        """Every rank's `value`, in rank order, on every rank. All ranks must call it."""
        if self.world_size == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.world_size
        distributed.all_gather_object(values, value, group=_control)
        return values

    def start_largest(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        """Begin to find the largest over all ranks of each of these integers; what is returned waits and gives them.

        All ranks must call it, with as many numbers, and in the same order as their other exchanges.
        """
        if self.world_size == 1:
            return lambda: list(numbers)
        import torch
        from torch import distributed

        tensor = torch.tensor(numbers, dtype=torch.int64)
        work = distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=_control, async_op=True)

        def wait() -> list[int]:
            work.wait()
            return [int(number) for number in tensor.tolist()]

        return wait


_world: World | None = None
_control: Any = None
"""The group of the small exchanges. Nobody else holds it: it ends when it is dropped here, and its threads with it."""
_ours = False
"""Whether the group of all was made here: else whoever made it ends it."""
_failed = False


def init(*, backend: str | None = None, device: str | None = None, timeout_s: float = TIMEOUT_S) -> World:
    """Join the other processes; calling it again returns the same World.

    `device` defaults to this process's GPU where there is one, else the CPU; `backend` to nccl for GPUs and gloo for
    CPUs. Raises WorldError when the environment is half set, or when there are fewer GPUs than processes on this host.
    """
    global _world, _control
    if _world is None:
        rank, world_size, local_rank = _place(os.environ)
        fraction = _fraction(os.environ)
        chosen = _device(device, local_rank, shared=fraction is not None)
        _share_cores(os.environ)
        if fraction is not None:
            backend = backend or SHARED_BACKEND
            _bound_memory(chosen, fraction)
        _control = _join(rank, world_size, backend, chosen, timeout_s) if world_size > 1 else None
        _world = World(rank, world_size, local_rank, chosen)
    return _world


def rank() -> int:
    return init().rank


def world_size() -> int:
    return init().world_size


def device() -> torch.device:
    return init().device


def is_chief() -> bool:
    """True on rank 0: the one that writes what is written once."""
    return init().is_chief


def shutdown() -> None:
    """Leave the process group. Not needed: a script that ends well leaves by itself. But NCCL likes to be told."""
    global _world, _control
    if _world is not None and _world.world_size > 1:
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()
    _world = _control = None


def fail() -> None:
    """An exchange may have begun that the peers never join: from now on the end of the script does not wait for it."""
    global _failed
    _failed = True


def _leave(joined: int) -> None:
    """Gloo's threads drop the tensors of an exchange some time after it is over. One that needs Python for that when
    Python has begun to end aborts the process (SIGABRT, "terminate called without an active exception", once in some
    hundred ends), so they are joined before. NCCL is left as it is: its end would wait for that of all others.
    Only the process that has `joined` (its pid) has such threads: a fork of it has none to wait for.
    """
    global _control
    from torch import distributed

    failed = _failed or getattr(sys, "last_value", None) is not None
    if failed or os.getpid() != joined or not distributed.is_initialized():
        return
    if _ours and "nccl" not in distributed.get_backend():
        shutdown()
    elif _control is not None:
        distributed.destroy_process_group(_control)
        _control = None


def _place(environ: os._Environ[str]) -> tuple[int, int, int]:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return 0, 1, 0
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in environ]
    if int(environ.get("WORLD_SIZE", "2")) > 1:
        missing += [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        raise errors.WorldError(
            f"{', '.join(missing)} missing from the environment, where RANK or WORLD_SIZE announce other processes. "
            "Start the script with torchrun or Oarlock, or unset RANK and WORLD_SIZE to run alone."
        )
    rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    if not 0 <= rank < world_size:
        raise errors.WorldError(
            f"RANK={rank} is not one of WORLD_SIZE={world_size} ranks, counted from 0. Check how the script is started."
        )
    return rank, world_size, int(environ.get("LOCAL_RANK", "0"))


def _fraction(environ: os._Environ[str]) -> float | None:
    """How much of its GPU's memory this process may take, where it shares one."""
    told = environ.get("OARLOCK_GPU_FRACTION")
    try:
        fraction = float(told) if told else None
    except ValueError:
        fraction = None
    return fraction if fraction is not None and 0 < fraction < 1 else None


def _bound_memory(device: torch.device, fraction: float) -> None:
    """Beyond its share torch's allocator says that it is out of memory, as it does at the end of a device. What other
    libraries take is not counted.
    """
    import torch

    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def _device(asked: str | None, local_rank: int, *, shared: bool = False) -> torch.device:
    import torch

    if asked is not None and asked != "cuda":
        return torch.device(asked)
    if not torch.cuda.is_available():
        if asked == "cuda":
            raise errors.WorldError("device='cuda' was asked for, but torch sees no GPU. Leave it out to use the CPU.")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if shared:
        local_rank %= count
    if local_rank >= count:
        raise errors.WorldError(
            f"process {local_rank} of this host has no GPU of its own: torch sees {count}. "
            f"Start at most {count} processes a host, or pass init(device='cpu')."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _share_cores(environ: os._Environ[str]) -> None:
    """Without OMP_NUM_THREADS each process would take every core: divide them among the processes of this host."""
    import torch

    neighbours = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    if neighbours > 1 and "OMP_NUM_THREADS" not in environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // neighbours))


def _join(rank: int, world_size: int, backend: str | None, device: torch.device, timeout_s: float) -> object:
    global _ours
    from torch import distributed
    from torch.distributed.nn import functional  # noqa: F401 - imported later, its defaults would hold the group for ever

    timeout = dt.timedelta(seconds=timeout_s)
    if not distributed.is_initialized():
        _ours = True
        distributed.init_process_group(
            backend or ("nccl" if device.type == "cuda" else "gloo"), rank=rank, world_size=world_size, timeout=timeout
        )
    atexit.register(_leave, os.getpid())
    return distributed.new_group(backend="gloo", timeout=timeout)
