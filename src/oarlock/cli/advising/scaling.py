"""The expected speed of a training script with more workers, from measurements with one and two.

A step takes each worker its own time, and then the exchange of gradients. The own time is that of the trial with two
workers. The exchange grows with the number of workers n by the way in which a strategy moves its bytes:

    ring (dense, bf16, PowerSGD)    2 (n - 1) / n    times the bytes of a rank, and 2 (n - 1) messages in a row
    gather (DGC)                    n - 1            times the bytes of a rank
    servers (ps)                    n / s            times the bytes of the fullest of s servers, at least once

A part of the exchange, up to LATENCY_S, is the latency of messages and not their bytes. Each worker keeps its batch, so
the speedup with n workers is n times the step of one worker over the step of n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SIZES = (1, 2, 4, 8, 16, 32, 64)
LATENCY_S = 0.0005
ENOUGH = 1.05
"""More parameter servers are not worth their cost where a step is at most so much longer than the shortest."""
LOSSY = ("bf16", "powersgd", "dgc")
STRATEGIES = ("allreduce", *LOSSY, "ps")


@dataclass(frozen=True)
class Trial:
    """The mean of a step in a trial: its seconds, those of waiting for gradients and for data, and the bytes that one
    process sent. `examples` are those of one process in a step, None while unknown. `servers` is the number of
    parameter servers.
    """

    workers: int
    steps: int
    step_s: float
    sync_s: float = 0.0
    data_s: float = 0.0
    sent_bytes: float = 0.0
    examples: int | None = None
    servers: int = 0

    @property
    def own_s(self) -> float:
        return max(0.0, self.step_s - self.sync_s)

    @property
    def per_s(self) -> float:
        """Return the examples of all workers in a second, or their steps where the examples are unknown."""
        return self.workers * (self.examples or 1) / self.step_s


@dataclass(frozen=True)
class Link:
    """A network between the workers. None is the one of the trials."""

    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Prediction:
    """The expected speedup of a strategy with so many workers, and its bounds: all of the exchange is bytes, or all is
    latency. `measured` is that of a trial.
    """

    strategy: str
    workers: int
    speedup: float
    least: float
    most: float
    servers: int = 0
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """Return the error of the prediction, as a part of the measured speedup."""
        return None if self.measured is None else self.speedup / self.measured - 1


def exchange_s(strategy: str, two: Trial, workers: int, servers: int, link: Link, latency_s: float) -> float:
    """Return the seconds of one exchange. `latency_s` of it, with two workers, does not depend on the bytes."""
    if workers == 1:
        return 0.0
    latency_s = min(latency_s, two.sync_s)
    bytes_s = two.sync_s - latency_s
    if link.bytes_per_s is not None:
        bytes_s = max(bytes_s, two.sent_bytes / link.bytes_per_s * (4 if strategy == "ps" else 1))
    if strategy == "ps":  # push and pull, both with two workers at one server: the trial
        return bytes_s / 2 * max(1.0, workers / servers) + latency_s
    grown = workers - 1 if strategy == "dgc" else 2 * (workers - 1) / workers
    return bytes_s * grown + latency_s * (workers - 1)


def servers_for(two: Trial, workers: int, link: Link = Link()) -> int:
    """Return the least number of parameter servers with which a step is hardly longer than with one for each worker."""

    def step_s(servers: int) -> float:
        return two.own_s + exchange_s("ps", two, workers, servers, link, LATENCY_S)

    return next(count for count in range(1, workers + 1) if step_s(count) <= ENOUGH * step_s(workers))


def predict(
    one: Trial,
    twos: Mapping[str, Trial],
    checked: Mapping[str, Sequence[Trial]] = {},
    link: Link = Link(),
) -> list[Prediction]:
    """Return the expected speedups of the strategies that were tried with two workers, at all SIZES.

    `checked` are trials of these strategies with more workers: their speedups stand beside the expected ones, but for
    another network, and for another number of parameter servers.
    """
    more = {each.workers for trials in checked.values() for each in trials}
    found = []
    for strategy in STRATEGIES:
        if strategy not in twos:
            continue
        two = twos[strategy]
        for workers in sorted({*SIZES, *more}):
            servers = servers_for(two, workers, link) if strategy == "ps" and workers > 1 else 0
            speedups = [
                _speedup(one, two, workers, exchange_s(strategy, two, workers, servers, link, latency_s))
                for latency_s in (LATENCY_S, two.sync_s, 0.0)
            ]
            trials = [] if link.bytes_per_s else [each for each in checked.get(strategy, ()) if each.servers == servers]
            measured = next((workers * one.step_s / each.step_s for each in trials if each.workers == workers), None)
            found.append(
                Prediction(
                    strategy,
                    workers,
                    speedups[0],
                    min(speedups),
                    max(speedups),
                    servers,
                    measured,
                )
            )
    return found


def _speedup(one: Trial, two: Trial, workers: int, waited_s: float) -> float:
    return 1.0 if workers == 1 else workers * one.step_s / (two.own_s + waited_s)
