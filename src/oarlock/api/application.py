"""The ASGI application: all routes, with authentication before each handler, and errors and security headers around it.

A request passes, in this order: the Host check, the route table, authentication and the route's right, decoding, and
the handler. Every failure on the way becomes one JSON error. This module does not know jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette import responses, routing, types

from oarlock.api import failures, openapi, pathtable, routes, streams
from oarlock.api.administration import operations, server, sessions, users, usersecrets
from oarlock.api.agents import agents, checkpointobjects, receivedfiles
from oarlock.api.cluster import forecasts, history, nodes, poolpreviews, pools, samples, usage
from oarlock.api.data import blobs, files, logpages, logs, metrics
from oarlock.api.jobs import (
    decisions,
    edits,
    events,
    execution,
    jobs,
    outlook,
    recordedjobs,
    simulations,
    speed,
    summaries,
    tensorboards,
)
from oarlock.api.security import authentication, authorisation
from oarlock.api.services import provided
from oarlock.spec import errors
from oarlock.spec.access import hosts
from oarlock.spec.access.users import Right  # the routes of users have the module's name

TABLE: tuple[routes.Route, ...] = openapi.described(
    (
        *jobs.ROUTES,
        *edits.ROUTES,
        *summaries.ROUTES,
        *outlook.ROUTES,
        *decisions.ROUTES,
        *speed.ROUTES,
        *logs.ROUTES,
        *logpages.ROUTES,
        *metrics.ROUTES,
        *files.ROUTES,
        *execution.ROUTES,
        *tensorboards.ROUTES,
        *events.ROUTES,
        *blobs.ROUTES,
        *nodes.ROUTES,
        *forecasts.ROUTES,
        *history.ROUTES,
        *pools.ROUTES,
        *poolpreviews.ROUTES,
        *samples.ROUTES,
        *usage.ROUTES,
        *simulations.ROUTES,
        *recordedjobs.ROUTES,
        *users.ROUTES,
        *sessions.ROUTES,
        *usersecrets.ROUTES,
        *server.ROUTES,
        *operations.ROUTES,
        *agents.ROUTES,
        *receivedfiles.ROUTES,
        *checkpointobjects.ROUTES,
    )
)
"""All routes. The tests go through this table, too."""

SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def make(services: provided.Services) -> types.ASGIApp:
    """Return the ASGI application. Its lifespan follows the event log, which wakes long polls."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        following = asyncio.create_task(services.wakes.follow())
        try:
            yield
        finally:
            services.wakes.close()
            await services.inbox.drain()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    by_path: dict[str, dict[str, routes.Route]] = {}
    for route in TABLE:
        by_path.setdefault(route.path, {})[route.method] = route
    lasting = streams.Streams(services.authenticator, services.report)
    endpoints = {path: Endpoint(services, methods, lasting) for path, methods in by_path.items()}
    sockets = [routing.WebSocketRoute(path, endpoints[path]) for path, methods in by_path.items() if "WS" in methods]
    router = routing.Router(sockets, redirect_slashes=False, default=NotFound(), lifespan=lifespan)
    plain = {path: endpoint for path, endpoint in endpoints.items() if "WS" not in by_path[path]}
    return Guard(services, Paths(pathtable.PathTable(plain), router))


class Guard:
    """Outermost layer: checks the Host and Origin headers, and adds the security headers to every answer."""

    def __init__(self, services: provided.Services, app: types.ASGIApp) -> None:
        self._services = services
        self._app = app

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refusal(headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin"))
        if refusal is not None:
            await refuse(refusal, scope, receive, self._guarded(send))
            return
        await self._app(scope, receive, self._guarded(send))

    def _refusal(self, host: str, origin: bytes | None) -> errors.OarlockError | None:
        """Return the refusal of a request under another host name (DNS rebinding) or from another origin, or None."""
        known = self._services.hosts
        if known is not None and hosts.name(host) not in known:
            return errors.Forbidden(
                "The Host header does not name this server.", hint=f"Use {self._services.about.url}."
            )
        if origin is not None and hosts.of_origin(origin.decode("latin-1")) != host:
            return errors.Forbidden(
                "The request comes from a page of another site, which is not allowed.",
                hint="Call from the same origin.",
            )
        return None

    @staticmethod
    def _guarded(send: types.Send) -> types.Send:
        async def guarded(message: types.Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            await send(message)

        return guarded


class Paths:
    """The endpoints of plain requests, and the router of all others: web sockets, the lifespan, and unknown paths."""

    def __init__(self, table: pathtable.PathTable[Endpoint], router: types.ASGIApp) -> None:
        self._table = table
        self._router = router

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        found = self._table.find(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._router(scope, receive, send)
        else:
            await found.endpoint({**scope, "path_params": found.parameters}, receive, send)


class NotFound:
    """Answer to a path that no route has."""

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        await refuse(
            errors.NotFound("There is no such route.", hint="See /openapi.json for all routes."),
            scope,
            receive,
            send,
        )


class Endpoint:
    """All methods of one path."""

    def __init__(self, services: provided.Services, methods: dict[str, routes.Route], lasting: streams.Streams) -> None:
        self._services = services
        self._methods = methods
        self._streams = lasting

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        method = "WS" if scope["type"] == "websocket" else scope["method"]
        route = self._methods.get(method)
        if route is None:
            allowed = ", ".join(self._methods)
            error = errors.MethodNotAllowed(f"This path does not take {method[:20]}.", hint=f"It takes {allowed}.")
            await refuse(error, scope, receive, send, allow=allowed)
            return
        call = routes.Call(self._services, route, scope, receive, send)
        if not route.long or not isinstance(route.needs, Right):
            await self._respond(call)
            return
        try:
            await self._streams.run(call, self._respond)
        except errors.Unauthenticated as error:
            await refuse(error, scope, receive, send)

    async def _respond(self, call: routes.Call) -> None:
        route, scope = call.route, call.scope
        started = time.perf_counter()
        try:
            await admit(call)
            await call.prepare()
            response = answer(route, await route.handler(call))
        except errors.OarlockError as error:
            if isinstance(error, errors.TooLarge) and scope["type"] == "http":
                await call.let_go()
            response = failure(error)
        except Exception as error:  # noqa: BLE001 - the last catch: the log gets the reason, and the client does not
            facts = {"route": route.path, "method": route.method, "error": error}
            self._services.report("request_failed", facts)
            response = failure(failures.unforeseen())
        if response is None:  # the handler has answered on the web socket
            return
        with contextlib.suppress(ConnectionError):  # the client is gone
            await response(scope, call.receive, call.send)
        if not route.long:
            status = str(getattr(response, "status_code", 0))
            labels = self._services.meters.request_s.labels(route.method, route.path, status)
            labels.observe(time.perf_counter() - started)


async def admit(call: routes.Call) -> None:
    """Authenticate the caller. Raises Unauthenticated, or Forbidden for a caller without the route's right."""
    needs = call.route.needs
    authenticator = call.services.authenticator
    if needs is routes.Open.ANYBODY or (needs is routes.Open.LOOPBACK and from_loopback(call.scope)):
        return
    if needs is routes.Open.TASK:
        call.admit(task=authenticator.task(call.headers))
        return
    if call.route.tensorboard and authentication.is_of_tensorboard(call.headers):
        caller = await authenticator.tensorboard(call.headers, call.path["job"])
        call.admit(access=authorisation.Access(call.services.store, caller.user), caller=caller)
        return
    unasked = call.route.long or "oarlock-fragment" in call.headers  # an open page fetches itself again
    caller = await authenticator.caller(call.headers, waiting=unasked)
    access = authorisation.Access(call.services.store, caller.user, call.services.forecaster.names)
    access.demand(Right.ADMIN if isinstance(needs, routes.Open) else needs)
    call.admit(access=access, caller=caller)


def from_loopback(scope: types.Scope) -> bool:
    """Return whether the client is on this machine."""
    client = scope.get("client")
    try:
        if client is None:
            return False
        address = ipaddress.ip_address(client[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback  # a server at `::` sees clients of IPv4 as mapped
    except ValueError:
        return False


def answer(route: routes.Route, content: Any) -> types.ASGIApp | None:
    """Return the response for a handler's result; None where the handler has answered on a web socket."""
    if content is None and route.method == "WS":
        return None
    if isinstance(content, responses.Response):
        return content
    status, headers = route.status, None
    if isinstance(content, routes.Answer):
        status, headers, content = content.status, dict(content.headers), content.content
    if content is None:
        return responses.Response(b"", status, headers)
    return responses.Response(msgspec.json.encode(content), status, headers, media_type=route.media)


def failure(error: errors.OarlockError, *, allow: str = "") -> responses.Response:
    """Return the response for an error. `allow` lists the methods of the path."""
    headers = {}
    if allow:
        headers["allow"] = allow
    if isinstance(error, errors.Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.Unavailable):
        headers["retry-after"] = "1"
    if isinstance(error, errors.TooLarge | errors.Truncated):
        headers["connection"] = "close"  # the rest of the body is not read
    return responses.Response(failures.body(error), error.status, headers, media_type="application/json")


async def refuse(
    error: errors.OarlockError,
    scope: types.Scope,
    receive: types.Receive,
    send: types.Send,
    *,
    allow: str = "",
) -> None:
    await failure(error, allow=allow)(scope, receive, send)
