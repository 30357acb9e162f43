"""Copies of our own packages for user processes, in the server's home.

The name of a copy is a digest of its sources: a running process continues to read the files with which it started, even
if another version is installed later.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path


def library(root: Path, package: Path) -> Path:
    """Return a directory that contains only `oarlock.train`, for the path of user processes.

    Our other packages, and the packages that they need, must not hide the program's own. `package` is the directory in
    which `oarlock` is installed.
    """
    place = root / digest(package / "train")
    if place.is_dir():
        return place
    draft = root / f".{place.name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(
        package / "train", draft / "oarlock" / "train", ignore=shutil.ignore_patterns("__pycache__", "*.toml", ".*")
    )
    shutil.copy(package / "__init__.py", draft / "oarlock" / "__init__.py")
    try:
        draft.rename(place)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not place.is_dir():
            raise
    return place


def digest(package: Path) -> str:
    """Return a digest of a package's sources and of the Python version."""
    found = hashlib.sha256(sys.version.encode())
    for path in sorted(package.rglob("*.py")):
        found.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]
