"""The speed of a job with given devices, as far as its curve tells: progress per second, and the best batch size.

A policy asks for `rate(curve, batch, shape)`; the other functions answer that question for one of the models of
`spec/curves.py`. Progress is counted in the model's unit: examples at the efficiency of the initial batch size
(`Allreduce`), steps (`Servers`), or the unit of a `Table`. So rates of one job are comparable with each other, and
rates of two jobs only as ratios (`speedup`).

A policy asks for thousands of rates in each round, and for most of them again in the next round. So answers are kept by
value. The gradient noise drifts with every report and is rounded to steps of 10 % first: the best batch size moves with
its square root, and smaller changes are not worth a decision.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from oarlock.spec import curves, jobfile

NOISE_STEP = 1.1
"""The gradient noise is rounded to powers of this number before any decision."""

KEPT = 1 << 15
"""Cached answers of each kind. One takes about 400 bytes."""

WORTH_A_CHANGE = 1.005
"""A gang changes its batch size only if the new one is better by this factor."""

_HALVINGS = 10
"""Halvings of the interval (of the logarithm) that holds the best batch: a factor of 100 is then known to half a per
cent.
"""


class Shape(NamedTuple):
    """The devices of a gang: `devices` of one type, spread evenly over `nodes`, and `servers` parameter servers.

    An empty `gpu_type` means the type of the curve's own model.
    """

    nodes: int
    devices: int
    servers: int = 0
    gpu_type: str = ""


ONE = Shape(1, 1)


def of_params(
    perf: tuple[float, float, float, float, float, float, float],
    grad: tuple[float, float] | None,
    initial: int,
    seen: int,
    *,
    left: float | None = None,
) -> curves.Curve:
    """Return a curve from the numbers that Pollux's published simulator uses, so that it can ask our policies.

    `perf`: (alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma), in seconds. `grad`: the squared gradient and its
    variance at the `initial` batch size. `seen`: the largest number of devices that was profiled. `left`: examples.
    """
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = perf
    return curves.Curve(
        model=curves.Allreduce(
            compute_s=alpha_c,
            compute_per_example_s=beta_c,
            near_s=alpha_r,
            near_per_device_s=beta_r,
            far_s=alpha_n,
            far_per_device_s=beta_n,
            overlap=gamma,
            noise=None if grad is None else noise(*grad, initial),
            seen=seen,
        ),
        left=left,
    )


def noise(squared: float, variance: float, initial: int) -> float | None:
    """Return the gradient noise scale in examples; None where the gradient is lost in its noise.

    `squared` is the squared gradient, and `variance` its variance at the `initial` batch size.
    """
    if squared <= 0 or variance < 0:
        return None
    return variance / squared * initial


def rate(curve: curves.Curve | None, batch: jobfile.Batch | None, shape: Shape) -> float:
    """Return the progress per second with `shape`, at the best batch size that `batch` allows; 0 if it cannot run so.

    The speed of a job without a curve is assumed to be proportional to its devices, until it is measured.
    """
    if shape.devices < 1:
        return 0.0
    if curve is None:
        return float(shape.devices)
    model = on(curve, shape.gpu_type)
    if isinstance(model, curves.Table):
        return model.rates[min(shape.devices, len(model.rates)) - 1] if model.rates else 0.0
    if isinstance(model, curves.Servers):
        return steps_per_s(model, shape.devices, shape.servers)
    if batch is None:
        return _as_it_is(model, shape.nodes, shape.devices, local(curve))
    return _best(_rounded(model), batch.on(shape.gpu_type), shape.nodes, shape.devices)[0]


def speeds(curve: curves.Curve, batch: jobfile.Batch | None, shapes: Sequence[Shape]) -> list[float]:
    """Return the `rate` with each of `shapes`, which are all on one type of GPU."""
    gpu_type = shapes[0].gpu_type if shapes else ""
    model = on(curve, gpu_type)
    if batch is None or not isinstance(model, curves.Allreduce):
        return [rate(curve, batch, shape) for shape in shapes]
    rounded, bounds = _rounded(model), batch.on(gpu_type)
    return [_best(rounded, bounds, shape.nodes, shape.devices)[0] if shape.devices else 0.0 for shape in shapes]


def on(curve: curves.Curve, gpu_type: str) -> curves.Model:
    """Return the model of the job on that type of GPU; without one, the curve's own model."""
    for one in curve.types if gpu_type else ():
        if one.gpu_type == gpu_type:
            return one.model
    return curve.model


def speedup(curve: curves.Curve | None, batch: jobfile.Batch | None, shape: Shape, *, than: Shape = ONE) -> float:
    """Return the rate with `shape` divided by the rate with `than`; 0 if the job cannot run with either."""
    base = rate(curve, batch, than)
    return rate(curve, batch, shape) / base if base > 0 else 0.0


def best_batch(
    curve: curves.Curve | None, batch: jobfile.Batch | None, shape: Shape, *, present: curves.Batch | None = None
) -> curves.Batch | None:
    """Return the batch of each process and the number of accumulated parts; None if there is nothing to decide.

    The `present` batch is kept unless another one is better by the factor `WORTH_A_CHANGE`.
    """
    found = on(curve, shape.gpu_type) if curve is not None else None
    if batch is None or not isinstance(found, curves.Allreduce) or shape.devices < 1:
        return None
    model, bounds = _rounded(found), batch.on(shape.gpu_type)
    most, best = _best(model, bounds, shape.nodes, shape.devices)
    if present is not None and best is not None:
        total = present.local * present.accumulate * shape.devices
        if bounds.size <= total <= bounds.max and bounds.local_min <= present.local:
            now = _goodput(model, bounds.size, shape.nodes, shape.devices, present.local, present.accumulate)
            if most <= now * WORTH_A_CHANGE and present.local <= (bounds.local_max or total):
                return present
    return best


def seen(curve: curves.Curve | None) -> int | None:
    """Return the most devices with which the speed was measured, on any type of GPU.

    Return None for a speed that was not measured, or that was declared for all sizes.
    """
    if curve is None or not isinstance(curve.model, curves.Allreduce):
        return None
    return max((one.model.seen for one in curve.types), default=curve.model.seen)


def node_size(devices: Sequence[int]) -> int:
    """Return the size of the nodes that hold most devices. `devices` has the number of devices of each node."""
    return max(set(devices), key=lambda count: (count * devices.count(count), count), default=0) or 1


def local(curve: curves.Curve) -> int:
    """Return the examples that each process took at once in the last measurement; 1 if it did not report them."""
    return next((sample.local for sample in reversed(curve.samples) if sample.local), 1)


def step_s(model: curves.Allreduce, nodes: int, devices: int, at_once: float, accumulate: int = 1) -> float:
    """Return the seconds between two updates of the weights.

    Each device takes `at_once` examples `accumulate` times.
    """
    grad_s = model.compute_s + example_s(model, devices) * at_once
    return (accumulate - 1) * grad_s + _combined(grad_s, sync_s(model, nodes, devices), model.overlap)


def example_s(model: curves.Allreduce, devices: int) -> float:
    """Return the seconds that each example adds to the computing of a device, with the waiting for its data."""
    return model.compute_per_example_s + model.data_per_device_s * (devices - 1)


def sync_s(model: curves.Allreduce, nodes: int, devices: int) -> float:
    """Return the seconds that the exchange of gradients takes by itself."""
    if devices <= 1:
        return 0.0
    if nodes <= 1:
        return model.near_s + model.near_per_device_s * (devices - 2)
    return model.far_s + model.far_per_device_s * (devices - 2)


def efficiency(noise_scale: float | None, initial: int, total: float) -> float:
    """Return the progress per example at batch size `total`, relative to the `initial` one.

    Without a known gradient noise, examples beyond the initial batch size bring no progress.
    """
    known = noise_scale or 0.0
    return (known + initial) / (known + total)


def steps_per_s(model: curves.Servers, workers: int, servers: int) -> float:
    """Return the steps per second with parameter servers; 0 without a worker or a server."""
    if workers < 1 or servers < 1:
        return 0.0
    if model.synchronous:
        t0, t1, t2, t3, t4 = model.times
        seconds = t0 * model.batch / workers + t1 + t2 * workers / servers + t3 * workers + t4 * servers
        return 1 / seconds if seconds > 0 else 0.0
    t0, t1, t2, t3 = model.times
    seconds = t0 + t1 * workers / servers + t2 * workers + t3 * servers
    return workers / seconds if seconds > 0 else 0.0


def _combined(grad_s: float, exchange_s: float, overlap: float) -> float:
    """Return the time of computing and exchanging, which overlap: the norm of the two.

    Overlap 1: one after the other.
    """
    if exchange_s <= 0:
        return grad_s
    if grad_s <= 0:
        return exchange_s
    ratio = exchange_s / grad_s
    if ratio > 1:
        return float(exchange_s * (1 + ratio**-overlap) ** (1 / overlap))
    return float(grad_s * (1 + ratio**overlap) ** (1 / overlap))


@functools.lru_cache(maxsize=KEPT)
def _rounded(model: curves.Allreduce) -> curves.Allreduce:
    if model.noise is None or model.noise <= 0:
        return model
    return msgspec.structs.replace(model, noise=float(NOISE_STEP ** round(math.log(model.noise, NOISE_STEP))), seen=1)


@functools.lru_cache(maxsize=KEPT)
def _as_it_is(model: curves.Allreduce, nodes: int, devices: int, at_once: int) -> float:
    """Return the examples per second with an unchanged batch size of each process."""
    seconds = step_s(model, nodes, devices, at_once)
    return at_once * devices / seconds if seconds > 0 else 0.0


@functools.lru_cache(maxsize=KEPT)
def _best(
    model: curves.Allreduce, batch: jobfile.Bounds, nodes: int, devices: int
) -> tuple[float, curves.Batch | None]:
    """Return the best rate and its batch.

    For each number of accumulated parts, the rate has one maximum over the size of a part. It also has one maximum over
    the number of parts, so the search ends once it falls. Numbers of parts that cannot be better are not looked into.
    """
    most = max(batch.size, batch.max)
    local_max = batch.local_max or most
    if batch.local_min * devices > most:
        return 0.0, None
    first = max(1, math.ceil(batch.size / (devices * local_max)))
    exchange_s = sync_s(model, nodes, devices)
    best: tuple[float, curves.Batch | None] = (0.0, None)
    for parts in range(first, max(first, most // (devices * batch.local_min)) + 1):
        high = min(local_max, most // (devices * parts))
        if high < batch.local_min:
            break
        low = min(high, max(batch.local_min, math.ceil(batch.size / (devices * parts))))
        if devices == 1 and parts == 1:
            high = low  # the noise of one part on one device cannot be measured: do not enlarge it
        if parts == first or _bound(model, batch.size, devices, parts, low, high) > best[0]:
            at_once = _best_part(model, exchange_s, devices, parts, low, high)
            found = _goodput(model, batch.size, nodes, devices, at_once, parts)
            if found > best[0]:
                best = found, curves.Batch(at_once, parts)
                continue
        if parts > first + 1:
            break
    return best


def _bound(model: curves.Allreduce, initial: int, devices: int, parts: int, low: int, high: int) -> float:
    """Return a rate that no size of a part between `low` and `high` exceeds: the best one if exchanges took no time."""
    noise, constant_s, each_s = model.noise or 0.0, model.compute_s * parts, example_s(model, devices) / devices
    peak = math.sqrt(max(0.0, constant_s * noise / each_s)) if each_s > 0 else math.inf
    total = min(max(peak, low * devices * parts), high * devices * parts)
    seconds = constant_s + each_s * total
    return total / seconds * efficiency(noise, initial, total) if seconds > 0 else math.inf


def _best_part(model: curves.Allreduce, exchange_s: float, devices: int, parts: int, low: int, high: int) -> int:
    """Return the best size of one part, between `low` and `high`.

    There, one per cent more examples costs as many per cent of time as it brings progress.
    """
    noise = model.noise
    if low >= high or not noise:
        return low
    constant_s, each_s, overlap = model.compute_s, example_s(model, devices), model.overlap

    def gain(at_once: float) -> float:
        """Return the per cent of progress less the per cent of time, both per step, for one per cent more examples."""
        slope_s = each_s * at_once
        grad_s = constant_s + slope_s
        if grad_s <= 0:
            return 1.0
        last_s = _combined(grad_s, exchange_s, overlap)
        hidden = float((grad_s / last_s) ** (overlap - 1))
        time = slope_s * (parts - 1 + hidden) / ((parts - 1) * grad_s + last_s)
        return noise / (noise + devices * parts * at_once) - time

    if gain(high) >= 0:
        return high
    if gain(low) <= 0:
        return low
    left, right = float(low), float(high)
    for _ in range(_HALVINGS):
        middle = math.sqrt(left * right)
        if gain(middle) > 0:
            left = middle
        else:
            right = middle
    return min(high, max(low, round(math.sqrt(left * right))))


def _goodput(model: curves.Allreduce, initial: int, nodes: int, devices: int, at_once: int, parts: int) -> float:
    total = devices * at_once * parts
    seconds = step_s(model, nodes, devices, at_once, parts)
    return total / seconds * efficiency(model.noise, initial, total) if seconds > 0 else 0.0
