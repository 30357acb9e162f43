"""The loops that run the controllers until told to stop. Each is woken by events, by its own clock, and now and then.

A wake-up is a hint. Each tick derives everything again, so a lost one costs at most `RESYNC_S`, and a needless one
costs a look. A tick that raises is reported and tried again after a while; it ends no loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import structlog

from oarlock.backends import backends
from oarlock.controllers import leadership
from oarlock.spec import errors
from oarlock.store import stores

RESYNC_S = 2.0
HINT_WAIT_S = 30.0
HINT_SPACING_S = 0.02
"""The first hint wakes at once; those that follow closely are one."""
PAUSE_PER_CPU_S = 3.0
PAUSE_MOST_S = 0.5
"""After a tick that took a second of CPU in its own steps a controller rests for so many, but no longer than that."""
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 3.0

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class Controller(Protocol):
    """`wake_at` is when it wants to be woken if nothing happens (Unix seconds), None: no wish."""

    name: str

    async def tick(self) -> None: ...

    def wake_at(self) -> float | None: ...


@runtime_checkable
class Closing(Protocol):
    """A controller whose work goes on between its ticks. `close` ends that work, before the leadership is given up."""

    async def close(self) -> None: ...


class Observer(Protocol):
    """Hears of every tick, for the metrics of operations."""

    def ticked(self, name: str, duration_s: float) -> None: ...

    def failed(self, name: str) -> None: ...


def report(what: str, error: Exception) -> None:
    """Write a `bulkwrites.Report` into the log."""
    _log.warning("controller.part_failed", what=what, error=str(error), kind=type(error).__name__)


class Counted(Awaitable[T]):
    """Work with the CPU seconds of its own steps. While it waits, the thread does other work, which does not count:
    else a short tick beside a long plan would be followed by a long pause.
    """

    def __init__(self, work: Coroutine[Any, Any, T], cpu: Callable[[], float]) -> None:
        self.spent_s = 0.0
        self._work = work
        self._cpu = cpu

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = functools.partial(self._work.send, None)
        while True:
            before = self._cpu()
            try:
                waits_for = step()
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]  # what the coroutine has returned
            finally:
                self.spent_s += self._cpu() - before
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is the work that is canceled
                step = functools.partial(self._work.throw, error)
            else:
                step = functools.partial(self._work.send, None)


class Runner:
    """`clock` is the controllers' clock; `monotonic` measures the length of ticks, `cpu` their cost (seconds of this
    thread's CPU; by default nothing).
    """

    def __init__(
        self,
        controllers: Sequence[Controller],
        leading: leadership.Leading,
        store: stores.Store,
        backend: backends.Backend,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        observer: Observer,
        cpu: Callable[[], float] = lambda: 0.0,
        resync_s: float = RESYNC_S,
    ) -> None:
        self._controllers = [leading, *controllers]
        self._leading = leading
        self._store = store
        self._backend = backend
        self._clock = clock
        self._monotonic = monotonic
        self._observer = observer
        self._cpu = cpu
        self._resync_s = resync_s
        self._bells = {controller.name: asyncio.Event() for controller in self._controllers}
        self._stopping = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; then let what is under way come to its end, and give up the leadership."""
        loops = [asyncio.create_task(self._loop(one), name=one.name) for one in self._controllers]
        hints = [
            asyncio.create_task(self._hints(self._of_store), name="hints of the store"),
            asyncio.create_task(self._hints(self._of_backend), name="hints of the backend"),
        ]
        stopped = asyncio.create_task(stop.wait())
        try:
            # A loop ends by itself only with an error that must end the process.
            await asyncio.wait([stopped, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            self._ring()
            for task in (stopped, *hints):
                task.cancel()
            await asyncio.gather(stopped, *hints, return_exceptions=True)
            await asyncio.gather(*loops)
        for controller in self._controllers:
            if isinstance(controller, Closing):
                await self._close(controller)
        with contextlib.suppress(errors.OarlockError):
            await self._leading.resign()

    async def _close(self, controller: Closing) -> None:
        try:
            await controller.close()
        except Exception as error:  # noqa: BLE001 - the leadership is given up all the same
            _log.warning("controller.close_failed", error=str(error))

    async def _loop(self, controller: Controller) -> None:
        failures = 0
        bell = self._bells[controller.name]
        while not self._stopping.is_set():
            bell.clear()
            tick = Counted(self._tick(controller), self._cpu)
            failures = failures + 1 if not await tick else 0
            # A controller with much work looks less often, and the requests that share the interpreter get their turn.
            await self._sleep(self._stopping, min(PAUSE_MOST_S, PAUSE_PER_CPU_S * tick.spent_s))
            await self._rest(controller, bell, failures)

    async def _tick(self, controller: Controller) -> bool:
        """Return whether it went well."""
        led = self._leading.epoch
        began = self._monotonic()
        try:
            await controller.tick()
        except errors.StaleEpoch as error:
            _log.info("controller.leadership_lost", controller=controller.name, error=str(error))
            if led is not None:
                self._leading.lost(led)
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
            _log.exception("controller.tick_failed", controller=controller.name, error=str(error))
            self._observer.failed(controller.name)
            return False
        finally:
            self._observer.ticked(controller.name, self._monotonic() - began)
        if self._leading.epoch != led:  # a server that waited to lead begins now
            self._ring()
        return True

    async def _rest(self, controller: Controller, bell: asyncio.Event, failures: int) -> None:
        if failures:
            # Not woken by the bell: the same action would fail again.
            await self._sleep(self._stopping, min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10)))
            return
        wake_at = controller.wake_at()
        rest_s = self._resync_s if wake_at is None else min(self._resync_s, max(0.0, wake_at - self._clock()))
        await self._sleep(bell, rest_s)

    async def _sleep(self, until: asyncio.Event, duration_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                await until.wait()

    def _ring(self) -> None:
        for bell in self._bells.values():
            bell.set()

    async def _hints(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wake all controllers whenever there may be something new. Where the hint itself fails, the resync remains."""
        while True:
            try:
                await wait()
            except Exception as error:  # noqa: BLE001 - a hint is only a hint
                _log.warning("controller.hint_failed", error=str(error))
                await asyncio.sleep(self._resync_s)

    async def _of_store(self) -> None:
        seq = await self._store.read(lambda view: view.last_seq())
        while True:
            after, seq = seq, await self._store.wait(seq, HINT_WAIT_S)
            if seq > after:
                self._ring()
                await asyncio.sleep(HINT_SPACING_S)

    async def _of_backend(self) -> None:
        while True:
            await self._backend.wait(HINT_WAIT_S)
            self._ring()
            # It reports so until the slow look has been made.
            await asyncio.sleep(HINT_SPACING_S)
