"""The objects of jobs of the command line, with a real server and a real API server that stores them.

A server that is killed, loses answers or is refused makes neither a second object nor a second job.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests import needs
from tests.api.customresources import desks
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, cluster, proxy
from tests.e2e.kubernetes import pods
from tests.e2e.kubernetes import test_pod_faults as faults

from oarlock.api.customresources import definitions
from oarlock.backends.kubernetes import oarlockjobs, oarlockpools
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors, resources

pytestmark = apiserver.needed

WRITES = range(1, 10)
"""The object, a Secret, two pods, two bindings, and the first statuses and Events."""


class ObjectShell(faults.FaultShell):
    """A user of a cluster with the definition of OarlockJob."""

    def objects(self, name: str) -> list[dict[str, Any]]:
        """Return the objects of the newest job of this name."""
        job = self.job(name)["id"]
        found = self.on_cluster(self._api.list(oarlockjobs.PATH, dict))
        return [one for one in found if one["metadata"].get("labels", {}).get("oarlock.dev/job") == job]

    def has_one(self, name: str) -> dict[str, Any]:
        """Return the one object of the job, once its status tells the job's phase."""

        def is_told() -> bool:
            phase = self.job(name)["phase"]
            return [one.get("status", {}).get("phase") for one in self.objects(name)] == [phase]

        with self.settles():
            self.until(is_told, f"{name} has one object with its phase")
        (found,) = self.objects(name)
        assert self.job(name)["resource"]["uid"] == found["metadata"]["uid"]
        return found

    def delete_object(self, found: dict[str, Any]) -> None:
        meta = found["metadata"]
        path = f"{resources.API}/namespaces/{meta['namespace']}/oarlockjobs/{meta['name']}"
        self.on_cluster(self._api.delete(path))


async def define_pools(server: apiserver.ApiServer) -> None:
    async with client.Client(conftest.access(server)) as admin:
        await admin.create(desks.DEFINITIONS, definitions.pool_definition(), objects.Bare)


def define(server: apiserver.ApiServer) -> None:
    if why := asyncio.run(desks.define(server)):
        needs.skip("custom objects", why)
    asyncio.run(define_pools(server))


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pods.Clusters[ObjectShell]]:
    with pods.shared(lambda: faults.opened(tmp_path_factory.mktemp("projection"), ObjectShell, define)) as made:
        yield made


def test_the_manifests_of_a_plan_begin_with_the_object_that_owns_the_others(shell: ObjectShell) -> None:
    shell.write("shown.yaml", f"{pods.SHOWN}\ntensorboard: true")
    owner, *owned = shell.planned("shown.yaml")
    assert owner["kind"] == "OarlockJob"
    kinds = [(one["kind"], one["metadata"]["ownerReferences"][0]["kind"]) for one in owned]
    assert kinds == [("Secret", "OarlockJob"), *[("Pod", "OarlockJob")] * 3, ("Secret", "Pod")]
    shell.do("submit", "shown.yaml", "--no-snapshot")
    shell.wait_phase("shown", "PROCESSING")
    secret = shell.has_board("shown")
    shell.is_as_planned("shown", [owner, *owned])
    shell.do("cancel", "shown", "--wait")
    shell.until(lambda: not shell.pods(), "TensorBoard is removed")
    shell.on_cluster(shell._api.delete(f"{shell.cluster.path('secrets')}/{secret}"))  # no garbage collector runs here


@pytest.fixture
def shell(clusters: pods.Clusters[ObjectShell], request: pytest.FixtureRequest) -> Iterator[ObjectShell]:
    with clusters.serving(request.node) as one:
        yield one
        one.proxy.fate = proxy.none
        one.proxy.met.clear()


def test_the_object_of_a_job_owns_its_pods_and_cancels_it_when_it_goes(shell: ObjectShell) -> None:
    shell.begin("train", "sleep 600")
    shell.wait_phase("train", "PROCESSING")
    found = shell.has_one("train")
    owner = {
        "apiVersion": "oarlock.dev/v1alpha1",
        "kind": "OarlockJob",
        "name": found["metadata"]["name"],
        "uid": found["metadata"]["uid"],
    }
    assert [one["metadata"]["ownerReferences"] for one in shell.raw("pods")] == [[owner]] * 2
    secrets = [one for one in shell.raw("secrets") if "oarlock.dev/job" in one["metadata"].get("labels", {})]
    assert [one["metadata"]["ownerReferences"] for one in secrets] == [[owner]]
    shell.delete_object(found)
    with shell.settles():
        shell.wait_phase("train", "CANCELED")
        shell.until(lambda: not shell.pods(), "its pods are gone")


def test_a_namespace_that_is_deleted_cancels_its_jobs(shell: ObjectShell) -> None:
    """Its objects go with it, as by `kubectl delete oarlockjob`, and so do the server's rights. Later jobs run."""
    shell.begin("swept", "sleep 600")
    shell.wait_phase("swept", "PROCESSING")
    found = shell.has_one("swept")
    shell.on_cluster(shell.cluster.delete_namespace())
    shell.on_cluster(shell.cluster.empty_namespace(*cluster.RIGHTS))
    shell.delete_object(found)
    with shell.settles():
        shell.wait_for("swept", lambda job: job["intent"] == "cancel")
    shell.on_cluster(shell.loses_namespace())
    with shell.settles():
        shell.wait_phase("swept", "CANCELED")
    shell.on_cluster(shell.make_namespace())
    shell.begin("next")
    shell.is_whole("next")
    shell.has_one("next")


@pytest.mark.parametrize("write", WRITES)
def test_the_server_is_killed_before_each_write(shell: ObjectShell, write: int) -> None:
    name = f"killed-{write}"
    shell.outlives_a_kill(name, before=write)
    shell.has_one(name)


def test_a_pool_is_changed_by_kubectl_and_by_the_command_line(shell: ObjectShell) -> None:
    path = f"{oarlockpools.PATH}/research"

    def limits() -> list[dict[str, float]]:
        """Return the limits in the object, in its status, and in the pool."""
        with contextlib.suppress(errors.NotFound):
            found = shell.on_cluster(shell._api.get(path, dict))
            there = (one["pool"]["limit"] for one in shell.json("pools")["items"] if one["pool"]["name"] == "research")
            return [found["spec"]["limit"], found.get("status", {}).get("limit", {}), next(there, {})]
        return []

    shell.do("pool", "set", "research", "--limit", "cpus=2")
    shell.until(lambda: limits() == [{"cpus": 2}] * 3, "the pool has an object")
    shell.on_cluster(shell._api.patch(path, {"spec": {"limit": {"cpus": 3}}}, objects.Bare))
    shell.until(lambda: limits() == [{"cpus": 3}] * 3, "the edit of the object changes the pool")


def test_refusals_and_lost_answers(shell: ObjectShell) -> None:
    """A tenth of the calls is answered by 429 or 500, and another tenth, or its answer, is lost. Watches break, too."""
    shell.proxy.fate = proxy.unreliable(random.Random(7))
    names = [f"faulty-{number}" for number in range(4)]
    for name in names:
        shell.begin(name)
    for name in names:
        shell.wait_phase(name, "COMPLETED", "FAILED")
    shell.proxy.fate = proxy.none
    shell.is_whole(*names)
    assert all(shell.proxy.met[one] for one in proxy.FAULTS)
    for name in names:
        shell.has_one(name)
    listed = [job["name"] for job in shell.json("ps", "--all")["items"]]
    assert all(listed.count(name) == 1 for name in names), listed
