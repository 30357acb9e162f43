"""Another program asks the scheduler: docs/scheduler-from-outside.md, run as it stands."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
def printed() -> list[str]:
    """The lines that the example prints, when it runs as it stands."""
    ran = subprocess.run([sys.executable, "-c", _code()], capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.splitlines()


def _code() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def test_it_prints_the_output_of_the_page(printed: list[str]) -> None:
    (shown,) = re.findall(r"It prints\n\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert printed == shown.splitlines()


def test_no_gpu_is_given_twice(printed: list[str]) -> None:
    held: dict[str, list[str]] = {}
    for line in printed:
        _, _, job, *nodes = line.split()
        held[job] = nodes
    assert set(held) == {"long", "short-1", "short-2"}
    del held["short-1"]  # it is over in the end
    assert collections.Counter(node for nodes in held.values() for node in nodes) == {"n0": 4, "n1": 4}


def test_it_needs_no_server() -> None:
    """Nothing of the server's, nothing that computes on arrays."""
    loaded = _code() + "\nimport sys\nprint('LOADED', *sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    modules = set(ran.stdout.partition("LOADED")[2].split())
    assert "oarlock.scheduler.planning" in modules
    assert not {name for name in modules if name.startswith(FOREIGN)}
