"""Requests to the API server: a thin layer over HTTP (`transports`). docs/decisions/0005 says why not a client library.

Every request of ours may be repeated, because the names are deterministic and deletions name a UID. So a request
without an answer, or with an answer that says "later", is sent again for a while. An error then is one of our own tree
(`answers`). Answers are decoded by msgspec into the fields that we read (`objects`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from oarlock.backends import waits
from oarlock.backends.kubernetes.apiserver import answers, credentials, nesting, objects, transports
from oarlock.spec import errors
from oarlock.spec.process import failpoints

CONNECTIONS = 64
ANSWER_S = 30.0
"""The longest time without a byte of an answer. The API server gives up after 60 s, and admission webhooks after 30."""
TRIES = 6
PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 2.0
QUIET_S = 150.0
"""The longest time without a line of a watch: its connection may be dead. A bookmark comes each minute, but not for a
kind of object that has not changed since an old API server started.
"""
PAGE = 500

MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
METADATA = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"
"""Asks for a list of objects without anything but their metadata. Servers that cannot do that return whole objects."""

T = TypeVar("T")
O = TypeVar("O", bound=objects.HasMeta)  # noqa: E741  (an object)

Params = Mapping[str, str | int]


class Client:
    """Belongs to one event loop. `tries` bounds how often a request is sent; `around` wraps the transport (tests)."""

    def __init__(
        self,
        access: credentials.Access,
        *,
        tries: int = TRIES,
        connections: int = CONNECTIONS,
        around: Callable[[transports.Transport], transports.Transport] = lambda inner: inner,
    ) -> None:
        self.access = access
        self.dated: Callable[[str], object] = lambda date: None  # is told the date of each answer
        self._tries = tries
        self._transport = around(transports.Http(access, connections))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def version(self) -> objects.Version:
        return await self.call("GET", "/version", objects.Version)

    async def get(self, path: str, kind: type[T]) -> T:
        return await self.call("GET", path, kind)

    async def create(self, path: str, body: Any, kind: type[T]) -> T:
        """Create an object.

        Raise Conflict (`answers.reason` is AlreadyExists) where the name is taken, perhaps by our own request.
        """
        return await self.call("POST", path, kind, body=body)

    async def patch(self, path: str, body: Any, kind: type[T]) -> T:
        return await self.call("PATCH", path, kind, body=body, content=MERGE_PATCH)

    async def delete(self, path: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        """Delete the object with this UID. One that is gone, or has another UID now, counts as deleted."""
        body = _options(uid)
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self.call("DELETE", path, objects.Bare, body=body)
        except errors.NotFound:
            return
        except errors.Conflict:
            if uid is None:
                raise

    async def delete_all(self, path: str, params: Params, *, uid: str | None = None) -> None:
        """Delete the objects of a collection that the selectors name; with `uid` only one with this UID."""
        try:
            await self.call(
                "DELETE", path, objects.Bare, params=params, body=_options(uid) if uid is not None else None
            )
        except errors.Conflict:
            if uid is None:
                raise

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        """Bind the pod of this UID to the node. Raises Conflict for one that is bound, or has another UID."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.call("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", objects.Bare, body=body)

    async def pages(
        self, path: str, kind: type[O], params: Params | None = None, *, accept: str = _JSON
    ) -> AsyncIterator[objects.Page[O]]:
        """List a collection by pages. Raises Gone where the list grew too old on the way: begin again."""
        token = ""
        while True:
            asked = {**(params or {}), "limit": PAGE, **({"continue": token} if token else {})}
            page: objects.Page[O] = await self.call("GET", path, objects.Page[kind], params=asked, accept=accept)  # type: ignore[valid-type]  # the struct's parameter, at run time
            yield page
            token = page.metadata.continue_
            if not token:
                return

    async def list(self, path: str, kind: type[O], params: Params | None = None, *, accept: str = _JSON) -> list[O]:
        return [item async for page in self.pages(path, kind, params, accept=accept) for item in page.items or ()]

    async def lines(self, path: str, params: Params) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the server ends it, or says nothing for QUIET_S. Not tried again: the caller
        knows from where on.
        """
        request = await self._request("GET", path, params, None, (_JSON, _JSON), read_s=QUIET_S)
        try:
            async with self._transport.stream(request) as answer:
                if answer.status != HTTPStatus.OK:
                    raise _failure(answer.status, b"".join([chunk async for chunk in answer.chunks()]))
                rest = b""
                async for chunk in answer.chunks():
                    *whole, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
                    for line in whole:
                        if line:
                            yield line
        except transports.Quiet:
            return
        except transports.Lost as error:
            raise _unreachable(error) from error

    async def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: Params | None = None,
        body: Any = None,
        content: str = _JSON,
        accept: str = _JSON,
    ) -> T:
        """Send the request until there is an answer that counts. Raises an error of `answers`, or Unavailable."""
        wait = waits.Wait(f"{method} {path}")
        try:
            found = await self._tried(method, path, kind, params, body, (content, accept), wait)
        except Exception:
            wait.end()
            raise
        wait.end()  # but not where it was broken off: its failure is still told
        return found

    async def _tried(
        self,
        method: str,
        path: str,
        kind: type[T],
        params: Params | None,
        body: Any,
        types: tuple[str, str],
        wait: waits.Wait,
    ) -> T:
        data = msgspec.json.encode(body) if body is not None else None
        renewed = False
        for tried in range(1, self._tries + 1):
            wait_s = min(PAUSE_MOST_S, PAUSE_FIRST_S * 2.0 ** (tried - 1))
            if method != "GET":
                failpoints.hit("kubernetes.before_write")
            try:
                answer = await self._transport.send(await self._request(method, path, params, data, types))
            except transports.Lost as error:
                if tried == self._tries:
                    raise _unreachable(error) from error
                wait.failure = _unreachable(error).message
            else:
                self.dated(answer.date)
                if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
                    return _decoded(answer.body, kind)
                failure = _failure(answer.status, answer.body)
                if answer.status == HTTPStatus.UNAUTHORIZED and not renewed and self.access.identity.refused():
                    renewed = True
                    continue
                if answer.status not in answers.AGAIN or tried == self._tries:
                    raise failure
                wait.failure = f"{failure.message} (status {answer.status})"
                wait_s = max(wait_s, min(_seconds(answer.retry_after), 10.0))
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
        raise errors.Unavailable("the API server did not answer", hint="It is tried again.")

    async def _request(
        self,
        method: str,
        path: str,
        params: Params | None,
        data: bytes | None,
        types: tuple[str, str],
        read_s: float = ANSWER_S,
    ) -> transports.Request:
        """Return the request; `types` are the content types of the body and of the answer."""
        content, accept = types
        headers = {"Accept": accept, **await self.access.identity.headers()}
        if data is not None:
            headers["Content-Type"] = content
        return transports.Request(
            method=method, path=path, params=params or {}, data=data, headers=headers, read_s=read_s
        )


def _options(uid: str | None) -> dict[str, Any]:
    """Return the options of a deletion: only of the object with this UID, unless it is None."""
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    return body | ({"preconditions": {"uid": uid}} if uid is not None else {})


def _failure(code: int, body: bytes) -> errors.OarlockError:
    return answers.error(answers.status(code, body))


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return nesting.decode(body, kind)
    except msgspec.MsgspecError as error:
        raise errors.Unavailable(
            f"the API server's answer cannot be read: {error}", hint="Check the address: something else may answer."
        ) from error


def _seconds(retry_after: str) -> float:
    return float(retry_after) if retry_after.isdigit() else 0.0


def _unreachable(error: transports.Lost) -> errors.Unavailable:
    return errors.Unavailable(
        f"the API server cannot be reached: {error}", hint="It is tried again; kubectl cluster-info"
    )
