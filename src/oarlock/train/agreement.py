"""The agreement of the ranks to stop and to save at the same step.

A signal reaches the ranks at different moments, and clocks differ, but a collective that only one rank enters never
ends. So at step boundaries the ranks exchange small numbers: the strongest wish to stop, whether the chief's clock says
that a save is due, the chief's values of the batch size, of the gradients' noise and of the newest round, and how far
each rank's thread is with the save under way (checkpointing/checkpoints.py). The result is the same on every rank.

An exchange takes 0.3 ms on an idle host and some milliseconds on a busy one, mostly waiting. So short steps share one.
The chief decides after how many steps the next exchange begins, at most 8, so that about one begins every 50 ms. Its
result is read when the next exchange begins; by then it has arrived. A step of 25 ms or more waits for its own
exchange, so that a request to stop takes effect after the step in which it came.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oarlock.train import errors, worlds
from oarlock.train.measuring.straggling import Slowest
from oarlock.train.strategies.strategy import Strategy
from oarlock.train.worlds import World

EVERY_S = 0.05
MOST_STEPS = 8

MOST_NOISE_MILLI = 1 << 60
_RANK_BITS = 20
_MOST_OWN_US = 1 << 40

GO_ON, FINISH, STOP = 0, 1, 2  # FINISH: the script wants to end. STOP: a signal asks for it. The higher number wins.


@dataclass(frozen=True)
class Decision:
    """The result of an exchange, the same on every rank."""

    stop: int
    save: bool
    batch: int = 0  # the chief's (`batchsizes.Batch.code`), 0: none
    noise: float | None = None  # the chief's, in examples
    slowest: Slowest | None = None
    writing: int = 0  # the largest number of a save under way
    round_number: int = 0  # the newest round of an elastic job, as far as the chief knows


class Apart:
    """The step boundaries of a strategy that is not in lockstep: no rank waits for another one."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def settle(
        self,
        *,
        stop: int,
        save: bool,
        batch: int = 0,
        noise: float | None = None,
        own_s: float | None = None,
        writing: int = 0,
        round_number: int = 0,
    ) -> Decision:
        """Return this rank's decision. It stops when it knows that another one wants to stop, and all measure the noise
        of the same gradients.
        """
        stop, slowest = self._strategy.tell(stop), self._strategy.compare(own_s)
        return Decision(stop, save, noise=noise, slowest=slowest, writing=writing)

    def finish(self) -> None:
        """Wait for nothing: no exchange is under way."""

    def position(self) -> list[Any]:
        return [1, 1, None]

    def go_on(self, position: list[Any]) -> None:
        """Go on at another rank's position: there is none."""


class Agreement:
    """The exchanges at step boundaries. Every rank calls `settle` after every step. `clock` never goes back."""

    def __init__(self, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        self._world = world
        self._clock = clock
        self._stride = self._steps_left = 1
        self._began_at = clock()
        self._under_way: Callable[[], list[int]] | None = None
        self._told: list[int] = []  # this rank's numbers in it
        self._number = 0  # of it, among all exchanges by way of a parameter server

    def settle(
        self,
        *,
        stop: int,
        save: bool,
        batch: int = 0,
        noise: float | None = None,
        own_s: float | None = None,
        writing: int = 0,
        round_number: int = 0,
    ) -> Decision:
        """Return the decision of all ranks from this rank's wish to stop, its own time of a step, its number of a save
        under way and the chief's other values.
        """
        if self._world.world_size == 1:
            return Decision(stop, save, batch, noise, writing=writing, round_number=round_number)
        with worlds.exchanging():  # in a round that is known to be lost no further step begins
            self._steps_left -= 1
        if self._steps_left:
            return Decision(GO_ON, False)
        outcomes = [self._under_way()] if self._under_way else []
        save = save and not any(each[1] for each in outcomes)  # otherwise one request would save twice
        self._under_way = self._begin(stop, save, batch, noise, own_s, writing, round_number)
        if self._stride == 1:
            outcomes.append(self._under_way())
            self._under_way = None
        if outcomes:
            self._stride = outcomes[-1][2]
        self._steps_left = self._stride
        if not outcomes:
            return Decision(GO_ON, False)
        *_, batch, noise_milli, slowest, shortness, writing, round_number = outcomes[-1]
        return Decision(
            max(each[0] for each in outcomes),
            any(each[1] for each in outcomes),
            batch,
            noise_milli / 1000 if noise_milli else None,
            _slowest(slowest, shortness) if slowest and shortness else None,
            writing,
            round_number,
        )

    def position(self) -> list[Any]:
        """Return the place between two exchanges, for a process that goes on here in another one's place: the steps
        from one exchange to the next, those that are left, and of the exchange under way, if any, this rank's numbers
        and its own number: those of a save may have come after it.
        """
        return [self._stride, self._steps_left, self._told if self._under_way else None, self._number]

    def go_on(self, position: list[Any]) -> None:
        """Go on at another rank's position, with its numbers in the exchange under way: the largest count."""
        self._stride, self._steps_left, told, self._number = position
        self._told = told or []
        if told is not None:
            assert worlds.exchanges is not None
            self._under_way = worlds.exchanges.start_largest(told, self._number)

    def finish(self) -> None:
        """Wait for the exchange under way, which all ranks have begun. Its result is not used."""
        if self._under_way is not None:
            with contextlib.suppress(errors.PeersLost):
                self._under_way()

    def _begin(
        self,
        stop: int,
        save: bool,
        batch: int,
        noise: float | None,
        own_s: float | None,
        writing: int,
        round_number: int,
    ) -> Callable[[], list[int]]:
        pace = (0, 0)
        if own_s is not None:
            own_us = min(round(own_s * 1e6), _MOST_OWN_US - 1)
            pace = own_us << _RANK_BITS | self._world.rank, _MOST_OWN_US - own_us
        self._told = [stop, 0, 1, 0, 0, *pace, writing, 0]
        if self._world.is_chief:
            noise_milli = min(round(noise * 1000), MOST_NOISE_MILLI) if noise is not None else 0
            self._told = [stop, int(save), self._next_stride(), batch, noise_milli, *pace, writing, round_number]
        wait = self._world.start_largest(self._told)
        self._number = worlds.exchanges.begun if worlds.exchanges is not None else 0
        return wait

    def _next_stride(self) -> int:
        """Return the number of steps that fit into EVERY_S at the present pace, at most twice the last number."""
        now = self._clock()
        step_s = (now - self._began_at) / self._stride
        self._began_at = now
        return max(1, min(MOST_STEPS, 2 * self._stride, int(EVERY_S / max(step_s, 1e-9))))


def _slowest(code: int, shortness: int) -> Slowest:
    rank = code & ((1 << _RANK_BITS) - 1)
    return Slowest(rank, (code >> _RANK_BITS) / 1e6, (_MOST_OWN_US - shortness) / 1e6)
