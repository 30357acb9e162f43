"""The fields of a pool to change: the body of `PATCH /api/v1/pools/NAME`.

An absent field stays as it is, and `null` removes a value: one resource of a reservation, or all of it. Amounts are
numbers (devices, cores, bytes) or texts as in job files: `64Gi`, `500m`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from oarlock.spec import errors
from oarlock.spec.cluster import pools
from oarlock.spec.hints import suggestions
from oarlock.spec.input import quantities

Amount = float | str
Amounts = Mapping[str, Amount | None]

MAX_AMOUNT = 1e9
"""The most devices, or cores, and the greatest share that can be meant."""

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,12})?")


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A number as `share` is the share of every resource. `version`, where given, is the version that was read: the
    change is refused if the pool has changed since.
    """

    parent: str | UnsetType | None = UNSET
    reserve: dict[str, Amount | None] | UnsetType | None = UNSET
    limit: dict[str, Amount | None] | UnsetType | None = UNSET
    share: dict[str, Amount | None] | Amount | UnsetType | None = UNSET
    static: tuple[str, ...] | UnsetType | None = UNSET
    policy: str | UnsetType | None = UNSET
    version: int | None = None


def changed(pool: pools.Pool, change: Change) -> pools.Pool:
    """Return `pool` after `change`. Raises InvalidInput for an invalid amount, and for an unknown resource."""
    share = change.share
    if isinstance(share, (float, str)):
        share = dict.fromkeys(pools.RESOURCES, share)
    return msgspec.structs.replace(
        pool,
        parent=_kept(pool.parent, change.parent),
        reserve=_merged("reserve", pool.reserve, change.reserve, amount),
        limit=_merged("limit", pool.limit, change.limit, amount),
        share=_merged("share", pool.share, share, lambda _, value: _number(value)),
        static=_static(pool.static, change.static),
        policy=_kept(pool.policy, change.policy),
    )


def amount(resource: str, value: Amount) -> float:
    """Return a number of devices, cores or bytes. Raise InvalidInput."""
    if resource == "memory":
        if isinstance(value, float) and not math.isfinite(value):
            raise errors.InvalidInput(f"{value:g} is not an amount.", hint="Write a number of bytes, or 64Gi.")
        return float(quantities.memory_bytes(value if isinstance(value, str) else int(value)))
    if resource == "cpus" and isinstance(value, str) and value.strip().endswith("m"):
        return quantities.cpus_milli(value) / 1000
    return _number(value)


def resource(name: str) -> str:
    """Return the resource. Raises InvalidInput unless pools have it."""
    if name not in pools.RESOURCES:
        near = suggestions.nearest(name, pools.RESOURCES)
        hint = f"Did you mean `{near}`?" if near else f"There are {', '.join(pools.RESOURCES)}."
        raise errors.InvalidInput(f"There is no resource `{name[:40]}`.", hint=hint)
    return name


def _kept(old: str | None, new: str | UnsetType | None) -> str | None:
    return old if isinstance(new, UnsetType) else new


def _merged(
    field: str,
    old: Mapping[str, float],
    new: Amounts | UnsetType | None,
    read: Callable[[str, Amount], float],
) -> dict[str, float]:
    if isinstance(new, UnsetType):
        return dict(old)
    found = dict(old) if new is not None else {}
    for name, value in (new or {}).items():
        with _at(f"{field}.{name[:40]}"):
            if value is None:
                found.pop(resource(name), None)
            else:
                found[resource(name)] = read(name, value)
    return {name: found[name] for name in pools.RESOURCES if name in found}


def _static(old: tuple[str, ...], new: tuple[str, ...] | UnsetType | None) -> tuple[str, ...]:
    if isinstance(new, UnsetType):
        return old
    with _at("static"):
        named = {resource(name) for name in new or ()}
    return tuple(name for name in pools.RESOURCES if name in named)


def _number(value: Amount) -> float:
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value.strip()):
            raise errors.InvalidInput(f"{value[:40]!r} is not an amount.", hint="Write a number: 8, or 0.5.")
        value = float(value)
    if not 0 <= value <= MAX_AMOUNT:
        raise errors.InvalidInput(f"{value:g} is out of range.", hint=f"It must be between 0 and {MAX_AMOUNT:g}.")
    return value


@contextlib.contextmanager
def _at(path: str) -> Iterator[None]:
    try:
        yield
    except errors.InvalidInput as error:
        error.path = error.path or path
        raise
