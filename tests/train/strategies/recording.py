"""Runs a program of examples/02-strategies and records its losses: recording.py PROGRAM FOLDER [STEP].

Each rank that logs a loss appends a line for each step to FOLDER/losses-RANK.txt. After STEP the last rank gets
SIGTERM, as in a job that is halted.
"""

from __future__ import annotations

import functools
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oarlock import train


class Recording(train.Hook):
    def __init__(self, folder: Path, last_step: int | None) -> None:
        self._losses = folder / f"losses-{train.rank()}.txt"
        self._last_step = last_step

    def on_log(self, session: Any, values: Mapping[str, Any]) -> None:
        with self._losses.open("a") as file:
            file.write(f"{session.step} {float(values['loss'].item()).hex()}\n")

    def after_step(self, session: Any) -> None:
        if session.step == self._last_step and session.world.rank == session.world.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)


program, folder, *step = sys.argv[1:]
recording = Recording(Path(folder), int(step[0]) if step else None)
train.Session = functools.partial(train.Session, hooks=[recording])  # type: ignore[assignment,misc]
runpy.run_path(program, run_name="__main__")
