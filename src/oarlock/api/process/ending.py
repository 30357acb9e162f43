"""The end of the server's process."""

from __future__ import annotations

import atexit
import gc


def without_collection() -> None:
    """Let the interpreter end without looking for garbage once more.

    The operating system takes back all memory at once. Python's last collections walk over every imported module first,
    and take three quarters of the processor time in which a server ends.
    """
    atexit.register(gc.freeze)
