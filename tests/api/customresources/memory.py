"""OarlockJobs of a cluster in memory: the requests that the server makes of them, as an API server answers them.

It stands where `transports.Http` stands, so that the client, the watch and the face are the real ones. A test says what
users do (`apply`, `delete`), and what goes wrong (`drop`, `expire`, `lose`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from oarlock.backends.kubernetes import oarlockjobs, projecting
from oarlock.backends.kubernetes.apiserver import client, credentials, transports
from oarlock.spec import resources


class Cluster:
    """The objects by namespace and name, and all that ever happened to them: a watch begins at any version."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.defined = True
        self.definition = str(uuid.uuid4())
        self.namespaces = {"kube-system": str(uuid.uuid4())}  # the UIDs that the server may read
        self.lost = 0  # so many of the next answers to writes are lost
        self.writes = 0  # of statuses
        self.made = 0  # objects, by the server
        self.forbidden: set[str] = set()  # namespaces where the server may make none
        self.denied: set[str] = set()  # beginnings of names that a webhook denies
        self.refused = 0  # objects that it tried to make nevertheless
        self.told: dict[str, dict[str, Any]] = {}  # Events by name
        self._versions = itertools.count(1)
        self._version = 0
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._oldest = 0
        self._changed = asyncio.Event()
        self._drops = 0
        self.hangs = False  # watches tell nothing

    def client(self) -> client.Client:
        access = credentials.Access(server="http://memory", identity=credentials.Fixed({}))
        return client.Client(access, around=lambda inner: _Transport(self, inner))

    # Acts of users

    def apply(self, namespace: str, name: str, spec: Any, labels: dict[str, str] | None = None) -> str:
        found = self.objects.get((namespace, name))
        if found is None:
            meta = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()), "generation": 1}
            meta |= {"labels": labels} if labels else {}
            self._put("ADDED", {"metadata": meta, "spec": spec})
            return meta["uid"]
        if found["spec"] != spec:
            meta = {**found["metadata"], "generation": found["metadata"]["generation"] + 1}
            self._put("MODIFIED", {**found, "metadata": meta, "spec": spec})
        return str(found["metadata"]["uid"])

    def relabel(self, namespace: str, name: str, labels: dict[str, str]) -> None:
        found = self.objects[namespace, name]
        self._put("MODIFIED", {**found, "metadata": {**found["metadata"], "labels": labels}})

    def delete(self, namespace: str, name: str) -> None:
        found = self.objects.pop((namespace, name))
        self._tell("DELETED", found)

    def undefine(self) -> None:
        """Delete the definition, with all objects."""
        self.defined = False
        for namespace, name in list(self.objects):
            self.delete(namespace, name)

    def define(self) -> None:
        self.defined, self.definition = True, str(uuid.uuid4())

    # Faults

    def drop(self) -> None:
        """Break all watches off."""
        self._drops += 1
        self._wake()

    def expire(self) -> None:
        """Forget what has happened so far: a watch from before is told 410, and must list again."""
        self._oldest = self._version
        self._history.clear()
        self.drop()

    # Requests of the server

    def answer(self, request: transports.Request) -> transports.Answer:
        if request.path.startswith(resources.API) and not self.defined:
            return _answer(404, {"message": "the server could not find the requested resource"})
        if request.path == resources.API:
            return _answer(200, {"resources": [{"name": "oarlockjobs", "verbs": ["create", "list"]}]})
        if request.path == projecting.DEFINITION:
            if not self.defined:
                return _answer(404, {"message": "not found"})
            return _answer(200, {"metadata": {"uid": self.definition}})
        if request.method == "GET" and request.path.startswith("/api/v1/namespaces/"):
            uid = self.namespaces.get(request.path.rpartition("/")[2])
            return _answer(200, {"metadata": {"uid": uid}}) if uid else _answer(403, {"reason": "Forbidden"})
        if request.method == "GET" and request.path != oarlockjobs.PATH:
            return self._one("GET", request)
        if request.method == "GET":
            meta = {"resourceVersion": str(self._version)}
            return _answer(200, {"metadata": meta, "items": list(self.objects.values())})
        if request.method == "POST":
            body = msgspec.json.decode(request.data or b"")
            return self._create(body) if request.path.endswith("/oarlockjobs") else self._event(body)
        if request.method == "DELETE":
            return self._one("DELETE", request)
        assert request.method == "PATCH"
        _, namespace, kind, name, *below = request.path.removeprefix(f"{resources.API}/").split("/")
        assert (kind, below) in (("oarlockjobs", ["status"]), ("oarlockjobs", []))
        self.writes += bool(below)
        found = self.objects.get((namespace, name))
        if found is None:
            return _answer(404, {"message": f"{name} not found"})
        patch = msgspec.json.decode(request.data or b"")
        if patch["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return _answer(409, {"reason": "Conflict", "message": "the object has been modified"})
        if not below:
            self.apply(namespace, name, _merged(found["spec"], patch["spec"]))
            return _answer(200, self.objects[namespace, name])
        status = {name: value for name, value in patch["status"].items() if value is not None}
        self._put("MODIFIED", {**found, "status": status})
        return _answer(200, self.objects[namespace, name])

    def _create(self, body: dict[str, Any]) -> transports.Answer:
        meta = body["metadata"]
        if meta["namespace"] in self.forbidden:
            self.refused += 1
            return _answer(403, {"reason": "Forbidden", "message": "oarlockjobs.oarlock.dev is forbidden"})
        if any(meta["name"].startswith(name) for name in self.denied):
            self.refused += 1
            return _answer(403, {"reason": "Forbidden", "message": "admission webhook denied the request"})
        if (meta["namespace"], meta["name"]) in self.objects:
            return _answer(409, {"reason": "AlreadyExists", "message": f"{meta['name']} already exists"})
        meta = {"uid": str(uuid.uuid4()), "generation": 1, **meta}
        self._put("ADDED", {"metadata": meta, "spec": body["spec"]})
        self.made += 1
        return _answer(201, self.objects[meta["namespace"], meta["name"]])

    def _one(self, method: str, request: transports.Request) -> transports.Answer:
        """Answer a request for one object: it is read, or deleted."""
        _, namespace, _, name = request.path.removeprefix(f"{resources.API}/").split("/")
        found = self.objects.get((namespace, name))
        if found is None:
            return _answer(404, {"message": f"{name} not found"})
        if method == "DELETE":
            if msgspec.json.decode(request.data or b"")["preconditions"]["uid"] != found["metadata"]["uid"]:
                return _answer(409, {"reason": "Conflict", "message": "the UID in the precondition differs"})
            self.delete(namespace, name)
        return _answer(200, found)

    def _event(self, body: dict[str, Any]) -> transports.Answer:
        name = body["metadata"]["name"]
        if name in self.told:
            return _answer(409, {"reason": "AlreadyExists", "message": f"{name} already exists"})
        self.told[name] = body
        return _answer(201, body)

    async def events(self, version: int) -> AsyncIterator[bytes]:
        drops, at = self._drops, version
        while drops == self._drops:
            if self.hangs:
                await asyncio.Event().wait()
            if at < self._oldest:
                yield _line("ERROR", {"code": 410, "message": "too old resource version"})
                return
            changed = self._changed  # before the look: more may happen while a line is taken
            for number, what, found in [one for one in self._history if one[0] > at]:
                at = number
                yield _line(what, found)
            await changed.wait()

    def _put(self, what: str, found: dict[str, Any]) -> None:
        meta = found["metadata"]
        self._tell(what, found)
        self.objects[meta["namespace"], meta["name"]] = self._history[-1][2]

    def _tell(self, what: str, found: dict[str, Any]) -> None:
        self._version = next(self._versions)
        meta = {**found["metadata"], "resourceVersion": str(self._version)}
        self._history.append((self._version, what, {**found, "metadata": meta}))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Transport:
    def __init__(self, cluster: Cluster, inner: transports.Transport) -> None:
        self._cluster = cluster
        self._inner = inner

    async def send(self, request: transports.Request) -> transports.Answer:
        answer = self._cluster.answer(request)
        await asyncio.sleep(0)
        if request.method != "GET" and self._cluster.lost:
            self._cluster.lost -= 1
            raise transports.Lost("the answer was lost")
        return answer

    @contextlib.asynccontextmanager
    async def stream(self, request: transports.Request) -> AsyncIterator[transports.Stream]:
        yield _Stream(self._cluster.events(int(request.params["resourceVersion"])))

    async def close(self) -> None:
        await self._inner.close()


class _Stream:
    status = 200

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        self._events = events

    def chunks(self) -> AsyncIterator[bytes]:
        return self._events


def _merged(now: Any, patch: Any) -> Any:
    """Return the value after a merge patch."""
    if not isinstance(patch, dict) or not isinstance(now, dict):
        return patch
    after = {**now, **{name: _merged(now.get(name), value) for name, value in patch.items()}}
    return {name: value for name, value in after.items() if value is not None}


def _answer(status: int, body: dict[str, Any]) -> transports.Answer:
    return transports.Answer(status=status, body=msgspec.json.encode({"code": status, **body}))


def _line(what: str, found: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": what, "object": found}) + b"\n"
