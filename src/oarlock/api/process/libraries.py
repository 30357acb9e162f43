"""What of ours user processes may see: copies in the home, each under a digest of its sources, because what runs goes
on reading the files that it began with, whatever is installed later.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path


def library(root: Path, package: Path) -> Path:
    """A directory with `oarlock.train` alone in it, for the path of user processes: nothing else of ours, or of what we
    need, comes between a program and its own packages. `package` is where `oarlock` is installed.
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
    """Of a package's sources: what runs keeps reading the files it began with, whatever is installed later."""
    found = hashlib.sha256(sys.version.encode())
    for path in sorted(package.rglob("*.py")):
        found.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]
