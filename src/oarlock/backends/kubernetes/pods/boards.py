"""The pod of a job's TensorBoard, built field by field as those of tasks (`rendering`), and the Secret with its token.

    container `tensorboard`   the image of `images.tensorboard`: reads event files, listens at the loopback address
    container `events`        the server's image: writes the job's metrics into event files as they arrive

No other pod reaches the port. A user reaches it through the server: a command in the container `events` passes the
bytes of one connection (`agent.pyz --bridge`). The token reads the metrics of this job, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.backends.kubernetes.site import Site

IMAGE = "tensorboard"
"""The name of the image in the table `images`."""
SHOW, FEED = "tensorboard", "events"
PORT = 6006
ADDRESS = f"127.0.0.1:{PORT}"
FOLDER, CLIENT = "/oarlock/events", "/oarlock/client"
LOGIN, AUTHORITY = "login.json", "ca.pem"
CONTENT = f"{labels.PREFIX}/content"
"""An annotation: the digest of the files that the pod was made for."""
SHOW_REQUESTS = {"cpu": "100m", "memory": "320Mi"}
FEED_REQUESTS = {"cpu": "10m", "memory": "64Mi"}
LIMITS = {SHOW: {"memory": "1Gi"}, FEED: {"memory": "256Mi"}}
BRIDGE = (*rendering.DELIVERED_AGENT, "--bridge", ADDRESS)
"""Passes the bytes of one connection, in the container `events`."""


Login = dict[str, bytes]
"""The files of the feed, as `oarlock login` writes them: the server's address with the token, and its authority."""


def name(job: str, attempt: int) -> str:
    return f"{job}-{attempt}-tensorboard".lower()


def login(site: Site, server: str, token: str) -> Login:
    told = {"server": server, "token": token, **({"ca_file": f"{CLIENT}/{AUTHORITY}"} if site.ca_pem else {})}
    return {LOGIN: msgspec.json.encode(told), **({AUTHORITY: site.ca_pem.encode()} if site.ca_pem else {})}


def digest(content: Login) -> str:
    """Return a text that differs where the feed would need other files."""
    return hashlib.sha256(msgspec.json.encode(sorted(content.items()))).hexdigest()[:16]


def secret(job: str, attempt: int, site: Site, content: Login, pod: objects.Meta) -> rendering.Manifest:
    """Return the Secret with these files, which goes with this pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": _metadata(job, attempt, site, [owner]),
        "data": {item: base64.b64encode(text).decode() for item, text in content.items()},
    }


def pod(
    job: str, attempt: int, job_name: str, site: Site, content: Login, owners: Sequence[labels.OwnerReference]
) -> rendering.Manifest:
    """Return the pod. The stock scheduler binds it: it belongs to no gang."""
    annotations = {f"{labels.PREFIX}/name": job_name, CONTENT: digest(content)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**_metadata(job, attempt, site, owners), "annotations": annotations},
        "spec": {
            "schedulerName": site.scheduler,
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            **({"nodeSelector": dict(site.nodes)} if site.nodes else {}),
            **rendering.pod_settings(site),
            "containers": [_show(site), _feed(job, site)],
            "volumes": [
                {"name": "events", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "home", "emptyDir": {}},
                {
                    "name": "client",
                    "secret": {"secretName": name(job, attempt), "defaultMode": 0o440, "items": _items(site)},
                },
            ],
        },
    }


def _metadata(job: str, attempt: int, site: Site, owners: Sequence[labels.OwnerReference]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name(job, attempt),
        "namespace": site.namespace,
        "labels": labels.of_tensorboard(site.installation, job, attempt),
    }
    return {**found, "ownerReferences": list(owners)} if owners else found


def _items(site: Site) -> list[dict[str, str]]:
    return [{"key": item, "path": item} for item in ((LOGIN, AUTHORITY) if site.ca_pem else (LOGIN,))]


def _show(site: Site) -> rendering.Manifest:
    words = ["tensorboard", "--logdir", FOLDER, "--host", "127.0.0.1", f"--port={PORT}", "--reload_interval", "5"]
    mounts: list[dict[str, Any]] = [
        {"name": "events", "mountPath": FOLDER, "readOnly": True},
        {"name": "home", "mountPath": rendering.HOME},
    ]
    return _container(SHOW, site.images[IMAGE], words, {"HOME": rendering.HOME}, SHOW_REQUESTS, mounts, site)


def _feed(job: str, site: Site) -> rendering.Manifest:
    words = [rendering.PYTHON, "-m", "oarlock.client.eventfeed", job, FOLDER]
    mounts: list[dict[str, Any]] = [
        {"name": "events", "mountPath": FOLDER},
        {"name": "client", "mountPath": CLIENT, "readOnly": True},
    ]
    return _container(FEED, site.image, words, {"OARLOCK_HOME": CLIENT}, FEED_REQUESTS, mounts, site)


def _container(
    called: str,
    image: str,
    words: list[str],
    env: dict[str, str],
    requests: dict[str, str],
    mounts: list[dict[str, Any]],
    site: Site,
) -> rendering.Manifest:
    return {
        "name": called,
        "image": image,
        "imagePullPolicy": site.pull_policy,
        "command": words,
        "env": [{"name": variable, "value": value} for variable, value in env.items()],
        "resources": {"requests": requests, "limits": LIMITS[called]},
        "securityContext": rendering.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
