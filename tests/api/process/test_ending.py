"""The end of a process that collects no garbage any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

GARBAGE = """
import gc
gc.disable()
class Tells:
    def __del__(self):
        print("collected")
one = Tells()
one.itself = one
del one
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [("", "collected\n"), ("from oarlock.api.process import ending\nending.without_collection()", "")],
    ids=["of_python", "of_the_server"],
)
def test_garbage_is_left_to_the_operating_system(end: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GARBAGE + end], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == said
