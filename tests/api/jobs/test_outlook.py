"""The outlook of a job: `plan`, `why` in three lines, every decision with its reason, and the cost."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs

from oarlock.api import application
from oarlock.api.jobs import decisions, outlook
from oarlock.api.services import forecaster
from oarlock.backends import provisioners
from oarlock.controllers import nodeclasses
from oarlock.scheduler.forecasting import forecasts
from oarlock.spec import attempts, events, holdings, intents, jobs, phases, plans, refusals, summaries
from oarlock.spec.cluster import nodes, prices, profiles, provisioning


@pytest.fixture(autouse=True)
def _patient(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.take_time(monkeypatch)


async def ask(rig: rigs.Rig, path: str, who: str = "ann") -> Any:
    async with rig.as_user(who) as http:
        answer = await http.get(f"/api/v1/jobs/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def fill(rig: rigs.Rig, name: str, gpus: int, who: str = "ann", **spec: Any) -> jobs.Job:
    """A job that runs and holds so many of the node's two GPUs."""
    job = await rig.submit(who, name=name, **spec)
    claim = holdings.Holding(
        job=job.id,
        attempt=1,
        role="worker",
        index=0,
        node="here",
        amount=holdings.Resources(1000, 0, gpus),
        devices=tuple(range(gpus)),
    )
    admitted = events.Admitted(attempt=1, holdings=(claim,), reason="first in order", gpu_types=("h100",))
    await rig.happen(job.id, admitted)
    await rig.store.write(lambda tx: tx.hold([claim]))
    return await process(rig, job)


async def process(rig: rigs.Rig, job: jobs.Job) -> jobs.Job:
    where = {"key": attempts.TaskKey(job.id, 1, "worker", 0, 1)}
    return await rig.happen(
        job.id,
        events.Launched(attempt=1),
        events.TaskRegistered(**where, address="127.0.0.1"),
        events.TaskReported(**where, phase="PROCESSING"),
    )


async def test_why_a_job_waits_in_three_lines(rig: rigs.Rig) -> None:
    await fill(rig, "big", 2, timeout="1h")
    await rig.submit(name="other", roles={"worker": {"gpus": 2}})
    rig.clock.now += 1
    await rig.submit(name="digits", roles={"worker": {"count": 2, "gpus": 1}})
    rig.clock.now += 119
    found = await ask(rig, "digits/why")
    assert found["lines"] == [
        "digits has waited 2 min. It needs 2 GPUs and 2 CPUs for 2 tasks; 0 of 2 GPUs are free.",
        "big holds 2 GPUs.",
        "The start time is unknown: nothing tells when big will end. It is 2nd of 2 waiting jobs.",
    ]
    first = await ask(rig, "other/why")
    assert first["lines"][1] == "big holds 2 GPUs. It would start once big ends."
    assert first["lines"][2] == "It should start within 59 min. It is 1st of 2 waiting jobs."
    assert first["forecast"]["start"] is None, "it may end at any moment"
    assert first["forecast"]["latest"] == pytest.approx(rig.clock.now + 3520, abs=1), "its grace, and its end"
    assert first["refusal"]["holders"][0]["name"] == "big"


async def test_why_names_the_nodes_that_were_requested(rig: rigs.Rig) -> None:
    """The class, the number, the time of the request, and the autoscaler's answer."""
    await fill(rig, "big", 2)
    job = await rig.submit(name="digits", roles={"worker": {"count": 2, "gpus": 1}})
    task = provisioning.Tasks(role="worker", amount=holdings.Resources(1000, 0, 1), node_class="large", count=2)
    request = provisioning.NodeRequest(
        number=1,
        need=provisioning.Need(nodes={"large": 1}, tasks=(task,)),
        at=rig.clock.now,
        answer=provisioning.Answer.FAILED,
        answered_at=rig.clock.now + 30,
        message="out of quota",
    )
    await rig.happen(job.id, events.NodesRequested(request=request))
    rig.clock.now += 120
    found = await ask(rig, "digits/why")
    assert found["lines"][1].startswith(
        "1 node of large was requested 2 min ago; the autoscaler refused that 1.5 min ago (out of quota); "
        "it is made again soon. big holds 2 GPUs."
    )


async def test_forecasts_know_the_volumes_that_no_new_node_can_mount(rig: rigs.Rig) -> None:
    """They promised a job new nodes of a class that the leader would not ask for, and a job was accepted that could
    never run. The store has no new line between the two forecasts.
    """
    autoscaler = provisioners.Memory()
    devices = tuple(nodes.Device(index=index, type="gpu", memory_bytes=0) for index in range(2))
    model = nodes.Node(name="large", capacity=holdings.Resources(8000, 1 << 40, 2), devices=devices)
    declared = plans.Rules(
        node_classes=(nodes.NodeClass(name="large", model=model, most=2),),
        profiles=(profiles.Profile(claims=("disk",)),),
    )
    rules = nodeclasses.NodeClasses(declared, autoscaler).rules
    rig.app = application.make(msgspec.structs.replace(rig.services, rules=rules))
    wanted = {"worker": {"count": 2, "gpus": 2}}
    await rig.submit(name="digits", roles=wanted)

    async def refused() -> str:
        found = await ask(rig, "digits/why")
        return str((found["forecast"]["refusal"] or {}).get("code"))

    assert await refused() != "never_fits"
    autoscaler.lacks["large"] = ("disk",)
    assert await refused() == "never_fits"
    async with rig.as_user("ann") as http:
        told = await http.post("/api/v1/jobs", json=rigs.submission(name="more", roles=wanted))
        planned = await http.post("/api/v1/plan", json=rigs.submission(name="more", roles=wanted))
    assert (told.status_code, told.json()["error"]["code"]) == (422, "impossible")
    assert "disk" in told.json()["error"]["message"]
    assert "never_fits" in planned.text
    autoscaler.lacks.clear()
    await rig.submit(name="more", roles=wanted)


async def test_a_job_that_waits_for_its_next_try_tells_why_the_last_one_failed(rig: rigs.Rig) -> None:
    job = await fill(rig, "digits", 1)
    failed = events.LaunchFailed(attempt=1, reason="the namespace is going")
    gone = events.TaskGone(key=attempts.TaskKey(job.id, 1, "worker", 0, 1))
    await rig.happen(job.id, failed, gone, events.Released(attempt=1))
    await rig.store.write(lambda tx: tx.release(job.id, 1))
    again = "Its last start failed because of the platform; the next try follows soon."
    for _ in ("before the next plan", "after it"):
        told = (await ask(rig, "digits/why"))["lines"][0]
        assert told.endswith(f". The launch failed: the namespace is going. {again}")
        await rig.happen(
            job.id, events.Refused(refusal=refusals.Refusal(code=refusals.Code.BACKING_OFF, message=again))
        )


async def test_the_smallest_change_is_one_that_was_tried_out(rig: rigs.Rig) -> None:
    await fill(rig, "big", 1)
    await rig.submit(name="digits", roles={"worker": {"count": 2, "gpus": 1}})
    found = await ask(rig, "digits/why")
    assert found["lines"][1] == "big holds 1 GPU. It would start now with 1 worker instead of 2."


def stretch(rig: rigs.Rig) -> None:
    """Let the backend run jobs with a varying number of workers."""
    about = rig.services.about
    about = msgspec.structs.replace(about, capabilities=(*about.capabilities, "elastic"))
    msgspec.structs.force_setattr(rig.services, "about", about)


async def test_the_change_comes_with_its_edit_and_the_holders_with_their_ends(rig: rigs.Rig) -> None:
    stretch(rig)
    await fill(rig, "big", 1, timeout="1h")
    await rig.submit(name="digits", roles={"worker": {"count": 2, "gpus": 1}})
    found = await ask(rig, "digits/why")
    edit = {"priority": None, "pool": None, "min": 1, "max": None}
    assert found["forecast"]["remedies"] == [{"words": "with 1 worker instead of 2", "edit": edit}]
    assert [(one["name"], one["end"]) for one in found["ends"]] == [("big", None)]
    assert found["ends"][0]["latest"] == pytest.approx(rig.clock.now + 3600, abs=60)


async def test_an_edit_that_would_be_refused_is_not_offered(rig: rigs.Rig) -> None:
    await fill(rig, "big", 1)
    await rig.submit(name="digits", roles={"worker": {"count": 2, "gpus": 1}})
    found = await ask(rig, "digits/why")
    assert [one["edit"] for one in found["forecast"]["remedies"]] == [None]


async def test_why_a_job_runs_where_it_does(rig: rigs.Rig) -> None:
    await fill(rig, "big", 2, timeout="1h")
    rig.clock.now += 600
    assert (await ask(rig, "big/why"))["lines"] == [
        "big has been PROCESSING for 10 min.",
        "It has held 2 GPUs on here for 10 min. It was admitted for this reason: first in order.",
        "Its time-out ends it within 51 min. Follow it: oarlock logs big -f",
    ]


async def test_a_running_job_has_no_reason_to_wait(rig: rigs.Rig) -> None:
    """Its place in the queue was the reason of its start, and stays with the attempt."""
    job = await fill(rig, "big", 2)
    async with rig.as_user("ann") as http:
        found = (await http.get(f"/api/v1/jobs/{job.id}")).json()
        assert (found["phase"], found["reason"], found["attempts"][0]["reason"]) == ("PROCESSING", "", "first in order")
        await finish(rig, job)
        assert (await http.get(f"/api/v1/jobs/{job.id}")).json()["reason"] == ""


async def test_why_a_job_has_ended(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    await rig.launch(job)
    rig.clock.now += 600
    await rig.end(job.id, code=0)
    rig.clock.now += 7200
    told = (await ask(rig, "digits/why"))["lines"]
    assert told[:2] == ["digits ended 2 h ago: COMPLETED.", "It ran for 10 min."], "no line says the same again"


@pytest.mark.parametrize(
    ("intent", "phase", "says"), [("halt", "HALTED", "Halted"), ("cancel", "CANCELED", "Canceled")]
)
async def test_the_reason_of_a_stop_is_a_sentence(rig: rigs.Rig, intent: str, phase: str, says: str) -> None:
    job = await rig.submit(name="digits")
    async with rig.as_user("ann") as client:
        await client.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": intent})
    found = await ask(rig, "digits/why")
    assert (found["phase"], found["lines"][1]) == (phase, f"{says} by ann.")


async def test_earlier_jobs_of_the_name_tell_how_long_it_lasts(rig: rigs.Rig) -> None:
    """The job does not say so, and there is no progress; but twice before it took ten minutes."""
    for _ in range(2):
        job = await fill(rig, "train", 2)
        rig.clock.now += 600
        await finish(rig, job)
    await fill(rig, "train", 2)
    await rig.submit(name="next", roles={"worker": {"gpus": 2}})
    rig.clock.now += 60
    found = await ask(rig, "next/why")
    assert found["lines"][2] == "It should start in about 9 min. No other job waits."
    other = await rig.submit("bob", name="bobs", roles={"worker": {"gpus": 2}})
    assert (await ask(rig, f"{other.id}/why", "bob"))["forecast"]["start"] is None, "of `next` nothing is known"


async def test_a_job_that_outlasts_earlier_ones_is_compared_with_longer_ones(rig: rigs.Rig) -> None:
    for took_s in (300, 300, 600):
        job = await fill(rig, "train", 2)
        rig.clock.now += took_s
        await finish(rig, job)
    await fill(rig, "train", 2)
    await rig.submit(name="next", roles={"worker": {"gpus": 2}})
    rig.clock.now += 60
    assert (await ask(rig, "next/why"))["lines"][2].startswith("It should start in about 4 min.")
    rig.clock.now += 360
    await rig.submit(name="other")  # a line in the log: it is foretold anew
    assert (await ask(rig, "next/why"))["lines"][2].startswith("It should start in about 3 min.")
    rig.clock.now += 600
    await rig.submit(name="third")
    late = (await ask(rig, "next/why"))["lines"][2]
    assert late.startswith("The start time is unknown: nothing tells when train will end."), (
        "not in a second, for hours"
    )


async def test_another_s_jobs_of_the_name_tell_nothing(rig: rigs.Rig) -> None:
    job = await fill(rig, "train", 2)
    rig.clock.now += 600
    await finish(rig, job)
    await fill(rig, "train", 2, "bob")
    await rig.submit(name="next", roles={"worker": {"gpus": 2}})
    assert (await ask(rig, "next/why"))["forecast"]["start"] is None


async def finish(rig: rigs.Rig, job: jobs.Job) -> None:
    await rig.end(job.id, code=0)
    await rig.store.write(lambda tx: tx.release(job.id, 1))


async def test_the_obstacle_of_a_task_is_told_with_its_time_until_it_has_passed(rig: rigs.Rig) -> None:
    """As an image that cannot be pulled: the job holds its place, and does not move."""
    job = await rig.submit(name="train")
    claim = holdings.Holding(
        job=job.id, attempt=1, role="worker", index=0, node="here", amount=holdings.Resources(1000, 0, 0)
    )
    key = attempts.TaskKey(job.id, 1, "worker", 0, 1)
    await rig.happen(job.id, events.Admitted(attempt=1, holdings=(claim,)), events.Launched(attempt=1))
    rig.clock.now += 30
    why = "image reg/train:1 cannot be pulled: manifest unknown"
    await rig.happen(job.id, events.TaskHindered(key=key, obstacle=why))
    rig.clock.now += 180
    found = await ask(rig, "train/why")
    assert found["lines"][1] == f"worker-0: {why}. It has been so for 3 min."
    stored = await rig.store.read(lambda view: view.job(job.id))
    assert stored is not None
    assert summaries.reason(stored) == f"worker-0: {why}"
    await rig.happen(job.id, events.TaskHindered(key=key))
    assert "pulled" not in str(await ask(rig, "train/why"))
    register = events.TaskRegistered(key=key, address="10.0.0.2")
    lost = events.TaskHindered(key=key, obstacle="its node is lost")
    await rig.happen(job.id, register, events.TaskReported(key=key, phase="PROCESSING"), lost)
    assert (await ask(rig, "train/why"))["lines"][1].startswith("worker-0: its node is lost. It has been so for ")
    await rig.happen(job.id, events.Intended(intent=intents.Intent.CANCEL, by="ann"))
    rig.clock.now += 60
    told = (await ask(rig, "train/why"))["lines"][1]
    assert told == "Canceled by ann. worker-0: its node is lost. It has been so for 60 s."
    stored = await rig.store.read(lambda view: view.job(job.id))
    assert stored is not None
    assert summaries.reason(stored) == "canceled by ann; worker-0: its node is lost"


async def test_one_forecast_is_made_of_one_state(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    real = forecasts.forecasts

    def counted(*given: Any) -> Any:
        nonlocal made
        made += 1
        return real(*given)

    monkeypatch.setattr(forecasts, "forecasts", counted)
    await fill(rig, "big", 2)
    for number in range(5):
        rig.clock.now += 1
        await rig.submit(name=f"w{number}", roles={"worker": {"gpus": 2}})
    for number in range(5):
        assert (await ask(rig, f"w{number}/why"))["forecast"]["position"] == number + 1
    assert made == 1
    rig.clock.now += 1
    await rig.submit(name="more", roles={"worker": {"gpus": 2}})
    assert (await ask(rig, "more/why"))["forecast"]["position"] == 6
    assert made == 2, "a line was written since"


async def test_where_one_plan_takes_too_long_the_answer_comes_without_it(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of ten thousand nodes: what was written down last is told, and one forecast serves for a while."""
    made = 0
    go_on = threading.Event()
    real = forecasts.forecasts

    def slow(*given: Any) -> Any:
        nonlocal made
        made += 1
        assert go_on.wait(240)
        return real(*given)

    monkeypatch.setattr(forecasts, "forecasts", slow)
    monkeypatch.setattr(rig.services.forecaster, "_monotonic", time.monotonic)
    monkeypatch.setattr(forecaster, "PATIENCE_S", 0.05)
    monkeypatch.setattr(forecaster, "SLOW_S", 0.01)
    waits, fresh = 0, forecaster.Forecaster._fresh

    async def counted(*given: Any) -> Any:
        nonlocal waits
        waits += 1
        return await fresh(*given)

    monkeypatch.setattr(forecaster.Forecaster, "_fresh", counted)
    big = await fill(rig, "big", 2)
    job = await rig.submit(name="digits", roles={"worker": {"gpus": 2}})
    holder = refusals.Holder(job=big.id, name="big", amount={"gpus": 2.0}, owner="ann", pool="default")
    refusal = refusals.Refusal(
        code=refusals.Code.NO_CAPACITY, message="It needs 2 GPUs; 0 of 2 are free.", holders=(holder,)
    )
    await rig.happen(job.id, events.Refused(refusal=refusal))
    for _ in range(2):
        lines = (await ask(rig, "digits/why"))["lines"]
        assert "It needs 2 GPUs; 0 of 2 are free." in lines[0]
        assert lines[2] == forecasts.UNCOMPUTED
    assert waits == 2, "each answer waits once"
    go_on.set()
    for _ in range(1000):
        if (await ask(rig, "digits/why"))["lines"][2] != forecasts.UNCOMPUTED:
            break
        await asyncio.sleep(0.01)
    await rig.happen(job.id, events.Refused(refusal=msgspec.structs.replace(refusal, message="again")))
    assert (await ask(rig, "digits/why"))["forecast"]["position"] == 1
    assert made == 1, "though lines are written meanwhile"


async def test_plan_asks_the_same_scheduler_with_one_more(rig: rigs.Rig) -> None:
    await rig.store.write(
        lambda tx: tx.put_node(prices.Prices(gpus={"h100": 3.0}).priced(tx.nodes()[0]))  # type: ignore[arg-type]
    )
    async with rig.as_user("ann") as http:
        now = (await http.post("/api/v1/plan", json=rigs.submission(roles={"worker": {"count": 2, "gpus": 1}}))).json()
    assert (now["when"], now["message"], now["price_per_h"]) == ("now", "It starts on here.", 6.0)
    await fill(rig, "big", 2, timeout="1h")
    async with rig.as_user("ann") as http:
        later = (await http.post("/api/v1/plan", json=rigs.submission(roles={"worker": {"gpus": 2}}))).json()
        never = (await http.post("/api/v1/plan", json=rigs.submission(roles={"worker": {"gpus": 3}}))).json()
    assert (later["when"], later["expected"], later["price_per_h"]) == ("later", "It should start within 61 min.", 6.0)
    assert (never["when"], never["refusal"]["code"]) == ("never", "never_fits")


async def test_manifests_are_those_of_a_cluster(rig: rigs.Rig) -> None:
    """The job that is rendered has a fixed id and name. A server that runs processes has nothing to show."""
    async with rig.as_user("ann") as http:
        refused = (await http.post("/api/v1/plan/manifests", json=rigs.submission())).json()["error"]
        assert refused["code"] == "unsupported"
        assert "oarlock up --backend kubernetes" in refused["hint"]
    asked = []

    async def rendered(job: jobs.Job) -> list[dict[str, Any]]:
        asked.append((job.id, job.name, job.owner))
        return [{"kind": "Pod"}]

    rig.services = msgspec.structs.replace(rig.services, manifests=rendered)
    rig.app = application.make(rig.services)
    async with rig.as_user("ann") as http:
        body = rigs.submission(command="python -u my_train.py --lr 1", name=None)
        assert (await http.post("/api/v1/plan/manifests", json=body)).json() == {"items": [{"kind": "Pod"}]}
        invalid = rigs.submission(roles={"worker": {"count": 0}})
        assert (await http.post("/api/v1/plan/manifests", json=invalid)).status_code == 422
    assert asked == [("j-planned", "my-train", "ann")]
    assert await rig.store.read(lambda view: view.active()) == []


async def test_a_size_fills_the_amounts_of_a_job(rig: rigs.Rig) -> None:
    async with rig.as_user("ann") as http:
        answer = await http.post("/api/v1/jobs", json=rigs.submission(size="1-h100"))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (422, "impossible")
        assert "22 CPUs" in error["message"]
    job = await rig.submit(size="1-h100", roles={"worker": {"cpus": 2, "memory": "1Gi"}})
    worker = next(iter(job.spec.roles.values()))
    assert (job.spec.size, worker.gpus, worker.gpu_type, worker.cpus) == ("1-h100", 1, ("h100",), 2)


# Decisions


def record(at: float, kind: str, **data: Any) -> events.Record:
    return events.Record(seq=int(at), at=at, job="j-1", kind=kind, version=1, data=data)


def refused(at: float, code: str, message: str) -> events.Record:
    return record(at, "refused", refusal={"code": code, "message": message})


def claims(**by_node: list[int]) -> list[dict[str, Any]]:
    return [{"node": node, "devices": [device]} for node, devices in by_node.items() for device in devices]


def test_every_decision_is_told_with_its_reason() -> None:
    log = [
        record(1, "submitted"),
        refused(2, "no_capacity", "0 of 4 GPUs are free."),
        refused(3, "no_capacity", "1 of 4 GPUs is free."),
        refused(4, "pool_limit", "The pool is full."),
        refused(5, "no_capacity", "1 of 4 GPUs is free."),
        record(6, "admitted", attempt=1, holdings=claims(a=[0, 1], b=[0, 1], c=[3]), reason="first in order"),
        record(7, "batch_decided", attempt=1, batch=[64, 2]),
        record(8, "intended", intent="resize", by="scheduler", reason="resized from 4 to 8 workers: GPUs are idle"),
        record(9, "intended", intent="resize", by="scheduler", reason="moved from a to b: all of it fits one node"),
        record(10, "intended", intent="preempt", by="urgent", reason="240 s of work are lost"),
        record(11, "intended", intent="halt", by="ann", reason="lunch"),
        record(12, "phase", phase="HALTED"),
    ]
    told = [(one.at, one.what, one.code, one.text, one.reason, one.count) for one in decisions.made(log)]
    assert told == [
        (2, "refused", "no_capacity", "1 of 4 GPUs is free.", "", 2),
        (4, "refused", "pool_limit", "The pool is full.", "", 1),
        (5, "refused", "no_capacity", "1 of 4 GPUs is free.", "", 1),
        (
            6,
            "admitted",
            "",
            "attempt 1: 2 tasks each on a and b (GPUs 0-1), 1 task on c (GPU 3)",
            "first in order",
            1,
        ),
        (7, "batch", "", "batch size 64 for each process, 2 accumulated", "", 1),
        (8, "resized", "", "from 4 to 8 workers", "GPUs are idle", 1),
        (9, "moved", "", "from a to b", "all of it fits one node", 1),
        (10, "preempted", "", "by urgent", "240 s of work are lost", 1),
        (11, "owner", "", "halted by ann", "lunch", 1),
    ]


async def test_decisions_come_from_the_log_however_long_it_is(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    for number in range(1200):
        code = refusals.Code.NO_CAPACITY if number % 2 else refusals.Code.POOL_LIMIT
        await rig.happen(job.id, events.Refused(refusal=refusals.Refusal(code=code, message=str(number))))
    await rig.launch(job)
    found = await ask(rig, "digits/decisions")
    assert len(found["items"]) == 1201
    assert found["items"][-1]["what"] == "admitted"
    assert found["complete"] is True


async def test_events_that_were_compacted_are_said_to_be_missing(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    await rig.happen(job.id, events.Refused(refusal=refusals.Refusal(code=refusals.Code.BEHIND, message="old")))
    seq = await rig.store.read(lambda view: view.last_seq())
    await rig.launch(job)
    await rig.store.write(lambda tx: tx.compact(seq + 1))
    found = await ask(rig, "digits/decisions")
    assert [one["what"] for one in found["items"]] == ["admitted"]
    assert found["complete"] is False


async def test_decisions_about_jobs_of_others_are_not_shown(rig: rigs.Rig) -> None:
    job = await rig.submit("ann", name="digits")
    async with rig.as_user("bob") as http:
        assert (await http.get(f"/api/v1/jobs/{job.id}/decisions")).status_code == 404


# Cost


async def test_a_job_costs_its_holdings_for_as_long_as_it_held_them(rig: rigs.Rig) -> None:
    job = await rig.submit(name="digits")
    for attempt, price in ((1, 6.0), (2, 3.0)):
        claim = holdings.Holding(
            job=job.id, attempt=attempt, role="worker", index=0, node="here", amount=holdings.Resources(1000, 0, 1)
        )
        admitted = events.Admitted(attempt=attempt, holdings=(claim,), price_per_h=price)
        await rig.happen(job.id, admitted, events.Launched(attempt=attempt))
        rig.clock.now += 1800
        if attempt == 1:
            preempt = events.Intended(intent=intents.Intent.PREEMPT, by="urgent")
            where = {"key": attempts.TaskKey(job.id, 1, "worker", 0, 1)}
            await rig.happen(job.id, preempt, events.TaskGone(**where), events.Released(attempt=1))
    async with rig.as_user("ann") as http:
        found = msgspec.json.decode((await http.get("/api/v1/jobs/digits")).content, type=jobs.Job)
        usage = (await http.get("/api/v1/usage")).json()["items"]
    assert found.phase is phases.Phase.DEPLOYING
    assert found.cost == pytest.approx(3.0), "half an hour of the first"
    assert found.cost_at(rig.clock.now) == pytest.approx(4.5), "and half an hour of the second"
    assert usage == [], "no claim of it is in the store, and no attempt was released by the guardian"


def test_a_forecast_that_knows_nothing_still_has_three_lines() -> None:
    job = jobs.Job(id="j-1", name="digits", owner="ann", spec=rigs.jobfile.JobSpec(command="x"), created_at=0.0)
    refusal = refusals.Refusal(code=refusals.Code.STOPPING, message="Its place is being cleared.")
    bare = plans.Forecast(
        when=plans.When.LATER, message=refusal.message, refusal=refusal, expected="The start time is unknown."
    )
    lines = outlook.explain(job, bare, 60.0, "digits")
    assert len(lines) == 3
    assert all(lines)


def test_a_running_job_is_no_waiting_one() -> None:
    job = jobs.Job(id="j-1", name="digits", owner="ann", spec=rigs.jobfile.JobSpec(command="x"), created_at=0.0)
    assert forecaster.waits(job)
    assert not forecaster.waits(msgspec.structs.replace(job, phase=phases.Phase.HALTED))
