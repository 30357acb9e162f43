"""Descriptions of routes: the request and the answer of each, and the right that it needs.

The application and `/openapi.json` are both made from these descriptions, so the document describes the validation.
A handler gets a `Call`: the caller, and the path, query and body, decoded and checked. It returns a struct, an `Answer`
with another status, or a Starlette response for content that is not JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any, TypeVar, get_origin
from urllib.parse import parse_qsl

import msgspec
from starlette import types

from oarlock.api import failures
from oarlock.api.security import authentication, authorisation
from oarlock.api.services import provided
from oarlock.spec import attempts, errors
from oarlock.spec.access import users
from oarlock.spec.input import validation

T = TypeVar("T")
Q = TypeVar("Q", bound=msgspec.Struct)

JSON_LIMIT_BYTES = 1 << 20
MAX_QUERY_BYTES = 16 * 1024
MAX_SEGMENT_BYTES = 1024
LET_GO_S = 2.0
LET_GO_BYTES = 64 << 20
BODY_PAUSE_S = 30.0
"""The longest pause within a body. After it the request fails."""


class Open(StrEnum):
    """Callers of a route that is not for users."""

    ANYBODY = "anybody"  # no token
    LOOPBACK = "loopback"  # no token from this machine, an administrator's from elsewhere
    TASK = "task"  # a task's own token


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a route without query parameters."""


class Answer(msgspec.Struct, frozen=True):
    """An answer with another status than the route's usual one."""

    status: int
    content: Any = None
    headers: tuple[tuple[str, str], ...] = ()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A route. `path` contains `{parameters}`, `body` is a struct type or `bytes`, and `answer` is a struct type.

    None stands for an empty body. `media` is the content type of the answer. A handler returns a response of its own
    where the answer is not JSON.
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[Any]]
    needs: users.Right | Open
    summary: str
    query: type[msgspec.Struct] = Nothing
    body: Any = None
    answer: Any = None
    status: int = 200
    others: Mapping[int, str] = {}  # further statuses of success, with their meanings
    media: str = "application/json"
    limit_bytes: int = JSON_LIMIT_BYTES
    headers: tuple[str, ...] = ()  # request headers that the handler reads
    hint: str = ""  # the next step for a body with unknown fields, instead of the nearest name
    tensorboard: bool = False  # open to the token of the TensorBoard of the job in the path, too
    long: bool = False  # a long poll or a stream: its duration is not measured

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)


def look(path: str, handler: Callable[[Call], Awaitable[Any]], summary: str, answer: Any, **more: Any) -> Route:
    """Return a route that changes nothing: every user may call it, and sees what the user's right allows."""
    needs = users.Right.VIEWER
    return Route(method="GET", path=path, handler=handler, needs=needs, summary=summary, answer=answer, **more)


class Call:
    """One request on its way through a handler."""

    def __init__(
        self,
        services: provided.Services,
        route: Route,
        scope: types.Scope,
        receive: types.Receive,
        send: types.Send,
    ) -> None:
        self.services = services
        self.route = route
        self.scope = scope
        self.receive = receive
        self.send = send
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.path: dict[str, str] = scope.get("path_params", {})
        self._access: authorisation.Access | None = None
        self._caller: authentication.Caller | None = None
        self._task: attempts.TaskKey | None = None
        self._body: Any = None
        self._query: Any = None

    @property
    def access(self) -> authorisation.Access:
        """The caller's view of the store. Only routes that need a right have it."""
        if self._access is None:
            raise errors.Unauthenticated("This route has no user.")
        return self._access

    @property
    def is_admitted(self) -> bool:
        """Whether the caller is known, and is a user."""
        return self._caller is not None

    @property
    def caller(self) -> authentication.Caller:
        """The caller with its token or session. Only routes that need a right have it."""
        if self._caller is None:
            raise errors.Unauthenticated("This route has no user.")
        return self._caller

    @property
    def task(self) -> attempts.TaskKey:
        """The task whose agent calls. Only the agent's routes have it."""
        if self._task is None:
            raise errors.Unauthenticated("This route has no task.")
        return self._task

    def admit(
        self,
        *,
        access: authorisation.Access | None = None,
        caller: authentication.Caller | None = None,
        task: attempts.TaskKey | None = None,
    ) -> None:
        """Set the caller: a user with its access, or a task."""
        self._access, self._caller, self._task = access, caller, task

    async def prepare(self) -> None:
        """Decode the query and the body. Raises InvalidInput, TooLarge or Truncated."""
        check_path(self.path)
        self._query = decode_query(self.scope["query_string"], self.route.query)
        if self.route.body is not None and self.route.body is not bytes:
            raw = await self.read()
            try:
                self._body = decode_body(raw, self.route.body)
            except errors.UnknownField as error:
                error.hint = self.route.hint or error.hint
                raise

    def query(self, kind: type[T]) -> T:
        assert isinstance(self._query, kind)
        return self._query

    def body(self, kind: type[T]) -> T:
        assert isinstance(self._body, kind)
        return self._body

    async def read(self) -> bytes:
        """Return the whole body. Raises as `chunks` does."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises TooLarge past the route's limit, and Truncated where it is cut off."""
        limit = self.route.limit_bytes
        declared = self.headers.get("content-length")
        if declared is not None and declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
            raise _too_large(limit)
        received = 0
        while True:
            try:
                async with asyncio.timeout(BODY_PAUSE_S):
                    message = await self.receive()
            except TimeoutError as error:
                raise errors.Truncated(
                    f"The body paused for more than {BODY_PAUSE_S:g} s.", hint="Send it again."
                ) from error
            if message["type"] == "http.disconnect":
                raise errors.Truncated("The body was cut off.", hint="Send it again.")
            chunk = message.get("body", b"")
            received += len(chunk)
            if received > limit:
                raise _too_large(limit)
            if chunk:
                yield chunk
            if not message.get("more_body", False):
                return

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of long work, which is cancelled when the client leaves. For requests without a body."""

        async def left() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass

        tasks = (asyncio.create_task(work), asyncio.create_task(left()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise errors.Truncated("The client has left.", hint="Ask again.")
            return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def let_go(self) -> None:
        """Read the rest of a refused body, within limits: many clients read no answer before they have sent all."""
        taken = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LET_GO_S):
                while taken < LET_GO_BYTES:
                    message = await self.receive()
                    taken += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return


def _too_large(limit: int) -> errors.TooLarge:
    return errors.TooLarge("The body is too large.", hint=f"This route takes at most {limit} bytes.")


def check_path(path: Mapping[str, str]) -> None:
    for name, value in path.items():
        if len(value.encode("utf-8", "replace")) > MAX_SEGMENT_BYTES or "\0" in value:
            raise errors.InvalidInput(
                "The name is too long or contains a NUL character.", path=name, hint="See `oarlock ps` for names."
            )


def decode_query(raw: bytes, kind: type[Q]) -> Q:
    """Return the query parameters as `kind`, with numbers and booleans read from text. Tuples collect repeated ones.

    An empty parameter counts as left out. Raises TooLarge, and InvalidInput with the parameter's name.
    """
    if len(raw) > MAX_QUERY_BYTES:
        raise errors.TooLarge("The query is too long.", hint=f"At most {MAX_QUERY_BYTES} bytes.")
    if not raw:
        return _converted({}, kind)
    known = parameters(kind)
    found: dict[str, Any] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
        if "\0" in name or "\0" in value:
            raise errors.InvalidInput("The parameter contains a NUL character.", path=name[:100], hint="Remove it.")
        if known.get(name, False):
            if value:
                found.setdefault(name, []).append(value)
        elif name in found:
            raise errors.InvalidInput("The parameter is given twice.", path=name[:100], hint="Give it once.")
        elif value or name not in known:
            found[name] = value
    return _converted(found, kind)


@functools.cache
def parameters(kind: type[msgspec.Struct]) -> dict[str, bool]:
    """Return for each query parameter whether it may be repeated."""
    return {field.encode_name: get_origin(field.type) is tuple for field in msgspec.structs.fields(kind)}


def _converted(found: dict[str, Any], kind: type[Q]) -> Q:
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise validation.explained(error, found, kind, page=failures.PAGE) from error


def decode_body(raw: bytes, kind: type[T]) -> T:
    """Return the JSON body as `kind`. Raises InvalidInput with the path of the wrong field."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise failures.from_decoding(error, raw, kind) from error
