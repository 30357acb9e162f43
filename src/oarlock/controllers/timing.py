"""The server's clock: the wall's date, the monotonic clock's durations.

Every duration in a job's record (`timeout`, `start_timeout`, the grace, a back-off, the leader's term) is a difference
of two of its dates. The dates come from `Clock`, which advances with the monotonic clock: neither a change of the wall
clock nor a machine that slept makes it jump. `Timing` notices when the wall clock disagrees, moves the dates that
durations still count from, and lets the clock follow. So durations stay true, and dates come right.

`spec.clocks.Anchor` in the store says how the two clocks stood. A server that follows another one on the same start of
the machine goes on from there, whatever happened to the wall clock in between. After a start of the machine, it
believes the smaller of two durations: the wall clock's, and the time since the machine's start.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from oarlock.controllers import leadership
from oarlock.lifecycle import stepping
from oarlock.spec import events
from oarlock.spec.process import clocks
from oarlock.store import stores

TOLERANCE_S = 1.0
"""A larger difference between the wall clock and the monotonic clock is a step."""

PERIOD_S = 2.0

TRIES = 5
AT_ONCE_S = 0.01

SEEN_S = 60.0
"""The interval at which the store learns that this server still sees the clock: a bound on a later server's belief."""

SHORTLY_S = 90 * 86_400.0
"""Steps forward within this time are summed up."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The clocks of this machine. `boot` names its present start; `boottime` counts like `monotonic`, and sleep too."""

    boot: str
    wall: Callable[[], float]
    monotonic: Callable[[], float]
    boottime: Callable[[], float]


class Clock:
    """Unix seconds that advance with the monotonic clock. May be called from any thread."""

    def __init__(self, machine: Machine, anchor: clocks.Anchor | None = None) -> None:
        """Go on from `anchor`, where an earlier server has left one."""
        self.machine = machine
        self.ahead_s = self._wall_ahead_s() if anchor is None else _believed_s(machine, anchor)
        self.asleep_s = self._asleep_now_s() if anchor is None or anchor.boot != machine.boot else anchor.asleep_s

    def __call__(self) -> float:
        return self.machine.monotonic() + self.ahead_s

    def step_s(self) -> float:
        """Return by how much the wall clock is ahead of this one: 0 within the tolerance."""
        found = self._wall_ahead_s() - self.ahead_s
        return found if abs(found) > TOLERANCE_S else 0.0

    def slept_s(self) -> float:
        """Return how long the machine has slept since this was last settled."""
        return self._asleep_now_s() - self.asleep_s

    def settle(self, by_s: float, slept_s: float) -> None:
        """Follow a step, of which the machine slept through a part."""
        self.ahead_s += by_s
        self.asleep_s += slept_s

    def _wall_ahead_s(self) -> float:
        return self._ahead_s(self.machine.wall)

    def _asleep_now_s(self) -> float:
        return self._ahead_s(self.machine.boottime)

    def _ahead_s(self, other: Callable[[], float]) -> float:
        """Return `other` less the monotonic clock, read at once: a process may be stopped between two readings."""
        read = (self.machine.monotonic, other, self.machine.monotonic)
        before, told, after = (clock() for clock in read)
        for _ in range(TRIES):
            if after - before < AT_ONCE_S:
                break
            before, told, after = (clock() for clock in read)
        return told - after


class Timing:
    """Moves the dates of live jobs by every step of the wall clock, once."""

    name = "timing"

    def __init__(self, store: stores.Store, leading: leadership.Leading, clock: Clock) -> None:
        self._store = store
        self._leading = leading
        self._clock = clock
        self._told: int | None = None  # the epoch in which the store knows of this clock
        self._seen_at = 0.0
        self._due = 0.0

    def wake_at(self) -> float | None:
        return self._due

    async def tick(self) -> None:
        clock, epoch = self._clock, self._leading.epoch
        self._due = clock() + PERIOD_S
        by_s, slept_s = clock.step_s(), clock.slept_s()
        if epoch is None:
            if self._leading.standing_by and by_s:  # no record depends on this clock: another server writes them
                clock.settle(by_s, slept_s)
            return
        if not by_s and epoch == self._told and 0 <= clock() - self._seen_at < SEEN_S:
            return
        await self._write(epoch, by_s, slept_s if by_s else 0.0)
        self._told, self._seen_at = epoch, clock()

    async def _write(self, epoch: int, by_s: float, slept_s: float) -> None:
        """Move dates and clock: the one that makes durations shorter comes first, for those that look in between."""
        clock = self._clock
        back = by_s < 0
        if back:
            clock.settle(by_s, slept_s)
        now = clock() + (0.0 if back else by_s)
        anchor = clocks.Anchor(
            boot=clock.machine.boot,
            ahead_s=clock.ahead_s + (0.0 if back else by_s),
            asleep_s=clock.asleep_s + (0.0 if back else slept_s),
            seen_at=now,
        )
        try:
            await self._store.write(lambda tx: _write(tx, anchor, by_s, slept_s, now), epoch=epoch)
        except BaseException:
            if back:
                clock.settle(-by_s, -slept_s)
            raise
        if not back:
            clock.settle(by_s, slept_s)


def _write(tx: stores.Transaction, anchor: clocks.Anchor, by_s: float, slept_s: float, now: float) -> None:
    earlier = tx.clock_anchor()
    tx.put_clock_anchor(_with_steps(anchor, earlier, by_s - slept_s, now))
    if not by_s:
        return
    event = events.ClockStepped(by_s=round(by_s, 3), slept_s=round(slept_s, 3))
    for job in tx.active():
        after = stepping.step(job, event, now)
        if after is not job:
            tx.put_job(after, [event], at=now)


def _with_steps(anchor: clocks.Anchor, earlier: clocks.Anchor | None, forward_s: float, now: float) -> clocks.Anchor:
    """Return the anchor with the known steps forward. Sleep is not a step: while a machine sleeps time passes."""
    at, sum_s = (0.0, 0.0) if earlier is None else (earlier.stepped_at, earlier.stepped_s)
    if forward_s > TOLERANCE_S:
        sum_s = forward_s + (sum_s if now - forward_s - at < SHORTLY_S else 0.0)
        at = now
    return msgspec.structs.replace(anchor, stepped_at=at, stepped_s=sum_s)


def _believed_s(machine: Machine, anchor: clocks.Anchor) -> float:
    """Return by how much the clock is ahead of the monotonic one, so that no duration is longer than it was."""
    if anchor.boot == machine.boot:
        return anchor.ahead_s
    up_s = machine.monotonic()
    return max(anchor.seen_at, min(machine.wall(), anchor.seen_at + up_s)) - up_s
