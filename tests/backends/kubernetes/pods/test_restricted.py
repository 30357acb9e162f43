"""The checker of restricted pod security finds all that it is for: each of its rules is broken in a good pod."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.backends.kubernetes.pods import test_rendering
from tests.backends.kubernetes.testcluster import restricted

from oarlock.backends.kubernetes.pods import rendering

CONTAINERS = {"deliver": "initContainers", "task": "containers", "helper": "containers"}
POD: dict[str, dict[str, Any]] = {
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "hostIPC": {"hostIPC": True},
    "a volume of a kind that is not allowed": {"volumes": [{"name": "bad", "hostPath": {"path": "/"}}]},
    "a sysctl that is not safe": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "SELinux options": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
    "no AppArmor profile": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    "the pod's runAsUser is 0": {"securityContext": {"runAsUser": 0}},
}
"""By rule, what breaks it in the spec of a pod."""
CONTAINER: dict[str, dict[str, Any]] = {
    "privileged": {"securityContext": {"privileged": True}},
    "allowPrivilegeEscalation is not false": {"securityContext": {"allowPrivilegeEscalation": None}},
    "capabilities are not dropped": {"securityContext": {"capabilities": {"drop": ["NET_RAW"]}}},
    "capabilities are added": {"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE", "NET_ADMIN"]}}},
    "runAsNonRoot is not true": {"securityContext": {"runAsNonRoot": False}},
    "runAsUser is 0": {"securityContext": {"runAsUser": 0}},
    "no seccomp profile": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "SELinux options": {"securityContext": {"seLinuxOptions": {"user": "system_u"}}},
    "no AppArmor profile": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    "procMount": {"securityContext": {"procMount": "Unmasked"}},
    "hostPort": {"ports": [{"containerPort": 80, "hostPort": 80}]},
    "the host of a probe": {"livenessProbe": {"httpGet": {"port": 80, "host": "10.0.0.1"}}},
}
"""The same, in a container."""


def good() -> dict[str, Any]:
    return copy.deepcopy(rendering.pod(test_rendering.CASES["worker"], test_rendering.SITE, "s"))


def spoil(place: dict[str, Any], change: dict[str, Any]) -> None:
    """Change the fields of an object, and those of the objects in it."""
    for name, value in change.items():
        if isinstance(value, dict):
            spoil(place.setdefault(name, {}), value)
        else:
            place[name] = value


def test_every_rule_is_broken_here() -> None:
    assert (POD.keys(), CONTAINER.keys()) == (restricted.POD_RULES.keys(), restricted.CONTAINER_RULES.keys())


def test_a_good_pod_breaks_none() -> None:
    assert restricted.violations(good()) == []


@pytest.mark.parametrize("rule", POD)
def test_a_rule_of_pods_finds_what_it_is_for(rule: str) -> None:
    pod = good()
    spoil(pod["spec"], POD[rule])
    assert restricted.violations(pod) == [rule]


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("rule", CONTAINER)
def test_a_rule_of_containers_finds_what_it_is_for(rule: str, name: str) -> None:
    """In each container, also where the pod itself keeps the rule."""
    pod = good()
    (container,) = (one for one in pod["spec"][CONTAINERS[name]] if one["name"] == name)
    spoil(container, CONTAINER[rule])
    assert restricted.violations(pod) == [f"{name}: {rule}"]


@pytest.mark.parametrize("field", ["runAsNonRoot", "seccompProfile"])
def test_a_pod_may_keep_a_rule_for_its_containers(field: str) -> None:
    pod = good()
    pod["spec"].setdefault("securityContext", {}).pop(field, None)
    for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
        container["securityContext"].pop(field, None)
    assert len(restricted.violations(pod)) == len(CONTAINERS)
    pod["spec"]["securityContext"][field] = {"runAsNonRoot": True, "seccompProfile": {"type": "Localhost"}}[field]
    assert restricted.violations(pod) == []


@pytest.mark.parametrize(
    ("said", "breaks"), [("unconfined", True), ("localhost/mine", False), ("runtime/default", False)]
)
def test_apparmor_may_be_named_by_an_annotation(said: str, breaks: bool) -> None:
    pod = good()
    pod["metadata"].setdefault("annotations", {})[f"{restricted.APPARMOR}task"] = said
    assert restricted.violations(pod) == (["no AppArmor profile"] if breaks else [])


def test_a_safe_sysctl_is_allowed() -> None:
    pod = good()
    spoil(pod["spec"], {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}})
    assert restricted.violations(pod) == []
