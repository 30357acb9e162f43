"""A gang on a cluster with a will of its own: quotas, other users, lost answers, dead servers, lost nodes."""

from __future__ import annotations

import functools
import random
import time
from collections import Counter

import msgspec
import pytest
from tests.backends import contract
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.test_backend import KubernetesRig, rig  # noqa: F401  (a fixture)
from tests.backends.kubernetes.testcluster import apiserver, cluster, faults, rights

from oarlock.backends import backends
from oarlock.backends.kubernetes import backend, places, site
from oarlock.backends.kubernetes.apiserver import client, objects, transports
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.spec import attempts, errors, holdings, jobfile
from oarlock.spec.reconciling import observations

pytestmark = apiserver.needed
State = observations.State
Cause = attempts.Cause
key = contract.key


def gang(rig: KubernetesRig, size: int = 4) -> list[backends.TaskLaunch]:  # noqa: F811  (the fixture)
    return [rig.launch_of(key(index), cluster.Play(), node=f"n{1 + index % 2}") for index in range(size)]


async def pods(rig: KubernetesRig) -> list[objects.Pod]:  # noqa: F811
    return await rig.cluster.api.list(rig.cluster.path("pods"), objects.Pod)


def faulty(rig: KubernetesRig, script: faults.Script) -> backend.KubernetesBackend:  # noqa: F811
    """Another server over the same cluster. Its requests meet these faults."""
    api = client.Client(conftest.access(rig.server, rights.SERVER), around=lambda inner: faults.Faulty(inner, script))
    opened = backend.KubernetesBackend(api, rig.cluster.site, clock=time.time, monotonic=time.monotonic)
    opened.open()
    rig.opened.append(opened)
    return opened


async def torn_down(rig: KubernetesRig, *keys: attempts.TaskKey) -> None:  # noqa: F811
    """Whatever was made is killed, as the guardian does, and nothing is left that runs."""
    await rig.backend.kill(keys)
    await contract.until(rig, lambda now: all(one.state is State.GONE for one in now.values()), "all is torn down")


async def test_each_pod_is_on_the_node_that_was_planned(rig: KubernetesRig) -> None:  # noqa: F811
    launches = gang(rig)
    await rig.backend.launch(launches)
    there = {pod.metadata.name: pod.spec.node_name for pod in await pods(rig)}
    assert there == {labels.pod_name(one.key): one.holding.node for one in launches}


async def test_a_quota_that_is_too_small_is_named(rig: KubernetesRig) -> None:  # noqa: F811
    await rig.cluster.quota("small", **{"requests.cpu": "1200m"})
    launches = gang(rig)
    with pytest.raises(errors.Unavailable, match="exceeded quota: small"):
        await rig.backend.launch(launches)
    assert not any(pod.spec.node_name for pod in await pods(rig)), "nothing is bound unless all is made"
    await torn_down(rig, *(one.key for one in launches))


async def test_requests_that_the_cluster_raised_are_checked_again(rig: KubernetesRig) -> None:  # noqa: F811
    """A limit range fills in memory that the job file did not ask for: with it the gang no longer fits."""
    await rig.cluster.add("small", cpu="4", memory="3Gi")
    amount = holdings.Resources(cpus_milli=500)
    launches = [rig.launch_of(key(index), cluster.Play(), node="small", amount=amount) for index in range(4)]
    limits = [{"type": "Container", "defaultRequest": {"memory": "1Gi"}}]
    body = {"metadata": {"name": "defaults"}, "spec": {"limits": limits}}
    await rig.cluster.api.create(rig.cluster.path("limitranges"), body, objects.Bare)
    await rig.cluster.until(lambda: rig.backend._state.node(rig.cluster.node("small")) is not None, "the node")
    await rig.backend.launch(launches[:3])
    with pytest.raises(errors.Unavailable, match="has filled up"):
        await rig.backend.launch(launches[3:])
    assert sum(bool(pod.spec.node_name) for pod in await pods(rig)) == 3


async def test_a_node_that_filled_up_since_the_plan_is_named(rig: KubernetesRig) -> None:  # noqa: F811
    other = await rig.cluster.foreign("other", "n1", cpu="7500m")
    taken = lambda: rig.backend._state.node(rig.cluster.node("n1")).taken.cpus_milli  # noqa: E731
    await rig.backend.nodes()
    await rig.cluster.until(lambda: taken() == 7500, "the other pod counts")
    with pytest.raises(errors.Unavailable, match=r"n1 has filled up: 1 CPUs, 512 MiB are needed, 0\.5 CPUs"):
        await rig.backend.launch(gang(rig))
    assert await pods(rig) == []
    await rig.cluster.api.delete(f"/api/v1/namespaces/default/pods/{other.metadata.name}", grace_s=0)


CORDON = {"unschedulable": True}
TAINTED = {"taints": [{"key": "team", "value": "red", "effect": "NoExecute"}]}
CLOSED = {"cordoned": (CORDON, "cordoned"), "tainted": (TAINTED, "taint team=red:NoExecute")}


async def change_node(rig: KubernetesRig, spec: dict[str, object]) -> None:  # noqa: F811
    """Change the node n1, and wait until all servers know."""
    await rig.cluster.api.patch(f"/api/v1/nodes/{rig.cluster.node('n1')}", {"spec": spec}, objects.Bare)
    for one in rig.opened:
        known = functools.partial(one._state.node, rig.cluster.node("n1"))
        await rig.cluster.until(lambda known=known: bool(known().taints) == bool(spec), "the change is known")


@pytest.mark.parametrize(("spec", "why"), CLOSED.values(), ids=list(CLOSED))
async def test_a_node_that_was_closed_since_the_plan_takes_no_task(
    rig: KubernetesRig,  # noqa: F811
    spec: dict[str, object],
    why: str,
) -> None:
    await rig.backend.launch([rig.sleeper(key(9))])
    await rig.backend.nodes()
    await change_node(rig, spec)
    for launches in (gang(rig), gang(rig, 1)):
        with pytest.raises(errors.Unavailable, match=f"n1 was closed after the plan: {why}"):
            await rig.backend.launch(launches)
    assert [pod.metadata.name for pod in await pods(rig)] == [labels.pod_name(key(9))], "a task that is there stays"
    await rig.backend.launch([rig.sleeper(key(9))])
    await rig.backend.launch([rig.launch_of(key(), cluster.Play(), node="n2")])
    assert await rig.starts(key()) == 1


@pytest.mark.parametrize(("spec", "why"), CLOSED.values(), ids=list(CLOSED))
async def test_no_pod_of_a_gang_is_bound_once_one_of_its_nodes_is_closed(
    rig: KubernetesRig,  # noqa: F811
    spec: dict[str, object],
    why: str,
) -> None:
    """The server binds pods past every scheduler: nothing else would notice. The gang is planned anew elsewhere."""
    closing = functools.partial(faults.Meanwhile, happen=lambda: change_node(rig, spec))
    api = client.Client(conftest.access(rig.server, rights.SERVER), around=closing)
    opened = backend.KubernetesBackend(api, rig.cluster.site, clock=time.time, monotonic=time.monotonic)
    opened.open()
    rig.opened.append(opened)
    launches = gang(rig)
    with pytest.raises(errors.Unavailable, match=f"n1 was closed after the plan: {why}"):
        await opened.launch(launches)
    there = await pods(rig)
    assert len(there) == len(launches)
    assert not any(pod.spec.node_name for pod in there)
    await torn_down(rig, *(one.key for one in launches))


async def test_a_taint_that_a_profile_tolerates_closes_no_node_to_its_jobs(rig: KubernetesRig) -> None:  # noqa: F811
    profiles = {"red": site.Profile(users=("ann",), tolerate=("team=red",))}
    profiled = msgspec.structs.replace(rig.cluster.site, profiles=profiles)
    api = client.Client(conftest.access(rig.server, rights.SERVER))
    opened = backend.KubernetesBackend(api, profiled, clock=time.time, monotonic=time.monotonic)
    opened.open()
    rig.opened.append(opened)
    await opened.nodes()
    await change_node(rig, TAINTED)
    with pytest.raises(errors.Unavailable, match="closed after the plan: taint team=red:NoExecute"):
        await opened.launch([rig.launch_of(key(), cluster.Play(), owner="bob")])
    await opened.launch([rig.launch_of(key(), cluster.Play(), owner="ann")])
    assert await rig.starts(key()) == 1


async def test_a_name_that_belongs_to_another_is_not_taken_over(rig: KubernetesRig) -> None:  # noqa: F811
    launches = gang(rig, 2)
    spec = {"containers": [{"name": "c", "image": "none"}]}
    body = {"metadata": {"name": labels.pod_name(launches[1].key)}, "spec": spec}
    await rig.cluster.api.create(rig.cluster.path("pods"), body, objects.Pod)
    with pytest.raises(errors.Unavailable, match="belongs to another object"):
        await rig.backend.launch(launches)
    await torn_down(rig, *(one.key for one in launches))
    assert [pod.metadata.name for pod in await pods(rig)] == [labels.pod_name(launches[1].key)]


@pytest.mark.parametrize("seed", range(3))
async def test_lost_requests_lost_answers_and_errors_leave_one_whole_gang(
    rig: KubernetesRig,  # noqa: F811
    seed: int,
) -> None:
    chance, met = random.Random(seed), Counter[tuple[str, str]]()

    def script(request: transports.Request, _: int) -> str:
        if request.params.get("watch"):
            return chance.choice(["cut", ""])
        of = request.method, request.path
        if met[of] == client.TRIES - 2 or chance.random() >= 0.25:  # which draw meets which request, nobody knows
            return ""
        met[of] += 1
        return chance.choice(["lose", "forget", "429", "500"])

    launches = gang(rig, 8)
    troubled = faulty(rig, script)
    await troubled.launch(launches)
    there = await pods(rig)
    assert {pod.metadata.name: pod.spec.node_name for pod in there} == {
        labels.pod_name(one.key): one.holding.node for one in launches
    }
    for one in launches:
        assert await rig.starts(one.key) == 1


@pytest.mark.parametrize("arrives", [True, False], ids=["after the request", "before the request"])
async def test_a_server_killed_at_any_write_is_followed_by_one_that_completes_the_gang(
    rig: KubernetesRig,  # noqa: F811
    arrives: bool,
) -> None:
    """Three writes for each of two pods at most: their Secret, their making, their binding."""
    for number in range(5):
        keys = [key(index, job=f"j-{number}") for index in range(2)]
        launches = [rig.launch_of(one, cluster.Play()) for one in keys]
        api = client.Client(
            conftest.access(rig.server, rights.SERVER),
            around=functools.partial(faults.Dying, last=number + 1, arrives=arrives),
        )
        dying = backend.KubernetesBackend(api, rig.cluster.site, clock=time.time, monotonic=time.monotonic)
        dying.open()
        with pytest.raises(faults.Killed):
            await dying.launch(launches)
        await dying.close()
        await rig.reopen()
        await rig.backend.launch(launches)
        for one in keys:
            assert await rig.starts(one) == 1
        assert {seen.key for seen in await rig.backend.observe()} >= set(keys)


async def test_a_pod_that_is_deleted_by_hand_is_gone(rig: KubernetesRig) -> None:  # noqa: F811
    await rig.backend.launch([rig.sleeper(key())])
    await rig.starts(key())
    await rig.cluster.api.delete(f"{rig.cluster.path('pods')}/{labels.pod_name(key())}")
    await contract.until_state(rig, key(), State.GONE)
    before = {pod.metadata.uid for pod in await pods(rig)}  # it counts as gone a moment before its object goes
    await rig.backend.launch([rig.sleeper(key())])
    assert {pod.metadata.uid for pod in await pods(rig)} <= before, "it was made once, and is not made again"


async def test_a_task_on_a_lost_node_is_not_gone_before_the_node_is_back(rig: KubernetesRig) -> None:  # noqa: F811
    """Its processes may run on, and its devices are not free."""
    await rig.backend.launch([rig.sleeper(key())])
    await rig.starts(key())
    await rig.cluster.lose("n1")
    await rig.backend.kill([key()])
    await contract.until(rig, lambda now: now[key()].detail.startswith("node lost ("), "the loss is told")
    assert (await contract.seen(rig))[key()].state is State.RUNNING
    await rig.backend.kill([key()])
    assert len(await pods(rig)) == 1, "the object stays until the kubelet has confirmed the end"
    await rig.cluster.find("n1")
    await contract.until_state(rig, key(), State.GONE)


async def test_tasks_of_a_removed_node_are_gone(rig: KubernetesRig) -> None:  # noqa: F811
    await rig.backend.launch([rig.sleeper(key())])
    await rig.starts(key())
    await rig.cluster.remove("n1")
    await contract.until_state(rig, key(), State.GONE)
    with pytest.raises(errors.Unavailable, match="is not there"):
        await rig.backend.launch([rig.sleeper(key(1))])


async def test_an_evicted_task_ends_and_its_deletion_confirms_it(rig: KubernetesRig) -> None:  # noqa: F811
    play = cluster.Play(reason="Evicted", message="The node was low on resource: memory.")
    await rig.backend.launch([rig.launch_of(key(), play)])
    ended = await contract.until_state(rig, key(), State.ENDED)
    assert ended.detail == "evicted: The node was low on resource: memory."
    await contract.kill_and_see(rig, key())
    gone = (await contract.seen(rig))[key()]
    assert gone.exit is not None
    assert (gone.exit.cause, gone.exit.reason) == (Cause.PLATFORM, "evicted")


async def test_a_task_that_was_out_of_memory_says_so(rig: KubernetesRig) -> None:  # noqa: F811
    """With the limit that holds: that of the job, or the one that a limit range gives to a pod without."""
    limits = [{"type": "Container", "default": {"memory": "3Gi"}}]
    body = {"metadata": {"name": "defaults"}, "spec": {"limits": limits}}
    await rig.cluster.api.create(rig.cluster.path("limitranges"), body, objects.Bare)
    play = cluster.Play(code=137, record=False, oom=True)
    without = holdings.Resources(cpus_milli=500)
    bare = msgspec.structs.replace(rig.launch_of(key(1), play), limit=without)
    await rig.backend.launch([rig.launch_of(key(), play), bare])
    for one, limit in ((key(), 1 << 28), (key(1), 3 << 30)):
        gone = await contract.until_state(rig, one, State.GONE)
        assert gone.exit is not None
        assert (gone.exit.cause, gone.exit.memory_limit_bytes) == (Cause.OOM, limit)


async def test_an_image_that_cannot_be_pulled_is_named_with_the_reason(rig: KubernetesRig) -> None:  # noqa: F811
    await rig.backend.launch([rig.launch_of(key(), cluster.Play(pull="manifest unknown"))])
    words = f"image {cluster.IMAGE} cannot be pulled: manifest unknown"
    await contract.until(rig, lambda now: now[key()].detail == words, words)


async def test_a_job_without_an_image_is_refused_before_anything_is_made(rig: KubernetesRig) -> None:  # noqa: F811
    launches = [rig.sleeper(key()), rig.launch_of(key(1), cluster.Play(), framework="jax")]
    with pytest.raises(errors.InvalidInput, match="no image for jax"):
        await rig.backend.launch(launches)
    assert await pods(rig) == []


async def test_the_pods_of_another_installation_are_left_alone(rig: KubernetesRig) -> None:  # noqa: F811
    await rig.backend.launch([rig.sleeper(key())])
    pod = labels.pod_name(key(5))
    meta = {"name": pod, "labels": labels.of_task("another", key(5))}
    spec = {"containers": [{"name": "c", "image": "none"}]}
    await rig.cluster.api.create(rig.cluster.path("pods"), {"metadata": meta, "spec": spec}, objects.Pod)
    assert set(await contract.seen(rig)) == {key()}
    await rig.backend.kill([key(5)])
    assert pod in {one.metadata.name for one in await pods(rig)}


async def test_discarding_leaves_nothing_behind(rig: KubernetesRig) -> None:  # noqa: F811
    await rig.backend.launch([rig.exiter(key(), 0), rig.exiter(key(1), 0)])
    await contract.until_state(rig, key(), State.GONE)
    await contract.until_state(rig, key(1), State.GONE)
    await rig.backend.discard("j-contract", 1)
    assert await pods(rig) == []
    assert await rig.cluster.api.list(rig.cluster.path("secrets"), objects.Bare) == []
    await contract.until(rig, lambda now: not now, "it is forgotten")


async def test_a_running_attempt_is_not_discarded(rig: KubernetesRig) -> None:  # noqa: F811
    await rig.backend.launch([rig.sleeper(key())])
    with pytest.raises(errors.Conflict, match="still runs"):
        await rig.backend.discard("j-contract", 1)
    assert len(await pods(rig)) == 1


async def test_nothing_is_called_gone_before_the_cluster_was_read(
    rig: KubernetesRig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that cannot reach the cluster yet must not take every task for lost."""
    monkeypatch.setattr(backend, "SYNC_S", 0.2)
    blind = faulty(rig, lambda request, number: "lose")
    with pytest.raises(errors.Unavailable, match="could not be read yet"):
        await blind.observe()
    with pytest.raises(errors.Unavailable):
        await blind.nodes()


async def test_a_node_takes_so_many_pods_however_small_they_are(rig: KubernetesRig) -> None:  # noqa: F811
    """Its kubelet would reject the others. A node without enough places is closed until they are free."""
    name = await rig.cluster.add("tiny", cpu="64", memory="64Gi", pods=4)
    await rig.cluster.until(lambda: rig.backend._state.most_pods(name) == 4, "the node")
    foreign = {
        "metadata": {"name": "of-others"},
        "spec": {"nodeName": name, "containers": [{"name": "c", "image": "i"}]},
    }
    await rig.cluster.api.create("/api/v1/namespaces/default/pods", foreign, objects.Bare)
    try:
        await rig.cluster.until(lambda: rig.backend._state.pods_of_others(name) == 1, "the pod of others")
        small = holdings.Resources(cpus_milli=10)
        launches = [rig.launch_of(key(index), cluster.Play(), node="tiny", amount=small) for index in range(5)]
        with pytest.raises(errors.Unavailable, match=f"node {name} takes 4 pods: 5 more are needed, 3 fit"):
            await rig.backend.launch(launches)
        assert not await pods(rig), "nothing is made of a gang that does not fit"
        assert await taints(rig, name) == ["oarlock.dev/pods=4:NoSchedule"], "until five are free"
        now = time.monotonic()
        rig.backend._places._monotonic = lambda: now + places.CLOSED_S + 600
        assert await taints(rig, name) == [], "five may never be free: it is closed for a while only"
        rig.backend._places._monotonic = lambda: now
        await rig.backend.launch(launches[:2])
        await rig.backend.launch(launches[:2])
        with pytest.raises(errors.Unavailable, match="2 more are needed, 1 fit"):
            await rig.backend.launch(launches[2:4])
        await rig.backend.launch(launches[2:3])
        assert await taints(rig, name) == ["oarlock.dev/pods=4:NoSchedule"]
        await torn_down(rig, *(one.key for one in launches[:3]))
        assert await taints(rig, name) == []
    finally:
        await rig.cluster.api.delete("/api/v1/namespaces/default/pods/of-others")


async def taints(rig: KubernetesRig, name: str) -> list[str]:  # noqa: F811
    return [str(taint) for node in await rig.backend.nodes() if node.name == name for taint in node.taints]


async def test_a_pod_has_the_additions_of_its_pools_profile(rig: KubernetesRig) -> None:  # noqa: F811
    """As the API server took it, with its own checks of the classes that the profile names."""
    api, name = rig.cluster.api, rig.cluster.namespace
    classes = {
        f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}": {"value": 1000},
        f"/apis/node.k8s.io/v1/runtimeclasses/{name}": {"handler": "runc"},
    }
    for path, body in classes.items():
        await api.create(path.rpartition("/")[0], {"metadata": {"name": name}, **body}, objects.Bare)
    await rig.cluster.claim("scratch")
    profile = site.Profile(
        pools=("research",),
        annotations={"example.com/cost-centre": "42"},
        env={"PROXY": "p"},
        volumes=(jobfile.Volume(claim="scratch", mount="/scratch"),),
        runtime_class=name,
        priority_class=name,
        groups=(2000,),
    )
    profiled = msgspec.structs.replace(rig.cluster.site, profiles={"fast": profile})
    told = backend.KubernetesBackend(
        client.Client(conftest.access(rig.server, rights.SERVER)), profiled, clock=time.time, monotonic=time.monotonic
    )
    told.open()
    rig.opened.append(told)
    try:
        await told.launch([rig.launch_of(key(), cluster.Play(), pool="research"), rig.sleeper(key(1))])
        made = {pod["metadata"]["name"]: pod for pod in await api.list(rig.cluster.path("pods"), dict)}
        pod, other = (made[labels.pod_name(key(index))] for index in range(2))
        spec = pod["spec"]
        assert spec["nodeName"] == rig.cluster.node("n1")
        assert pod["metadata"]["annotations"]["example.com/cost-centre"] == "42"
        assert (spec["runtimeClassName"], spec["priorityClassName"], spec["priority"]) == (name, name, 1000)
        assert spec["securityContext"]["supplementalGroups"] == [2000]
        for container in spec["containers"]:
            assert "/scratch" in [mount["mountPath"] for mount in container["volumeMounts"]]
        (task,) = (one for one in spec["containers"] if one["name"] == rendering.TASK)
        assert {"name": "PROXY", "value": "p"} in task["env"]
        assert await rig.starts(key()) == 1
        assert not {"runtimeClassName", "priorityClassName"} & other["spec"].keys()
        assert "/scratch" not in str(other)
    finally:
        for path in classes:
            await api.delete(path)
