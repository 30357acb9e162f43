"""Numbers, counts and amounts of resources in words. Bytes are in `oarlock.spec.input.quantities`."""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.spec.input import quantities

UNITS = {"cpus": "CPU", "gpus": "GPU"}


def counted(count: float, noun: str) -> str:
    """Return `1 file`, `2,400 files`, `0.5 GPUs`."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """Return a measured value with four significant digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


def rate(per_s: float) -> str:
    """Return a speed with at least three significant digits."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def of_resource(resource: str, value: float) -> str:
    """Return `2 GPUs`, `1 CPU`, `4 GiB`. `resource` is gpus, cpus or memory, in devices, cores or bytes."""
    return quantities.memory_text(value) if resource == "memory" else counted(value, UNITS[resource])


def gpus(numbers: Iterable[int]) -> str:
    """Return ` (GPU 2)`, ` (GPUs 0-1, 3)`, to follow a node's name; empty without GPUs."""
    held = set(numbers)
    return f" (GPU{'' if len(held) == 1 else 's'} {quantities.ranges_text(held)})" if held else ""
