"""How far a training run is, and the one quiet line that shows it where nobody else does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from oarlock.train.pace import Mean
    from oarlock.train.reports import Row

TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 10.0


@dataclass
class Progress:
    """`step` steps are done of `total_steps`; `examples` of all ranks together; None where not known.

    `pace` tells the seconds of a step since it was last asked; `local` and `accumulate` the batch size that it is of,
    `ranks` how many processes train together, `gpu_type` the type of their GPUs. `measure_noise` is asked for the
    gradients' noise whenever it is told.
    """

    step: int = 0
    total_steps: int | None = None
    examples: int | None = None
    examples_per_s: float | None = None
    loss: float | None = None
    epoch: int | None = None
    ranks: int | None = None
    local: int | None = None
    accumulate: int | None = None
    noise: float | None = None
    gpu_type: str | None = None
    pace: Mean | None = None
    measure_noise: Callable[[], float | None] | None = None

    def note(self, rows: Sequence[Row]) -> None:
        """Take the last `loss` among these rows."""
        for row in reversed(rows):
            if "loss" in row.names:
                self.loss = float(row.values[row.names.index("loss")])
                return

    def fields(self) -> dict[str, object]:
        """The fields of a progress event: step and total_steps always, the others where known. NaN is no JSON, hence
        left out.
        """
        known: dict[str, float | None] = {
            "examples_per_s": self.examples_per_s,
            "loss": self.loss,
            "epoch": self.epoch,
            **self._speed(),
        }
        finite: dict[str, object] = {
            name: value for name, value in known.items() if value is not None and value - value == 0
        }
        if "step_s" in finite and self.gpu_type:
            finite["gpu_type"] = self.gpu_type
        return {"step": self.step, "total_steps": self.total_steps, **finite}

    def _speed(self) -> dict[str, float | None]:
        """What a scheduler wants to know; empty where no step was counted since the last time."""
        mean = self.pace.since() if self.pace is not None else None
        if mean is None:
            return {}
        self.noise = self.measure_noise() if self.measure_noise is not None else None
        return {
            "step_s": mean[0],
            "sync_s": mean[1],
            "ranks": self.ranks,
            "local": self.local,
            "accumulate": self.accumulate,
            "noise": self.noise,
        }

    def text(self) -> str:
        of = f"/{self.total_steps}" if self.total_steps else ""
        parts = [f"step {self.step}{of}"]
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.examples_per_s:
            parts.append(f"{self.examples_per_s:,.0f} examples/s")
        return "  ".join(parts)


class Line:
    """Shows progress on a stream: rewritten in place on a terminal, else a line from time to time."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._every_s = TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S
        self._shown_at = time.monotonic() - (self._every_s if self._terminal else 0)
        self._shown = ""

    def show(self, progress: Progress, *, last: bool) -> None:
        now, text = time.monotonic(), progress.text()
        if text == self._shown or not progress.step or (not last and now - self._shown_at < self._every_s):
            return
        self._shown, self._shown_at = text, now
        print(
            f"\r\x1b[K{text}" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=self._stream,
            flush=True,
        )

    def close(self) -> None:
        if self._terminal and self._shown:
            print(file=self._stream, flush=True)
