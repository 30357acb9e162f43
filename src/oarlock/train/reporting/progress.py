"""The progress of a training run, and the line that shows it outside of Oarlock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from oarlock.train.measuring.pace import Mean
from oarlock.train.measuring.straggling import Slowest
from oarlock.train.reporting.rows import Row

TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 10.0
MEASURED = (
    *("step_s", "sync_s", "data_s", "sent_bytes", "examples_per_s", "noise"),
    *("slowest_rank", "slowest_s", "fastest_s"),
)


@dataclass
class Progress:
    """The progress: `step` of `total_steps` are done, with `examples` of all ranks together. None: unknown.

    `pace` gives the means of a step since the last report, for the batch size `local` times `accumulate`.
    `straggler` is the rank that the others wait for. `ranks` is the number of processes that train together, `gpu_type`
    the type of their GPUs. `measure_noise` returns the gradients' noise; each report calls it.
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
    straggler: Slowest | None = None
    measure_noise: Callable[[], float | None] | None = None

    def note(self, rows: Sequence[Row]) -> None:
        """Take the last `loss` of these rows."""
        for row in reversed(rows):
            if "loss" in row.names:
                self.loss = float(row.values[row.names.index("loss")])
                return

    def fields(self) -> dict[str, object]:
        """Return the fields of a progress event: step and total_steps, and the others if known.

        NaN is left out, because JSON has no NaN.
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
        """Return the measurements for the scheduler; empty if no step was counted since the last call."""
        mean = self.pace.since() if self.pace is not None else None
        if mean is None:
            return {}
        self.noise = self.measure_noise() if self.measure_noise is not None else None
        return {
            "step_s": mean.step_s,
            "sync_s": mean.sync_s,
            "data_s": mean.data_s,
            "sent_bytes": mean.sent_bytes,
            "ranks": self.ranks,
            "local": self.local,
            "accumulate": self.accumulate,
            "noise": self.noise,
            **self._slow(),
        }

    def measured(self, fields: Mapping[str, object]) -> Row | None:
        """Return the measurements among the fields of an event as a row of metrics; None if there are none."""
        names = [name for name in MEASURED if name in fields]
        if "step_s" not in fields:
            return None
        values = tuple(float(str(fields[name])) for name in names)
        return Row(self.step, time.time(), tuple(f"oarlock/{name}" for name in names), values)

    def _slow(self) -> dict[str, float | None]:
        slow = self.straggler
        if slow is None:
            return {}
        return {"slowest_rank": slow.rank, "slowest_s": slow.own_s, "fastest_s": slow.least_s}

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
    """The progress on a stream: one line rewritten in place on a terminal, else a line from time to time."""

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
