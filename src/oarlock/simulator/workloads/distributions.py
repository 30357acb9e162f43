"""Random numbers with all their parameters: durations, sizes and arrivals of jobs.

Everything is drawn from a `random.Random` that the caller has seeded, one draw after the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec

from oarlock.spec import errors
from oarlock.spec.input import quantities

Quantity = float | str
"""A number, or a duration in seconds (`90s`, `1h30m`)."""


MOST_SIGMA = 10.0
"""Limit on `sigma`. Beyond it draws exceed all sensible durations."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a scenario: unknown fields are errors."""


class Exponential(Part, frozen=True):
    mean: Quantity


class Lognormal(Part, frozen=True):
    """`sigma` is the standard deviation of the logarithm."""

    median: Quantity
    sigma: float


class Uniform(Part, frozen=True):
    least: Quantity
    most: Quantity


class Choice(Part, frozen=True):
    """Equally likely values, unless there are `weights`, one for each value."""

    values: tuple[Quantity, ...]
    weights: tuple[float, ...] = ()


class Distribution(Part, frozen=True):
    """One of the kinds. A draw outside `at_least` and `at_most` is moved to the nearer of them."""

    exponential: Exponential | None = None
    lognormal: Lognormal | None = None
    uniform: Uniform | None = None
    choice: Choice | None = None
    at_least: Quantity | None = None
    at_most: Quantity | None = None


class Poisson(Part, frozen=True):
    per_h: float


class Arrivals(Part, frozen=True):
    """The arrivals of a group's jobs, from `start` on: all at once, at an interval of `every`, or at random."""

    start: Quantity = 0.0
    every: Quantity | None = None
    poisson: Poisson | None = None


def draws(of: Distribution | Quantity, chance: random.Random, path: str) -> Iterator[float]:
    """Return an endless iterator of draws. Raises InvalidInput for an invalid distribution."""
    if not isinstance(of, Distribution):
        fixed = number(of, path)
        return iter(lambda: fixed, None)
    kinds = [kind for kind in ("exponential", "lognormal", "uniform", "choice") if getattr(of, kind) is not None]
    if len(kinds) != 1:
        raise errors.InvalidInput(
            f"exactly one kind of distribution is needed, there are {len(kinds)}",
            path=path,
            hint="Give exponential, lognormal, uniform or choice.",
        )
    least = -math.inf if of.at_least is None else number(of.at_least, f"{path}.at_least")
    most = math.inf if of.at_most is None else number(of.at_most, f"{path}.at_most")
    if least > most:
        raise errors.InvalidInput(f"from {least:g} to {most:g}", path=path, hint="Write at_least <= at_most.")
    return (min(most, max(least, drawn)) for drawn in _drawn(of, chance, path))


def arrival_times(of: Arrivals, chance: random.Random, path: str) -> Iterator[float]:
    """Return an endless iterator of arrival times, in order."""
    at = number(of.start, f"{path}.start")
    if of.every is not None and of.poisson is not None:
        raise errors.InvalidInput("both every and poisson", path=path, hint="Give one of them.")
    if of.poisson is not None and not 0 < of.poisson.per_h < math.inf:
        raise errors.InvalidInput(f"{of.poisson.per_h:g} an hour", path=f"{path}.poisson.per_h", hint="More than 0.")
    every = None if of.every is None else number(of.every, f"{path}.every")
    return _times(at, every, None if of.poisson is None else of.poisson.per_h / 3600.0, chance)


def number(value: Quantity, path: str) -> float:
    """Return the number. Raises InvalidInput with the path."""
    try:
        return quantities.seconds(value) if isinstance(value, str) else quantities.seconds(float(value))
    except errors.InvalidInput as error:
        error.path = error.path or path
        raise


def _times(at: float, every: float | None, per_s: float | None, chance: random.Random) -> Iterator[float]:
    while True:
        if per_s is not None:
            at += chance.expovariate(per_s)
        yield at
        if every is not None:
            at += every


def _drawn(of: Distribution, chance: random.Random, path: str) -> Iterator[float]:
    if of.exponential is not None:
        rate = 1.0 / _positive(of.exponential.mean, f"{path}.exponential.mean")
        while True:
            yield chance.expovariate(rate)
    if of.lognormal is not None:
        if not 0 <= of.lognormal.sigma <= MOST_SIGMA:
            raise errors.InvalidInput(
                f"{of.lognormal.sigma:g}", path=f"{path}.lognormal.sigma", hint=f"From 0 to {MOST_SIGMA:g}."
            )
        middle = math.log(_positive(of.lognormal.median, f"{path}.lognormal.median"))
        while True:
            yield chance.lognormvariate(middle, of.lognormal.sigma)
    if of.uniform is not None:
        least, most = number(of.uniform.least, f"{path}.uniform.least"), number(of.uniform.most, f"{path}.uniform.most")
        if least > most:
            raise errors.InvalidInput(
                f"from {least:g} to {most:g}", path=f"{path}.uniform", hint="Write least <= most."
            )
        while True:
            yield chance.uniform(least, most)
    choice = of.choice or Choice(values=())
    values = [number(value, f"{path}.choice.values") for value in choice.values]
    weights = list(choice.weights) or [1.0] * len(values)
    if len(weights) != len(values) or not values or min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise errors.InvalidInput(
            f"{len(values)} values and {len(weights)} weights",
            path=f"{path}.choice",
            hint="Write it as {values: [1, 4], weights: [0.7, 0.3]}.",
        )
    while True:
        yield chance.choices(values, weights)[0]


def _positive(value: Quantity, path: str) -> float:
    found = number(value, path)
    if found <= 0:
        raise errors.InvalidInput(f"{found:g}", path=path, hint="It must be more than 0.")
    return found
