"""The runner in real time: the wakes of the controllers, and a tick that fails. Nothing is timed: every
wait is for something to have happened, and bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from tests.controllers.plant import START, Phase, Plant

from oarlock.backends import fake
from oarlock.controllers import leadership, running
from oarlock.spec import errors
from oarlock.store import stores

PATIENCE_S = 240.0
LIVELY = fake.Behaviour(runs_s=0.1, at_barrier=True, lingers=True)


class Ticker:
    """A controller that counts, and calls a given function in its tick."""

    def __init__(self, name: str, *, wake_at: Callable[[], float | None] = lambda: None) -> None:
        self.name = name
        self.ticks = 0
        self.rests = False
        self.does: Callable[[], None] = lambda: None
        self._wake_at = wake_at

    async def tick(self) -> None:
        self.ticks += 1
        self.rests = False
        self.does()

    def wake_at(self) -> float | None:
        self.rests = True  # the runner asks just before it goes to sleep
        return self._wake_at()


class Counts:
    def __init__(self) -> None:
        self.ticks: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def ticked(self, name: str, duration_s: float) -> None:
        assert duration_s >= 0.0
        self.ticks[name] += 1

    def failed(self, name: str) -> None:
        self.failures[name] += 1


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


class House:
    def __init__(self) -> None:
        self.plant = Plant()
        began = time.monotonic()
        self.plant.clock = lambda: START + time.monotonic() - began  # type: ignore[method-assign]
        self.plant.world.clock = self.plant.clock
        self.counts = Counts()
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.runner: running.Runner

    def start(self, *controllers: running.Controller, resync_s: float = 3600.0, **kwargs: float) -> leadership.Leading:
        lead = leadership.Leading(self.plant.store, holder="a", clock=self.plant.clock, **kwargs)
        self.run(lead, *controllers, resync_s=resync_s)
        return lead

    def run(self, lead: leadership.Leading, *controllers: running.Controller, resync_s: float = 3600.0) -> None:
        self.runner = running.Runner(
            controllers,
            lead,
            self.plant.store,
            self.plant.server.guardian._backend,
            clock=self.plant.clock,
            monotonic=time.monotonic,
            observer=self.counts,
            resync_s=resync_s,
        )
        self.task = asyncio.create_task(self.runner.run(self.stop))

    async def settled(self, ticker: Ticker) -> int:
        """Wait until the ticker sleeps and nothing is left that would wake it; return how often it has ticked."""
        runner, changed = self.runner, self.plant.world.changed
        await until(
            lambda: (
                runner._leading.epoch is not None
                and ticker.rests
                and not changed.is_set()
                and not any(bell.is_set() for bell in runner._bells.values())
            )
        )
        return ticker.ticks


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    made.stop.set()
    if made.task is not None:
        await asyncio.wait_for(asyncio.gather(made.task, return_exceptions=True), PATIENCE_S)


async def test_a_write_to_the_store_wakes(house: House) -> None:
    ticker = Ticker("one")
    house.start(ticker)
    before = await house.settled(ticker)
    await house.plant.submit()
    await until(lambda: ticker.ticks > before)


class Worker(Ticker):
    """A controller that works on between its ticks, and ends badly."""

    led: leadership.Leading
    at_end: int | None = None

    async def close(self) -> None:
        self.at_end = self.led.epoch
        raise ValueError("a defect")


async def test_work_between_ticks_ends_before_the_leadership_is_given_up(house: House) -> None:
    worker = Worker("worker")
    worker.led = house.start(worker)
    await house.settled(worker)
    house.stop.set()
    assert house.task is not None
    await house.task
    assert worker.at_end is not None
    assert await house.plant.store.read(lambda view: view.leader()) is None


async def test_the_backend_wakes(house: House) -> None:
    ticker = Ticker("one")
    house.start(ticker)
    before = await house.settled(ticker)
    house.plant.world.changed.set()
    await until(lambda: ticker.ticks > before)


async def test_its_own_clock_wakes(house: House) -> None:
    ticker = Ticker("one", wake_at=lambda: house.plant.clock() + 0.01)
    house.start(ticker)
    await until(lambda: ticker.ticks > 10)


async def test_without_any_hint_the_resync_wakes(house: House) -> None:
    ticker = Ticker("one")
    house.start(ticker, resync_s=0.01)
    await until(lambda: ticker.ticks > 10)


async def test_nothing_wakes_when_nothing_happens(house: House) -> None:
    """An idle server rests: a busy loop would tick thousands of times here."""
    ticker = Ticker("one")
    house.start(ticker)
    before = await house.settled(ticker)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert ticker.ticks == before


async def test_a_tick_that_fails_is_counted_and_tried_again_and_holds_up_no_other(house: House) -> None:
    bad, good = Ticker("bad"), Ticker("good", wake_at=lambda: house.plant.clock() + 0.01)

    def fail() -> None:
        raise ZeroDivisionError

    bad.does = fail
    house.start(bad, good)
    await until(lambda: bad.ticks >= 3 and good.ticks > 10)
    assert house.counts.failures["bad"] >= 2
    assert house.counts.failures["good"] == 0
    bad.does = lambda: None
    before = house.counts.failures["bad"]
    await until(lambda: house.counts.ticks["bad"] > house.counts.failures["bad"] >= before)


async def test_a_server_that_is_told_that_its_epoch_is_stale_stops_leading(house: House) -> None:
    ticker = Ticker("one")

    def stale() -> None:
        raise errors.StaleEpoch("somebody else leads")

    lead = house.start(ticker)
    await until(lambda: lead.epoch is not None)
    ticker.does = stale
    await house.plant.submit()
    await until(lambda: lead.epoch is None)
    assert house.counts.failures["one"] == 0, "it is no failure"


async def test_at_the_end_the_leadership_is_given_up(house: House) -> None:
    lead = house.start(Ticker("one"))
    await until(lambda: lead.epoch is not None)
    house.stop.set()
    await asyncio.wait_for(house.task, PATIENCE_S)
    assert await house.plant.store.read(lambda view: view.leader()) is None


async def test_an_error_that_must_end_the_process_does(house: House) -> None:
    class Fatal(BaseException):
        pass

    ticker = Ticker("one")

    def end() -> None:
        raise Fatal

    ticker.does = end
    house.start(ticker)
    with pytest.raises(Fatal):
        await asyncio.wait_for(house.task, PATIENCE_S)


async def test_a_job_runs_to_its_end_on_hints_alone(house: House) -> None:
    """The resync is an hour away: every step of the way is woken by what happened before."""
    plant, server = house.plant, house.plant.server
    plant.behaviours["j-0001"] = plant.behaviours["j-0002"] = LIVELY
    house.run(server.leading, server.inventory, server.scheduling, server.guardian)
    await until(lambda: server.leading.epoch is not None)
    for _ in range(2):
        await plant.submit("{roles: {worker: {count: 2}}}")

    async def agents() -> None:
        while True:
            for key in sorted(plant.world.running()):
                plant.now = plant.clock()
                await plant.agent(key)
            await asyncio.sleep(0.01)

    working = asyncio.create_task(agents())
    try:
        jobs = plant.store._state.jobs
        await until(lambda: {job.phase for job in jobs(stores.JobFilter())} == {Phase.COMPLETED})
    finally:
        working.cancel()


async def test_only_the_steps_of_the_work_itself_are_counted() -> None:
    """Another controller makes a long plan while this one waits for the store: that is no reason to rest."""
    spent_s = 0.0

    def spend(seconds: float) -> None:
        nonlocal spent_s
        spent_s += seconds

    async def work() -> str:
        spend(1.0)
        await asyncio.sleep(0)
        spend(2.0)
        await asyncio.sleep(0)
        return "done"

    async def others() -> None:
        for _ in range(3):
            spend(10.0)
            await asyncio.sleep(0)

    counted = running.Counted(work(), lambda: spent_s)
    beside = asyncio.create_task(others())
    assert await counted == "done"
    await beside
    assert (counted.spent_s, spent_s) == (3.0, 33.0)


async def test_counted_work_fails_and_is_canceled_as_other_work_is() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("canceled")
            raise

    async def fails() -> None:
        await asyncio.sleep(0)
        raise errors.Unavailable("no", hint="")

    counted = asyncio.ensure_future(running.Counted(work(), lambda: 0.0))
    await asyncio.sleep(0)
    counted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counted
    assert seen == ["canceled"]
    with pytest.raises(errors.Unavailable):
        await running.Counted(fails(), lambda: 0.0)
