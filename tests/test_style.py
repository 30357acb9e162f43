"""The habits of this code base that no linter knows (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.documentation import blocks

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "oarlock"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = {PACKAGE / "__init__.py", PACKAGE / "train" / "__init__.py"}
EMPTY = [path for path in SOURCES if path.name == "__init__.py" and path not in PUBLIC]
MODULES = [path for path in SOURCES if path not in EMPTY]

MAX_LINES = 600
# A name that says nothing about its content collects whatever has no better place.
NAMELESS = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "shared", "util", "utils"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert PACKAGE / "__init__.py" in MODULES


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{name(path)} has {lines} lines: look for the noun that hides in it"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_module_is_named_after_what_is_in_it(path: Path) -> None:
    names = {part.lstrip("_").removesuffix(".py") for part in path.relative_to(PACKAGE).parts}
    words = {word for part in names for word in part.split("_")}
    assert not words & NAMELESS, f"{name(path)}: name it after the noun it holds, or move the code beside its only user"


@pytest.mark.parametrize("path", EMPTY, ids=name)
def test_a_package_exports_nothing_of_its_own(path: Path) -> None:
    assert not path.read_text().strip(), f"{name(path)}: modules are imported whole (`from oarlock.spec import jobs`)"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_says_what_flows_through_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{name(path)} has no docstring"


@pytest.mark.parametrize("page", blocks.PAGES, ids=name)
def test_every_block_of_a_page_says_how_it_is_run(page: Path) -> None:
    """`tests/documentation` runs them."""
    assert not list(blocks.complaints(page.read_text(encoding="utf-8")))
