"""The objects of jobs that were submitted without one: made once, told, edited, canceled by, and removed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests import needs
from tests.api import rig as rigs
from tests.api.customresources import desks
from tests.api.customresources.desks import Desk, RealDesk, condition, is_false, is_true
from tests.backends.kubernetes.pods import test_rendering
from tests.backends.kubernetes.testcluster import apiserver

from oarlock.api.customresources import face, translation
from oarlock.backends import backends
from oarlock.backends.kubernetes import oarlockjobs, projecting, site
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import rendering
from oarlock.spec import errors, jobfile, jobs, phases, resources, roles


async def projected(desk: Desk, name: str) -> jobs.Job:
    """Return the job once its record names its object."""
    return await desk.job(name, lambda job: job.resource is not None)


def place(job: jobs.Job) -> tuple[str, str]:
    assert job.resource is not None
    return job.resource.namespace, job.resource.name


async def objects_of(desk: Desk, job: jobs.Job) -> list[tuple[str, str]]:
    """Return the places of all objects with the job's label, in the namespaces of this desk."""
    if isinstance(desk, RealDesk):
        found = await desk.admin.list(oarlockjobs.PATH, objects.Bare, {"labelSelector": f"oarlock.dev/job={job.id}"})
        places = [(one.metadata.namespace, one.metadata.name) for one in found]
    else:
        metas = [one["metadata"] for one in desk.cluster.objects.values()]
        places = [
            (meta["namespace"], meta["name"])
            for meta in metas
            if meta.get("labels", {}).get("oarlock.dev/job") == job.id
        ]
    return [one for one in places if one[0] in {desk.ann, desk.bob, desk.pods}]


async def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + desks.PATIENCE_S
    while not await holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def test_a_job_of_the_command_line_has_one_object(desk: Desk) -> None:
    """It lies in the namespace of its owner, shows the job, and cancels it when it goes."""
    made = await desk.rig.submit("ann", name="train", roles={"worker": {"count": 2}}, priority=60)
    async with desk.serving():
        job = await projected(desk, "train")
        where = place(job)
        assert where == (desk.ann, f"train-{job.id.removeprefix('j-')}")
        status = await desk.until(*where, is_true("Admitted"))
        assert (status["job"], status["phase"], status["workers"]) == (made.id, "QUEUED", "0/2")
        assert (await desk.object(*where))["spec"] == {
            "command": "true",
            "roles": {"worker": {"count": 2}},
            "priority": 60,
        }
        await desk.rig.launch(job)
        await desk.until(*where, lambda status: status["phase"] == "DEPLOYING")
    async with desk.serving():  # another server finds all as it is
        later = await desk.rig.submit("ann", name="later")
        await projected(desk, "later")
        assert await objects_of(desk, job) == [where]
        assert {one.id for one in await desk.jobs("train")} == {made.id}
        assert condition(await desk.until(*where, is_true("Admitted")), "Applied") == {}
        await desk.delete(*where)
        job = await desk.job("train", lambda job: job.intent == "cancel")
        assert job.reason == "canceled by ann: its OarlockJob was deleted"
        assert await objects_of(desk, later) != []


async def test_a_job_of_a_user_without_a_namespace_has_its_object_beside_the_pods(desk: Desk) -> None:
    async with desk.serving():
        await desk.rig.submit("root", name="train")
        job = await projected(desk, "train")
        assert place(job)[0] == desk.pods
        await desk.until(*place(job), is_true("Admitted"))
        await desk.rig.submit("ann", name="mine")
        assert place(await projected(desk, "mine"))[0] == desk.ann


async def test_the_owner_edits_and_halts_a_job_by_its_object(desk: Desk) -> None:
    await desk.rig.submit("ann", name="train")
    async with desk.serving():
        where = place(await projected(desk, "train"))
        await desk.until(*where, is_true("Admitted"))
        await desk.edit(*where, priority=70)
        await desk.job("train", lambda job: job.spec.priority == 70)
        await desk.edit(*where, command="python other.py")
        status = await desk.until(*where, is_false("Applied"))
        assert condition(status, "Applied")["message"].startswith("spec.command: `command` cannot be changed")
        await desk.edit(*where, command="true", halt=True)
        await desk.until(*where, lambda status: status["phase"] == "HALTED")
        assert (await desk.job("train")).spec.command == "true"


async def test_a_change_by_the_api_shows_in_the_object_and_outlives_a_later_edit(desk: Desk) -> None:
    await desk.rig.submit("ann", name="train", roles={"worker": {"count": 2}})
    async with desk.serving():
        where = place(await projected(desk, "train"))
        await desk.until(*where, is_true("Admitted"))
        async with desk.rig.as_user("ann") as http:
            (await http.patch("/api/v1/jobs/train", json={"priority": 70})).raise_for_status()

        async def shown() -> bool:
            return bool((await desk.object(*where))["spec"].get("priority") == 70)

        await until(shown, "the object has the new value")
        generation = (await desk.object(*where))["metadata"]["generation"]
        await desk.until(*where, lambda status: status["observedGeneration"] == generation)
        await desk.edit(*where, halt=True)
        await desk.until(*where, lambda status: status["phase"] == "HALTED")
        assert (await desk.job("train")).spec.priority == 70
        assert (await desk.object(*where))["metadata"]["generation"] == generation + 1, "it settles"


@pytest.mark.parametrize(
    ("spec", "patch"),
    [
        ({}, {"priority": 70, "pool": "research", "roles": {"worker": {"min": 1, "max": 4}}}),
        ({"priority": 70, "roles": {"worker": {"count": 2, "min": 1, "max": 4}}}, {"pool": "research"}),
        ({"priority": "high"}, {}),
    ],
)
async def test_the_change_of_an_object_has_only_the_fields_that_differ(
    rig: rigs.Rig, spec: dict[str, Any], patch: dict[str, Any]
) -> None:
    job = await rig.submit("ann", name="train", roles={"worker": {"count": 2}})
    worker = jobfile.Role(count=2, min=1, max=4)
    told = msgspec.structs.replace(job.spec, priority=70, pool="research", roles={roles.RoleName.WORKER: worker})
    after = msgspec.structs.replace(job, spec=told, pool="research")
    before = {"command": "true", "pool": "default", "roles": {"worker": {"count": 2}}, **spec}
    found = resources.OarlockJob(metadata=resources.Meta(name="train-1"), spec=before)
    assert translation.patch(found, after) == patch


async def test_the_object_of_a_job_that_would_be_refused_today_can_be_changed(rig: rigs.Rig) -> None:
    job = await rig.submit("ann", name="train")
    job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, strategy=jobfile.Strategy(sync=True)))
    spec = {"command": "true", "pool": "default", "strategy": {"sync": True}, "priority": 70}
    found = resources.OarlockJob(metadata=resources.Meta(name="train-1"), spec=spec)
    told = translation.wanted(found, "default", job)
    assert told.submission.spec.priority == 70
    with pytest.raises(errors.InvalidInput):
        translation.wanted(found, "default")


async def test_the_object_stays_after_the_end_and_goes_with_the_record(desk: Desk) -> None:
    async with desk.serving():
        for name in ("kept", "old", "older"):
            await desk.rig.submit("ann", name=name)
            job = await desk.rig.launch(await projected(desk, name))
            await desk.rig.end(job.id)
        kept, old, older = [(await desk.jobs(name))[0] for name in ("kept", "old", "older")]
        for one in (kept, old, older):
            await desk.until(*place(one), is_true("Completed"))
        await desk.rig.store.write(lambda tx: tx.remove_jobs([old.id], at=1e9))
        await until(lambda: is_without(desk, old), "the object goes")
    await desk.rig.store.write(lambda tx: tx.remove_jobs([older.id], at=1e9))
    async with desk.serving():  # removed while no server looked
        await until(lambda: is_without(desk, older), "the object goes")
        assert await objects_of(desk, kept) == [place(kept)]


async def is_without(desk: Desk, job: jobs.Job) -> bool:
    return not await objects_of(desk, job)


async def test_an_object_that_is_deleted_while_no_server_looks_cancels_its_job(desk: Desk) -> None:
    for name in ("goes", "stays"):
        await desk.rig.submit("ann", name=name)
    async with desk.serving():
        gone = await projected(desk, "goes")
        stays = await projected(desk, "stays")
    await desk.delete(*place(gone))
    async with desk.serving():
        await desk.job("goes", lambda job: job.phase is phases.Phase.CANCELED)
        assert (await desk.job("stays")).intent == "run"
        assert await objects_of(desk, gone) == []
        assert await objects_of(desk, stays) == [place(stays)]


@pytest.mark.parametrize("serves", [True, False], ids=["served", "stopped"])
async def test_a_definition_that_is_made_anew_cancels_no_job(desk: Desk, serves: bool) -> None:
    """It takes all objects with it, also while no server looks. A job that was submitted without one gets another, by
    which it can be canceled as before; one that was applied runs on.
    """
    await desk.rig.submit("ann", name="train")
    async with desk.serving():
        await desk.apply(desk.ann, "applied")
        await desk.until(desk.ann, "applied", is_true("Admitted"))
        before = await projected(desk, "train")
        if serves:
            await desk.undefine()
            await desk.define()
    if not serves:
        await desk.undefine()
        await desk.define()
    async with desk.serving():
        after = await desk.job("train", lambda job: job.resource is not None and job.resource != before.resource)
        assert (after.intent, place(after)) == ("run", place(before))
        await desk.until(*place(after), is_true("Admitted"))
        await until_left_alone(desk, "applied")
        assert (await desk.job("applied")).intent == "run"
        await desk.delete(*place(after))
        await desk.job("train", lambda job: job.intent == "cancel")


async def until_left_alone(desk: Desk, name: str) -> None:
    job = await desk.job(name)

    async def told() -> bool:
        return any(what == "jobs_left_alone" and facts["job"] == job.id for what, facts in desk.rig.reports)

    await until(told, "it is told that the job goes on")


async def test_without_the_definition_a_job_has_no_object(rig: rigs.Rig) -> None:
    """Pods that name an object which is gone are removed by the cluster. With the definition it gets one again."""
    desk = Desk(rig)
    await rig.submit("ann", name="train")
    async with desk.serving():
        before = await projected(desk, "train")
        desk.cluster.undefine()
        assert (await desk.job("train", lambda job: job.resource is None)).intent == "run"
        desk.cluster.define()
        after = await projected(desk, "train")
        assert after.resource != before.resource


async def test_a_server_that_ends_between_object_and_record_makes_no_second_object(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(rig)
    job = await rig.submit("ann", name="train")
    made = asyncio.Event()
    recorded = face.Face._recorded

    async def killed(self: face.Face, job: jobs.Job, found: resources.Resource) -> jobs.Job:
        made.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(face.Face, "_recorded", killed)
    async with desk.serving():
        await asyncio.wait_for(made.wait(), desks.PATIENCE_S)
    assert (await desk.job("train")).resource is None
    assert len(await objects_of(desk, job)) == 1
    monkeypatch.setattr(face.Face, "_recorded", recorded)
    async with desk.serving():
        await desk.until(*place(await projected(desk, "train")), is_true("Admitted"))
    assert (desk.cluster.made, len(await objects_of(desk, job))) == (1, 1)
    assert len(await desk.jobs("train")) == 1


async def test_a_watch_that_lags_behind_the_own_object_cancels_no_job(rig: rigs.Rig) -> None:
    """The log tells of the job before the watch tells of its object."""
    desk = Desk(rig)
    async with desk.serving() as watched:
        await asyncio.wait_for(watched.synced.wait(), desks.PATIENCE_S)
        desk.cluster.hangs = True
        await rig.submit("ann", name="train")
        job = await projected(desk, "train")
        await rig.launch(job)
        await desk.until(*place(job), is_true("Admitted"))
        await rig.submit("ann", name="later")
        await desk.until(*place(await projected(desk, "later")), is_true("Admitted"))
        assert (await desk.job("train")).intent == "run"


async def test_lost_answers_and_two_leaders_make_one_object(rig: rigs.Rig) -> None:
    """Both servers believe that they lead, and each loses answers."""
    desk = Desk(rig)
    desk.cluster.lost = 5
    async with desk.serving(), desk.serving():
        for number in range(10):
            await rig.submit("ann", name=f"job-{number}")
        for number in range(10):
            job = await projected(desk, f"job-{number}")
            await desk.until(*place(job), is_true("Admitted"))
            assert len(await objects_of(desk, job)) == 1
    assert desk.cluster.made == 10


async def test_the_labels_of_another_users_job_say_nothing(rig: rigs.Rig) -> None:
    """Bob copies the object that Ann's job will have, before it is there. Nothing that he does reaches her job."""
    desk = Desk(rig)
    job = await rig.submit("ann", name="train")
    copied = projecting.manifest(job, desk.site)
    name, labels = copied["metadata"]["name"], copied["metadata"]["labels"]
    uid = desk.cluster.apply(desk.bob, name, {"command": "true"}, labels)
    async with desk.serving():
        real = await projected(desk, "train")
        assert place(real) == (desk.ann, name)
        assert real.resource is not None
        assert real.resource.uid != uid
        status = await desk.until(desk.bob, name, is_false("Admitted"))
        assert "Remove them" in condition(status, "Admitted")["message"]
        await desk.delete(desk.bob, name)
        await rig.submit("ann", name="later")
        await desk.until(*place(await projected(desk, "later")), is_true("Admitted"))
        assert (await desk.job("train")).intent == "run"


async def test_an_object_of_the_user_with_that_name_is_left_alone_and_told_of(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    job = await rig.submit("ann", name="train")
    _, name = projecting.place(job, desk.site)
    desk.cluster.apply(desk.ann, name, {"command": "echo mine"})
    async with desk.serving():
        await desk.until(desk.ann, name, is_true("Admitted"))  # as a job of its own
        await until(lambda: is_told(rig), "it is told")
        [(_, facts)] = [one for one in rig.reports if one[0] == "job_not_projected"]
        assert "belongs to another object" in str(facts["reason"])
        await desk.delete(desk.ann, name)
        await projected(desk, "train")
    assert {one.spec.command for one in (*await desk.jobs("train"), *await desk.jobs(name))} == {"true", "echo mine"}


async def is_told(rig: rigs.Rig) -> bool:
    return any(what == "job_not_projected" for what, _ in rig.reports)


@apiserver.needed
async def test_without_the_right_a_job_has_no_object_and_gets_it_with_the_right(real_desk: RealDesk) -> None:
    desk = real_desk
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{desk.ann}/rolebindings"
    await desk.admin.delete(f"{bindings}/oarlock-objects")
    await desk.rig.submit("ann", name="train")
    async with desk.serving():
        await until(lambda: is_told(desk.rig), "it is told")
        assert (await desk.job("train")).resource is None
        binding = {
            "metadata": {"name": "oarlock-objects"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "oarlock-objects"},
            "subjects": [{"kind": "ServiceAccount", "name": "oarlock", "namespace": "oarlock"}],
        }
        await desk.admin.create(bindings, binding, objects.Bare)
        await desk.until(*place(await projected(desk, "train")), is_true("Admitted"))


@contextlib.asynccontextmanager
async def launches(desk: RealDesk) -> AsyncIterator[projecting.Projection]:
    async with desk.client() as api:
        yield projecting.Projection(api, desk.site, monotonic=time.monotonic)


def gang(desk: RealDesk, owner: resources.Resource | None, index: int) -> rendering.Gang:
    container = backends.Container(job_name="digits", resource=owner, image="registry.example/x:1")
    told = msgspec.structs.replace(desk.site, image="registry.example/oarlock:1")
    return rendering.gang([test_rendering.launch(index, container=container)], told)


@apiserver.needed
async def test_a_launch_finds_the_object_that_the_face_has_made_and_the_other_way_round(real_desk: RealDesk) -> None:
    desk = real_desk
    first = await desk.rig.submit("root", name="first")
    async with launches(desk) as projection:
        before = await projection.owner(first)
        async with desk.serving():
            assert (await projected(desk, "first")).resource == before
            second = await desk.rig.submit("root", name="second")
            after = await projected(desk, "second")
            assert await projection.owner(second) == after.resource == await projection.owner(after)


@apiserver.needed
async def test_only_an_object_of_this_cluster_beside_the_pods_owns_them(real_desk: RealDesk) -> None:
    desk = real_desk
    async with launches(desk) as projection, desk.serving():
        for who in ("ann", "root"):
            await desk.rig.submit(who, name=f"of-{who}")
        of_ann, of_root = await projected(desk, "of-ann"), await projected(desk, "of-root")
        assert of_root.resource is not None
        assert await projection.owner(of_ann) is None
        assert await projection.owner(of_root) == of_root.resource
        elsewhere = resources.Resource(desk.pods, "x", "u", "another cluster")
        assert await projection.references(elsewhere) == []
        assert await projection.references(resources.Resource(desk.pods, "x", "u")) == []


async def test_an_object_that_has_gone_with_its_definition_owns_no_pods(desk: Desk) -> None:
    """The job's record names it until the server has made another one; that of a job that was applied always does."""
    now = [0.0]
    await desk.rig.submit("root", name="train")
    async with desk.serving():
        before = await projected(desk, "train")
    assert before.resource is not None
    async with desk.client() as api:
        projection = projecting.Projection(api, desk.site, monotonic=lambda: now[0])
        assert await projection.owner(before) == before.resource
        await desk.undefine()
        now[0] += projecting.DEFINITION_S
        assert await projection.owner(before) is None
        unknown = msgspec.structs.replace(before.resource, definition=None)
        assert await projection.references(unknown) == [], "whatever its definition was, there is none"
        await desk.define()
        assert await projection.owner(before) is None
        assert await projection.references(before.resource) == []
        async with desk.serving():
            after = await desk.job("train", lambda job: job.resource not in {None, before.resource})
        assert await projection.owner(after) == after.resource


@apiserver.needed
async def test_the_garbage_collector_removes_what_an_object_owns_and_nothing_else(real_desk: RealDesk) -> None:
    if not (apiserver.ASSETS / "kube-controller-manager").exists():
        needs.skip("garbage collector")
    desk = real_desk
    async with launches(desk) as projection:
        owners = [await projection.owner(await desk.rig.submit("root", name=name)) for name in ("goes", "stays")]
    core = f"/api/v1/namespaces/{desk.pods}"
    for index, owner in enumerate((*owners, None)):
        made = gang(desk, owner, index)
        for plural, manifests in (("secrets", made.secrets), ("pods", made.pods.values())):
            for manifest in manifests:
                await desk.admin.create(f"{core}/{plural}", manifest, objects.Bare)

    async def left(plural: str) -> int:
        return len(await desk.admin.list(f"{core}/{plural}", objects.Bare, OURS))

    assert (await left("pods"), await left("secrets")) == (3, 3)
    desk.server.start_garbage_collector()
    try:
        gone = owners[0]
        assert gone is not None
        await desk.admin.delete(f"{resources.API}/namespaces/{gone.namespace}/oarlockjobs/{gone.name}")

        async def settled() -> bool:
            return (await left("pods"), await left("secrets")) == (2, 2)

        await until(settled, "the object's pod and Secret go")
        await asyncio.sleep(3)  # time to remove more
        assert await settled()
    finally:
        desk.server.stop("kube-controller-manager")


@apiserver.needed
async def test_a_gang_that_goes_with_the_definition_starts_again_and_stays(real_desk: RealDesk) -> None:
    """The garbage collector removes its pods with their owner, and would remove the next ones if they named it, too."""
    if not (apiserver.ASSETS / "kube-controller-manager").exists():
        needs.skip("garbage collector")
    desk, core = real_desk, f"/api/v1/namespaces/{real_desk.pods}"
    for name in ("train", "goes"):
        await desk.rig.submit("root", name=name)
    async with desk.serving():
        job, other = await projected(desk, "train"), await projected(desk, "goes")

    async def make(owner: resources.Resource | None, index: int) -> None:
        for manifest in gang(desk, owner, index).pods.values():
            await desk.admin.create(f"{core}/pods", manifest, objects.Bare)

    async def until_left(count: int, what: str) -> None:
        async def holds() -> bool:
            return len(await desk.admin.list(f"{core}/pods", objects.Bare, OURS)) == count

        await until(holds, what)

    async with launches(desk) as projection:
        for index, one in enumerate((job, other)):
            assert await projection.owner(one) == one.resource
            await make(one.resource, index)
        desk.server.start_garbage_collector()
        try:
            namespace, name = place(other)
            await desk.admin.delete(f"{resources.API}/namespaces/{namespace}/oarlockjobs/{name}")
            await until_left(1, "the collector works")
            await desk.undefine()
            await desk.define()
            await until_left(0, "the pod goes with the definition")
            await projection.present_definition()
            await make(await projection.owner(job), 2)
            await asyncio.sleep(3)  # time to remove it
            await until_left(1, "the pod of the next attempt stays")
        finally:
            desk.server.stop("kube-controller-manager")
    assert (await desk.job("train")).intent == "run"


OURS: client.Params = {"labelSelector": "app.kubernetes.io/managed-by=oarlock"}


async def test_a_job_runs_without_an_object_where_there_is_no_definition(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    desk.cluster.defined = False
    job = await rig.submit("ann", name="train")
    async with desk.cluster.client() as api:
        projection = projecting.Projection(api, desk.site, monotonic=time.monotonic)
        assert await projection.owner(job) is None
    assert desk.cluster.made == 0


async def test_settings_can_want_no_objects_for_other_jobs(desk: Desk) -> None:
    """Those that users apply are jobs as before, and an object of before is followed to its end."""
    async with desk.serving():
        await desk.rig.submit("ann", name="early")
        early = await projected(desk, "early")
    async with desk.serving(msgspec.structs.replace(desk.site, project=False)):
        late = await desk.rig.submit("ann", name="late")
        await desk.apply(desk.ann, "applied")
        await desk.until(desk.ann, "applied", is_true("Admitted"))
        await desk.delete(*place(early))
        await desk.job("early", lambda job: job.intent == "cancel")
        assert (await desk.job("late")).resource is None
        assert await objects_of(desk, late) == []


async def test_a_launch_waits_for_an_api_server_that_does_not_answer(rig: rigs.Rig) -> None:
    """The pods could not be made either."""
    desk = Desk(rig)
    job = await rig.submit("root", name="train")
    async with desk.cluster.client() as api:
        projection = projecting.Projection(api, desk.site, monotonic=time.monotonic)
        assert await projection.make(job) is not None
        api._tries = 1
        desk.cluster.lost = 1
        with pytest.raises(errors.Unavailable):
            await projection.owner(job)
        assert (await projection.owner(job)) is not None
    assert desk.cluster.made == 1


async def test_what_is_forbidden_for_one_job_is_not_asked_again_for_each(rig: rigs.Rig) -> None:
    """A missing right, or a quota: each waiting job would ask the API server again and again."""
    desk, now = Desk(rig), [0.0]
    desk.cluster.forbidden = {desk.ann}
    waiting = [await rig.submit("ann", name=f"train-{number}") for number in range(5)]
    of_bob = await rig.submit("bob", name="other")
    async with desk.cluster.client() as api:
        projection = projecting.Projection(api, desk.site, monotonic=lambda: now[0])
        for job in waiting:
            with pytest.raises(errors.Forbidden, match="is forbidden"):
                await projection.make(job)
            assert await projection.owner(job) is None, "its pods are made nevertheless"
        assert desk.cluster.refused == 2, "one could be the fault of its job"
        assert await projection.make(of_bob) is not None, "another namespace has rights of its own"
        for _ in range(1000):
            now[0] += 1.0
            with contextlib.suppress(errors.Forbidden):
                await projection.make(waiting[0])
        assert 5 < desk.cluster.refused < 20
        desk.cluster.forbidden = set()
        now[0] += projecting.FORBIDDEN_MOST_S
        for job in waiting:
            assert await projection.make(job) is not None


async def test_objects_that_a_webhook_denies_hold_up_no_others(rig: rigs.Rig) -> None:
    """They are always the first ones after a pause, and renewed it for all in the namespace."""
    desk, now = Desk(rig), [0.0]
    desk.cluster.denied = {"bad"}
    jobs = [await rig.submit("ann", name=f"{name}-{number}") for name in ("bad", "good") for number in range(3)]
    due = [(0.0, place, 1.0) for place in range(len(jobs))]  # when each is tried, and its pause, as the face does it
    made: dict[str, float] = {}
    async with desk.cluster.client() as api:
        projection = projecting.Projection(api, desk.site, monotonic=lambda: now[0])
        while now[0] < 3600.0:
            (at, place, pause_s), *due = sorted(due)
            now[0] = max(now[0], at)
            try:
                await projection.make(jobs[place])
                made[jobs[place].name] = now[0]
            except errors.Forbidden:
                pause_s = min(120.0, pause_s * 2)
                due.append((now[0] + pause_s, place, pause_s))
    assert made.keys() == {"good-0", "good-1", "good-2"}
    assert max(made.values()) < 10.0
    assert desk.cluster.refused < 3 * 40


async def test_each_namespace_has_its_own_identity_where_that_of_the_cluster_is_not_known(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    desk.cluster.namespaces = {desk.ann: "uid-ann", desk.bob: "uid-bob"}
    async with desk.cluster.client() as api:
        projection = projecting.Projection(api, desk.site, monotonic=time.monotonic)
        for who in ("ann", "bob"):
            made = await projection.make(await rig.submit(who, name=f"of-{who}"))
            assert made is not None
            assert (await projection.reference(made)).cluster == f"uid-{who}"


def test_a_namespace_of_the_owner_is_the_same_for_every_server() -> None:
    job = jobs.Job(id="j-01ABC", name="train", owner="ann", spec=jobfile.JobSpec(command="true"), created_at=0.0)
    tenants = {"team-z": site.Tenant("ann"), "team-b": site.Tenant("bob"), "team-c": site.Tenant("ann")}
    told = site.Site(namespace="pods", namespaces=tenants)
    assert projecting.place(job, told) == ("team-c", "train-01abc")


async def test_another_name_of_the_installation_cancels_no_job(desk: Desk) -> None:
    """Objects and records stay; the objects' labels have the name of before."""
    async with desk.serving():
        for who in ("root", "ann"):
            await desk.rig.submit(who, name=f"of-{who}")
            await desk.until(*place(await projected(desk, f"of-{who}")), is_true("Admitted"))
    async with desk.serving(msgspec.structs.replace(desk.site, installation="renamed")):
        for who in ("root", "ann"):
            job = await desk.rig.launch((await desk.jobs(f"of-{who}"))[0])
            await desk.until(*place(job), lambda status: status["phase"] == "DEPLOYING")
            assert (await desk.job(job.name)).intent == "run"
        assert len(await desk.jobs("of-ann")) == 1
        await desk.delete(*place((await desk.jobs("of-ann"))[0]))
        await desk.job("of-ann", lambda job: job.intent == "cancel")


async def test_an_object_that_loses_its_labels_cancels_no_job(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    async with desk.serving():
        await rig.submit("root", name="train")
        job = await projected(desk, "train")
        await desk.until(*place(job), is_true("Admitted"))
        desk.cluster.relabel(*place(job), {})
        await rig.launch(job)
        await desk.until(*place(job), lambda status: status["phase"] == "DEPLOYING")
        assert (await desk.job("train")).intent == "run"
        desk.cluster.delete(*place(job))
        await desk.job("train", lambda job: job.intent == "cancel")


async def test_an_object_that_the_watch_lost_cancels_no_job(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list lacks it, and the API server still has it."""
    desk = Desk(rig)
    async with desk.serving():
        await rig.submit("root", name="train")
        job = await projected(desk, "train")
        await desk.until(*place(job), is_true("Admitted"))
    asked = asyncio.Event()
    uid = oarlockjobs.OarlockJobs.uid

    async def tell(self: oarlockjobs.OarlockJobs, found: resources.Resource) -> str | None:
        asked.set()
        return await uid(self, found)

    with monkeypatch.context() as patched:
        patched.setattr(oarlockjobs.OarlockJobs, "_keep", lambda self, found: None)
        patched.setattr(oarlockjobs.OarlockJobs, "uid", tell)
        async with desk.serving():
            await asyncio.wait_for(asked.wait(), desks.PATIENCE_S)
            await rig.submit("ann", name="later")
            await projected(desk, "later")
    assert (await desk.job("train")).intent == "run"
    desk.cluster.delete(*place(job))
    async with desk.serving():
        await desk.job("train", lambda job: job.phase is phases.Phase.CANCELED)


async def test_the_new_user_of_a_namespace_does_not_reach_the_jobs_of_the_old_one(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    async with desk.serving():
        await rig.submit("ann", name="train")
        job = await projected(desk, "train")
        await desk.until(*place(job), is_true("Admitted"))
    told = msgspec.structs.replace(desk.site, namespaces={desk.ann: site.Tenant("bob")})
    async with desk.serving(told):
        await desk.edit(*place(job), halt=True, priority=99)
        status = await desk.until(*place(job), is_false("Admitted"))
        assert "belongs to ann" in condition(status, "Admitted")["message"]
        await desk.delete(*place(job))
        await until(lambda: is_left_alone(rig, job), "the absence is seen")
    job = await desk.job("train")
    assert (job.intent, job.phase, job.spec.priority) == ("run", phases.Phase.QUEUED, 50)


async def is_left_alone(rig: rigs.Rig, job: jobs.Job) -> bool:
    return any(what == "jobs_left_alone" and facts["job"] == job.id for what, facts in rig.reports)


async def test_the_object_of_another_installations_job_becomes_no_second_job(rig: rigs.Rig) -> None:
    desk = Desk(rig)
    job = await rig.submit("bob", name="train")
    elsewhere = msgspec.structs.replace(desk.site, installation="there")
    made = projecting.manifest(msgspec.structs.replace(job, owner="ann"), elsewhere)["metadata"]
    desk.cluster.apply(desk.ann, made["name"], {"command": "true"}, made["labels"])
    async with desk.serving():
        await desk.apply(desk.ann, "own")
        await desk.until(desk.ann, "own", is_true("Admitted"))
        assert await desk.jobs(made["name"]) == []
        assert "status" not in await desk.object(desk.ann, made["name"])
