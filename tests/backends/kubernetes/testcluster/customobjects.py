"""Custom objects of one kind in memory, between a client and an API server that ends when it stores one.

Kubernetes 1.20 that was built with Go 1.18 or newer ends so. The definition, discovery, the lists' status and all
other requests go to the real server.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any
from urllib.parse import unquote

from tests.backends.kubernetes.testcluster import apiserver

from oarlock.backends.kubernetes.apiserver import client, transports
from oarlock.spec import errors


class CustomObjects:
    """The objects of the kind with this plural, by namespace and name. `around` wraps a client's transport."""

    def __init__(self, plural: str) -> None:
        self.plural = plural
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    def around(self, inner: transports.Transport) -> transports.Transport:
        return _Transport(inner, self)


class _Transport:
    def __init__(self, inner: transports.Transport, kept: CustomObjects) -> None:
        self._inner = inner
        self._kept = kept

    async def send(self, request: transports.Request) -> transports.Answer:
        _, found, place = unquote(request.path).partition("/namespaces/")
        namespace, plural, *name = [*place.split("/", 2), "", ""][: 3 if found else 2]
        if plural != self._kept.plural:
            return await self._inner.send(request)
        there = await self._inner.send(
            transports.Request(
                method="GET", path=request.path.rsplit(f"/{plural}", 1)[0] + f"/{plural}", headers=request.headers
            )
        )
        if there.status != 200:
            return there
        return self._answer(request, namespace, name[0] if name else "")

    def stream(self, request: transports.Request) -> contextlib.AbstractAsyncContextManager[transports.Stream]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()

    def _answer(self, request: transports.Request, namespace: str, name: str) -> transports.Answer:
        objects, body = self._kept.objects, json.loads(request.data or b"{}")
        if request.method == "POST":
            key = namespace, body["metadata"]["name"]
            return _status(409, "AlreadyExists") if key in objects else _said(objects.setdefault(key, body), 201)
        if not name:
            wanted = [part.split("=") for part in str(request.params.get("labelSelector", "")).split(",") if part]
            return _said(
                {
                    "items": [
                        one
                        for (where, _), one in objects.items()
                        if where == namespace
                        and all(one["metadata"]["labels"].get(key) == value for key, value in wanted)
                    ]
                }
            )
        key = namespace, name.removesuffix("/status")
        if key not in objects:
            return _status(404, "NotFound")
        if request.method == "DELETE":
            return _said(objects.pop(key))
        if request.method == "PATCH":
            objects[key] = {**objects[key], **body}
        return _said(objects[key])


def _said(found: Any, status: int = 200) -> transports.Answer:
    return transports.Answer(status=status, body=json.dumps(found).encode())


def _status(code: int, reason: str) -> transports.Answer:
    return _said({"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code}, code)


async def are_stored(server: apiserver.ApiServer, api: client.Client, path: str, body: dict[str, Any]) -> bool:
    """Store one of these objects. Return whether the API server has lived through it; one that has not starts again."""
    deadline = time.monotonic() + apiserver.PATIENCE_S
    while True:
        try:
            await api.create(path, body, dict[str, Any])
        except errors.Conflict:  # the answer to an earlier try was lost
            return True
        except Exception:  # whatever a dying server says
            if server.has_ended("kube-apiserver"):
                server.stop("kube-apiserver")
                server.start_api()
                server.until_ready()
                return False
            if time.monotonic() > deadline:
                raise
        else:
            return True
