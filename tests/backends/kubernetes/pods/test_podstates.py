"""States of pods in plain words. The statuses are those that kubelets write, 1.20 and newer."""

from __future__ import annotations

import json

import msgspec
import pytest

from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.pods import podstates
from oarlock.spec import attempts
from oarlock.spec.reconciling import observations

KEY = attempts.TaskKey("j-1", 1, "worker", 0, 1)
State = observations.State
Cause = attempts.Cause
STOPPED = json.dumps({"key": str(KEY), "code": 143, "reason": "stopped", "signal": 15, "processes": []})
RECORD = json.dumps({"key": str(KEY), "code": 3, "reason": "exited", "processes": [{"code": 3, "last_lines": ["x"]}]})


def container(state: dict, name: str = "task") -> dict:
    return {"name": name, "image": "reg/train:1", "state": state}


def ended(code: int, message: str = "", reason: str = "Error") -> dict:
    return container({"terminated": {"exitCode": code, "message": message, "reason": reason}})


def waiting(reason: str, message: str = "", name: str = "task") -> dict:
    return container({"waiting": {"reason": reason, "message": message}}, name)


def pod(
    phase: str,
    *told: dict,
    init: tuple = (),
    deleted: bool = False,
    node: str = "n1",
    secrets: str = "",
    **status: object,
) -> objects.Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": "p",
                "uid": "u",
                "annotations": {"oarlock.dev/secrets": secrets},
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}),
            },
            "spec": {"nodeName": node, "containers": [{"name": "task", "image": "reg/train:1"}]},
            "status": {
                "phase": phase,
                "containerStatuses": list(told),
                "initContainerStatuses": list(init),
                **status,
            },
        },
        objects.Pod,
    )


def disrupted(reason: str) -> dict:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "for kube-system/dns"}


CASES = {
    "made": (pod("Pending", node=""), State.RUNNING, ""),
    "bound": (pod("Pending"), State.RUNNING, ""),
    "starting": (pod("Pending", waiting("ContainerCreating")), State.RUNNING, ""),
    "the init container works": (
        pod("Pending", waiting("PodInitializing"), init=(container({"running": {}}, "deliver"),)),
        State.RUNNING,
        "",
    ),
    "running": (pod("Running", container({"running": {}})), State.RUNNING, ""),
    "no image": (
        pod("Pending", waiting("ErrImagePull", "manifest unknown")),
        State.RUNNING,
        "image reg/train:1 cannot be pulled: why",
    ),
    "no image, later": (
        pod("Pending", waiting("ImagePullBackOff", 'Back-off pulling image "reg/train:1"')),
        State.RUNNING,
        "image reg/train:1 cannot be pulled: why",
    ),
    "no command": (
        pod("Pending", waiting("CreateContainerError", "no such file")),
        State.RUNNING,
        "CreateContainerError: no such file",
    ),
    "no Secret": (
        pod("Pending", waiting("CreateContainerConfigError", 'secret "hub" not found'), secrets="a=hub/x b=hub-2/y"),
        State.RUNNING,
        'a secret that the job names cannot be read, a (the key x of the Secret hub): secret "hub" not found',
    ),
    "no key": (
        pod(
            "Pending",
            waiting("CreateContainerConfigError", "couldn't find key y in Secret training/hub"),
            secrets="a=hub/x b=hub/y",
        ),
        State.RUNNING,
        "a secret that the job names cannot be read, b (the key y of the Secret hub):"
        " couldn't find key y in Secret training/hub",
    ),
    "another fault of its settings": (
        pod("Pending", waiting("CreateContainerConfigError", "image has no user"), secrets="a=hub/x"),
        State.RUNNING,
        "CreateContainerConfigError: image has no user",
    ),
    "drained": (
        pod("Running", container({"running": {}}), deleted=True),
        State.RUNNING,
        "its pod is being deleted, and its node has not confirmed yet that its processes have ended",
    ),
    "ended": (pod("Succeeded", ended(0)), State.GONE, ""),
    "evicted, and its containers may run": (
        pod("Failed", reason="Evicted", message="The node was low on memory."),
        State.ENDED,
        "evicted: The node was low on memory.",
    ),
    "evicted while a container runs": (
        pod("Failed", container({"running": {}}), reason="Evicted", message="disk"),
        State.ENDED,
        "evicted: disk",
    ),
    "refused by the kubelet": (
        pod("Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu"),
        State.ENDED,
        "its node refused it: Node didn't have enough resource: cpu",
    ),
    "the init container failed": (
        pod("Failed", waiting("PodInitializing"), init=(ended(1) | {"name": "deliver"},)),
        State.GONE,
        "",
    ),
}


@pytest.mark.parametrize(("seen", "state", "detail"), CASES.values(), ids=list(CASES))
def test_a_pod_in_words(seen: objects.Pod, state: State, detail: str) -> None:
    found = podstates.observed(KEY, seen, pull="why" if "cannot be pulled" in detail else "")
    assert (found.state, found.detail) == (state, detail)


def test_the_words_for_a_failing_pull_do_not_change_with_each_try() -> None:
    """Each change is a write, and the time since when it has been so begins anew."""
    tried = pod("Pending", waiting("ErrImagePull", "manifest unknown"))
    rests = pod("Pending", waiting("ImagePullBackOff", "Back-off"))
    why = podstates.pull_failure(tried)
    assert why == "manifest unknown"
    assert podstates.pull_failure(rests) == ""
    assert podstates.observed(KEY, tried, pull=why) == podstates.observed(KEY, rests, pull=why)


def test_the_trouble_of_a_node_comes_first() -> None:
    seen = pod("Running", container({"running": {}}), deleted=True)
    found = podstates.observed(KEY, seen, trouble="node lost")
    assert (found.state, found.detail) == (State.RUNNING, "node lost (n1)"), "its processes may run on"


EXITS = {
    "its agent's record": (pod("Failed", ended(3, RECORD)), (3, Cause.ERROR, "exited")),
    "a record, and the kernel killed a process": (
        pod("Failed", ended(137, RECORD.replace('"code": 3', '"code": 137', 1), "OOMKilled")),
        (137, Cause.OOM, "oom"),
    ),
    "the agent itself was out of memory": (pod("Failed", ended(137, "", "OOMKilled")), (137, Cause.OOM, "oom")),
    "evicted": (pod("Failed", reason="Evicted", message="low"), (137, Cause.PLATFORM, "evicted")),
    "refused by the kubelet": (
        pod("Failed", reason="OutOfpods", message="Node didn't have enough resource: pods"),
        (137, Cause.PLATFORM, "its node refused it: Node didn't have enough resource: pods"),
    ),
    "the node was shut down": (
        pod("Failed", container({"running": {}}), reason="Terminated", message="imminent node shutdown"),
        (137, Cause.PLATFORM, "Terminated: imminent node shutdown"),
    ),
    "preempted": (
        pod("Running", container({"running": {}}), deleted=True, conditions=[disrupted("PreemptionByScheduler")]),
        (137, Cause.PLATFORM, "preempted by another scheduler: for kube-system/dns"),
    ),
    "drained": (
        pod("Running", container({"running": {}}), deleted=True, conditions=[disrupted("EvictionByEvictionAPI")]),
        (137, Cause.PLATFORM, "evicted, as when a node is drained: for kube-system/dns"),
    ),
    "it had failed before it was preempted": (
        pod("Failed", ended(3, RECORD), conditions=[disrupted("PreemptionByScheduler")]),
        (3, Cause.ERROR, "exited"),
    ),
    "preempted, and its agent tells of the SIGTERM": (
        pod("Failed", ended(143, STOPPED), deleted=True, conditions=[disrupted("PreemptionByScheduler")]),
        (143, Cause.PLATFORM, "preempted by another scheduler: for kube-system/dns"),
    ),
    "evicted, and its agent tells of the SIGTERM": (  # 1.22 to 1.25: the containers are told, and no condition
        pod("Failed", ended(143, STOPPED), reason="Evicted", message="The node was low on memory."),
        (143, Cause.PLATFORM, "evicted: The node was low on memory."),
    ),
    "evicted by a newer kubelet, and its agent tells of the SIGTERM": (
        pod(
            "Failed",
            ended(143, STOPPED),
            reason="Evicted",
            message="low",
            conditions=[disrupted("TerminationByKubelet")],
        ),
        (143, Cause.PLATFORM, "ended by its node: for kube-system/dns"),
    ),
    "its node was shut down, and its agent tells of the SIGTERM": (
        pod("Failed", ended(143, STOPPED), reason="Terminated", message="imminent node shutdown"),
        (143, Cause.PLATFORM, "Terminated: imminent node shutdown"),
    ),
    "it had failed before it was evicted": (
        pod("Failed", ended(3, RECORD), reason="Evicted", message="low"),
        (3, Cause.ERROR, "exited"),
    ),
    "deleted by hand, and its agent tells of the SIGTERM": (
        pod("Failed", ended(143, STOPPED), deleted=True),
        (143, Cause.STOPPED, "stopped"),
    ),
    "the init container failed": (
        pod("Failed", waiting("PodInitializing"), init=(ended(1, "no space left") | {"name": "deliver"},)),
        (137, Cause.PLATFORM, "its init container ended with code 1: no space left"),
    ),
    "the container could not start": (
        pod("Failed", ended(128, "exec format error", "StartError")),
        (137, Cause.PLATFORM, "its container could not start: exec format error"),
    ),
}


@pytest.mark.parametrize(("seen", "expected"), EXITS.values(), ids=list(EXITS))
def test_how_it_ended(seen: objects.Pod, expected: tuple[int, Cause, str]) -> None:
    found = podstates.exit_of(seen)
    assert found is not None
    assert (found.code, found.cause, found.reason) == expected


@pytest.mark.parametrize(
    ("reason", "message", "limits", "expected"),
    [
        ("OOMKilled", RECORD, {"memory": "512Mi"}, 512 << 20),
        ("OOMKilled", "", {"memory": "1G"}, 10**9),
        ("OOMKilled", RECORD, {"cpu": "1"}, None),
        ("Error", RECORD, {"memory": "512Mi"}, None),
    ],
)
def test_an_end_for_memory_tells_the_limit_that_the_cluster_set(
    reason: str, message: str, limits: dict, expected: int | None
) -> None:
    found = pod("Failed", ended(137, message, reason))
    (task,) = found.spec.containers
    limited = msgspec.structs.replace(task, resources=objects.Requirements(limits=limits))
    spec = msgspec.structs.replace(found.spec, containers=(limited,))
    how = podstates.exit_of(msgspec.structs.replace(found, spec=spec))
    assert how is not None
    assert how.memory_limit_bytes == expected


@pytest.mark.parametrize("message", ["", "Killed", "{}", '{"code": "x"}'])
def test_an_end_without_a_record_is_not_guessed(message: str) -> None:
    assert podstates.exit_of(pod("Failed", ended(137, message))) is None


def test_a_deleted_pod_shows_what_was_last_seen() -> None:
    found = podstates.vanished(KEY, pod("Failed", ended(3, RECORD)))
    assert found.state is State.GONE
    assert found.exit is not None
    assert found.exit.code == 3
    assert podstates.vanished(KEY, pod("Running", container({"running": {}}))).exit is None


SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}
WAITS = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-01-01T00:00:10Z"}


@pytest.mark.parametrize(
    ("seen", "bound_at"),
    [
        (pod("Pending", node=""), None),
        (pod("Pending", node="", conditions=[WAITS]), None),
        (pod("Pending", conditions=[SCHEDULED]), 1767225610.0),
        (pod("Pending"), 0.0),  # created bound, and no kubelet has spoken
    ],
    ids=["made", "refused", "bound", "created bound"],
)
def test_since_when_a_pod_has_its_place(seen: objects.Pod, bound_at: float | None) -> None:
    assert podstates.observed(KEY, seen).bound_at == bound_at
    assert podstates.vanished(KEY, seen).bound_at == bound_at
