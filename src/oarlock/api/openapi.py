"""`/openapi.json`, made from the route descriptions and structs that also validate requests.

OpenAPI cannot describe web sockets, so only docs/rest-api.md describes `exec`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette import responses

from oarlock.api import routes
from oarlock.spec import bodies

_REF = "#/components/schemas/{name}"


def described(table: tuple[routes.Route, ...]) -> tuple[routes.Route, ...]:
    """Return the table with one more route: the one that describes all of them, itself included."""

    @functools.cache
    def written(version: str) -> bytes:
        return document(whole, version)

    async def show(call: routes.Call) -> responses.Response:
        return responses.Response(written(call.services.about.version), media_type="application/json")

    description = routes.look("/openapi.json", show, "this description", dict[str, Any])
    whole = (*table, description)
    return whole


def document(table: tuple[routes.Route, ...], version: str) -> bytes:
    """Return the OpenAPI document of these routes as JSON."""
    spoken = [route for route in table if route.method != "WS"]
    kinds = _kinds(spoken)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = {_key(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in spoken:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Oarlock", "version": version},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "user": {"type": "http", "scheme": "bearer"},
                    "task": {"type": "http", "scheme": "bearer", "description": "with the header Oarlock-Task"},
                },
            },
        }
    )


def _kinds(table: Iterable[routes.Route]) -> list[Any]:
    """Return each type of a body or an answer once."""
    found: dict[str, Any] = {_key(bodies.Failure): bodies.Failure}
    for route in table:
        for kind in (route.body, route.answer):
            if kind is not None and kind is not bytes:
                found.setdefault(_key(kind), kind)
    return list(found.values())


def _key(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def _operation(route: routes.Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.handler.__module__.rpartition('.')[2]}.{route.handler.__name__}",
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": _responses(route, schema_of),
        "security": _security(route),
    }
    if route.body is bytes:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    elif route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[_key(route.body)]}},
        }
    return operation


def _path_parameters(route: routes.Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.parameters
    ]


def _query_parameters(route: routes.Route) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([route.query], ref_template=_REF)
    schema = components[route.query.__name__]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _inlined(field, components)}
        for name, field in schema["properties"].items()
    ]


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    """Return the schema of a query parameter without references, and without null, which a query cannot express."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(components[schema["$ref"].rpartition("/")[2]], components)
        if "anyOf" in schema:
            kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
            return _inlined(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}, components)
        return {
            name: _inlined(value, components) for name, value in schema.items() if not (name == "default" and not value)
        }
    return [_inlined(item, components) for item in schema] if isinstance(schema, list) else schema


def _header_parameters(route: routes.Route) -> list[dict[str, Any]]:
    names = [*route.headers, *(["Oarlock-Task"] if route.needs is routes.Open.TASK else [])]
    return [
        {"name": name, "in": "header", "required": name == "Oarlock-Task", "schema": {"type": "string"}}
        for name in names
    ]


def _responses(route: routes.Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {str(route.status): _answer(route, schema_of)}
    for status, meaning in route.others.items():
        with_body = {**_answer(route, schema_of), "description": meaning}
        answers[str(status)] = {"description": meaning} if status == HTTPStatus.NO_CONTENT else with_body
    answers["default"] = {
        "description": "an error",
        "content": {"application/json": {"schema": schema_of[_key(bodies.Failure)]}},
    }
    return answers


def _answer(route: routes.Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    said = {"description": route.summary}
    if route.answer is None:
        return said
    if route.answer is bytes:
        schema: Any = {"type": "string", "format": "binary"}
    else:
        schema = schema_of[_key(route.answer)]
    return {**said, "content": {route.media: {"schema": schema}}}


def _security(route: routes.Route) -> list[dict[str, Any]]:
    if route.needs is routes.Open.TASK:
        return [{"task": []}]
    if route.needs in (routes.Open.ANYBODY, routes.Open.LOOPBACK):
        return [{}]
    return [{"user": []}]
