"""The parameters of a policy: the values of the rules over its defaults. Unknown names are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping

from oarlock.spec import errors
from oarlock.spec.hints import suggestions


def read(policy: str, given: Mapping[str, float], defaults: Mapping[str, float]) -> dict[str, float]:
    """Return all parameters of `policy`.

    Raises UnknownField for a name that is not among `defaults`, InvalidInput for a value that is not finite.
    """
    for name, value in given.items():
        if name not in defaults:
            near = suggestions.nearest(name, defaults)
            raise errors.UnknownField(
                f"policy {policy} has no parameter {name!r}",
                hint=f"Did you mean {near!r}?" if near else _listed(defaults),
                path=f"policies.{policy}.{name}",
            )
        if not math.isfinite(value):
            raise refused(policy, name, value, "a finite number")
    return {**defaults, **given}


def refused(policy: str, name: str, value: object, wanted: str) -> errors.InvalidInput:
    """Return the error for an invalid value; `wanted` describes valid ones."""
    return errors.InvalidInput(
        f"{name} of policy {policy} is {value!r}", hint=f"Give {wanted}.", path=f"policies.{policy}.{name}"
    )


def _listed(defaults: Mapping[str, float]) -> str:
    return f"It has {', '.join(sorted(defaults))}." if defaults else "It has none."
