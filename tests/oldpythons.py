"""Older Pythons: which of them are on this machine, and what a source needs that an older one lacks."""

from __future__ import annotations

import ast
import builtins
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

Version = tuple[int, int]

SYNTAX: dict[Version, str] = {(3, 10): "Match", (3, 11): "TryStar", (3, 12): "TypeAlias TypeVar"}
"""By the version that brought it: the class of its node. `ast.parse` refuses other syntax by itself."""

NAMES: dict[Version, str] = {
    (3, 9): """
        ast.unparse asyncio.to_thread functools.cache graphlib math.lcm math.nextafter os.pidfd_open
        os.waitstatus_to_exitcode random.randbytes signal.pidfd_send_signal socket.recv_fds socket.send_fds
        typing.Annotated zoneinfo
    """,
    (3, 10): """
        builtins.EncodingWarning builtins.aiter builtins.anext contextlib.aclosing inspect.get_annotations
        itertools.pairwise os.eventfd os.splice statistics.correlation statistics.covariance
        statistics.linear_regression sys.orig_argv sys.stdlib_module_names types.EllipsisType types.NoneType
        types.UnionType typing.Concatenate typing.ParamSpec typing.TypeAlias typing.TypeGuard typing.is_typeddict
    """,
    (3, 11): """
        asyncio.Barrier asyncio.Runner asyncio.TaskGroup asyncio.timeout asyncio.timeout_at
        builtins.BaseExceptionGroup builtins.ExceptionGroup contextlib.chdir datetime.UTC enum.ReprEnum enum.StrEnum
        enum.verify hashlib.file_digest logging.getLevelNamesMapping math.cbrt math.exp2 operator.call sys.exception
        tomllib typing.LiteralString typing.Never typing.NotRequired typing.Required typing.Self typing.TypeVarTuple
        typing.Unpack typing.assert_never typing.assert_type typing.dataclass_transform typing.reveal_type
        wsgiref.types
    """,
    (3, 12): """
        collections.abc.Buffer inspect.BufferFlags itertools.batched math.sumprod os.listdrives os.setns os.unshare
        random.binomialvariate sys.monitoring typing.TypeAliasType typing.get_original_bases typing.override
    """,
    (3, 13): """
        builtins.PythonFinalizationError copy.replace math.fma os.process_cpu_count queue.ShutDown typing.NoDefault
        typing.ReadOnly typing.TypeIs warnings.deprecated
    """,
    (3, 14): "annotationlib compression concurrent.interpreters heapq.heappush_max string.templatelib",
}
"""Names of the standard library, by the version that brought them: those that such code is likely to want."""

METHODS: dict[Version, str] = {
    (3, 9): "is_relative_to removeprefix removesuffix with_stem",
    (3, 10): "bit_count hardlink_to",
    (3, 11): "add_note",
    (3, 12): "is_junction",
    (3, 13): "from_uri full_match",
}
"""Methods of any object: they have no other meaning in this code."""

ARGUMENTS: dict[Version, str] = {
    (3, 9): "shutdown(cancel_futures=)",
    (3, 10): """
        bisect(key=) bisect_left(key=) bisect_right(key=) dataclass(kw_only=) dataclass(match_args=) dataclass(slots=)
        field(kw_only=) insort(key=) zip(strict=)
    """,
    (3, 11): "dataclass(weakref_slot=)",
    (3, 12): "rmtree(onexc=)",
    (3, 13): "glob(recurse_symlinks=)",
}
"""Arguments, with the last name of the function."""

_TYPES = {name for name, value in vars(builtins).items() if isinstance(value, type)}
_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")


def _since(table: dict[Version, str]) -> dict[str, Version]:
    return {name: version for version, names in table.items() for name in names.split()}


_SYNTAX, _NAMES, _METHODS, _ARGUMENTS = map(_since, (SYNTAX, NAMES, METHODS, ARGUMENTS))


def newer(source: str, version: Version) -> list[str]:
    """Return what this source needs and this version lacks, each with its line."""
    try:
        tree = ast.parse(source, feature_version=version)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    visitor = _Visitor(version, _asked(tree), lazy="annotations" in _futures(tree))
    visitor.visit(tree)
    return visitor.found


def _asked(tree: ast.Module) -> set[str]:
    """Return the names of which the source asks whether they are there: `hasattr(os, "pidfd_open")`."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    asked = (call.args for call in calls if call.func.id == "hasattr")
    return {f"{ast.unparse(place)}.{name.value}" for place, name in asked if isinstance(name, ast.Constant)}


def _futures(tree: ast.Module) -> set[str]:
    told = (one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__")
    return {alias.name for one in told for alias in one.names}


class _Visitor(ast.NodeVisitor):
    """Annotations that are not evaluated (`lazy`) may have any names and operators."""

    def __init__(self, version: Version, asked: set[str], *, lazy: bool) -> None:
        self.found: list[str] = []
        self._version = version
        self._asked = asked
        self._lazy = lazy
        self._bound: dict[str, str] = {}  # names of this module, with those of the standard library

    def visit(self, node: ast.AST) -> Any:
        self._check(node, type(node).__name__, _SYNTAX)
        return super().visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        for field, value in ast.iter_fields(node):
            if self._lazy and field in ("annotation", "returns"):
                continue
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.AST):
                    self.visit(one)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check(node, alias.name, _NAMES)
            self._bound[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._check(node, node.module or "", _NAMES)
        for alias in node.names:
            self._check(node, f"{node.module}.{alias.name}", _NAMES)
            self._bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Name(self, node: ast.Name) -> None:
        if node.id not in self._bound:
            self._check(node, f"builtins.{node.id}", _NAMES)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._check(node, self._dotted(node), _NAMES)
        self._check(node, node.attr, _METHODS)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self._dotted(node.func).rpartition(".")[2]
        for keyword in node.keywords:
            self._check(node, f"{called}({keyword.arg}=)", _ARGUMENTS)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.BitOr) and (self._is_type(node.left) or self._is_type(node.right)):
            self._tell(node, "X | Y of types that is evaluated", (3, 10))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._is_type(node.value) and self._dotted(node.value).startswith(("builtins.", "collections.")):
            self._tell(node, "X[Y] of a class that is evaluated", (3, 9))
        self.generic_visit(node)

    def _dotted(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return self._bound.get(node.id, f"builtins.{node.id}")
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return ""

    def _is_type(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            return self._is_type(node.value)
        if isinstance(node, ast.Constant):
            return node.value is None
        name = self._dotted(node).rpartition(".")[2]
        return name in _TYPES or _CLASS.fullmatch(name) is not None

    def _check(self, node: ast.AST, name: str, since: dict[str, Version]) -> None:
        if name in since and name not in self._asked:
            self._tell(node, name, since[name])

    def _tell(self, node: ast.AST, what: str, since: Version) -> None:
        if since > self._version:
            line = getattr(node, "lineno", 0)
            self.found.append(f"line {line}: {what} came with {'.'.join(map(str, since))}")


def named(source: str) -> set[tuple[str, str]]:
    """Return the names that a source takes from modules of the standard library, each with its module.

    Those of which it asks whether they are there are left out.
    """
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
            found.add((bound[node.value.id], node.attr))
    asked = _asked(tree)
    return {
        (module, name)
        for module, name in found
        if module.split(".")[0] in sys.stdlib_module_names and f"{module}.{name}" not in asked
    }


@functools.cache
def interpreter(version: str) -> str:
    """Return an interpreter of this version, such as `3.9`, of this machine; an empty text where there is none."""
    home = Path.home()
    places = [
        *filter(None, [shutil.which(f"python{version}")]),
        *home.glob(f".pyenv/versions/{version}.*/bin/python"),
        *home.glob(f".local/share/uv/python/cpython-{version}.*/bin/python{version}"),
        *filter(None, [shutil.which("pypy3")]),
    ]
    return next((str(place) for place in places if _of(str(place)) == version), "")


def _of(program: str) -> str:
    """Return the version of an interpreter; empty where the program does not start."""
    command = [program, "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
