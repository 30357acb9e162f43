"""The progress of one simulated job through all its attempts: done, saved and lost.

Time stands still between two calls. Each call that changes something (`start`, `set_batch`, `stall`, `stop`) passes the
time, and progress is made up to it. The end is computed ahead, not waited for.
"""

from __future__ import annotations

import math

import msgspec

from oarlock.simulator.models import jobmodels
from oarlock.spec import curves


class Work:
    """The work of one job. `saves_every_s` is the interval of its checkpoints; None: only when it is told to stop.

    `steps` counts steps of any batch size. `device_s` is the time that its devices advanced it, and `lost_device_s` the
    part of that which was lost. `active_spans` has, by attempt, the time span in which it advanced.
    """

    def __init__(self, job_model: jobmodels.JobModel, *, saves_every_s: float | None = None) -> None:
        self.model = job_model
        self.progress = 0.0
        self.steps = 0.0
        self.device_s = 0.0
        self.lost_device_s = 0.0
        self.active_spans: dict[int, tuple[float, float]] = {}
        self._saves_every_s = saves_every_s
        self._saved = (0.0, 0.0)  # progress, steps
        self._unsaved_device_s = 0.0
        self._save_at = math.inf
        self._shape: jobmodels.Shape | None = None
        self._batch: curves.Batch | None = None
        self._at = 0.0
        self._from = 0.0
        self._attempt = 0
        self._devices = 0.0
        self._slowdown = 0.0
        self._speed_factor = 1.0
        self._ends_at = math.inf

    @property
    def running(self) -> bool:
        return self._shape is not None

    @property
    def ends_at(self) -> float:
        """When its work will be done if nothing changes; infinity if it does not advance."""
        return self._ends_at

    @property
    def batch(self) -> curves.Batch | None:
        """Its batch: the one that was decided, or its own."""
        if self._batch is None and self._shape is not None:
            return self.model.batch(sum(self._shape))
        return self._batch

    def start(
        self,
        now: float,
        attempt: int,
        shape: jobmodels.Shape,
        batch: curves.Batch | None,
        *,
        ready_s: float,
        devices: float | None = None,
        speed_factor: float = 1.0,
    ) -> None:
        """Continue from its last checkpoint at this shape. It advances after `ready_s` seconds.

        `devices` is the amount that it holds, if that differs from the shape: a share of a device, or none.
        `speed_factor` is its speed on these devices, relative to its model.
        """
        self._speed_factor = speed_factor
        self._shape, self._batch, self._attempt, self._slowdown = shape, batch, attempt, 0.0
        self._devices = sum(shape) if devices is None else devices
        self._at = self._from = now + ready_s
        self._save_at = self._at + self._saves_every_s if self._saves_every_s is not None else math.inf
        self._update_end()

    def set_batch(self, now: float, batch: curves.Batch | None) -> None:
        if batch != self._batch:
            self.advance(now)
            self._batch = batch
            self._update_end()

    def set_slowdown(self, now: float, slowdown: float) -> None:
        """Let it lose this share of its speed from now on."""
        if slowdown != self._slowdown:
            self.advance(now)
            self._slowdown = slowdown
            self._update_end()

    def stall(self, now: float) -> None:
        """Stop its progress because a part of it cannot be reached. It keeps its devices."""
        self.advance(now)
        self._stop_advancing(now)

    def stop(self, now: float, *, gracefully: bool) -> None:
        """End the attempt.

        If `gracefully`, it saves all its progress; else the progress since its last checkpoint is lost.
        """
        self.advance(now)
        if not gracefully:
            self.lost_device_s += self._unsaved_device_s
            self.progress, self.steps = self._saved
        self._save()
        self._stop_advancing(now)

    def pace(self, now: float) -> jobmodels.Pace | None:
        """Return its present pace; None while it starts up, does not advance, or has no work left."""
        self.advance(now)
        if self._shape is None or now < self._at or self.progress >= self.model.total:
            return None
        return self._pace(self._shape, self.progress)

    def _stop_advancing(self, now: float) -> None:
        if self._shape is not None and now > self._from:
            self.active_spans[self._attempt] = (self._from, now)
        self._shape, self._batch, self._ends_at = None, None, math.inf

    def advance(self, now: float) -> None:
        """Advance up to `now`, checkpoint by checkpoint."""
        while self._save_at <= now and self._shape is not None:
            self._advance(self._save_at)
            self._save()
            self._save_at += self._saves_every_s or math.inf
        self._advance(now)

    def _save(self) -> None:
        self._saved, self._unsaved_device_s = (self.progress, self.steps), 0.0

    def _advance(self, now: float) -> None:
        if self._shape is None or now <= self._at:
            return
        spent_s = min(now, self._ends_at) - self._at
        self.device_s += spent_s * self._devices
        self._unsaved_device_s += spent_s * self._devices
        if now >= self._ends_at:  # exactly, in spite of rounding in sums
            self.progress, self._at = self.model.total, now
            return
        while self._at < now and self.progress < self.model.total:
            pace = self._pace(self._shape, self.progress)
            reached_at = self._at + _duration_s(pace, self.progress)
            if reached_at > now:
                self._advance_to(pace, self.progress + (now - self._at) * pace.rate, now)
            else:
                self._advance_to(pace, pace.until, reached_at)
        self._at = now

    def _advance_to(self, pace: jobmodels.Pace, progress: float, at: float) -> None:
        self.steps += (progress - self.progress) / pace.gain
        self.progress, self._at = progress, at

    def _pace(self, shape: jobmodels.Shape, progress: float) -> jobmodels.Pace:
        pace = self.model.pace(shape, self._batch, progress)
        if self._speed_factor != 1:
            pace = msgspec.structs.replace(
                pace,
                rate=pace.rate * self._speed_factor,
                step_s=pace.step_s / self._speed_factor,
                sync_s=pace.sync_s / self._speed_factor,
            )
        if not self._slowdown:
            return pace
        step_s = pace.step_s / (1 - self._slowdown)
        return msgspec.structs.replace(
            pace,
            rate=pace.rate * (1 - self._slowdown),
            step_s=step_s,
            sync_s=pace.sync_s + step_s - pace.step_s,
        )

    def _update_end(self) -> None:
        """Compute the end, pace by pace; infinity if it never gets there."""
        at, progress = self._at, self.progress
        if self._shape is None:
            return
        while progress < self.model.total and at < math.inf:
            pace = self._pace(self._shape, progress)
            at, progress = at + _duration_s(pace, progress), pace.until
        self._ends_at = at


def _duration_s(pace: jobmodels.Pace, progress: float) -> float:
    return (pace.until - progress) / pace.rate if pace.rate > 0 else math.inf
