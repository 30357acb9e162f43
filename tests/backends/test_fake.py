"""The fake keeps the contract, and its script: the simulator and the controllers' tests believe it."""

from __future__ import annotations

import math

import pytest
from tests.backends import contract

from oarlock.backends import backends, fake
from oarlock.spec import attempts, errors, holdings
from oarlock.spec.cluster import nodes
from oarlock.spec.protocol import assignments
from oarlock.spec.reconciling import observations

State = observations.State
Cause = attempts.Cause


def machine(name: str = "n0") -> nodes.Node:
    return nodes.Node(name=name, capacity=holdings.Resources(8000, 1 << 34, 0), ports=(20000, 29999))


def launch_of(key: attempts.TaskKey, node: str = "n0") -> backends.TaskLaunch:
    return backends.TaskLaunch(
        key=key,
        assignment=assignments.Assignment(key=str(key), server="http://127.0.0.1:1", token="t", command="true"),
        holding=holdings.Holding(
            job=key.job, attempt=key.attempt, role=key.role, index=key.index, node=node, amount=holdings.Resources(1000)
        ),
    )


class FakeRig(contract.Rig):
    def __init__(self) -> None:
        self.now = 1000.0
        self.behaviours: dict[attempts.TaskKey, fake.Behaviour] = {}
        self.world = fake.World([machine()], lambda task: self.behaviours[task.key], lambda: self.now)
        self.backend = fake.Fake(self.world)

    def does(self, key: attempts.TaskKey, behaviour: fake.Behaviour) -> backends.TaskLaunch:
        self.behaviours[key] = behaviour
        return launch_of(key)

    def sleeper(self, key):
        return self.does(key, fake.Behaviour(stops_s=math.inf))

    def exiter(self, key, code):
        return self.does(key, fake.Behaviour(runs_s=0.1, code=code))

    def unlaunchable(self, key):
        return self.does(key, fake.Behaviour(unlaunchable="no such image"))

    async def starts(self, key):
        return self.world.starts.get(key, 0)

    async def pass_time(self):
        self.now += 0.05

    async def reopen(self):
        self.backend = fake.Fake(self.world)


class TestFake(contract.Contract):
    @pytest.fixture
    def rig(self):
        return FakeRig()


@pytest.fixture
def rig():
    return FakeRig()


KEY = contract.key()


def look(rig: FakeRig) -> observations.Observed:
    return rig.world.look(KEY)


def test_nothing_begins_before_the_barrier(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour(runs_s=5, at_barrier=True)))
    rig.now += 100
    assert look(rig).state is State.RUNNING
    rig.world.begin(KEY)
    rig.now += 4
    assert look(rig).exit is None
    rig.now += 1
    assert look(rig).exit.cause is Cause.SUCCEEDED


def test_an_agent_that_lingers_waits_for_the_order_to_go(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour(runs_s=5, code=2, lingers=True)))
    rig.now += 50
    assert (look(rig).state, look(rig).exit.code) == (State.RUNNING, 2)
    rig.world.let_go(KEY)
    assert (look(rig).state, look(rig).exit.code) == (State.GONE, 2)


def test_a_stop_is_neutral_and_takes_its_time(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour(stops_s=3)))
    rig.world.stop(KEY)
    rig.now += 2
    assert look(rig).state is State.RUNNING
    rig.now += 1
    assert look(rig).exit.cause is Cause.STOPPED


def test_a_signal_is_a_code_past_128(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour(runs_s=1, signal=9)))
    rig.now += 1
    assert (look(rig).exit.code, look(rig).exit.cause) == (137, Cause.SIGNAL)


def test_a_task_that_vanishes_leaves_no_record(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour(runs_s=9, vanishes_s=3)))
    rig.now += 20
    assert (look(rig).state, look(rig).exit) == (State.GONE, None)


def test_processes_that_an_agent_abandons_run_until_they_are_killed(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour(abandons_s=3)))
    rig.now += 20
    assert look(rig).state is State.ENDED
    rig.world.kill(KEY)
    assert look(rig).state is State.GONE


async def test_a_lost_machine_shows_its_last_known_state_and_kills_nothing(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour(runs_s=5)))
    rig.world.lose("n0")
    rig.now += 50
    rig.world.kill(KEY)
    assert (look(rig).state, look(rig).detail) == (State.RUNNING, "node lost")
    assert not (await rig.backend.nodes())[0].ready
    with pytest.raises(errors.Unavailable):
        rig.world.make(rig.does(contract.key(1), fake.Behaviour()))
    rig.world.find("n0")
    assert look(rig).exit.at == 1005.0, "it ran on meanwhile"


def test_tasks_of_a_machine_that_is_declared_gone_are_gone(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour()))
    rig.world.lose("n0")
    rig.world.remove("n0")
    assert look(rig).state is State.GONE


async def test_a_command_in_a_running_task_answers(rig: FakeRig) -> None:
    rig.world.make(rig.does(KEY, fake.Behaviour()))
    process = await rig.backend.exec(KEY, ["echo", "hello"])
    assert [part async for part in process.output()] == [("stdout", b"echo hello\n"), ("exit", b"0")]
