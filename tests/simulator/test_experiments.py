"""The experiments of examples/11-scheduling, on fewer jobs and seeds: what is better is better, by a margin.

The full ones, with their pictures, are in docs/experiments.md. Each margin here is about half of the smallest difference
that five seeds of the reduced form gave.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from oarlock.simulator import outcome, scenario, summary

EXAMPLE = Path(__file__).parents[2] / "examples" / "11-scheduling"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drawing_experiments", EXAMPLE / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw = _loaded()


def reduced(name: str, *runs: str, part: float = 1.0, **changed: Any) -> scenario.Scenario:
    """The scenario with so large a part of each group's jobs, and of its runs only these."""
    of = draw.read(name)
    jobs = tuple(msgspec.structs.replace(group, count=math.ceil(group.count * part)) for group in of.jobs)
    return msgspec.structs.replace(of, jobs=jobs, runs={run: of.runs[run] for run in runs}, **changed)


def simulated(of: scenario.Scenario, seeds: Iterable[int]) -> dict[str, list[outcome.Outcome]]:
    found = draw.by_run(draw.simulated(of, seeds))
    assert list(found) == list(of.runs)
    return found


def mean(of: Callable[[outcome.Outcome], float], found: Iterable[outcome.Outcome]) -> float:
    return summary.mean([of(one) for one in found])
