"""What may be imported where, as far as import-linter cannot see it: at run time, and in the guests' Python."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "oarlock"
AGENT = sorted((PACKAGE / "agent").rglob("*.py"))
TRAIN = sorted((PACKAGE / "train").rglob("*.py"))


def loaded_by(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=280)
    return set(done.stdout.split())


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_public_root_imports_nothing() -> None:
    before = loaded_by("")
    assert loaded_by("import oarlock") - before == {"oarlock"}


def test_the_command_line_starts_without_the_server() -> None:
    heavy = {"oarlock.main", "oarlock.simulator", "sqlalchemy", "starlette", "uvicorn", "torch", "numpy", "fsspec"}
    assert not loaded_by("import oarlock.cli.main") & heavy


@pytest.mark.parametrize("path", AGENT, ids=lambda path: path.name)
def test_the_agent_is_python_3_8_and_the_standard_library(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
    for module in imported(path):
        assert module.split(".")[0] in sys.stdlib_module_names or module.startswith("oarlock.agent"), module


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.name)
def test_the_training_library_is_torch_and_the_standard_library(path: Path) -> None:
    for module in imported(path):
        first = module.split(".")[0]
        assert first in sys.stdlib_module_names or first == "torch" or module.startswith("oarlock.train"), module
