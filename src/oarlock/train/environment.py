"""The variables that Oarlock sets for a training process, read once for each session.

docs/training.md and docs/agent-protocol.md describe them. The variables of torchrun are read in worlds.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oarlock.train import batchsizes


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
