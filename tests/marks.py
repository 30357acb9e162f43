"""Marks for a part of a test's parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def long_except(short: Collection[Any], every: Iterable[Any]) -> list[ParameterSet]:
    """Return `every` parameter in its order: `make test` takes those in `short`, `make test-long` the others."""
    given = [*every]
    assert {*short} <= {*given}, "a parameter of `make test` is none of the test's"
    return [pytest.param(one, marks=() if one in short else pytest.mark.long) for one in given]
