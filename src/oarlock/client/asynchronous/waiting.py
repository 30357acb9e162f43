"""Waiting on an event loop: sleep, work that blocks, and several pieces of work at once.

`synchronous/waiting.py` has the same names for threads. The other modules of this folder are written once, with
`async` and `await`; `make sdk` makes those of `synchronous/` from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

Sleep = Callable[[float], Awaitable[None]]
sleep: Sleep = asyncio.sleep


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of blocking work, which runs in a thread."""
    return await asyncio.to_thread(work, *args, **kwargs)


class Pool:
    """Runs a piece of work for each item, at most `limit` at once. The first failure ends the others."""

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def map(self, work: Callable[[Item], Awaitable[T]], items: Sequence[Item]) -> list[T]:
        """Return the results in the order of the items. Raises the first failure."""

        async def one(item: Item) -> T:
            async with self._slots:
                return await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in items]
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures
        return [task.result() for task in tasks]

    def check(self) -> None:
        """Do nothing: a failure cancels the other tasks at their next `await`."""


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first failure; the others only follow from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
