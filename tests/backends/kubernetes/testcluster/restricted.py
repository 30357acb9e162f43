"""The profile `restricted` of Kubernetes' pod security standards, as a checker of pods: old clusters have none.

Each control is a rule: its name, and a function that says whether a pod, or a container of it, breaks it.
Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (the controls of `baseline` and
`restricted` for Linux).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Object = dict[str, Any]

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
CONFINED = {"RuntimeDefault", "Localhost"}
SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_syncookies",
}
"""Those that every version of the profile allows."""
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def _own(field: str, container: Object, spec: Object) -> Any:
    """Return the field of the container's security context, else that of the pod's."""
    return container.get("securityContext", {}).get(field, spec.get("securityContext", {}).get(field))


def _capabilities(verb: str, container: Object) -> set[str]:
    return set(container.get("securityContext", {}).get("capabilities", {}).get(verb, ()))


def _selinux(context: Object) -> bool:
    said = context.get("seLinuxOptions", {})
    return said.get("type", "") not in SELINUX or bool(said.get("user") or said.get("role"))


def _apparmor(context: Object) -> bool:
    return context.get("appArmorProfile", {"type": "RuntimeDefault"}).get("type") not in CONFINED


def _probes(container: Object) -> list[Object]:
    """Return the actions of the container's probes and hooks that name an address."""
    handlers = [container.get(name, {}) for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    handlers += container.get("lifecycle", {}).values()
    return [handler[kind] for handler in handlers for kind in ("httpGet", "tcpSocket") if kind in handler]


POD_RULES: dict[str, Callable[[Object], bool]] = {
    "hostNetwork": lambda pod: bool(pod["spec"].get("hostNetwork")),
    "hostPID": lambda pod: bool(pod["spec"].get("hostPID")),
    "hostIPC": lambda pod: bool(pod["spec"].get("hostIPC")),
    "a volume of a kind that is not allowed": lambda pod: any(
        not volume.keys() - {"name"} <= VOLUMES for volume in pod["spec"].get("volumes", ())
    ),
    "a sysctl that is not safe": lambda pod: any(
        one["name"] not in SYSCTLS for one in pod["spec"].get("securityContext", {}).get("sysctls", ())
    ),
    "SELinux options": lambda pod: _selinux(pod["spec"].get("securityContext", {})),
    "no AppArmor profile": lambda pod: (
        _apparmor(pod["spec"].get("securityContext", {}))
        or any(
            value not in ("", "runtime/default") and not value.startswith("localhost/")
            for name, value in pod.get("metadata", {}).get("annotations", {}).items()
            if name.startswith(APPARMOR)
        )
    ),
    "the pod's runAsUser is 0": lambda pod: pod["spec"].get("securityContext", {}).get("runAsUser") == 0,
}
CONTAINER_RULES: dict[str, Callable[[Object, Object], bool]] = {
    "privileged": lambda one, _: bool(one.get("securityContext", {}).get("privileged")),
    "allowPrivilegeEscalation is not false": lambda one, _: (
        one.get("securityContext", {}).get("allowPrivilegeEscalation") is not False
    ),
    "capabilities are not dropped": lambda one, _: "ALL" not in _capabilities("drop", one),
    "capabilities are added": lambda one, _: bool(_capabilities("add", one) - {"NET_BIND_SERVICE"}),
    "runAsNonRoot is not true": lambda one, spec: _own("runAsNonRoot", one, spec) is not True,
    "runAsUser is 0": lambda one, _: one.get("securityContext", {}).get("runAsUser") == 0,
    "no seccomp profile": lambda one, spec: (_own("seccompProfile", one, spec) or {}).get("type") not in CONFINED,
    "SELinux options": lambda one, _: _selinux(one.get("securityContext", {})),
    "no AppArmor profile": lambda one, _: _apparmor(one.get("securityContext", {})),
    "procMount": lambda one, _: one.get("securityContext", {}).get("procMount", "Default") != "Default",
    "hostPort": lambda one, _: any(port.get("hostPort") for port in one.get("ports", ())),
    "the host of a probe": lambda one, _: any(action.get("host") for action in _probes(one)),
}
"""They are given the container and the pod's spec."""


def violations(pod: Object) -> list[str]:
    """Return the rules that this pod breaks; those of a container begin with its name."""
    spec = pod["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"], *spec.get("ephemeralContainers", ())]
    return [rule for rule, breaks in POD_RULES.items() if breaks(pod)] + [
        f"{container['name']}: {rule}"
        for container in containers
        for rule, breaks in CONTAINER_RULES.items()
        if breaks(container, spec)
    ]
