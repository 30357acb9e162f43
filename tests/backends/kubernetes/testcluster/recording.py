"""A transport that notes which of the server's rights each request uses, as `rights.granted` names them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from tests.backends.kubernetes.testcluster import rights

from oarlock.backends.kubernetes.apiserver import transports

Used = set[tuple[str, str, str]]


def into(
    used: Used, namespaces: Collection[str], of: str = rights.JOBS
) -> Callable[[transports.Transport], transports.Transport]:
    """Return what wraps a client's transport. These namespaces stand for one of `deploy/`."""
    return lambda inner: _Recorded(inner, frozenset(namespaces), of, used)


class _Recorded:
    def __init__(self, inner: transports.Transport, namespaces: frozenset[str], of: str, used: Used) -> None:
        self._inner = inner
        self._namespaces = namespaces
        self._of = of
        self._used = used

    async def send(self, request: transports.Request) -> transports.Answer:
        self._note(request)
        return await self._inner.send(request)

    def stream(self, request: transports.Request) -> contextlib.AbstractAsyncContextManager[transports.Stream]:
        self._note(request)
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()

    def _note(self, request: transports.Request) -> None:
        if request.path == "/version":  # open to everybody
            return
        if request.path.removeprefix("/apis/").count("/") <= 1 and request.path.startswith("/apis/"):
            return  # discovery, open to every account
        group = "" if request.path.startswith("/api/v1/") else request.path.split("/")[2]
        below_the_version = request.path.split("/", 4 if group else 3)[-1]
        resource, name, *below = [*below_the_version.split("/"), ""]
        scope = "cluster"
        if resource == "namespaces" and any(below):
            assert name in self._namespaces, request.path
            resource, name, *below = below
            scope = self._of
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete" if name else "deletecollection"}.get(
            request.method
        )
        if verb is None:
            assert request.method == "GET"
            verb = "watch" if request.params.get("watch") else "get" if name else "list"
        # The right to list and watch the pods of all namespaces holds in each of them.
        if resource == "pods" and verb in {"list", "watch"}:
            scope = "cluster"
        sub = "/".join(part for part in below if part)
        whole = f"{resource}/{sub}" if sub else resource
        self._used.add((scope, verb, rights.name_of(whole, group, name)))
