"""The list of failpoints and the code agree: each point that is tried is listed, and each listed one is reached."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import oarlock
from oarlock.spec import errors
from oarlock.spec.process import failpoints

PACKAGE = Path(oarlock.__file__).parent


def hits(path: Path) -> list[str]:
    """The names that a module hits. The agent and the training library have failpoints of their own."""
    text = path.read_text()
    if "failpoints" not in text:
        return []
    tree = ast.parse(text)
    ours = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "oarlock.spec.process"]
    if "failpoints" not in {alias.name for statement in ours for alias in statement.names}:
        return []
    found = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "hit"
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "failpoints"
        ):
            assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: name the failpoint as a literal"
            found.append(node.args[0].value)
    return found


def test_every_failpoint_is_listed_and_hit_in_one_place() -> None:
    placed = Counter(name for path in PACKAGE.rglob("*.py") for name in hits(path))
    assert placed == Counter(failpoints.NAMES)


def test_an_unarmed_point_does_nothing_and_an_armed_one_acts_until_it_is_disarmed() -> None:
    seen: list[str] = []
    name = failpoints.NAMES[0]
    failpoints.hit(name)
    failpoints.arm(name, lambda: seen.append("hit"))
    failpoints.hit(name)
    failpoints.disarm(name)
    failpoints.disarm(name)
    failpoints.hit(name)
    assert seen == ["hit"]


def test_a_name_that_is_not_listed_cannot_be_armed() -> None:
    with pytest.raises(errors.InvalidInput, match="there is no failpoint 'nowhere'"):
        failpoints.arm("nowhere", lambda: None)
