"""The benches start in an environment that has only what they need."""

from __future__ import annotations

import subprocess
import sys

HIDDEN = """
import sys
for name in ("playwright", "axe_playwright_python"):
    sys.modules[name] = None  # an import of it fails
from bench import __main__ as benches
print(*benches.ALL)
"""


def test_benches_are_listed_without_a_browser_library() -> None:
    told = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert {"ratios", "pods", "visits"} <= set(told.stdout.split())
