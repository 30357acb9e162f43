"""An estimate of a job's speed on a type of GPU on which it never ran, with the uncertainty of the estimate.

There are three sources. The weakest is the general speed of the types (`GENERAL`). Better is the comparison of jobs
that ran on both types. Best is the comparison of jobs of the same kind (same owner, same name without its number),
because they are most often the same script; two such jobs may have run on one type each. All sources are ratios of the
seconds per example. Their logarithms are averaged with inverse variances as weights, as for normal variables. The
result has the standard deviation that remains.

The exchange of gradients depends on the nodes. It is taken from a job of the same kind that was measured on several
devices of that type, or else from the job's own model on the type where it ran.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from oarlock.spec import curves, plans

GENERAL = {
    "k80": 0.2,
    "m60": 0.3,
    "p4": 0.3,
    "p40": 0.6,
    "p100": 0.7,
    "v100": 1.0,
    "t4": 0.4,
    "rtx6000": 0.8,
    "rtx2080ti": 0.7,
    "a10": 0.8,
    "a10g": 0.8,
    "rtx3090": 1.0,
    "a16": 0.3,
    "a40": 1.1,
    "a6000": 1.1,
    "a30": 1.1,
    "a100": 2.0,
    "l4": 0.6,
    "rtx4090": 1.8,
    "l40": 1.5,
    "l40s": 1.7,
    "mi210": 1.3,
    "mi250": 2.0,
    "mi250x": 2.0,
    "h100": 4.0,
    "gh200": 4.5,
    "h200": 4.5,
    "mi300x": 4.0,
    "b100": 7.0,
    "b200": 8.0,
    "gb200": 8.0,
    "b300": 9.0,
    "gb300": 9.0,
}
"""Training speed of one device, relative to a V100: rounded from published comparisons. Names as in `gputypes`."""

UNKNOWN_SPEED = 1.0
GENERAL_SPREAD = 0.5
"""Standard deviation of the logarithm of a ratio from that table. It doubles for an unknown type."""

JOBS_SPREAD = 0.35
"""The same for jobs of different kinds that ran on both types; below, for jobs of one kind."""
KIND_SPREAD = 0.08

ACROSS_SPREAD = 0.15
"""The same for two jobs of one kind that each ran on another type."""

REMEMBERED = 64
"""Jobs of one kind that count for an estimate: the latest ones."""

Kind = tuple[str, str]
_NUMBER = re.compile(r"[-_.]?\d+$")


class Estimate(NamedTuple):
    """The speed ratio, and the standard deviation of its logarithm."""

    ratio: float
    spread: float


def kind(gang: plans.Gang | plans.Ended) -> Kind:
    """Return the owner of the job, and its name without its number."""
    return gang.owner, _without_number(gang.name)


@functools.lru_cache(maxsize=1 << 12)
def _without_number(name: str) -> str:
    return _NUMBER.sub("", name)


class Seen:
    """The comparisons that some jobs give, by kind and for all of them together, the latest job last."""

    def __init__(self, jobs: Iterable[tuple[Kind, Sequence[curves.OnType]]]) -> None:
        self.of_kind: dict[tuple[Kind, str, str], list[float]] = {}
        self.of_jobs: dict[tuple[str, str], list[float]] = {}
        self.models: dict[tuple[Kind, str], curves.Allreduce] = {}
        self.exchanges: dict[tuple[Kind, str], curves.Allreduce] = {}
        for of, types in jobs:
            for one in types:
                self.models[of, one.gpu_type] = one.model
                if one.model.near_s > 0 or one.model.far_s > 0:
                    self.exchanges[of, one.gpu_type] = one.model
            for here, there, ratio in _ratios(types):
                self.of_kind.setdefault((of, here, there), []).append(ratio)
                self.of_jobs.setdefault((here, there), []).append(ratio)


_last_ended: tuple[tuple[plans.Ended, ...], Seen] = (), Seen(())


def of_ended(ended: tuple[plans.Ended, ...]) -> Seen:
    """Return what the ended jobs tell. It is found once for each tuple: that is the same object until a job ends."""
    global _last_ended
    of, found = _last_ended
    if of is not ended:
        found = Seen((kind(one), one.types) for one in ended if one.types)
        _last_ended = ended, found
    return found


class Relative:
    """The comparisons of GPU types that the measured jobs give, job by job and by kind of job.

    `ended` are those of the ended jobs, which are older than those of `present` ones.
    """

    def __init__(self, present: Iterable[tuple[Kind, Sequence[curves.OnType]]], ended: Seen | None = None) -> None:
        self._present, self._ended = Seen(present), ended or Seen(())
        self._found: dict[tuple[Kind, str, str], Estimate] = {}

    def between(self, of: Kind, here: str, there: str) -> Estimate:
        """Return the speed of a job of that kind on `there`, relative to `here`."""
        found = self._found.get((of, here, there))
        if found is None:
            found = self._found[of, here, there] = self._estimated(of, here, there)
        return found

    def _estimated(self, of: Kind, here: str, there: str) -> Estimate:
        if here == there:
            return Estimate(1.0, 0.0)
        known = GENERAL.get(here), GENERAL.get(there)
        mean = math.log((known[1] or UNKNOWN_SPEED) / (known[0] or UNKNOWN_SPEED)) if all(known) else 0.0
        variance = (GENERAL_SPREAD * (1 if all(known) else 2)) ** 2
        ended, present, pair, own_kind = self._ended, self._present, (here, there), (of, here, there)
        for seen, spread in (
            (ended.of_jobs.get(pair, []) + present.of_jobs.get(pair, []), JOBS_SPREAD),
            (self._across(of, here, there), ACROSS_SPREAD),
            (ended.of_kind.get(own_kind, []) + present.of_kind.get(own_kind, []), KIND_SPREAD),
        ):
            if seen:
                last = seen[-REMEMBERED:]
                own = spread**2 * (1 + 1 / len(last))
                weight = variance / (variance + own)
                mean += weight * (sum(last) / len(last) - mean)
                variance *= 1 - weight
        return Estimate(math.exp(mean), math.sqrt(variance))

    def _across(self, of: Kind, here: str, there: str) -> Sequence[float]:
        """Return the comparison of the latest jobs of that kind on each of the two types; empty without one of them."""
        model, other = self._model(of, here), self._model(of, there)
        return () if model is None or other is None else (math.log(compared(model, other)),)

    def _model(self, of: Kind, gpu_type: str) -> curves.Allreduce | None:
        return self._present.models.get((of, gpu_type)) or self._ended.models.get((of, gpu_type))

    def _exchange(self, of: Kind, gpu_type: str) -> curves.Allreduce | None:
        return self._present.exchanges.get((of, gpu_type)) or self._ended.exchanges.get((of, gpu_type))

    def completed(self, curve: curves.Curve, of: Kind, types: Iterable[str]) -> curves.Curve:
        """Return the curve with a model for each of `types`.

        Measured models stay as they are. Each other one is derived from the measured type with the surest estimate.
        """
        measured = [one for one in curve.types if not one.guessed]
        if not measured:
            return curve
        measured = [self._with_exchange(one, of, measured) for one in _shaped(measured, curve.samples)]
        found = list(measured)
        for name in types:
            if any(one.gpu_type == name for one in measured):
                continue
            guesses = [(self.between(of, one.gpu_type, name), one) for one in measured]
            (ratio, spread), source = min(guesses, key=lambda guess: (guess[0].spread, guess[1].gpu_type))
            model = scaled(source.model, ratio, self._exchange(of, name))
            found.append(curves.OnType(gpu_type=name, model=model, guessed=max(spread, 1e-3)))
        return msgspec.structs.replace(curve, types=tuple(found))

    def _with_exchange(self, one: curves.OnType, of: Kind, measured: Sequence[curves.OnType]) -> curves.OnType:
        """Return a model that was measured on a single device, with an exchange added.

        The exchange comes from jobs of its kind on that type, or from the job itself on another type.
        """
        if one.model.near_s > 0 or one.model.far_s > 0:
            return one
        others = (other.model for other in measured if other.model.near_s > 0 or other.model.far_s > 0)
        exchange = self._exchange(of, one.gpu_type) or next(others, None)
        return one if exchange is None else msgspec.structs.replace(one, model=scaled(one.model, 1.0, exchange))


def _shaped(measured: Sequence[curves.OnType], samples: Sequence[curves.Sample]) -> list[curves.OnType]:
    """Return the models, with one shape for all types.

    One batch size does not tell the constant part of a step. So a type with only one measured batch size gets the shape
    of the type with most of them.
    """
    taken: dict[str, dict[int, float]] = {}
    for sample in samples:
        taken.setdefault(sample.gpu_type, {})[sample.local] = max(1e-9, sample.step_s - sample.sync_s)
    known = max(measured, key=lambda one: len(taken.get(one.gpu_type, ())))
    if len(taken.get(known.gpu_type, ())) < 2:
        return list(measured)
    found = []
    for one in measured:
        sizes = taken.get(one.gpu_type, {})
        if len(sizes) == 1:
            ((local, seconds),) = sizes.items()
            expected_s = known.model.compute_s + known.model.compute_per_example_s * max(1, local)
            own = one.model if one.model.near_s > 0 or one.model.far_s > 0 else None
            one = msgspec.structs.replace(one, model=scaled(known.model, expected_s / seconds, own))
        found.append(one)
    return found


@functools.lru_cache(maxsize=1 << 12)
def _ratios(types: Sequence[curves.OnType]) -> tuple[tuple[str, str, float], ...]:
    """Return the logarithm of the speed ratio for each ordered pair of types of one job."""
    return tuple(
        (one.gpu_type, other.gpu_type, math.log(compared(one.model, other.model)))
        for one in types
        for other in types
        if one.gpu_type != other.gpu_type
    )


def general(of: Relative, kind: Kind, types: Sequence[str]) -> dict[str, float]:
    """Return the expected speeds of `types` for a job that was never measured, relative to the first of them."""
    return {name: of.between(kind, types[0], name).ratio for name in types}


@functools.lru_cache(maxsize=1 << 14)
def compared(here: curves.Allreduce, there: curves.Allreduce) -> float:
    """Return how many times as fast the second model computes.

    The comparison is at the batch size where the first model's constant part equals its part per example.
    """
    each_s = here.compute_per_example_s
    at_once = min(1e5, max(1.0, here.compute_s / each_s)) if each_s > 0 else 1.0
    first, second = (max(1e-9, one.compute_s + one.compute_per_example_s * at_once) for one in (here, there))
    return first / second


@functools.lru_cache(maxsize=1 << 14)
def scaled(model: curves.Allreduce, ratio: float, exchange: curves.Allreduce | None) -> curves.Allreduce:
    """Return a model that computes `ratio` times as fast, and exchanges as `exchange` does (None: as before)."""
    of = exchange or model
    return msgspec.structs.replace(
        model,
        compute_s=model.compute_s / ratio,
        compute_per_example_s=model.compute_per_example_s / ratio,
        near_s=of.near_s,
        near_per_device_s=of.near_per_device_s,
        far_s=of.far_s,
        far_per_device_s=of.far_per_device_s,
        overlap=of.overlap,
    )
