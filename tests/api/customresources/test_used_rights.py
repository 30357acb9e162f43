"""The server uses each of its rights to OarlockJobs and OarlockPools, and needs no others."""

from __future__ import annotations

import time

from tests.api.customresources import test_pools
from tests.api.customresources.desks import is_true
from tests.api.customresources.test_pools import Office, office  # noqa: F401  (a fixture)
from tests.api.customresources.test_projection import objects_of, place, projected, until
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, faults, recording, rights

from oarlock.api.customresources import face, poolface
from oarlock.backends.kubernetes import oarlockjobs, oarlockpools
from oarlock.backends.kubernetes.apiserver import client, objects, transports
from oarlock.spec import resources
from oarlock.spec.cluster import pools

pytestmark = apiserver.needed

EVENTS = (rights.JOBS, "create", "events")


async def use_jobs(office: Office) -> None:  # noqa: F811  (the fixture)
    desk = office.desk
    await desk.rig.submit("root", name="train")
    job = await projected(desk, "train")
    assert place(job)[0] == desk.pods
    await desk.until(*place(job), is_true("Admitted"))
    await desk.rig.launch(job)
    async with desk.rig.as_user("root") as http:
        (await http.patch("/api/v1/jobs/train", json={"priority": 70})).raise_for_status()

    async def shown() -> bool:
        return bool((await desk.object(*place(job)))["spec"].get("priority") == 70)

    await until(shown, "the object has the new value")
    await desk.rig.end(job.id)
    await desk.until(*place(job), is_true("Completed"))
    await desk.rig.store.write(lambda tx: tx.remove_jobs([job.id], at=1e9))

    async def gone() -> bool:
        return await objects_of(desk, job) == []

    await until(gone, "the object goes with the record")


async def use_pools(office: Office) -> None:  # noqa: F811
    await office.apply("research", limit={"gpus": 1})
    await office.status("research", is_true("Applied"))
    await office.patch("research", limit={"gpus": 2})
    await office.object("research", lambda found: found["spec"]["limit"]["gpus"] == 2)
    await office.rig.store.write(lambda tx: tx.put_pool(pools.Pool(name="another")))
    await office.object("another")
    await office.rig.store.write(lambda tx: tx.remove_pool("another"))

    async def gone() -> bool | None:
        there = await office.admin.list(oarlockpools.PATH, resources.OarlockPool)
        return True if "another" not in {one.metadata.name for one in there} else None

    await test_pools.until(gone, "the object goes with the pool")
    await office.delete("research")

    async def removed() -> bool | None:
        return None if "research" in await office.pools() else True

    await test_pools.until(removed, "the pool goes with its object")


async def test_the_faces_use_each_of_their_rights(office: Office) -> None:  # noqa: F811
    """A verb that is not used any more must go."""
    used: recording.Used = set()
    desk = office.desk
    lost: list[str] = []

    def script(request: transports.Request, _: int) -> str:
        """Lose the answer to the first creation of an object of a job, so that the server has to look."""
        if request.method != "POST" or not request.path.endswith("/oarlockjobs") or lost:
            return ""
        lost.append(request.path)
        return "forget"

    def around(inner: transports.Transport) -> transports.Transport:
        return recording.into(used, [desk.ann, desk.bob, desk.pods])(faults.Faulty(inner, script))

    for namespace in (desk.ann, desk.bob, desk.pods):
        await office.admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}}, objects.Bare)
        await rights.grant(office.admin, namespace)
    access = conftest.access(desk.server, rights.SERVER)
    jobs = oarlockjobs.OarlockJobs(client.Client(access, around=around), desk.site, monotonic=time.monotonic)
    kept = oarlockpools.OarlockPools(client.Client(access, around=around), "here", monotonic=time.monotonic)
    tenants, services = desk.site.namespaces, desk.rig.services
    async with (
        face.serving(services, jobs, tenants, leads=lambda: True, launches=lambda: False, monotonic=time.monotonic),
        poolface.serving(services, kept, leads=lambda: True),
    ):
        await use_jobs(office)
        await use_pools(office)
    assert lost
    assert used == rights.of_objects() | {EVENTS}
