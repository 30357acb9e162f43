"""How far one simulated job is, through all its attempts: what is done, what is kept, what was in vain.

Time stands still between two questions: whoever tells it that something changed (`start`, `rebatch`, `stall`, `stop`)
gives the time, and progress is made up to it. The end is foreseen, not waited for.
"""

from __future__ import annotations

import math

import msgspec

from oarlock.simulator.models import jobmodels
from oarlock.spec import curves


class Work:
    """`saves_every_s` is the interval of its checkpoints while it runs; None: only when it is told to stop.

    `steps` were done, of whatever batch size. `device_s` is the time that its devices advanced it, `lost_device_s` how
    much of that was in vain; `stretches` says from when to when each attempt advanced.
    """

    def __init__(self, does: jobmodels.JobModel, *, saves_every_s: float | None = None) -> None:
        self.model = does
        self.progress = 0.0
        self.steps = 0.0
        self.device_s = 0.0
        self.lost_device_s = 0.0
        self.stretches: dict[int, tuple[float, float]] = {}
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
        self._slowed = 0.0
        self._times = 1.0
        self._ends_at = math.inf

    @property
    def running(self) -> bool:
        return self._shape is not None

    @property
    def ends_at(self) -> float:
        """When it will have done its work, if nothing changes; infinity where it stands still."""
        return self._ends_at

    @property
    def batch(self) -> curves.Batch | None:
        """With which it runs: what was decided, else its own."""
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
        times: float = 1.0,
    ) -> None:
        """From its last checkpoint, at this shape. It advances after `ready_s` seconds of starting up. `devices` is
        what it holds, where that is not what the shape says: a share of one, or none. On these devices it is `times` as
        fast as its physics say.
        """
        self._times = times
        self._shape, self._batch, self._attempt, self._slowed = shape, batch, attempt, 0.0
        self._devices = sum(shape) if devices is None else devices
        self._at = self._from = now + ready_s
        self._save_at = self._at + self._saves_every_s if self._saves_every_s is not None else math.inf
        self._foresee()

    def rebatch(self, now: float, batch: curves.Batch | None) -> None:
        if batch != self._batch:
            self.advance(now)
            self._batch = batch
            self._foresee()

    def slow(self, now: float, slowed: float) -> None:
        """From now on it loses this share of its speed to others."""
        if slowed != self._slowed:
            self.advance(now)
            self._slowed = slowed
            self._foresee()

    def stall(self, now: float) -> None:
        """It holds its devices and goes no further: a part of it cannot be reached."""
        self.advance(now)
        self._stand(now)

    def stop(self, now: float, *, gracefully: bool) -> None:
        """The attempt ends. Gracefully: it saves all that it did; else what came after its last checkpoint is lost."""
        self.advance(now)
        if not gracefully:
            self.lost_device_s += self._unsaved_device_s
            self.progress, self.steps = self._saved
        self._save()
        self._stand(now)

    def pace(self, now: float) -> jobmodels.Pace | None:
        """Its present pace; None while it starts up, stands still, or has nothing left to do."""
        self.advance(now)
        if self._shape is None or now < self._at or self.progress >= self.model.total:
            return None
        return self._pace(self._shape, self.progress)

    def _stand(self, now: float) -> None:
        if self._shape is not None and now > self._from:
            self.stretches[self._attempt] = (self._from, now)
        self._shape, self._batch, self._ends_at = None, None, math.inf

    def advance(self, now: float) -> None:
        """Progress up to `now`, checkpoint by checkpoint."""
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
        if now >= self._ends_at:  # exactly, whatever the sums of many parts are
            self.progress, self._at = self.model.total, now
            return
        while self._at < now and self.progress < self.model.total:
            pace = self._pace(self._shape, self.progress)
            reached_at = self._at + _duration_s(pace, self.progress)
            if reached_at > now:
                self._go_on(pace, self.progress + (now - self._at) * pace.rate, now)
            else:
                self._go_on(pace, pace.until, reached_at)
        self._at = now

    def _go_on(self, pace: jobmodels.Pace, progress: float, at: float) -> None:
        self.steps += (progress - self.progress) / pace.gain
        self.progress, self._at = progress, at

    def _pace(self, shape: jobmodels.Shape, progress: float) -> jobmodels.Pace:
        pace = self.model.pace(shape, self._batch, progress)
        if self._times != 1:
            pace = msgspec.structs.replace(
                pace,
                rate=pace.rate * self._times,
                step_s=pace.step_s / self._times,
                sync_s=pace.sync_s / self._times,
            )
        if not self._slowed:
            return pace
        step_s = pace.step_s / (1 - self._slowed)
        return msgspec.structs.replace(
            pace,
            rate=pace.rate * (1 - self._slowed),
            step_s=step_s,
            sync_s=pace.sync_s + step_s - pace.step_s,
        )

    def _foresee(self) -> None:
        """The end, pace by pace. What never gets there stands for ever: infinity."""
        at, progress = self._at, self.progress
        if self._shape is None:
            return
        while progress < self.model.total and at < math.inf:
            pace = self._pace(self._shape, progress)
            at, progress = at + _duration_s(pace, progress), pace.until
        self._ends_at = at


def _duration_s(pace: jobmodels.Pace, progress: float) -> float:
    return (pace.until - progress) / pace.rate if pace.rate > 0 else math.inf
