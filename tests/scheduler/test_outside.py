"""Another program asks the scheduler with plain numbers: docs/scheduler-from-outside.md, run as it is."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oarlock.spec import plans

PAGE = Path(__file__).parents[2] / "docs" / "scheduler-from-outside.md"
FOREIGN = (
    "numpy",
    "sqlite3",
    "starlette",
    "uvicorn",
    "httpx",
    "click",
    "oarlock.store",
    "oarlock.api",
    "oarlock.controllers",
)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """What the example has defined when it is through."""
    found: dict[str, Any] = {}
    exec(compile(_code(), str(PAGE), "exec"), found)
    return found


def _code() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def test_one_job_alone_starts_on_one_node(example: dict[str, Any]) -> None:
    assert example["allocations"](example["first"]) == {"long": ["n0"] * 4}


def test_it_grows_once_its_curve_is_known(example: dict[str, Any]) -> None:
    (long,) = example["second"].running
    assert (len(long.holdings), long.started_at, long.gang.starts) == (8, 600.0, 2)
    assert long.gang.served_s == 4 * 600.0, "what it held before its restart counts as its service"


def test_it_shrinks_for_others_and_all_run(example: dict[str, Any]) -> None:
    third: plans.Snapshot = example["third"]
    assert not third.waiting
    assert {one.job for one in third.running} == {"long", "short-1", "short-2"}
    claims = [claim for one in third.running for claim in one.holdings]
    held = collections.Counter((claim.node, device) for claim in claims for device in claim.devices)
    assert max(held.values()) == 1
    assert sum(held.values()) == 8


def test_nothing_changes_when_it_is_asked_again_at_once(example: dict[str, Any]) -> None:
    third = example["third"]
    assert example["allocations"](example["settled"](third, 1200.0)) == example["allocations"](third)


def test_it_needs_no_server() -> None:
    """Nothing of the server's, nothing that computes on arrays."""
    loaded = _code() + "\nimport sys\nprint('LOADED', *sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    modules = set(ran.stdout.partition("LOADED")[2].split())
    assert "oarlock.scheduler.planning" in modules
    assert not {name for name in modules if name.startswith(FOREIGN)}
