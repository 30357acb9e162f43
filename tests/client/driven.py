"""An `AsyncClient` with the calls of a `Client`, so that every test of the one is a test of the other."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import oarlock

PATIENCE_S = 240

NewClient = Callable[..., Any]
"""Makes a client, as `oarlock.Client` does."""


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class Driven:
    """Runs each coroutine of `client` to its end; asynchronous iterators and sessions become ordinary ones."""

    def __init__(self, client: Any, loop: Loop) -> None:
        self._driven, self._loop = client, loop

    def __enter__(self) -> Driven:
        self._loop.run(self._driven.__aenter__())
        return self

    def __exit__(self, *told: object) -> None:
        self._loop.run(self._driven.__aexit__(*told))

    def __getattr__(self, name: str) -> Any:
        return self._plain(getattr(self._driven, name))

    def _plain(self, found: Any) -> Any:
        if inspect.iscoroutine(found):
            return self._plain(self._loop.run(found))
        if inspect.isasyncgen(found):
            return self._items(found)
        if inspect.ismethod(found):
            return lambda *arguments, **named: self._plain(found(*arguments, **named))
        if hasattr(found, "__aenter__"):
            return Driven(found, self._loop)
        return found

    def _items(self, found: Any) -> Iterator[Any]:
        async def one() -> Any:
            return await anext(found, None)

        while (item := self._loop.run(one())) is not None:
            yield item


class DrivenClient(Driven):
    """`oarlock.AsyncClient` in the shape of `oarlock.Client`. Nothing of its loop is left once it is closed."""

    def __init__(self, *arguments: Any, sleep: Callable[[float], object] | None = None, **named: Any) -> None:
        if sleep is not None:

            async def slept(seconds: float) -> None:
                sleep(seconds)

            named["sleep"] = slept
        super().__init__(oarlock.AsyncClient(*arguments, **named), Loop())

    def __exit__(self, *told: object) -> None:
        try:
            super().__exit__(*told)
        finally:
            self._loop.close()
