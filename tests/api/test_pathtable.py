"""The table of paths, against Starlette's router, which tries each pattern."""

from __future__ import annotations

import pytest
from starlette import routing

from oarlock.api import application, pathtable

TEMPLATES = tuple(dict.fromkeys(route.path for route in application.TABLE))
TABLE = pathtable.PathTable({path: path for path in TEMPLATES})
PATTERNS = [(routing.compile_path(path)[0], path) for path in TEMPLATES]


def by_pattern(path: str) -> tuple[str, dict[str, str]] | None:
    return next(((found, match.groupdict()) for pattern, found in PATTERNS if (match := pattern.match(path))), None)


def variants(template: str) -> list[str]:
    filled = template.replace("{", "").replace("}", "")
    told = "/".join("a b@é" if "{" in one else one for one in template.split("/"))
    empty = "/".join("" if "{" in one else one for one in template.split("/"))
    braces = "/".join("{}" if "{" in one else one for one in template.split("/"))
    literal = "/".join("recorded" if "{" in one else one for one in template.split("/"))
    return [template, filled, told, empty, braces, literal, f"{filled}/", f"{filled}/x", f"/{filled}", filled.upper()]


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_table_finds_the_route_that_the_patterns_find(template: str) -> None:
    for path in variants(template):
        found = TABLE.find(path)
        assert (None if found is None else tuple(found)) == by_pattern(path), path


def test_the_first_of_several_paths_counts() -> None:
    orders = (("/a/{one}", "/a/b", "/{two}/b"), ("/{two}/b", "/a/b", "/a/{one}"), ("/a/b", "/{two}/b", "/a/{one}"))
    for order in orders:
        found = pathtable.PathTable({path: path for path in order}).find("/a/b")
        assert found is not None
        assert found.endpoint == order[0]


def test_the_first_of_two_paths_that_differ_in_their_parameters_names_counts() -> None:
    found = pathtable.PathTable({"/a/{one}": 1, "/a/{two}": 2}).find("/a/b")
    assert found == (1, {"one": "b"})


@pytest.mark.parametrize("segment", ["{file:path}", "a:b", "{one}.csv", "v{one}", "{one}{two}", "{}", "{one", "one}"])
def test_a_segment_that_the_table_cannot_tell_is_refused(segment: str) -> None:
    with pytest.raises(ValueError, match="is not a segment"):
        pathtable.PathTable({f"/a/{segment}/b": 1})


@pytest.mark.parametrize("path", ["", "/", "x", "//", "/api/v1/nothing"])
def test_an_unknown_path_is_not_found(path: str) -> None:
    assert pathtable.PathTable({"/api/v1/jobs/{job}": 1}).find(path) is None
