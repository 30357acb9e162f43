"""Make the folder that an init container copies into each pod: an interpreter that needs nothing of the pod's image.

    bin/python3   the interpreter of this machine
    lib/loader    its dynamic loader, which a command names first: `lib/loader --library-path lib bin/python3`
    lib/          the shared libraries of the interpreter and of its modules; lib/python3.x, its standard library
    agent.pyz     the agent
    train/        `oarlock.train`, for the path of the user's processes
    hook/         the hook that lets the agent ask for stacks

Usage: runtime.py FOLDER
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import oarlock
from oarlock.agent import zipapp
from oarlock.api.process import libraries

LEFT_OUT = (
    *("__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "_tkinter*", "pydoc_data"),
    *("ensurepip", "lib2to3", "distutils", "venv", "config-*", "dist-packages", "site-packages", "LICENSE.txt"),
    *("curses", "dbm", "sqlite3", "unittest", "wsgiref", "xmlrpc", "doctest.py", "pydoc.py"),
    *("_curses*", "_dbm*", "_gdbm*", "_sqlite3*", "readline*", "nis.*", "ossaudiodev*", "audioop*"),
    *("_test*", "_ctypes_test*", "_xx*", "xx*", "_codecs_??.*", "_codecs_iso2022*"),
    "sitecustomize.py",
)
"""Parts of the standard library that no agent needs, and with them the libraries that only they load (`nis`: Kerberos).
`sitecustomize.py` is a link out of the folder on Debian.
"""
_LIBRARY = re.compile(r"(?:=>)?\s*(/\S+)\s+\(0x")


def make(folder: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter, standard = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    (folder / "bin").mkdir(parents=True)
    shutil.copy(interpreter, folder / "bin" / "python3")
    shutil.copytree(standard, folder / "lib" / version, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for library in libraries_of([interpreter, *(folder / "lib" / version / "lib-dynload").glob("*.so")]):
        name = "loader" if library.name.startswith("ld-") else library.name
        shutil.copy(library, folder / "lib" / name)
    compileall.compile_dir(
        folder / "lib" / version, quiet=1, stripdir=str(folder),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip
    zipapp.build(folder / "agent.pyz")
    library = libraries.library(folder / "library", Path(oarlock.__file__).parent)
    library.rename(folder / "train")
    (folder / "library").rmdir()
    shutil.copytree(zipapp.hook_directory(), folder / "hook", ignore=shutil.ignore_patterns("__pycache__"))


def libraries_of(programs: list[Path]) -> list[Path]:
    """Return the shared libraries that the programs load, the loader among them."""
    found: set[Path] = set()
    for program in programs:
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        found |= {Path(path) for path in _LIBRARY.findall(said)}
    return sorted(found)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
