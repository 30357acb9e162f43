"""The place of this process among the processes that train together.

The variables that torchrun or Oarlock set (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) become a `World`.
Without them there is a world of one process, without a process group, and every exchange returns its own input. So code
that uses a `World` need not check whether it is alone.

The library's own small exchanges use a separate gloo group, between CPUs. So they do not wait for the GPU and do not
mix with the model's collectives. In a job with parameter servers they go by way of the first server, and there is no
process group: it would end with its first member.

The world of an elastic job changes: its processes and their ranks are those of the present round (rounds.py).
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import math
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oarlock.train import environment, errors, hostnames, patience

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from oarlock.train.rounds import Round, Rounds
    from oarlock.train.servers.wire import handshake
    from oarlock.train.servers.workers.exchanges import Exchanges

TIMEOUT_S = 1800.0
WATCH_S = 0.2
SHARED_BACKEND = "gloo"
"""The backend for shared GPUs. Two processes of a gang may share a GPU, which NCCL refuses."""


@dataclass
class World:
    """The place of one process: `rank` of `world_size`, `local_rank` on its host, and its device.

    Rank and size change at a step boundary of an elastic job, never within a step.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def gather(self, value: object) -> list[Any]:
        """Return every rank's `value`, which consists of plain Python values, in rank order. All ranks must call it."""
        if self.world_size == 1:
            return [value]
        if joining():
            raise errors.StateError(
                "this process joins others that train already, and they do not repeat what a script exchanges before "
                "its session: exchange it after the session has begun, or give it to the session as state"
            )
        if complete is not None:
            complete()
        if exchanges is not None:
            return exchanges.gather(value)
        with exchanging():
            return _gather(value, self.world_size)

    def start_largest(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        """Start to find, for each of these integers, the largest over all ranks. Return a function that waits for them.

        All ranks must call it with equally many numbers, and in the same order among their other exchanges.
        """
        if self.world_size == 1:
            return lambda: list(numbers)
        if exchanges is not None:
            return exchanges.start_largest(numbers)
        import torch
        from torch import distributed

        tensor = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        with exchanging():
            work = distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=_control, async_op=True)

        def wait() -> list[int]:
            with exchanging():
                finish(work, control=True)
            return [int(number) for number in tensor.tolist()]

        return wait


_world: World | None = None
_control: Any = None
"""The group of the small exchanges. The only reference to it is here: without it the group and its threads end."""
crew: Any = None
"""The ranks of this host, where they share memory: a crews.Crew."""
nodes: Any = None
"""The ranks that compress as one, once a compression has asked for them: a nodes.Nodes."""
exchanges: Exchanges | None = None
"""The exchanges by way of the first parameter server, in the place of a process group."""
rounds: Rounds | None = None
"""The rounds of an elastic job."""
watch: Callable[[], None] | None = None
"""Called again and again while this process waits for an exchange of the process group: parameter servers may need it
meanwhile.
"""
complete: Callable[[], None] | None = None
"""Completes the exchanges of backward passes that an error has ended. Called before other exchanges: the ranks without
an error are in the exchange of that pass.
"""
leaving: list[Callable[[], None]] = []
"""Called by `shutdown` before this process leaves the others: strategies say that they are done."""
_ours = False
"""Whether this module made the default process group. If not, the code that made it ends it."""
_failed = False


def init(*, backend: str | None = None, device: str | None = None, timeout_s: float = TIMEOUT_S) -> World:
    """Join the other processes; calling it again returns the same World.

    `device` defaults to this process's GPU if there is one, else the CPU; `backend` to nccl for GPUs and gloo for CPUs.
    WorldError if only a part of the variables is set, or if this host has fewer GPUs than processes.
    """
    global _world, _control, rounds
    if _world is None:
        given = environment.Processes.read()
        rank, world_size, fraction = given.rank, given.world_size, given.gpu_fraction
        chosen = _device(device, given.local_rank, shared=fraction is not None)
        if not given.threads_chosen:
            _share_cores(given.neighbours)
        if fraction is not None:
            backend = backend or SHARED_BACKEND
            _bound_memory(chosen, fraction)
        rounds = _rounds(os.environ, chosen, backend, timeout_s)
        if rounds is not None and _meet_at_servers():
            patience.check_round = _check_round
        elif rounds is not None:
            atexit.register(_leave, os.getpid())
            hostnames.stop_slow_lookups(rounds.present.address)
            _control = rounds.meet(rounds.present)
        elif (world_size > 1 or given.worker is not None) and not _meet_at_servers():
            _control = _join(rank, world_size, backend, chosen, timeout_s)
        _world = World(rank, world_size, given.local_rank, chosen)
    return _world


def joined() -> bool:
    """Return whether `init` was called."""
    return _world is not None


def exchanging() -> contextlib.AbstractContextManager[None]:
    """Return the context for an exchange: in an elastic job a failed one is PeersLost."""
    return rounds.exchanging() if rounds is not None else contextlib.nullcontext()


def finish(work: Any, *, control: bool = False) -> None:
    """Wait for an exchange that was started within `exchanging`. In an elastic job it ends even if gloo forgets it.
    `control`: it is one of the small exchanges.
    """
    if rounds is not None:
        rounds.finish(work)
        return
    from torch import distributed

    soon = dt.timedelta(seconds=WATCH_S)
    while watch is not None and (control or "nccl" not in distributed.get_backend()):  # NCCL aborts after a timeout
        try:
            work.wait(soon)
            return
        except RuntimeError:
            completed = work.is_completed()
            watch()  # may know why it has failed
            if completed:
                break  # it has failed, or ended just now
    work.wait()


def _gather(value: object, world_size: int) -> list[Any]:
    """Do the work of `all_gather_object`, with exchanges for `finish`."""
    import torch
    from torch import distributed

    packed = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(world_size)]
    ours = torch.tensor([packed.numel()], device="cpu")
    finish(distributed.all_gather(sizes, ours, group=_control, async_op=True), control=True)
    most = max(int(size) for size in sizes)
    rows = [torch.empty(most, dtype=torch.uint8, device="cpu") for _ in range(world_size)]
    own = torch.cat([packed, torch.zeros(most - packed.numel(), dtype=torch.uint8, device="cpu")])
    finish(distributed.all_gather(rows, own, group=_control, async_op=True), control=True)
    told = (row[: int(size)].numpy().tobytes() for row, size in zip(rows, sizes))
    return [pickle.loads(one) for one in told]  # noqa: S301  (from the processes of this job, as in all_gather_object)


def joining() -> bool:
    """Return whether this process waits for the others to take it in. Until then it exchanges nothing."""
    return rounds is not None and rounds.present.rank is None


def enter(later: Round) -> None:
    """Leave the present round for `later`, of which this process is a member. Raises PeersLost as `Rounds.meet`."""
    global _control, nodes
    assert rounds is not None
    assert _world is not None
    assert later.rank is not None
    _control = nodes = None
    if exchanges is None:
        rounds.leave()
    _world.rank, _world.world_size = later.rank, later.world_size
    if exchanges is None:
        _control = rounds.meet(later)
        return
    rounds.begin(later)
    exchanges.enter(place("meet"))


def part() -> None:
    """Leave the present round for good: from now on this process is a world of its own."""
    global _control, nodes
    assert rounds is not None
    assert _world is not None
    _control = nodes = None
    rounds.leave()
    _world.rank, _world.world_size = 0, 1


def meet_at_servers() -> None:
    """Let the small exchanges go by way of the parameter servers from now on, so that a member may die and be replaced
    alone. All ranks must call it together. NCCL's threads may end a process when another one dies: there all stays.
    """
    from torch import distributed

    if exchanges is None and _world is not None and _world.world_size > 1 and "nccl" not in distributed.get_backend():
        _meet_at_servers(chosen=True)


def place(purpose: str) -> handshake.Place:
    """Return the place of this process at parameter servers: that of the present round, where there are rounds."""
    from oarlock.train.servers.wire import handshake

    found = handshake.Place.of(environment.Processes.read(), purpose)
    now = rounds.present if rounds is not None else None
    if now is None or now.rank is None:
        return found
    return replace(found, rank=now.rank, workers=now.world_size, round=now.number)


def _check_round() -> None:
    """Raise PeersLost if the present round, whose members meet at parameter servers, cannot go on, or cannot begin."""
    assert rounds is not None
    assert exchanges is not None
    begins = not rounds.is_first and not exchanges.has_met
    newest = rounds.newest()
    if newest.lost >= rounds.present.number or (begins and newest.number > rounds.present.number):
        raise errors.PeersLost(f"round {rounds.present.number} is over")
    if begins:
        rounds.keep_waiting()


def rank() -> int:
    return init().rank


def world_size() -> int:
    return init().world_size


def device() -> torch.device:
    return init().device


def is_chief() -> bool:
    """Return True on rank 0, the rank that writes shared files."""
    return init().is_chief


def rank_of(role: str, index: int = 0, process: int = 0) -> int:
    """Return the present rank of a named task: `rank_of("worker", 1)` is that of the second worker.

    `process` is the number of the process in its task. Outside of Oarlock, rank N is that of worker N. All ranks must
    call it. WorldError if no rank has this name.
    """
    places = init().gather(environment.named_place(rank()))
    if (role, index, process) not in places:
        names = ", ".join(
            f"{role} {index}" + (f" process {process}" if process else "") for role, index, process in places
        )
        raise errors.WorldError(
            f"no rank is process {process} of {role} {index}: the ranks are {names}. Name one of these, or start more "
            "tasks."
        )
    return places.index((role, index, process))


def device_mesh(**sizes: int) -> DeviceMesh:
    """Return torch's DeviceMesh of all ranks, as FSDP2 and tensor parallelism need it: also for a process that trains
    alone.

    `sizes` are its dimensions by name: `device_mesh(data=2, tensor=4)` is one of eight ranks. Without them it has one
    dimension. All ranks must call it. WorldError if their product is not the number of ranks, and where the processes
    meet at parameter servers.
    """
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    world = init()
    shape = tuple(sizes.values()) or (world.world_size,)
    if exchanges is not None:
        raise errors.WorldError(
            "the processes of this job meet at parameter servers and have no process group, so there is no mesh of "
            "devices: use a job without `strategy: {kind: ps}`"
        )
    if math.prod(shape) != world.world_size:
        told = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise errors.WorldError(
            f"a mesh of {told} needs {math.prod(shape)} processes, but {world.world_size} train together: compute the "
            "sizes from train.world_size(), or start as many processes as the mesh needs"
        )
    if not distributed.is_initialized():
        _join_alone(world.device)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=tuple(sizes) or None)


def shutdown() -> None:
    """Leave the process group. Optional: a script leaves it at its end. But NCCL warns without it."""
    global _world, _control, exchanges, rounds, watch, _ours
    patience.check_round = patience.without_end
    while leaving:
        leaving.pop()()
    _leave_crew()
    met, exchanges = exchanges, None
    if met is not None:
        met.close()
    if _ours or (met is None and _world is not None and _world.world_size > 1):
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()
    _world = _control = rounds = watch = None
    _ours = False


def _leave_crew() -> None:
    global crew, nodes
    if nodes is not None:
        nodes.close()
        nodes = None
    if crew is not None:
        crew.close()
        crew = None


def fail() -> None:
    """Let the script end without waiting for exchanges, which the peers may never join."""
    global _failed
    _failed = True


def failed() -> bool:
    """Return whether an error has ended, or is about to end, this script."""
    return _failed or getattr(sys, "last_value", None) is not None


def _leave(joined: int) -> None:
    """End gloo's threads before Python ends. `joined` is the pid of the process that has them; a fork has none.

    The threads release the tensors of an exchange some time after it. If a thread needs Python for that while Python is
    ending, the process aborts (SIGABRT, "terminate called without an active exception", once in some hundred ends).
    NCCL stays as it is, because its end would wait for all other processes.
    """
    global _control
    from torch import distributed

    if failed() or os.getpid() != joined or not distributed.is_initialized():
        return
    if _ours and "nccl" not in distributed.get_backend():
        shutdown()
    elif _control is not None:
        _leave_crew()
        distributed.destroy_process_group(_control)
        _control = None


def _bound_memory(device: torch.device, fraction: float) -> None:
    """Limit torch's allocator to a fraction of the GPU's memory. Memory of other libraries is not counted."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def _device(asked: str | None, local_rank: int, *, shared: bool = False) -> torch.device:
    import torch

    chosen = torch.device(asked or "cuda")
    if chosen.type != "cuda":
        return chosen
    if not torch.cuda.is_available():
        if asked is not None:
            raise errors.WorldError(
                f"device={asked!r} was asked for, but torch sees no GPU. Leave it out to use the CPU."
            )
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if chosen.index is not None:
        if chosen.index >= count:
            raise errors.WorldError(f"device={asked!r} was asked for, but torch sees {count} GPUs, counted from 0.")
        torch.cuda.set_device(chosen)
        return chosen
    if shared:
        local_rank %= count
    if local_rank >= count:
        raise errors.WorldError(
            f"process {local_rank} of this host has no GPU of its own: torch sees {count}. "
            f"Start at most {count} processes a host, or pass init(device='cpu')."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _share_cores(processes: int) -> None:
    """Divide the cores among the processes of this host: without OMP_NUM_THREADS each process would use them all, and
    in a container with a limit those of its whole machine.
    """
    import torch

    if processes > 1 or environment.cores() < torch.get_num_threads():
        torch.set_num_threads(max(1, environment.cores() // processes))


def _meet_at_servers(*, chosen: bool = False) -> bool:
    """Open the exchanges by way of the parameter servers. Return False where the job has none, or may do without them
    and has not `chosen` them. A process that joins others opens them when it enters a round.
    """
    global exchanges
    from oarlock.train.servers import addresses

    servers = addresses.given(os.environ)
    if servers is None or not (chosen or addresses.meets(os.environ)):
        return False
    from oarlock.train.servers.workers.exchanges import Exchanges

    exchanges = Exchanges(servers, None if joining() else place("meet"))
    return True


def _rounds(environ: os._Environ[str], device: torch.device, backend: str | None, timeout_s: float) -> Rounds | None:
    """Return the rounds of an elastic job: of processes that only this library joins, by gloo, on Linux, or that meet
    at parameter servers.
    """
    global _ours
    from oarlock.train import rounds
    from oarlock.train.servers import addresses

    if environ.get(rounds.ELASTIC) != "1":
        return None
    if addresses.given(environ) is not None and addresses.meets(environ):
        return rounds.Rounds(environ, timeout_s)
    from torch import distributed
    from torch.distributed.nn import functional  # noqa: F401 - a later import would hold the group for ever

    usual = (backend or ("nccl" if device.type == "cuda" else "gloo")) == "gloo"
    if not usual or distributed.is_initialized() or not Path("/proc/self/fd").is_dir():
        return None
    _ours = True
    return rounds.Rounds(environ, timeout_s)


def _join_alone(device: torch.device) -> None:
    """Make a process group of this process alone."""
    global _ours
    from torch import distributed

    _ours = True
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    atexit.register(_leave, os.getpid())


def _join(rank: int, world_size: int, backend: str | None, device: torch.device, timeout_s: float) -> object:
    global _ours
    from torch import distributed
    from torch.distributed.nn import functional  # noqa: F401 - a later import would hold the group for ever

    timeout = dt.timedelta(seconds=timeout_s)
    if not distributed.is_initialized():
        _ours = True
        hostnames.stop_slow_lookups(os.environ["MASTER_ADDR"])
        distributed.init_process_group(
            backend or ("nccl" if device.type == "cuda" else "gloo"), rank=rank, world_size=world_size, timeout=timeout
        )
    atexit.register(_leave, os.getpid())
    return distributed.new_group(backend="gloo", timeout=timeout)
