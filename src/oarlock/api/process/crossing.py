"""Calls from the API's event loop into the loop of the controllers and the backend.

Scheduling a long queue takes time and must not delay requests, so each loop has a thread. Both may use the store and
the logs. The backend belongs to the controllers' loop: the API calls it (`exec`, its nodes) through this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from oarlock.backends import backends, tensorboards
from oarlock.spec import attempts, jobs

A = TypeVar("A")
T = TypeVar("T")


class Crossing:
    """Runs coroutines in another event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def over(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine that runs in the other loop. Cancelling the call cancels it there, too."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))


def crossed(crossing: Crossing, ask: Callable[[A], Coroutine[Any, Any, T]]) -> Callable[[A], Coroutine[Any, Any, T]]:
    """Return the function of the other loop, as one of this loop."""
    return lambda about: crossing.over(lambda: ask(about))


class Exec:
    """`provided.Exec` over a backend of another loop."""

    def __init__(self, crossing: Crossing, backend: backends.Backend) -> None:
        self._crossing = crossing
        self._backend = backend

    async def __call__(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> backends.ExecProcess:
        process = await self._crossing.over(
            lambda: self._backend.exec(key, command, tty=tty, rows=rows, columns=columns)
        )
        return Process(self._crossing, process)


class TensorBoards:
    """`tensorboards.TensorBoards` of another loop."""

    def __init__(self, crossing: Crossing, way: tensorboards.TensorBoards) -> None:
        self._crossing = crossing
        self._way = way

    @property
    def makes(self) -> bool:
        return self._way.makes

    async def there(self) -> list[tensorboards.Board]:
        return await self._crossing.over(self._way.there)

    async def of(self, job: jobs.Job) -> tensorboards.Board | None:
        return await self._crossing.over(lambda: self._way.of(job))

    async def make(self, job: jobs.Job, still: backends.Still) -> str:
        return await self._crossing.over(lambda: self._way.make(job, still))

    async def remove(self, board: tensorboards.Board, still: backends.Still) -> None:
        await self._crossing.over(lambda: self._way.remove(board, still))

    async def connect(self, job: jobs.Job) -> backends.ExecProcess:
        return Process(self._crossing, await self._crossing.over(lambda: self._way.connect(job)))


class Process:
    """`backends.ExecProcess` of another loop."""

    def __init__(self, crossing: Crossing, process: backends.ExecProcess) -> None:
        self._crossing = crossing
        self._process = process

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        output = self._process.output()
        while (item := await self._crossing.over(lambda: _next(output))) is not None:
            yield item

    async def write(self, data: bytes) -> None:
        await self._crossing.over(lambda: self._process.write(data))

    async def close_stdin(self) -> None:
        await self._crossing.over(self._process.close_stdin)

    async def resize(self, rows: int, columns: int) -> None:
        await self._crossing.over(lambda: self._process.resize(rows, columns))

    async def kill(self) -> None:
        await self._crossing.over(self._process.kill)


async def _next(output: AsyncIterator[tuple[str, bytes]]) -> tuple[str, bytes] | None:
    return await anext(output, None)
