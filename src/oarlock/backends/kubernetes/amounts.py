"""Quantities as Kubernetes writes them (`500m`, `64Gi`, `1e3`), as whole numbers.

A request is rounded up and a capacity down, so that a node is never overfilled by rounding. Source: the package
`resource` of apimachinery.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache

from oarlock.spec import errors, holdings

_QUANTITY = re.compile(r"([+-]?[0-9]*\.?[0-9]+|[+-]?[0-9]+\.)(?:([eE][+-]?[0-9]+)|([a-zA-Z]{0,2}))")
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    **{f"{letter}i": Decimal(1 << 10 * power) for power, letter in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=4096)
def exact(text: str) -> Decimal:
    """Return the number. Raises InvalidInput for anything but a quantity."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise errors.InvalidInput(f"{text[:40]!r} is not a Kubernetes quantity", hint="Write it as 500m, 2 or 64Gi.")
    return Decimal(match[1] + (match[2] or "")) * _SUFFIXES[match[3] or ""]


@lru_cache(maxsize=4096)
def units(text: str, per_unit: int = 1, *, up: bool = True) -> int:
    """Return the quantity in parts of a unit: with `per_unit` 1000 in thousandths."""
    return int((exact(text) * per_unit).to_integral_value(ROUND_CEILING if up else ROUND_FLOOR))


def resources(said: dict[str, str], gpu: str, *, up: bool) -> holdings.Resources:
    """Return the amounts of a map such as `requests` or `allocatable`. `gpu` is the name of the GPU resource."""
    return holdings.Resources(
        cpus_milli=units(said.get("cpu", "0"), 1000, up=up),
        memory_bytes=units(said.get("memory", "0"), up=up),
        gpus=units(said.get(gpu, "0"), up=up) if gpu else 0,
    )


def cpu_text(milli: int) -> str:
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
