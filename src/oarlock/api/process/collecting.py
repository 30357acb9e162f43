"""Cyclic garbage collection of the server process.

CPython looks for cycles of garbage after each 700 new objects, and now and then among all objects. The server keeps
thousands of jobs, pods and nodes, which are no garbage, and makes many short-lived objects that need no collection.
With the thresholds of CPython a burst of launches spent a ninth of its processor time on such looks, with these a
thirtieth.
"""

from __future__ import annotations

import gc

NEW_OBJECTS = 10_000
YOUNG_LOOKS = OLDER_LOOKS = 10


def rarely() -> None:
    """Look for cycles after more new objects. The looks at older objects keep their ratio."""
    gc.set_threshold(NEW_OBJECTS, YOUNG_LOOKS, OLDER_LOOKS)
