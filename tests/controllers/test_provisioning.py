"""Requests for the nodes that waiting gangs lack, with a pretend autoscaler, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.controllers import plant as plants

from oarlock.backends import provisioners
from oarlock.controllers import nodeclasses
from oarlock.controllers import provisioning as controllers
from oarlock.scheduler.provisioning import requesting
from oarlock.spec import errors, events, jobs, phases, plans, resources
from oarlock.spec.cluster import nodes, provisioning

Answer = provisioning.Answer
BIG = nodes.NodeClass(
    name="big", model=msgspec.structs.replace(plants.machine("big", devices=4), node_class="big"), most=4
)
RULES = msgspec.structs.replace(plants.RULES, node_classes=(BIG,))
LARGE = "{roles: {worker: {count: 2, gpus: 4, cpus: 1}}}"


class Autoscaled:
    """A plant with the controller, and a pretend autoscaler beside it: in memory, or (a subclass) in a cluster."""

    def __init__(self, provisioner: provisioners.Provisioner | None = None) -> None:
        self.plant = plants.Plant(machines=[plants.machine("n0")])
        self.memory = provisioner if isinstance(provisioner, provisioners.Memory) else provisioners.Memory()
        self.provisioner = provisioner or self.memory
        self.begin("server-1")

    def begin(self, name: str, rules: plans.Rules = RULES) -> None:
        server = self.plant.server = plants.Server(self.plant, name, rules=rules)
        store: Any = plants.OfControllers(self.plant.store)
        self.controller = controllers.Provisioning(
            store, self.provisioner, server.leading, clock=self.plant.clock, report=server.report, rules=rules
        )

    async def until(self, holds: Callable[[jobs.Job], bool], job: str, *, within_s: float = 120.0) -> jobs.Job:
        end = self.plant.now + within_s
        while not holds(found := await self.plant.job(job)):
            assert self.plant.now < end, found.node_request
            await self.step()
        return found

    async def step(self) -> None:
        await self.plant.step()
        await self.controller.tick()

    async def run_for(self, seconds: float) -> None:
        end = self.plant.now + seconds
        while self.plant.now < end:
            await self.step()

    async def answer(self, answer: Answer, message: str = "") -> None:
        """Answer the only request."""
        (key,) = self.memory.requests
        self.memory.answers[key] = answer, message

    def add(self, count: int) -> None:
        for _ in range(count):
            name = f"added-{len(self.plant.world.nodes())}"
            self.plant.world.add(msgspec.structs.replace(BIG.model, name=name))

    async def open(self) -> dict[tuple[str, int], int]:
        """Return the number of tasks of each request that the autoscaler knows."""
        return {key: sum(tasks.count for tasks in request.need.tasks) for key, request in self.memory.requests.items()}

    async def told(self) -> list[tuple[str, dict[str, int]]]:
        """Return the jobs and the missing nodes of which the cluster was told."""
        return self.memory.told


@pytest.fixture
def scaled() -> Autoscaled:
    return Autoscaled()


async def requested(scaled: Autoscaled, number: int = 1) -> str:
    job = await scaled.plant.submit(LARGE)
    await scaled.until(lambda found: found.node_request is not None, job)
    await scaled.run_for(controllers.PERIOD_S)
    assert await scaled.open() == {(job, number): 2}
    return job


async def test_nodes_are_requested_and_the_request_is_withdrawn_when_the_gang_starts(scaled: Autoscaled) -> None:
    job = await requested(scaled)
    assert await scaled.told() == [(job, {"big": 2})]
    await scaled.answer(Answer.ACCEPTED)
    found = await scaled.until(
        lambda one: one.node_request is not None and one.node_request.answer is Answer.ACCEPTED, job
    )
    assert "2 nodes of big were requested" in requesting.told(found.node_request, scaled.plant.now)  # type: ignore[arg-type]
    await scaled.answer(Answer.PROVISIONED)
    scaled.add(1)
    await scaled.run_for(30.0)
    assert await scaled.open() == {(job, 1): 2}, "nodes come one by one, and the request stays as it is"
    scaled.add(1)
    started = await scaled.until(lambda one: one.phase is not phases.Phase.QUEUED, job)
    assert started.node_request is None
    await scaled.run_for(2 * controllers.PERIOD_S)
    assert await scaled.open() == {}
    assert len(await scaled.told()) == 1


@pytest.mark.parametrize("answer", [Answer.FAILED, Answer.EXPIRED])
async def test_a_request_that_came_to_nothing_is_made_again(scaled: Autoscaled, answer: Answer) -> None:
    job = await requested(scaled)
    await scaled.answer(answer, "out of quota")
    found = await scaled.until(lambda one: one.node_request is not None and one.node_request.answer is answer, job)
    assert "out of quota" in requesting.told(found.node_request, scaled.plant.now)  # type: ignore[arg-type]
    await scaled.run_for(requesting.AGAIN_S / 2)
    assert await scaled.open() == {}, "the autoscaler need not look at it any more"
    await scaled.run_for(requesting.AGAIN_S)
    assert await scaled.open() == {(job, 2): 2}


async def test_too_few_nodes_are_requested_again_without_those_that_came(scaled: Autoscaled) -> None:
    job = await requested(scaled)
    await scaled.answer(Answer.PROVISIONED)
    scaled.add(1)
    await scaled.run_for(requesting.ARRIVAL_S + requesting.AGAIN_S + 4 * controllers.PERIOD_S)
    assert await scaled.open() == {(job, 2): 2}
    again = (await scaled.plant.job(job)).node_request
    assert again is not None
    assert again.need.nodes == {"big": 1}


@pytest.mark.parametrize("intent", ["cancel", "halt"])
async def test_a_job_that_is_taken_back_withdraws_its_request(scaled: Autoscaled, intent: str) -> None:
    job = await requested(scaled)
    await scaled.plant.intend(job, intent)
    await scaled.run_for(2 * controllers.PERIOD_S)
    assert await scaled.open() == {}
    assert (await scaled.plant.job(job)).node_request is None


async def test_a_gang_that_changes_its_size_has_one_request_for_the_new_size(scaled: Autoscaled) -> None:
    """As by `oarlock set JOB --min N`: the request for the size of before is withdrawn, whatever its answer was."""
    job = await requested(scaled)
    await scaled.answer(Answer.ACCEPTED)
    for number, least in ((2, 1), (3, 2)):
        await scaled.run_for(2 * controllers.PERIOD_S)
        await scaled.plant.tell(job, events.Edited(min=least, by="alice"))
        await scaled.run_for(4 * controllers.PERIOD_S)
        assert await scaled.open() == {(job, number): least}
        found = (await scaled.plant.job(job)).node_request
        assert found is not None
        assert (found.number, found.answer, found.need.nodes) == (number, Answer.NONE, {"big": least})


@pytest.mark.parametrize("edit", [events.Edited(max=4), events.Edited(priority=70)], ids=["max", "priority"])
async def test_a_change_that_needs_no_other_nodes_keeps_the_request(scaled: Autoscaled, edit: events.Edited) -> None:
    job = await requested(scaled)
    await scaled.answer(Answer.ACCEPTED)
    await scaled.run_for(2 * controllers.PERIOD_S)
    await scaled.plant.tell(job, edit)
    scaled.plant.now += controllers.PERIOD_S
    await scaled.controller.tick()
    assert await scaled.open() == {(job, 1): 2}, "also before the next plan, which alone can tell what the gang lacks"
    await scaled.run_for(4 * controllers.PERIOD_S)
    assert await scaled.open() == {(job, 1): 2}
    found = (await scaled.plant.job(job)).node_request
    assert found is not None
    assert (found.number, found.answer) == (1, Answer.ACCEPTED)


async def test_another_server_finds_the_request_again(scaled: Autoscaled) -> None:
    job = await requested(scaled)
    scaled.begin("server-2")
    scaled.memory.requests["j-gone", 7] = scaled.memory.requests[job, 1]
    await scaled.run_for(30.0)
    assert await scaled.open() == {(job, 1): 2}, "and withdraws one that no job's record names"
    scaled.memory.requests.clear()
    await scaled.run_for(2 * controllers.PERIOD_S)
    assert await scaled.open() == {(job, 1): 2}, "one that was lost is made again"


async def test_without_an_autoscaler_that_answers_the_numbers_follow_the_need() -> None:
    scaled = Autoscaled(provisioners.Memory(takes=False))
    job = await scaled.plant.submit(LARGE)
    found = await scaled.until(lambda one: one.node_request is not None, job)
    assert found.node_request is not None
    assert found.node_request.need.nodes == {"big": 2}
    assert await scaled.told() == [(job, {"big": 2})]
    assert await scaled.open() == {}
    scaled.add(1)
    await scaled.until(lambda one: one.node_request is not None and one.node_request.need.nodes == {"big": 1}, job)
    assert (await scaled.told())[1:] == [(job, {"big": 1})]


async def test_a_cluster_that_does_not_answer_holds_up_nothing(scaled: Autoscaled) -> None:
    """Not even the record: the request is made once the cluster answers again."""

    async def failing(job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None) -> None:
        raise errors.Unavailable("the API server cannot be reached")

    scaled.memory.request, request = failing, scaled.memory.request  # type: ignore[method-assign]
    job = await scaled.plant.submit(LARGE)
    await scaled.until(lambda one: one.node_request is not None, job)
    scaled.memory.request = request  # type: ignore[method-assign]
    await scaled.run_for(2 * controllers.PERIOD_S)
    assert await scaled.open() == {(job, 1): 2}


async def test_a_job_that_fits_the_present_nodes_requests_none(scaled: Autoscaled) -> None:
    job = await scaled.plant.submit("{roles: {worker: {count: 1, cpus: 1}}}")
    await scaled.until(lambda one: one.phase is not phases.Phase.QUEUED, job)
    await scaled.run_for(10.0)
    assert await scaled.told() == []


@pytest.mark.parametrize("forgotten", [False, True])
async def test_requests_are_withdrawn_once_the_settings_name_no_class_any_more(
    scaled: Autoscaled, forgotten: bool
) -> None:
    job = await requested(scaled)
    if forgotten:
        scaled.memory.requests["j-gone", 7] = scaled.memory.requests[job, 1]
    scaled.begin("server-2", msgspec.structs.replace(RULES, node_classes=()))
    await scaled.until(lambda one: one.node_request is None, job)
    await scaled.run_for(3 * controllers.PERIOD_S)
    assert await scaled.open() == {}
    assert scaled.controller.wake_at() is None, "a cluster without classes is left in peace"


async def test_a_request_never_takes_the_name_of_one_that_is_not_withdrawn_yet(scaled: Autoscaled) -> None:
    job = await requested(scaled)
    await scaled.answer(Answer.FAILED, "out of quota (old)")

    async def failing(job: str, number: int) -> None:
        raise errors.Unavailable("the API server cannot be reached")

    withdraw = scaled.memory.withdraw
    scaled.memory.withdraw = failing  # type: ignore[method-assign]
    await scaled.plant.intend(job, "halt")
    await scaled.run_for(2 * controllers.PERIOD_S)
    assert (await scaled.plant.job(job)).node_request is None
    await scaled.plant.intend(job, "run")
    found = await scaled.until(lambda one: one.node_request is not None, job)
    assert found.node_request is not None
    assert (found.node_request.number, found.node_request.answer) == (2, Answer.NONE)
    scaled.memory.withdraw = withdraw  # type: ignore[method-assign]
    await scaled.run_for(2 * controllers.PERIOD_S)
    assert await scaled.open() == {(job, 2): 2}


async def test_a_request_that_was_refused_is_withdrawn_too(scaled: Autoscaled) -> None:
    """A part of it may be there, and no list tells of it."""

    async def refused(job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None) -> None:
        raise errors.InvalidInput("a webhook refused it")

    withdrawn = []
    withdraw = scaled.memory.withdraw

    async def noted(job: str, number: int) -> None:
        withdrawn.append((job, number))
        await withdraw(job, number)

    scaled.memory.request = refused  # type: ignore[method-assign]
    scaled.memory.withdraw = noted  # type: ignore[method-assign]
    job = await scaled.plant.submit(LARGE)
    await scaled.until(lambda one: one.node_request is not None, job)
    await scaled.run_for(2 * controllers.PERIOD_S)
    assert withdrawn == []
    await scaled.plant.intend(job, "cancel")
    await scaled.run_for(3 * controllers.PERIOD_S)
    assert withdrawn == [(job, 1)]


async def test_the_cluster_is_told_of_which_object_the_nodes_are_missing(scaled: Autoscaled) -> None:
    named = resources.Resource("team", "train", "u-1")
    found: list[resources.Resource | None] = []

    async def tell(job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None) -> None:
        found.append(resource)

    scaled.memory.tell = tell  # type: ignore[method-assign]
    job = await scaled.plant.submit(LARGE)
    before = await scaled.plant.job(job)
    await scaled.plant.store.write(
        lambda tx: tx.put_job(msgspec.structs.replace(before, resource=named), at=scaled.plant.now)
    )
    await scaled.until(lambda one: one.node_request is not None, job)
    await scaled.run_for(controllers.PERIOD_S)
    assert found == [named]


async def test_a_job_whose_volume_no_new_node_can_mount_requests_none(scaled: Autoscaled) -> None:
    """The volume of a claim may be made, and a class be able to mount it again, while the server runs."""
    job = await scaled.plant.submit(f"{LARGE[:-1]}, volumes: [{{claim: disk, mount: /disk}}]}}")
    scaled.memory.lacks["big"] = ("disk",)
    await scaled.run_for(30.0)
    assert await scaled.open() == {}
    scaled.memory.lacks.clear()
    await scaled.run_for(30.0)
    assert await scaled.open() == {(job, 1): 2}
    scaled.memory.lacks["big"] = ("disk",)
    await scaled.run_for(30.0)
    assert await scaled.open() == {}


def test_the_rules_stay_the_same_objects_until_a_class_changes() -> None:
    """Plans keep their answers by the identity of the classes."""
    memory = provisioners.Memory()
    classes = nodeclasses.NodeClasses(RULES, memory)
    assert classes.rules() is RULES
    memory.lacks["big"] = ("disk",)
    changed = classes.rules()
    assert changed.node_classes[0].model.lacks == ("disk",)
    assert classes.rules() is changed
    memory.lacks.clear()
    assert classes.rules() == RULES
    assert nodeclasses.NodeClasses(RULES, None).rules() is RULES
