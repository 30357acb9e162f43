"""The code that runs in a user's image keeps to the Python that may be there.

That is Python 3.8 for the agent and its hook, and 3.9 for `oarlock.train`. Every run looks at the sources. Where there
is such an interpreter, it is also asked which names its own library has, and imports the modules.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests import needs, oldpythons

PACKAGE = Path(__file__).parent.parent / "src" / "oarlock"
ROOMS = {"agent": (3, 8), "train": (3, 9)}
"""The oldest Python of each room."""
SOURCES = [
    ("train", PACKAGE / "__init__.py"),
    *((room, path) for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))),
]
PYPY = {
    *("fcntl.F_DUPFD_CLOEXEC", "os.CLD_EXITED", "os.P_ALL", "os.P_PID", "os.WEXITED", "os.WNOWAIT", "os.WSTOPPED"),
    *("os.sched_getaffinity", "os.waitid", "resource.RLIMIT_RTTIME", "signal.sigwaitinfo"),
}
"""Names that PyPy never had, and CPython has had since 3.3 or before."""
NEW = "itertools.pairwise"
"""A name that no old Python has."""
LAZY = "from __future__ import annotations\n"

MISSING = """
import importlib, json, sys

def there(module, name):
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(module + "." + name)
    except ImportError:
        return False
    return True

missing = [name for name in json.load(sys.stdin) if not there(*name.rsplit(".", 1))]
print(json.dumps([sys.implementation.name, missing]))
"""
IMPORT = """
import importlib, importlib.abc, importlib.machinery, json, sys

class Kind(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stand
    def __getitem__(cls, parameters):
        return Stand

class Stand(metaclass=Kind):
    # Anything of torch: a class, a decorator, a number.
    def __init__(self, *args, **kwargs): pass
    def __call__(self, one): return one
    def __getattr__(self, name): return Kind.__getattr__(Stand, name)

class Torch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    # No torch is made for these interpreters any more: an import evaluates everything but torch.
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torch" else None
    def exec_module(self, module):
        module.__getattr__ = lambda name: Kind.__getattr__(Stand, name)

sys.meta_path.insert(0, Torch())
for name in json.load(sys.stdin):
    importlib.import_module(name)
"""


@pytest.mark.parametrize("room", ROOMS)
def test_the_sources_need_no_newer_python(room: str) -> None:
    found = {
        str(path.relative_to(PACKAGE)): newer
        for of, path in SOURCES
        if of == room and (newer := oldpythons.newer(path.read_text(), ROOMS[room]))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "match 1:\n    case 1: pass",
        "try: pass\nexcept* OSError: pass",
        "with (open(a) as b, open(c) as d): f'{b!r}'\nmatch = 1\nmatch 1:\n    case _: pass",
        "import tomllib",
        "from itertools import pairwise",
        "import itertools as tools\ntools.pairwise(a)",
        "import asyncio\nasyncio.TaskGroup()",
        "from asyncio import timeout",
        "from enum import StrEnum",
        "from typing import Self",
        "import datetime as dt\ndt.UTC",
        "raise ExceptionGroup('', [])",
        "error.add_note('')",
        "(5).bit_count()",
        "zip(a, b, strict=True)",
        "from dataclasses import dataclass\n@dataclass(slots=True)\nclass A: pass",
        "import dataclasses\n@dataclasses.dataclass(frozen=True, kw_only=True)\nclass A: pass",
        "isinstance(a, int | str)",
        "Answer = bytes | None",
        "from a import World, Thing\nEither = World | Thing",
        "Many = dict[str, int] | set[str]",
        "def f(a: int | None) -> None: pass",
        "class A:\n    b: int | None = None",
        LAZY + "from typing import cast\ncast(int | None, a)",
    ],
)
def test_what_3_9_lacks_is_found(source: str) -> None:
    assert oldpythons.newer(source, (3, 9)) != []
    assert oldpythons.newer(source, sys.version_info[:2]) == []


@pytest.mark.parametrize(
    "source",
    [
        "import functools\n@functools.cache\ndef f(): pass",
        "name.removeprefix('a')",
        "Pairs = list[int]",
        "from collections.abc import Callable\nCall = Callable[[int], str]",
    ],
)
def test_what_3_8_lacks_is_found(source: str) -> None:
    assert oldpythons.newer(source, (3, 8)) != []
    assert oldpythons.newer(source, (3, 9)) == []


@pytest.mark.parametrize(
    "source",
    [
        LAZY + "def f(a: int | None, *b: list[int] | str) -> dict[str, int] | None:\n    c: set[int] | None = None",
        "import os\nos.open(a, os.O_RDONLY | os.O_CLOEXEC)\nboth = a | b\nrow = rows[0]\nlast = COLUMNS[-1] | MASK",
        "import os\nif hasattr(os, 'pidfd_open'):\n    os.pidfd_open(1)",
        "zip(a, b)\nclass Own:\n    def timeout(self): pass\nOwn().timeout()\nown.pairwise(a)",
    ],
)
def test_what_every_python_has_is_left_alone(source: str) -> None:
    assert oldpythons.newer(source, (3, 8)) == []


def asked(version: str, program: str, about: object) -> str:
    """Return the answer of an interpreter of this version."""
    done = subprocess.run(
        [oldpythons.interpreter(version), "-c", program],
        input=json.dumps(about),
        env={"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OLD = pytest.mark.parametrize(
    ("room", "version"),
    [
        pytest.param(room, version, marks=needs.mark(f"Python {version}", there=bool(oldpythons.interpreter(version))))
        for room, version in (("agent", "3.8"), ("agent", "3.9"), ("train", "3.9"))
    ],
)


@OLD
def test_an_old_library_has_all_names(room: str, version: str) -> None:
    used = {name for of, path in SOURCES if of == room for name in oldpythons.named(path.read_text())}
    assert len(used) > 50
    implementation, missing = json.loads(asked(version, MISSING, [NEW, *sorted(".".join(name) for name in used)]))
    assert set(missing) - (PYPY if implementation == "pypy" else set()) == {NEW}


@OLD
def test_an_old_python_imports_every_module(room: str, version: str) -> None:
    """This evaluates decorators, base classes, defaults and whatever else is not in a function."""
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for of, path in SOURCES
        if of == room and path.name not in ("__main__.py", "sitecustomize.py")
    ]
    asked(version, IMPORT, modules)
