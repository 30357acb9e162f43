"""The check that pods reach the server: several at the same time, and the pods of those that were broken off."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.test_backend import KubernetesRig, rig  # noqa: F401  (a fixture)
from tests.backends.kubernetes.test_races import opened, until
from tests.backends.kubernetes.testcluster import apiserver, cluster, faults, inmemory, rights

from oarlock.backends.kubernetes import examining, reaching
from oarlock.backends.kubernetes.apiserver import client, objects, transports
from oarlock.backends.kubernetes.pods import labels

URL = "http://server"


async def test_servers_that_start_together_leave_each_others_pods_alone() -> None:
    """Pods of one name would be removed by the other server, and neither would know anything."""
    there = inmemory.Cluster("n1")
    api = cast("client.Client", there)
    checks = [asyncio.create_task(reaching.check(api, inmemory.SITE, ["n1"], URL)) for _ in range(3)]
    await until(lambda: len(there.bound) == 3 or any(one.done() for one in checks))
    for name in list(there.pods):
        there.change(name, status={"phase": "Succeeded"})
    assert await asyncio.gather(*checks) == [""] * 3
    assert not there.pods


async def test_a_server_removes_the_pods_that_it_found_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "LEFT_S", 0.0)
    there = inmemory.Cluster("n1")
    there.runs["n1"] = {"phase": "Succeeded"}
    there.add(named(f"{reaching.REACH}i-0123", {labels.INSTALLATION: "i"}))
    async with opened(there) as made:
        await made.check_reached(URL)
        await until(lambda: not there.pods)


@apiserver.needed
async def test_a_pod_whose_creation_got_no_answer_is_known_again(rig: KubernetesRig) -> None:  # noqa: F811
    """It would stay, and the way to the server would not be known."""
    lost = []

    def script(request: transports.Request, _: int) -> str:
        if request.method != "POST" or not request.path.endswith("/pods") or lost:
            return ""
        lost.append(request.path)
        return "forget"

    told = rig.cluster.site
    rig.cluster.plays[reaching.pod(told, URL, 1.0)["metadata"]["name"]] = cluster.Play(code=0)
    access = conftest.access(rig.server, rights.SERVER)
    async with client.Client(access, around=lambda inner: faults.Faulty(inner, script)) as api:
        assert await reaching.check(api, told, [rig.cluster.node("n1")], URL) == ""
    assert lost
    assert await rig.cluster.api.list(rig.cluster.path("pods"), objects.Pod) == []


@apiserver.needed
async def test_only_the_pods_of_earlier_checks_are_swept(rig: KubernetesRig) -> None:  # noqa: F811
    api, told, pods = rig.cluster.api, rig.cluster.site, rig.cluster.path("pods")
    old = "oarlock-reach-" + told.installation  # as earlier versions named it
    mine, job = {labels.INSTALLATION: told.installation}, {labels.JOB: "j-1"}
    for name, marks in {
        old: mine,
        f"{old}-0123": mine,
        f"{reaching.REACH}other-0123": {labels.INSTALLATION: "other"},
        f"{reaching.PULL}0123": {},
        "oarlock-reach-a-job": {**mine, **job},
        "j-1-1-worker-0-1": {**mine, **job},
        "oarlock-1": mine,
    }.items():
        await api.create(pods, named(name, marks), objects.Pod)
    await api.create(
        pods, {**named("oarlock-pull-of-a-user", {}), "metadata": {"name": "oarlock-pull-of-a-user"}}, objects.Pod
    )

    async def sleep(pause_s: float) -> None:
        assert pause_s > max(reaching.BOUND_S, examining.DEADLINE_S)
        await api.create(pods, named(f"{old}-new", mine), objects.Pod)  # that of a server that starts now

    async with client.Client(conftest.access(rig.server, rights.SERVER)) as server:
        await reaching.sweep(server, told, sleep)
    left = {one.metadata.name for one in await api.list(pods, objects.Pod)}
    assert left == {
        *(f"{reaching.REACH}other-0123", "oarlock-reach-a-job", "j-1-1-worker-0-1", "oarlock-1"),
        *("oarlock-pull-of-a-user", f"{old}-new"),
    }


def named(name: str, marks: dict[str, str]) -> dict[str, Any]:
    """Return a pod of Oarlock's that is bound to no node."""
    meta = {"name": name, "labels": {labels.MANAGED_BY: "oarlock", **marks}}
    return {"metadata": meta, "spec": {"containers": [{"name": "c", "image": "any:1"}], "schedulerName": "none"}}
