"""The profile `restricted` of Kubernetes' pod security standards, as a checker of pods: old clusters have none.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (the controls of `baseline` and
`restricted` for Linux).
"""

from __future__ import annotations

from typing import Any

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
HOST = ("hostNetwork", "hostPID", "hostIPC")
SECCOMP = {"RuntimeDefault", "Localhost"}


def violations(pod: dict[str, Any]) -> list[str]:
    """Return what the profile forbids in this pod."""
    spec = pod["spec"]
    said = spec.get("securityContext", {})
    found = [f"spec.{name}" for name in HOST if spec.get(name)]
    found += [
        f"volume {volume['name']}" for volume in spec.get("volumes", ()) if not VOLUMES & (volume.keys() - {"name"})
    ]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        found += [f"{container['name']}: {why}" for why in _of_container(container, said)]
    return found


def _of_container(container: dict[str, Any], pod: dict[str, Any]) -> list[str]:
    own = container.get("securityContext", {})
    found = []
    if own.get("privileged"):
        found.append("privileged")
    if own.get("allowPrivilegeEscalation") is not False:
        found.append("allowPrivilegeEscalation is not false")
    if "ALL" not in own.get("capabilities", {}).get("drop", ()):
        found.append("capabilities are not dropped")
    if set(own.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"}:
        found.append("capabilities are added")
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        found.append("runAsNonRoot is not true")
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        found.append("runAsUser is 0")
    if own.get("seccompProfile", pod.get("seccompProfile", {})).get("type") not in SECCOMP:
        found.append("no seccomp profile")
    if own.get("procMount", "Default") != "Default":
        found.append("procMount")
    if any(port.get("hostPort") for port in container.get("ports", ())):
        found.append("hostPort")
    return found
