"""The end of the server's process: the signals that request it, and the end of the interpreter."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def by_signals(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` at SIGTERM and SIGINT while the block runs. Only the process's first thread can get signals."""
    loop = asyncio.get_running_loop()
    wanted = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    for number in wanted:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)


def without_collection() -> None:
    """Let the interpreter end without looking for garbage once more.

    The operating system takes back all memory at once. Python's last collections walk over every imported module first,
    and take three quarters of the processor time in which a server ends.
    """
    atexit.register(gc.freeze)
