"""OarlockJobs from `apply` to `delete`: in memory, and at a real API server with `kubectl` and the rights of deploy."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.customresources import memory
from tests.api.customresources.desks import PATIENCE_S, Desk, RealDesk, condition, is_false, is_true
from tests.api.jobs import test_continuing
from tests.backends.kubernetes.testcluster import apiserver

from oarlock.api.customresources import face, looks, translation
from oarlock.backends.kubernetes import oarlockjobs, site
from oarlock.spec import errors, events, phases, resources
from oarlock.store import stores

COUNT = 500


async def test_apply_submits_get_shows_and_delete_cancels(desk: Desk) -> None:
    async with desk.serving():
        uid = await desk.apply(desk.ann, "train", roles={"worker": {"count": 2}})
        job = await desk.job("train")
        assert (job.owner, job.pool, job.spec.roles["worker"].count) == ("ann", "default", 2)
        assert job.resource is not None
        assert (job.resource.namespace, job.resource.name, job.resource.uid) == (desk.ann, "train", uid)
        assert job.resource.cluster
        assert job.resource.definition
        status = await desk.until(desk.ann, "train", is_true("Admitted"))
        assert (status["job"], status["phase"], status["workers"]) == (job.id, "QUEUED", "0/2")
        job = await desk.rig.launch(job)
        await desk.until(desk.ann, "train", lambda status: status["phase"] == "DEPLOYING")
        await desk.delete(desk.ann, "train")  # no finalizer holds it up
        job = await desk.job("train", lambda job: job.intent == "cancel")
        assert job.reason == "canceled by ann: its OarlockJob was deleted"


@apiserver.needed
async def test_delete_cancels_where_the_server_may_only_look(real_desk: RealDesk) -> None:
    """In a namespace of users whose administrator has granted nothing yet, or in one that is being deleted."""
    desk = real_desk
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{desk.ann}/rolebindings"
    await desk.admin.delete(f"{bindings}/oarlock-objects")
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        await desk.job("train")
        await desk.delete(desk.ann, "train")
        await desk.job("train", lambda job: job.intent == "cancel")


async def test_the_status_tells_why_a_job_waits_and_how_it_ended(desk: Desk) -> None:
    async with desk.serving():
        await desk.apply(desk.ann, "good")
        job = await desk.job("good")
        await desk.rig.launch(job)
        await desk.rig.end(job.id)
        status = await desk.until(desk.ann, "good", is_true("Completed"))
        assert (status["phase"], status["exitCode"]) == ("COMPLETED", 0)
        assert condition(status, "Completed")["lastTransitionTime"].endswith("Z")
        # A tool that applies again does not run it again, not even with another spec.
        await desk.apply(desk.ann, "good", priority=70)
        status = await desk.until(desk.ann, "good", is_false("Applied"))
        assert "has ended: COMPLETED" in condition(status, "Applied")["message"]
        assert len(await desk.jobs("good")) == 1


async def test_an_object_acts_with_the_rights_of_its_namespaces_user(desk: Desk) -> None:
    async with desk.serving():
        await desk.apply(desk.ann, "mine")
        job = await desk.job("mine")
        await desk.apply(desk.bob, "mine")
        await desk.until(desk.bob, "mine", is_true("Admitted"))
        await desk.delete(desk.bob, "mine")
        both = {one.owner: one for one in await desk.jobs("mine")}
        assert set(both) == {"ann", "bob"}
        assert both["bob"].pool == "research"
        await desk.apply(desk.bob, "thief", continues=job.id)
        status = await desk.until(desk.bob, "thief", is_false("Admitted"))
        assert f"There is no job `{job.id}`" in condition(status, "Admitted")["message"]
        assert {one.owner: one.intent for one in await desk.jobs("mine")}["ann"] == "run"


@apiserver.needed
async def test_one_user_does_not_reach_the_jobs_of_another_by_kubectl(real_desk: RealDesk) -> None:
    desk = real_desk
    async with desk.serving():
        await desk.apply(desk.ann, "mine")
        await desk.until(desk.ann, "mine", is_true("Admitted"))
        for words in (("get", "oarlockjobs"), ("delete", "oarlockjob", "mine"), ("describe", "oarlockjob", "mine")):
            said = await desk.kubectl("b-token", "--namespace", desk.ann, *words, fails=True)
            assert "forbidden" in said.lower()
        assert (await desk.job("mine")).intent == "run"


@apiserver.needed
async def test_kubectl_shows_and_waits(real_desk: RealDesk) -> None:
    desk = real_desk
    async with desk.serving():
        await desk.apply(desk.ann, "train", roles={"worker": {"count": 2}})
        job = await desk.rig.launch(await desk.job("train"))
        await desk.until(desk.ann, "train", lambda status: status.get("phase") == "DEPLOYING")
        table = await desk.kubectl("a-token", "--namespace", desk.ann, "get", "oarlockjobs")
        header, row = (line.split() for line in table.splitlines())
        assert header == ["NAME", "PHASE", "WORKERS", "AGE", "REASON"]
        assert row[:3] == ["train", "DEPLOYING", "0/2"]
        await desk.rig.end(job.id)
        waited = await desk.kubectl(
            *("a-token", "--namespace", desk.ann, "wait", "--for=condition=Completed", "oarlockjob/train")
        )
        assert "condition met" in waited
        described = await desk.kubectl("admin-token", "--namespace", desk.ann, "describe", "oarlockjob", "train")
        assert "COMPLETED" in described
        assert "Admitted" in described.rpartition("Events:")[2]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"comand": "x"}, "comand: unknown field 'comand' Did you mean `command`?"),
        ({"roles": {"worker": {"cpu": 2}}}, "roles.worker.cpu: unknown field 'cpu'"),
        ({"roles": {"worker": {"memory": "2 apples"}}}, "roles.worker.memory: "),
        ({"name": "other"}, "name: The job has the name of its object."),
        ({"timeout": [1]}, "timeout: "),
        ({"dependencies": "requirements.txt"}, "dependencies: "),
        ({"snapshot": "sha256:" + 64 * "0"}, "snapshot: The server does not have this snapshot."),
        ({"pool": "nowhere"}, "pool: There is no pool `nowhere`."),
        ({"roles": {"worker": {"gpus": 64}}}, "64 GPUs"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
async def test_a_bad_spec_is_answered_by_a_condition(desk: Desk, spec: dict[str, Any], words: str) -> None:
    async with desk.serving():
        await desk.apply(desk.ann, "bad", **spec)
        status = await desk.until(desk.ann, "bad", is_false("Admitted"))
        assert words in condition(status, "Admitted")["message"]
        assert await desk.jobs("bad") == []
        await desk.apply(desk.ann, "good")  # the face goes on
        await desk.until(desk.ann, "good", is_true("Admitted"))


@apiserver.needed
async def test_the_api_server_refuses_a_value_that_no_job_file_has(real_desk: RealDesk) -> None:
    desk = real_desk
    said = await desk.kubectl(
        *("a-token", "--namespace", desk.ann, "apply", "--validate=false", "--filename", "-"),
        text="apiVersion: oarlock.dev/v1alpha1\nkind: OarlockJob\nmetadata: {name: bad}\n"
        "spec: {command: x, framework: caffe}\n",
        fails=True,
    )
    assert "spec.framework: Unsupported value" in said


async def test_priority_pool_bounds_and_halt_of_a_job_can_be_edited(desk: Desk) -> None:
    async with desk.serving():
        await desk.apply(desk.ann, "train", roles={"worker": {"count": 2}})
        await desk.until(desk.ann, "train", is_true("Admitted"))
        await desk.apply(desk.ann, "train", priority=70, pool="research", roles={"worker": {"count": 2}})
        status = await desk.until(desk.ann, "train", lambda status: status.get("priority") == 70)
        assert status["pool"] == "research"
        await desk.apply(desk.ann, "train", halt=True, priority=70, pool="research", roles={"worker": {"count": 2}})
        await desk.until(desk.ann, "train", lambda status: status["phase"] == "HALTED")
        await desk.apply(desk.ann, "train", priority=71, pool="research", roles={"worker": {"count": 2}})
        status = await desk.until(desk.ann, "train", lambda status: status["phase"] == "QUEUED")
        assert status["priority"] == 71


async def test_another_edit_is_answered_by_a_condition_and_changes_nothing(desk: Desk) -> None:
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
        await desk.apply(desk.ann, "train", env={"A": "1"}, priority=70)
        status = await desk.until(desk.ann, "train", is_false("Applied"))
        message = condition(status, "Applied")["message"]
        assert message.startswith("spec.env: `env` cannot be changed after the submission")
        assert "Only priority, pool, halt, and min and max of the workers can be changed." in message
        assert (await desk.job("train")).spec.priority == 50
        await desk.apply(desk.ann, "train", priority=70)  # taken back, and the rest is applied
        await desk.until(desk.ann, "train", is_true("Applied"))
        assert (await desk.job("train")).spec.priority == 70


@pytest.mark.parametrize(("began", "edited"), [("train@50", "train@10"), ("train@50", None), (None, "train@50")])
async def test_the_checkpoint_from_which_a_job_began_cannot_be_changed(
    desk: Desk, began: str | None, edited: str | None
) -> None:
    await test_continuing.failed(desk.rig)
    async with desk.serving():
        await desk.apply(desk.ann, "next", continues=began)
        await desk.until(desk.ann, "next", is_true("Admitted"))
        await desk.apply(desk.ann, "next", continues=edited)
        status = await desk.until(desk.ann, "next", is_false("Applied"))
        assert condition(status, "Applied")["message"].startswith("spec.continues: `continues` cannot be changed")


async def test_the_checkpoint_from_which_a_job_began_has_several_names(desk: Desk) -> None:
    source = await test_continuing.failed(desk.rig)
    async with desk.serving():
        await desk.apply(desk.ann, "next", continues="train")
        await desk.until(desk.ann, "next", is_true("Admitted"))
        for priority, same in enumerate((f"{source.id}@50", "train@50", source.id), 60):
            await desk.apply(desk.ann, "next", continues=same, priority=priority)
            await desk.until(desk.ann, "next", is_true("Applied"))
            assert (
                await desk.job("next", lambda job, wanted=priority: job.spec.priority == wanted)
            ).continues.step == 50


async def test_a_halt_by_the_command_line_is_not_undone_by_another_edit(desk: Desk) -> None:
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        job = await desk.job("train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
        async with desk.rig.as_user("ann") as http:
            (await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "halt"})).raise_for_status()
        await desk.until(desk.ann, "train", lambda status: status["phase"] == "HALTED")
        await desk.apply(desk.ann, "train", priority=60)
        await desk.until(desk.ann, "train", lambda status: status.get("priority") == 60)
        assert (await desk.job("train")).intent == "halt"


async def test_what_happened_without_a_server_is_made_up_for(desk: Desk) -> None:
    """An object that came, one that was edited, one that went: the next server does what is left, once."""
    async with desk.serving():
        for name in ("stays", "edited", "goes", "halted"):
            await desk.apply(desk.ann, name)
            await desk.until(desk.ann, name, is_true("Admitted"))
        job = await desk.job("halted")
        async with desk.rig.as_user("ann") as http:
            (await http.put(f"/api/v1/jobs/{job.id}/intent", json={"intent": "halt"})).raise_for_status()
    await desk.apply(desk.ann, "came")
    await desk.apply(desk.ann, "edited", priority=60)
    await desk.delete(desk.ann, "goes")
    await desk.delete(desk.ann, "halted")
    async with desk.serving():
        await desk.until(desk.ann, "came", is_true("Admitted"))
        await desk.until(desk.ann, "edited", lambda status: status.get("priority") == 60)
        for name in ("goes", "halted"):
            await desk.job(name, lambda job: job.phase is phases.Phase.CANCELED)
        assert (await desk.job("stays")).intent == "run"
        for name in ("stays", "edited", "came", "goes"):
            assert len(await desk.jobs(name)) == 1, name


async def test_an_object_after_another_of_its_name_is_another_job(desk: Desk) -> None:
    """The second one waits until the first job has let go of the name."""
    async with desk.serving():
        first = await desk.apply(desk.ann, "again")
        job = await desk.rig.launch(await desk.job("again"))
        await desk.delete(desk.ann, "again")
        second = await desk.apply(desk.ann, "again")
        assert first != second
        status = await desk.until(desk.ann, "again", is_false("Admitted"))
        assert condition(status, "Admitted")["reason"] == "NameTaken"
        assert (await desk.job("again")).id == job.id
        await desk.job("again", lambda job: job.intent == "cancel")
        await desk.rig.end(job.id, code=1)
        await desk.until(desk.ann, "again", is_true("Admitted"))
        newest, oldest = await desk.jobs("again")
        assert (newest.resource.uid, oldest.resource.uid) == (second, first)  # type: ignore[union-attr]  # they have objects


async def test_a_job_whose_record_was_removed_does_not_run_again(desk: Desk) -> None:
    async with desk.serving():
        await desk.apply(desk.ann, "old")
        job = await desk.job("old")
        await desk.rig.launch(job)
        await desk.rig.end(job.id)
        await desk.until(desk.ann, "old", is_true("Completed"))
        await desk.rig.store.write(lambda tx: (tx.remove_jobs([job.id], at=1e9), tx.forget_keys(1e12)))
        await desk.apply(desk.ann, "old", priority=60)
        status = await desk.until(desk.ann, "old", is_false("Admitted"))
        assert condition(status, "Admitted")["reason"] == "Removed"
        assert await desk.jobs("old") == []


async def test_only_the_server_that_leads_acts(desk: Desk) -> None:
    desk.leads = False
    async with desk.serving() as watched:
        await desk.apply(desk.ann, "train")
        deadline = time.monotonic() + PATIENCE_S
        while not watched.items:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert await desk.jobs("train") == []
        desk.leads = True
        await desk.until(desk.ann, "train", is_true("Admitted"))


async def test_a_namespace_of_an_unknown_user_says_so(desk: Desk) -> None:
    desk.tenants[desk.ann] = site.Tenant("carl")
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        status = await desk.until(desk.ann, "train", is_false("Admitted"))
        assert "oarlock users add carl" in condition(status, "Admitted")["message"]


async def test_watches_that_end_or_expire_and_lost_answers_lose_nothing(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    async with desk.serving():
        await desk.apply(desk.ann, "goes")
        await desk.apply(desk.ann, "stays")
        for name in ("goes", "stays"):
            await desk.until(desk.ann, name, is_true("Admitted"))
        desk.cluster.drop()
        await desk.apply(desk.ann, "after-drop")
        await desk.until(desk.ann, "after-drop", is_true("Admitted"))
        desk.cluster.lost = 2
        await desk.delete(desk.ann, "goes")
        await desk.apply(desk.ann, "after-410")
        desk.cluster.expire()  # the list after it tells of both
        await desk.until(desk.ann, "after-410", is_true("Admitted"))
        await desk.job("goes", lambda job: job.phase is phases.Phase.CANCELED)
        assert (await desk.job("stays")).intent == "run"


async def test_many_objects_are_served(rig: rigs.Rig) -> None:
    """A server that starts beside them writes nothing that is there already."""
    desk = Desk(rig)
    for number in range(COUNT):
        await desk.apply(desk.ann, f"job-{number}")
    async with desk.serving():
        for number in range(COUNT):
            await desk.until(desk.ann, f"job-{number}", is_true("Admitted"))
    assert (await rig.store.read(lambda view: view.count()))[phases.Phase.QUEUED] == COUNT
    written = desk.cluster.writes
    await desk.delete(desk.ann, "job-7")
    async with desk.serving():
        await desk.job("job-7", lambda job: job.phase is phases.Phase.CANCELED)
        await desk.apply(desk.ann, "last")
        await desk.until(desk.ann, "last", is_true("Admitted"))
    assert desk.cluster.writes == written + 1


async def test_a_server_without_the_definition_runs_and_finds_it_later(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oarlockjobs, "LOOK_AGAIN_S", 0.01)
    desk = Desk(rig)
    desk.cluster.defined = False
    async with desk.serving() as watched:
        await asyncio.sleep(0.1)
        assert not watched.synced.is_set()
        desk.cluster.defined = True
        await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))


@pytest.mark.parametrize("namespace", ["ann", "stranger"])
async def test_an_object_of_ten_thousand_levels_keeps_no_other_from_being_served(rig: rigs.Rig, namespace: str) -> None:
    """The API server stores it. It comes by the watch first, and then by a list."""
    desk = Desk(rig)
    deep = msgspec.Raw(b'{"command":"x","env":' + b'{"a":' * 9_990 + b"1" + b"}" * 9_990 + b"}")
    place = desk.ann if namespace == "ann" else "stranger"
    async with desk.serving():
        await desk.apply(desk.ann, "before")
        await desk.until(desk.ann, "before", is_true("Admitted"))
        desk.cluster.apply(place, "deep", deep)
        await desk.apply(desk.ann, "after")
        await desk.until(desk.ann, "after", is_true("Admitted"))
    async with desk.serving():
        await desk.apply(desk.ann, "last")
        await desk.until(desk.ann, "last", is_true("Admitted"))
        if place == desk.ann:
            await desk.until(desk.ann, "deep", is_false("Admitted"))
    assert await desk.jobs("deep") == []


async def test_the_face_goes_on_after_an_error_that_it_did_not_expect(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(rig)
    records, wrong = face._records, []

    def failing(view: stores.View, after: int) -> list[events.Record]:
        found = records(view, after)
        if found and not wrong:
            wrong.append(after)
            raise LookupError("a fault")
        return found

    monkeypatch.setattr(face, "_records", failing)
    watched = oarlockjobs.OarlockJobs(desk.client(), desk.site, monotonic=time.monotonic)
    async with face.serving(
        rig.services, watched, desk.tenants, leads=lambda: True, launches=lambda: False, monotonic=time.monotonic
    ):
        await desk.apply(desk.ann, "first")
        await desk.until(desk.ann, "first", is_true("Admitted"))
        deadline = time.monotonic() + PATIENCE_S
        while not rig.reports:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await desk.apply(desk.ann, "second")
        await desk.until(desk.ann, "second", is_true("Admitted"))
    assert [what for what, _ in rig.reports] == ["resources_failed"]
    [counted] = rig.meters.tick_failures.collect()
    assert ({"loop": "oarlockjobs"}, 1.0) in [(one.labels, one.value) for one in counted.samples]


async def told(desk: Desk, count: int) -> list[dict[str, object]]:
    """Return what was said of jobs that are left alone, once so much was said."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [facts for what, facts in desk.rig.reports if what == "jobs_left_alone"]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, desk.rig.reports
        await asyncio.sleep(0.05)


async def test_a_new_leader_whose_watch_hangs_cancels_no_job_whose_object_is_there(rig: rigs.Rig) -> None:
    """The standby server listed the objects before this one came; its watch has told nothing since."""
    desk = Desk(rig)
    standby = oarlockjobs.OarlockJobs(desk.client(), desk.site, monotonic=time.monotonic)
    leads = False
    after = face.serving(
        rig.services, standby, desk.tenants, leads=lambda: leads, launches=lambda: False, monotonic=time.monotonic
    )
    desk.cluster.hangs = True
    async with after:
        await asyncio.wait_for(standby.synced.wait(), PATIENCE_S)
        await desk.apply(desk.ann, "train")
        async with desk.serving():
            await desk.until(desk.ann, "train", is_true("Admitted"))
        await desk.apply(desk.ann, "later")
        leads = True
        job = await desk.job("train")
        await desk.job("later")  # it has looked at both
        await desk.until(desk.ann, "later", is_true("Admitted"))
        assert (await desk.job("train", lambda one: one.id == job.id)).intent == "run"


async def test_a_namespace_that_is_taken_out_of_the_settings_leaves_its_jobs_alone(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    desk.tenants[desk.bob] = site.Tenant("bob")
    async with desk.serving():
        for name in ("one", "two"):
            await desk.apply(desk.ann, name)
            await desk.until(desk.ann, name, is_true("Admitted"))
        await desk.apply(desk.bob, "goes")
        await desk.until(desk.bob, "goes", is_true("Admitted"))
    await desk.delete(desk.bob, "goes")
    tenant = desk.tenants.pop(desk.ann)
    async with desk.serving():
        [said] = await told(desk, 1)
        assert said["namespace"] == desk.ann
        assert "settings do not name" in str(said["reason"])
        await desk.job("goes", lambda job: job.phase is phases.Phase.CANCELED)
        for name in ("one", "two"):
            assert (await desk.job(name)).intent == "run"
        assert len(await told(desk, 1)) == 1
    desk.tenants[desk.ann] = tenant
    await desk.delete(desk.ann, "one")
    async with desk.serving():
        await desk.job("one", lambda job: job.phase is phases.Phase.CANCELED)
        assert (await desk.job("two")).intent == "run"


async def test_the_objects_of_another_cluster_say_nothing_of_the_jobs(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
    desk.cluster, home = memory.Cluster(), desk.cluster
    async with desk.serving():
        [said] = await told(desk, 1)
        assert "in another cluster" in str(said["reason"])
        assert (await desk.job("train")).intent == "run"
    desk.cluster = home
    await desk.delete(desk.ann, "train")
    async with desk.serving():
        await desk.job("train", lambda job: job.phase is phases.Phase.CANCELED)


async def test_without_the_right_to_read_kube_system_the_own_namespace_tells_the_cluster(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    desk.cluster.namespaces = {desk.ann: "u-ann"}
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        assert (await desk.job("train")).resource == resources.Resource(
            desk.ann,
            "train",
            desk.cluster.objects[desk.ann, "train"]["metadata"]["uid"],
            "u-ann",
            desk.cluster.definition,
        )
    await desk.delete(desk.ann, "train")
    async with desk.serving():
        await desk.job("train", lambda job: job.phase is phases.Phase.CANCELED)


async def test_without_any_such_right_only_an_object_that_was_seen_can_be_missed(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    desk.cluster.namespaces = {}
    async with desk.serving():
        for name in ("seen", "unseen"):
            await desk.apply(desk.ann, name)
            await desk.until(desk.ann, name, is_true("Admitted"))
        await desk.delete(desk.ann, "seen")
        await desk.job("seen", lambda job: job.phase is phases.Phase.CANCELED)
    await desk.delete(desk.ann, "unseen")
    async with desk.serving():
        [said] = await told(desk, 1)
        assert "is not known" in str(said["reason"])
        assert (await desk.job("unseen")).intent == "run"


async def test_a_job_whose_admission_was_answered_late_is_admitted(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submission was stored, and its answer lost: the next look finds the job."""
    desk = Desk(rig)
    write = rig.store.write
    lost = iter([True])

    async def losing(*args: Any, **options: Any) -> Any:
        answer = await write(*args, **options)
        if next(lost, False):
            raise errors.Unavailable("The connection to the database was lost.", hint="It is tried again.")
        return answer

    monkeypatch.setattr(rig.store, "write", losing)
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
    assert len(await desk.jobs("train")) == 1


async def test_the_job_of_a_namespace_that_has_another_user_now_is_left_as_it_is(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    async with desk.serving():
        for name in ("told", "untold"):
            await desk.apply(desk.ann, name)
            await desk.until(desk.ann, name, is_true("Admitted"))
    del desk.cluster.objects[desk.ann, "untold"]["status"]  # it was never written
    desk.tenants[desk.ann] = site.Tenant("bob")
    async with desk.serving():
        for name in ("told", "untold"):
            status = await desk.until(desk.ann, name, is_false("Admitted"))
            assert "belongs to ann, and the namespace now to bob" in condition(status, "Admitted")["message"]
            assert [one.owner for one in await desk.jobs(name)] == ["ann"]
        await desk.delete(desk.ann, "told")
        await desk.apply(desk.ann, "later")
        await desk.until(desk.ann, "later", is_true("Admitted"))  # the deletion before it was seen, too
        [job] = await desk.jobs("told")
        assert not job.terminal, "the namespace is bob's, and the job is ann's"


async def test_all_conditions_tell_the_generation_that_they_are_of(rig: rigs.Rig) -> None:
    """Tools take a condition of an older generation for old."""
    desk = Desk(rig)
    async with desk.serving():
        await desk.apply(desk.ann, "train")
        await desk.until(desk.ann, "train", is_true("Admitted"))
        await desk.apply(desk.ann, "train", priority=70)
        status = await desk.until(desk.ann, "train", is_true("Applied"))
    told = {one["type"]: one["observedGeneration"] for one in status["conditions"]}
    assert told == {"Admitted": 1, "Applied": 2, "Running": 2, "Completed": 2, "Failed": 2}


async def test_an_object_that_is_due_is_looked_at_once(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other objects come while it is looked at."""
    desk = Desk(rig)
    now = [0.0]
    gate = asyncio.Event()
    gate.set()
    seen: list[str] = []
    wanted = translation.wanted
    access = face.Face._access

    def counted(found: resources.OarlockJob, pool: str) -> translation.Wanted:
        seen.append(found.metadata.name)
        return wanted(found, pool)

    async def gated(self: face.Face, tenant: site.Tenant) -> Any:
        if tenant.user == "ann":
            await gate.wait()
        return await access(self, tenant)

    monkeypatch.setattr(translation, "wanted", counted)
    monkeypatch.setattr(face.Face, "_access", gated)
    desk.tenants[desk.bob] = site.Tenant("bob")
    watched = oarlockjobs.OarlockJobs(desk.client(), desk.site, monotonic=time.monotonic)
    async with face.serving(
        rig.services, watched, desk.tenants, leads=lambda: True, launches=lambda: False, monotonic=lambda: now[0]
    ):
        await desk.apply(desk.ann, "bad", pool="nowhere")
        await desk.until(desk.ann, "bad", is_false("Admitted"))
        await desk.apply(desk.bob, "settled")
        await desk.until(desk.bob, "settled", is_true("Admitted"))
        before = seen.count("bad")
        gate.clear()
        now[0] += looks.AGAIN_MOST_S
        for name in ("first", "second", "third"):
            await desk.apply(desk.bob, name)
            await desk.until(desk.bob, name, is_true("Admitted"))
        gate.set()
        await desk.apply(desk.ann, "last")
        await desk.until(desk.ann, "last", is_true("Admitted"))
        assert seen.count("bad") == before + 1
