"""The rules of imports that import-linter cannot see: those at run time, and in the guests' Python."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src"
PACKAGE = SOURCES / "oarlock"
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


def test_no_modules_import_each_other() -> None:
    """Neither lazily nor for types alone: each module can be read after the ones that it imports."""
    paths = {".".join(path.relative_to(SOURCES).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    uses = {name: set(named(path, paths)) for name, path in paths.items()}
    assert "oarlock.scheduler.placement.placing" in uses["oarlock.scheduler.granting.grants"]
    assert "oarlock.train.reporting.rows" in uses["oarlock.train.reporting.progress"]
    list(TopologicalSorter(uses).static_order())  # raises CycleError, which names the modules


def named(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Yield those of the modules that a file imports, whole or in part."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)):
                if name in modules:
                    yield name
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def test_the_public_root_imports_nothing() -> None:
    before = loaded_by("")
    assert loaded_by("import oarlock") - before == {"oarlock"}


def test_the_command_line_starts_without_the_server() -> None:
    heavy = {"oarlock.main", "oarlock.simulator", "sqlalchemy", "starlette", "uvicorn", "torch", "numpy", "fsspec"}
    assert not loaded_by("import oarlock.cli.main") & heavy


def test_a_store_in_sqlite_imports_nothing_of_postgresql() -> None:
    assert not loaded_by("from oarlock.store.sql import database") & {"psycopg", "alembic"}


def test_a_server_imports_the_pages_only_when_one_is_opened() -> None:
    assert not loaded_by("from oarlock.web import opening") & {"oarlock.web.application", "jinja2", "httpx"}


def test_the_agent_is_python_3_8_and_the_standard_library() -> None:
    for path in AGENT:
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 8))
        for module in imported(path):
            known = module.split(".")[0] in sys.stdlib_module_names or module.startswith("oarlock.agent")
            assert known, f"{path} imports {module}"


def test_the_training_library_is_torch_and_the_standard_library() -> None:
    for path in TRAIN:
        for module in imported(path):
            first = module.split(".")[0]
            known = first in sys.stdlib_module_names or first == "torch" or module.startswith("oarlock.train")
            assert known, f"{path} imports {module}"
