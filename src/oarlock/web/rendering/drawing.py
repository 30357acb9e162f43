"""The thread in which pages are rendered and compressed.

It is one, because each thread that allocates keeps memory of its own: 50 pages that were opened at once took 13 MB more
in the six threads of the event loop, and were no faster, since one of them runs at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Thread:
    """Begins with the first work, and ends with the last reference to it."""

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "oarlock-pages")

    async def __call__(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Return the result of the work, done in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(work, *given, **named))
