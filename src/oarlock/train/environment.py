"""The variables that Oarlock and torchrun set for a training process.

`Environment` has those of a session, `Processes` the place of the process in its gang, and three functions those of the
parts below a session: the name of the task, whether memory may be shared, and the end that a test wants.
docs/training.md and docs/agent-protocol.md describe them. The addresses of parameter servers, the strategy and the
round of an elastic job have formats of their own, which `servers/addresses.py`, `strategies/choices.py` and `rounds.py`
read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oarlock.train import batchsizes, errors


@dataclass(frozen=True)
class Environment:
    """The settings of a session. A field is None if Oarlock did not set it."""

    process: str  # the number of this process in its task
    report: Path | None  # the directory of events and metrics
    tensorboard: Path | None
    checkpoints: str | None
    separate: bool  # each task has a directory for checkpoints of its own
    checkpoint_every_s: float | None
    checkpoint_keep: int | None
    restore: tuple[Path, ...] | None  # the checkpoints to try, best first
    attempt: int | None
    round_number: int
    gpu_type: str | None
    batch: batchsizes.Batch | None  # the scheduler's decision at the start
    batch_size: int | None  # the examples of all processes together, when the job began

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Environment:
        get = environ.get
        report, tensorboard, restore = get("OARLOCK_REPORT"), get("OARLOCK_TENSORBOARD"), get("OARLOCK_RESTORE")
        every_s, keep, attempt = (
            get(name) for name in ("OARLOCK_CHECKPOINT_EVERY_S", "OARLOCK_CHECKPOINT_KEEP", "OARLOCK_ATTEMPT")
        )
        return cls(
            process=get("OARLOCK_PROCESS", "0"),
            report=Path(report) if report else None,
            tensorboard=Path(tensorboard) if tensorboard else None,
            checkpoints=get("OARLOCK_CHECKPOINTS") or None,
            separate=get("OARLOCK_CHECKPOINTS_SEPARATE") == "1",
            checkpoint_every_s=float(every_s) if every_s else None,
            checkpoint_keep=int(keep) if keep else None,
            restore=None if restore is None else tuple(Path(path) for path in restore.split(os.pathsep) if path),
            attempt=int(attempt) if attempt else None,
            round_number=int(get("OARLOCK_ROUND") or 1),
            gpu_type=get("OARLOCK_GPU_TYPE"),
            batch=batchsizes.parsed(get("OARLOCK_LOCAL_BATCH"), get("OARLOCK_ACCUMULATE") or 1),
            batch_size=batchsizes.number(get("OARLOCK_BATCH_SIZE")),
        )


@dataclass(frozen=True)
class Processes:
    """The place of this process among those that train together. Alone, it is rank 0 of 1."""

    rank: int
    world_size: int
    local_rank: int
    neighbours: int  # the processes of this host, this one included
    gpu_fraction: float | None  # the fraction of its GPU's memory that this process may use, if it shares the GPU
    threads_chosen: bool  # OMP_NUM_THREADS is set
    incarnation: int  # counts the processes of this task
    worker: int | None  # its number, where workers of parameter servers come and go

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Processes:
        """Read the variables. Raises WorldError if only a part of them is set."""
        rank, world_size = _place(environ)
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", "0")) if "RANK" in environ else 0,
            neighbours=int(environ.get("LOCAL_WORLD_SIZE", "1")),
            gpu_fraction=_fraction(environ.get("OARLOCK_GPU_FRACTION")),
            threads_chosen="OMP_NUM_THREADS" in environ,
            incarnation=int(environ.get("OARLOCK_INCARNATION") or 1),
            worker=int(environ["OARLOCK_WORKER"]) if environ.get("OARLOCK_WORKER") else None,
        )


def named_place(rank: int, environ: Mapping[str, str] = os.environ) -> tuple[str, int, int]:
    """Return the role and the index of this task, and the number of this process in it. Where Oarlock has not started
    this process, each rank counts as a worker of its own.
    """
    if "OARLOCK_ROLE" not in environ:
        return "worker", rank, 0
    return environ["OARLOCK_ROLE"], int(environ.get("OARLOCK_INDEX", "0")), int(environ.get("OARLOCK_PROCESS", "0"))


def may_share_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether processes of one host may share memory."""
    return environ.get("OARLOCK_SHARED_MEMORY") != "0"


@dataclass(frozen=True)
class Failpoint:
    """The point at which a test wants this process to end, or to fail."""

    name: str
    action: str
    visit: int  # the action comes when the process gets to the point for this time, counted from 1


def failpoint(environ: Mapping[str, str] = os.environ) -> Failpoint | None:
    told = environ.get("OARLOCK_FAILPOINT")
    if not told:
        return None
    name, action, *visit = told.split(":")
    return Failpoint(name, action, int(visit[0]) if visit else 1)


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return 0, 1
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in environ]
    if int(environ.get("WORLD_SIZE", "2")) > 1:
        missing += [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        raise errors.WorldError(
            f"{', '.join(missing)} missing from the environment, although RANK or WORLD_SIZE is set. "
            "Start the script with torchrun or Oarlock, or unset RANK and WORLD_SIZE to run alone."
        )
    rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    if not 0 <= rank < world_size:
        raise errors.WorldError(
            f"RANK={rank} is not one of WORLD_SIZE={world_size} ranks, counted from 0. Check how the script is started."
        )
    return rank, world_size


def _fraction(told: str | None) -> float | None:
    try:
        fraction = float(told) if told else None
    except ValueError:
        fraction = None
    return fraction if fraction is not None and 0 < fraction < 1 else None


def cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of whole cores that this process may use: at least one.

    Its affinity limits it, and its container: the quota of the control group that is mounted at `groups` (version 2 or
    1). Kubernetes sets it from the limit of a container, and Linux stops all threads of a group that has used it up.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((groups / name).read_text() for name in names).split()[:2]
            if int(quota) > 0:
                return max(1, min(allowed, int(quota) // int(period)))
        except (OSError, ValueError, ZeroDivisionError):
            continue  # no such version, or no limit ("max")
    return allowed
