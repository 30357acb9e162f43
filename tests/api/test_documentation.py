"""docs/rest-api.md and docs/agent-protocol.md name every route and query parameter, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from oarlock.api import application, openapi, routes

DOCS = Path(__file__).parents[2] / "docs"
REST = [route for route in application.TABLE if not route.path.startswith("/agent/")]
AGENT = [route for route in application.TABLE if route.path.startswith("/agent/")]


def documented(page: str) -> dict[tuple[str, str], set[str]]:
    """(method, path with JOB for a parameter) and its query parameters, out of the tables' first cells."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in (DOCS / page).read_text().splitlines():
        if not line.startswith("|"):
            continue
        methods: list[str] = []
        used = False
        for code in re.findall(r"`([^`]+)`", line.split("|")[1]):
            method, _, rest = code.partition(" ")
            if method in {"HEAD", "GET", "PUT", "PATCH", "POST", "DELETE", "WS"}:
                methods = [method] if used else [*methods, method]
                used = False
            path, _, query = (rest or code).partition("?")
            if path.startswith("/"):
                names = set(re.findall(r"(\w+)=", query))
                found.update({(method, path): names for method in methods})
                used = True
    return found


def place(route: routes.Route, prefix: str = "") -> tuple[str, str]:
    path = re.sub(r"{(\w+)}", lambda match: match[1].upper(), route.path.removeprefix(prefix))
    return route.method, path


def test_the_pages_have_routes_in_them() -> None:
    assert len(documented("rest-api.md")) > 20
    assert len(documented("agent-protocol.md")) >= 9


@pytest.mark.parametrize(
    ("page", "table", "prefix"),
    [("rest-api.md", REST, ""), ("agent-protocol.md", AGENT, "/agent/v1")],
    ids=["rest", "agent"],
)
def test_pages_and_table_say_the_same(page: str, table: list[routes.Route], prefix: str) -> None:
    real = {place(route, prefix): set(routes.parameters(route.query)) for route in table}
    assert documented(page) == real


def test_openapi_describes_every_route_with_the_structs_that_validate() -> None:
    document = msgspec.json.decode(openapi.document(application.TABLE, "0"))
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in application.TABLE if route.method != "WS"}
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    submission = document["components"]["schemas"]["Submission"]
    assert submission["additionalProperties"] is False
    assert "command" in document["components"]["schemas"]["JobSpec"]["required"]


def test_no_two_routes_have_one_place() -> None:
    places = [(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in application.TABLE]
    assert len(places) == len(set(places))
