"""Contract of every backend (`oarlock.backends.backends`). Its tests inherit `Contract` and give it a `Rig`.

The contract knows nothing of how tasks run: the rig makes tasks that sleep, exit or cannot be made, and lets time pass.
Waits are bounded by `Rig.PATIENCE_S` and end as soon as the awaited state is there; nothing is judged by how long it
took.

    class TestLocal(contract.Contract):
        @pytest.fixture
        async def rig(self, tmp_path):
            rig = LocalRig(tmp_path)
            yield rig
            await rig.close()
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from oarlock.backends import backends
from oarlock.spec import attempts, errors
from oarlock.spec.reconciling import observations

State = observations.State


class Rig:
    """A backend under test and the means to make tasks for it. Subclasses fill it in; `close` ends everything it
    started.
    """

    PATIENCE_S = 240.0

    backend: backends.Backend

    def sleeper(self, key: attempts.TaskKey) -> backends.TaskLaunch:
        """A task that runs until it is killed. It does not listen to SIGTERM."""
        raise NotImplementedError

    def exiter(self, key: attempts.TaskKey, code: int) -> backends.TaskLaunch:
        """A task that ends by itself soon after it was made: its agent leaves an exit record with this code, and
        goes.
        """
        raise NotImplementedError

    def unlaunchable(self, key: attempts.TaskKey) -> backends.TaskLaunch:
        """A task that cannot be made."""
        raise NotImplementedError

    async def starts(self, key: attempts.TaskKey) -> int:
        """How often this incarnation was really started, seen from outside the backend."""
        raise NotImplementedError

    async def pass_time(self) -> None:
        """Let a little time pass: a virtual clock is moved on, a real one waited for (some 20 ms)."""
        raise NotImplementedError

    async def reopen(self) -> None:
        """Replace `backend` by a new one over the same world, as a restarted server does, without closing the old one
        first.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """End every task that is left, and the backend."""


def key(index: int = 0, *, job: str = "j-contract", attempt: int = 1, incarnation: int = 1) -> attempts.TaskKey:
    return attempts.TaskKey(job, attempt, "worker", index, incarnation)


async def seen(rig: Rig) -> dict[attempts.TaskKey, observations.Observed]:
    listed = await rig.backend.observe()
    found = {one.key: one for one in listed}
    assert len(found) == len(listed), "an incarnation is listed once"
    return found


async def until(rig: Rig, holds: Callable[[dict[attempts.TaskKey, observations.Observed]], bool], what: str) -> None:
    deadline = time.monotonic() + rig.PATIENCE_S
    while True:
        now = await seen(rig)
        if holds(now):
            return
        assert time.monotonic() < deadline, f"waited for: {what}; seen: {now}"
        await rig.pass_time()


async def until_state(rig: Rig, of: attempts.TaskKey, state: State) -> observations.Observed:
    await until(rig, lambda now: of in now and now[of].state is state, f"{of} is {state}")
    return (await seen(rig))[of]


async def kill_and_see(rig: Rig, *keys: attempts.TaskKey) -> None:
    """Kill as the guardian does: a kill ends after a few seconds at most, and is asked for again."""
    deadline = time.monotonic() + rig.PATIENCE_S
    await rig.backend.kill(keys)
    while any(one not in now or now[one].state is not State.GONE for now in [await seen(rig)] for one in keys):
        assert time.monotonic() < deadline, f"waited for: {keys} are gone"
        await rig.pass_time()
        await rig.backend.kill(keys)


class Contract:
    """Inherit, and supply the fixture `rig`."""

    async def test_nodes_have_names_and_room(self, rig: Rig) -> None:
        nodes = await rig.backend.nodes()
        assert nodes
        assert len({node.name for node in nodes}) == len(nodes)
        assert any(node.ready and node.capacity.cpus_milli > 0 for node in nodes)
        for node in nodes:
            assert len({device.index for device in node.devices}) == len(node.devices) == node.capacity.gpus

    async def test_a_gang_that_was_never_made_is_not_observed(self, rig: Rig) -> None:
        assert key() not in await seen(rig)

    async def test_a_task_that_was_made_is_seen(self, rig: Rig) -> None:
        await rig.backend.launch([rig.sleeper(key(0)), rig.sleeper(key(1))])
        now = await seen(rig)
        assert now[key(0)].state is State.RUNNING
        assert now[key(1)].state is State.RUNNING
        await until(rig, lambda now: None not in [now[key(index)].bound_at for index in range(2)], "each has its place")

    async def test_making_a_gang_again_does_nothing(self, rig: Rig) -> None:
        launches = [rig.sleeper(key(0)), rig.sleeper(key(1))]
        await rig.backend.launch(launches)
        await rig.backend.launch(launches)
        await rig.backend.launch([launches[1], rig.sleeper(key(2))])
        assert set(await seen(rig)) >= {key(0), key(1), key(2)}
        for index in range(3):
            assert await rig.starts(key(index)) == 1

    async def test_a_server_that_does_not_lead_makes_nothing_that_runs(self, rig: Rig) -> None:
        with pytest.raises(errors.StaleEpoch):
            await rig.backend.launch([rig.sleeper(key(0)), rig.sleeper(key(1))], still=lambda: False)
        await rig.backend.kill([key(0), key(1)])
        await until(rig, lambda now: all(one.state is State.GONE for one in now.values()), "nothing runs")

    async def test_making_a_gang_that_has_ended_does_nothing(self, rig: Rig) -> None:
        launch = rig.exiter(key(), 0)
        await rig.backend.launch([launch])
        await until_state(rig, key(), State.GONE)
        await rig.backend.launch([launch])
        assert (await seen(rig))[key()].state is State.GONE
        assert await rig.starts(key()) == 1

    @pytest.mark.parametrize(
        ("code", "cause"), [(0, attempts.Cause.SUCCEEDED), (3, attempts.Cause.ERROR)], ids=["well", "badly"]
    )
    async def test_an_ended_task_shows_its_exit_record(self, rig: Rig, code: int, cause: attempts.Cause) -> None:
        await rig.backend.launch([rig.exiter(key(), code)])
        ended = await until_state(rig, key(), State.GONE)
        assert ended.exit is not None
        assert (ended.exit.code, ended.exit.cause) == (code, cause)

    async def test_a_killed_task_is_gone_and_did_not_succeed(self, rig: Rig) -> None:
        await rig.backend.launch([rig.sleeper(key(0)), rig.sleeper(key(1))])
        await kill_and_see(rig, key(0))
        now = await seen(rig)
        assert now[key(0)].exit is None or now[key(0)].exit.cause is not attempts.Cause.SUCCEEDED
        assert now[key(1)].state is State.RUNNING, "the other one is left alone"

    async def test_killing_again_and_killing_the_unknown_do_nothing(self, rig: Rig) -> None:
        await rig.backend.launch([rig.sleeper(key())])
        await rig.backend.kill([key(7)])
        await kill_and_see(rig, key())
        await rig.backend.kill([key(), key(7)])
        now = await seen(rig)
        assert now[key()].state is State.GONE
        assert key(7) not in now

    async def test_incarnations_of_one_task_are_apart(self, rig: Rig) -> None:
        await rig.backend.launch([rig.sleeper(key())])
        await kill_and_see(rig, key())
        await rig.backend.launch([rig.sleeper(key(incarnation=2))])
        now = await seen(rig)
        assert now[key()].state is State.GONE
        assert now[key(incarnation=2)].state is State.RUNNING

    async def test_a_task_that_cannot_be_made_is_named_and_the_rest_can_be_torn_down(self, rig: Rig) -> None:
        with pytest.raises(errors.Unavailable) as refused:
            await rig.backend.launch([rig.sleeper(key(0)), rig.unlaunchable(key(1)), rig.sleeper(key(2))])
        assert refused.value.message
        await rig.backend.kill([key(0), key(1), key(2)])
        await until(rig, lambda now: all(one.state is State.GONE for one in now.values()), "all of it is torn down")

    async def test_a_restarted_server_finds_running_and_ended_tasks(self, rig: Rig) -> None:
        await rig.backend.launch([rig.sleeper(key(0)), rig.exiter(key(1), 3)])
        await until_state(rig, key(1), State.GONE)
        await rig.reopen()
        now = await seen(rig)
        assert now[key(0)].state is State.RUNNING
        assert now[key(1)].state is State.GONE
        assert now[key(1)].exit is not None
        assert now[key(1)].exit.code == 3
        await rig.backend.launch([rig.sleeper(key(0))])
        assert await rig.starts(key(0)) == 1, "it adopts, it does not start again"
        await kill_and_see(rig, key(0))

    async def test_letting_go_ends_nothing(self, rig: Rig) -> None:
        await rig.backend.launch([rig.sleeper(key())])
        await rig.backend.close()
        await rig.reopen()
        assert (await seen(rig))[key()].state is State.RUNNING

    async def test_a_released_attempt_is_forgotten_and_no_other(self, rig: Rig) -> None:
        await rig.backend.launch([rig.exiter(key(attempt=1), 0), rig.exiter(key(job="j-other"), 0)])
        await until_state(rig, key(attempt=1), State.GONE)
        await until_state(rig, key(job="j-other"), State.GONE)
        await rig.backend.launch([rig.sleeper(key(attempt=2))])
        await rig.backend.discard("j-contract", 1)
        await rig.backend.discard("j-contract", 1)
        await rig.backend.discard("j-nobody", 1)
        now = await seen(rig)
        assert key(attempt=1) not in now
        assert key(job="j-other") in now
        assert now[key(attempt=2)].state is State.RUNNING
        await rig.reopen()
        assert key(attempt=1) not in await seen(rig)

    async def test_leftovers_are_files_that_can_be_read(self, rig: Rig) -> None:
        assert await rig.backend.leftovers(key(7)) == []
        await rig.backend.launch([rig.exiter(key(), 0)])
        await until_state(rig, key(), State.GONE)
        for leftover in await rig.backend.leftovers(key()):
            assert leftover.stream
            leftover.path.read_bytes()

    async def test_no_command_runs_in_a_task_that_is_not_there(self, rig: Rig) -> None:
        with pytest.raises(errors.Conflict):
            await rig.backend.exec(key(7), ["true"])
        await rig.backend.launch([rig.exiter(key(), 0)])
        await until_state(rig, key(), State.GONE)
        with pytest.raises(errors.Conflict):
            await rig.backend.exec(key(), ["true"])

    async def test_waiting_ends(self, rig: Rig) -> None:
        await rig.backend.wait(0.01)
        await rig.backend.launch([rig.exiter(key(), 0)])
        await rig.backend.wait(0.01)
        await until_state(rig, key(), State.GONE)
