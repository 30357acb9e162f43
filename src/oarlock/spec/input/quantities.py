"""Quantities as people write them, turned into numbers: `2Gi` into bytes, `500m` into thousandths of a core, `10m` into
seconds.

Every function raises `InvalidInput` for a text that is malformed, negative, not finite or beyond the stated maximum;
the caller adds the path.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from oarlock.spec import errors

MAX_BYTES = 1 << 60
MAX_CPUS = 100_000
MAX_SECONDS = 10 * 365 * 86_400.0

_BYTES = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,12})?"
_MEMORY_PATTERN = re.compile(rf"({_NUMBER}) ?({'|'.join(unit for unit in _BYTES if unit)})?(?:B)?")
_DURATION_PATTERN = re.compile(rf"({_NUMBER})(ms|s|m|h|d|w)")


def memory_bytes(value: str | int) -> int:
    """Return the bytes of `2Gi`, `500M`, `1.5G` or a number of bytes."""
    if isinstance(value, int):
        amount: float = value
    else:
        match = _MEMORY_PATTERN.fullmatch(value.strip())
        if match is None:
            raise errors.InvalidInput(
                f"{_shown(value)} is not an amount of memory", hint="Write it as 512Mi, 2Gi or 1.5G."
            )
        amount = float(match[1]) * _BYTES[match[2] or ""]
    return int(_within(amount, MAX_BYTES, "memory", "bytes"))


def cpus_milli(value: float | str) -> int:
    """Return thousandths of a core, from cores (`0.5`, `4`) or thousandths (`500m`)."""
    if isinstance(value, str):
        match = re.fullmatch(rf"({_NUMBER})(m?)", value.strip())
        if match is None:
            raise errors.InvalidInput(f"{_shown(value)} is not a number of CPUs", hint="Write it as 0.5, 4 or 500m.")
        value = float(match[1]) / (1000 if match[2] else 1)
    return round(_within(value, MAX_CPUS, "cpus", "cores") * 1000)


def seconds(value: str | float) -> float:
    """Return seconds, from a number or from parts that add up: `90s`, `10m`, `1h30m`."""
    if not isinstance(value, str):
        return _within(value, MAX_SECONDS, "a duration", "seconds")
    text = value.strip()
    if re.fullmatch(_NUMBER, text):
        return _within(float(text), MAX_SECONDS, "a duration", "seconds")
    parts = _DURATION_PATTERN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise errors.InvalidInput(f"{_shown(value)} is not a duration", hint="Write it as 90s, 10m, 1h30m or 2d.")
    return _within(sum(float(number) * _SECONDS[unit] for number, unit in parts), MAX_SECONDS, "a duration", "seconds")


def memory_text(amount: float) -> str:
    """Return bytes for people: `2 GiB`, `512 MiB`."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= size:
            return f"{amount / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{amount:.0f} B"


def size_text(size: float) -> str:
    """Return bytes for people in decimal units, in which disks and limits are counted: `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def duration_text(amount_s: float) -> str:
    """Return seconds for people: `3.2 s`, `4m 05s`, `2h 10m`, `3d 4h`."""
    if amount_s < 60:
        return f"{amount_s:.1f} s"
    whole = round(amount_s)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if hours == 0:
        return f"{minutes}m {whole % 60:02d}s"
    if days == 0:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{days}d {hours % 24}h"


def _within(amount: float, most: float, what: str, unit: str) -> float:
    if not math.isfinite(amount) or amount < 0 or amount > most:
        raise errors.InvalidInput(
            f"{amount:g} is out of range for {what}", hint=f"It must be between 0 and {most:g} {unit}."
        )
    return amount


def _shown(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:37] + "...")


def ranges_text(numbers: Iterable[int]) -> str:
    """Return the numbers as ranges: `0-3, 6`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def between(value: float, low: float, high: float, path: str = "") -> None:
    """Raise InvalidInput, with the path of the field, for a value that is out of range."""
    if not low <= value <= high:  # NaN is refused too
        raise errors.InvalidInput(
            f"{value:g} is out of range", path=path, hint=f"It must be between {low:g} and {high:g}."
        )
