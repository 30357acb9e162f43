"""The server's clock while the wall clock is set, the machine sleeps or starts anew, and servers follow each other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.controllers.plant import OfControllers
from tests.lifecycle import script

from oarlock.controllers import leadership, timing
from oarlock.lifecycle import wanting
from oarlock.spec import attempts, errors, jobs
from oarlock.spec.reconciling import actions
from oarlock.store import memory, stores

DAY_S = 86_400.0


class Machine:
    """A machine with clocks that tests turn."""

    def __init__(self) -> None:
        self.up_s = 1000.0  # monotonic
        self.asleep_s = 0.0
        self.wall_s = 2_000_000_000.0
        self.boot = "boot-1"

    def clocks(self) -> timing.Machine:
        return timing.Machine(
            boot=self.boot,
            wall=lambda: self.wall_s,
            monotonic=lambda: self.up_s,
            boottime=lambda: self.up_s + self.asleep_s,
        )

    def run(self, duration_s: float) -> None:
        self.up_s += duration_s
        self.wall_s += duration_s

    def sleep(self, duration_s: float) -> None:
        self.asleep_s += duration_s
        self.wall_s += duration_s

    def start_anew(self, off_s: float, boot: str = "boot-2") -> None:
        self.wall_s += off_s
        self.up_s, self.asleep_s, self.boot = 60.0, 0.0, boot


class Server:
    """The clock, the leadership and the timing of one server."""

    def __init__(self, store: stores.Store, machine: Machine, anchor: object = None, name: str = "a") -> None:
        self.store = store
        self.machine = machine
        self.clock = timing.Clock(machine.clocks(), anchor)  # type: ignore[arg-type]
        self.leading = leadership.Leading(store, holder=name, clock=self.clock)
        self.timing = timing.Timing(OfControllers(store), self.leading, self.clock)  # type: ignore[arg-type]

    @classmethod
    async def after(cls, store: stores.Store, machine: Machine) -> Server:
        """One that follows another in the same home."""
        leader = await store.read(lambda view: view.leader())
        await store.resign(leader.holder, leader.epoch)
        return cls(store, machine, await store.read(lambda view: view.clock_anchor()), name="b")

    async def tick(self) -> None:
        await self.leading.tick()
        await self.timing.tick()

    async def job(self) -> jobs.Job:
        found = await self.store.read(lambda view: view.job("j"))
        assert found is not None
        return found

    async def stops(self) -> list[actions.Action]:
        """Return the actions that the guardian would take now."""
        return list(wanting.wants(await self.job(), [], self.clock()))

    async def ran_s(self) -> float:
        return (await self.job()).ran_s(self.clock())


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def server(machine: Machine) -> Server:
    """With a job of ten minutes that has run for a while."""
    made = Server(memory.MemoryStore(), machine)
    await made.tick()
    play = script.Play()
    play.now = made.clock()
    for line in ("job {timeout: 10m}", "admit", "launched", "register worker-0", "report worker-0 PROCESSING"):
        play.run(line)
    job = play.job
    await made.store.write(lambda tx: tx.add_job(msgspec.structs.replace(job, version=0), at=play.now))
    machine.run(100.0)
    await made.tick()
    return made


HOUR_S = 3600.0
TURNS: dict[str, Callable[[Machine], None]] = {
    "forward": lambda machine: setattr(machine, "wall_s", machine.wall_s + HOUR_S),
    "back": lambda machine: setattr(machine, "wall_s", machine.wall_s - HOUR_S),
    "by years": lambda machine: setattr(machine, "wall_s", machine.wall_s + 1e9),
    "to 1970": lambda machine: setattr(machine, "wall_s", 100.0),
    "asleep": lambda machine: machine.sleep(8 * HOUR_S),
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_a_step_costs_a_job_none_of_its_time(server: Server, machine: Machine, turn: Callable[..., None]) -> None:
    turn(machine)
    assert await server.stops() == [], "before anybody has noticed"
    assert await server.ran_s() == pytest.approx(100.0)
    await server.tick()
    assert await server.stops() == []
    assert await server.ran_s() == pytest.approx(100.0)
    assert server.clock() == pytest.approx(machine.wall_s), "dates are the wall's again"
    assert server.leading.epoch is None or server.leading.epoch == 1
    await server.tick()
    assert server.leading.epoch == 1
    machine.run(499.0)
    assert await server.stops() == []
    machine.run(2.0)
    assert [type(action) for action in await server.stops()] == [actions.Note]


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
async def test_nor_does_one_while_no_server_runs(server: Server, machine: Machine, turn: Callable[..., None]) -> None:
    machine.run(10.0)
    turn(machine)
    after = await Server.after(server.store, machine)
    assert await after.stops() == [], "other controllers may look before its first tick"
    assert await after.ran_s() == pytest.approx(110.0)
    await after.tick()
    assert await after.ran_s() == pytest.approx(110.0)
    assert after.clock() == pytest.approx(machine.wall_s)


async def test_after_a_start_of_the_machine_the_smaller_duration_is_believed(server: Server, machine: Machine) -> None:
    """It is unknown how long the machine was off: the wall says a day, the machine a minute."""
    machine.start_anew(off_s=DAY_S)
    after = await Server.after(server.store, machine)
    assert await after.ran_s() == pytest.approx(160.0)
    await after.tick()
    assert await after.ran_s() == pytest.approx(160.0)
    assert after.clock() == pytest.approx(machine.wall_s)


async def test_a_short_stop_is_believed_by_the_wall(server: Server, machine: Machine) -> None:
    machine.start_anew(off_s=20.0)
    after = await Server.after(server.store, machine)
    await after.tick()
    assert await after.ran_s() == pytest.approx(120.0)


async def test_small_differences_are_no_step_and_are_not_lost(server: Server, machine: Machine) -> None:
    for _ in range(4):
        machine.wall_s += 0.4
        machine.run(1.0)
        await server.tick()
    records = await server.store.read(lambda view: [one.kind for one in view.records(0)])
    assert records.count("clock_stepped") == 1
    assert abs(server.clock() - machine.wall_s) <= timing.TOLERANCE_S


async def test_a_step_whose_writing_fails_is_made_later_and_once(
    server: Server, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise errors.Unavailable("the disk is full")

    for by_s in (HOUR_S, -HOUR_S):
        machine.wall_s += by_s
        with monkeypatch.context() as broken:
            broken.setattr(server.store, "write", full)
            with pytest.raises(errors.Unavailable):
                await server.timing.tick()
        assert await server.ran_s() == pytest.approx(100.0)
        await server.tick()
        await server.tick()
        assert await server.ran_s() == pytest.approx(100.0)
        assert server.clock() == pytest.approx(machine.wall_s)


async def test_a_process_stopped_between_two_readings_sees_no_step(server: Server, machine: Machine) -> None:
    """The wall clock is read, the process is stopped for an hour, the monotonic clock is read."""
    readings = iter([machine.wall_s])

    def wall() -> float:
        told = next(readings, None)
        if told is None:
            return machine.wall_s
        machine.run(HOUR_S)
        return told

    server.clock.machine = msgspec.structs.replace(machine.clocks(), wall=wall)
    assert server.clock.step_s() == 0.0


async def test_one_that_stands_by_follows_the_wall(server: Server, machine: Machine) -> None:
    second = Server(server.store, machine, name="b")
    await second.tick()
    machine.wall_s += 5.0
    await second.tick()
    assert second.leading.epoch is None
    assert second.clock() == pytest.approx(machine.wall_s)
    assert await server.ran_s() == pytest.approx(100.0), "the record is the leader's to change"


async def test_a_clock_set_forward_ages_nothing_and_a_night_asleep_does(server: Server, machine: Machine) -> None:
    """By which jobs that ended are removed."""

    async def older_than(age_s: float) -> float:
        anchor = await server.store.read(lambda view: view.clock_anchor())
        return anchor.before(server.clock() - age_s)

    ended_at = server.clock()
    machine.wall_s += 400 * DAY_S
    await server.tick()
    assert ended_at > await older_than(30 * DAY_S)
    machine.run(10 * DAY_S)
    await server.tick()
    machine.sleep(21 * DAY_S)
    await server.tick()
    assert ended_at < await older_than(30 * DAY_S)
    later = server.clock()
    machine.run(31 * DAY_S)
    await server.tick()
    assert later < await older_than(30 * DAY_S), "a job that ended after the step ages as ever"


def test_every_time_of_a_live_job_is_moved_or_left_on_purpose() -> None:
    """A new field that ends in `_at` (or is a date) has to be thought of here and in `lifecycle.shifting`."""
    dates = {"at", "failing_since", "frozen_until", "leave_by", "not_before"}
    found = {
        f"{noun.__name__}.{name}"
        for noun in (jobs.Job, attempts.Attempt, attempts.Task)
        for name in noun.__struct_fields__
        if name.endswith("_at") or name in dates
    }
    assert found == {
        "Attempt.aborted_at",
        "Attempt.barrier_at",
        "Attempt.checkpoint_at",
        "Attempt.ended_at",  # over
        "Attempt.failing_since",
        "Attempt.frozen_until",
        "Attempt.held_at",
        "Attempt.launched_at",
        "Attempt.processing_at",
        "Attempt.spared_at",
        "Attempt.stacks_at",
        "Attempt.started_at",
        "Attempt.stop_at",
        "Attempt.storing_at",
        "Job.created_at",  # never changes
        "Job.ended_at",  # over
        "Job.not_before",
        "Job.phase_at",
        "Job.started_at",
        "Job.stopped_at",
        "Task.leave_by",
        "Task.moved_at",
        "Task.obstacle_at",
        "Task.phase_at",
    }
