"""`pip install .` without extras into a fresh environment: its size and time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import table

ROOT = Path(__file__).parent.parent


def run() -> list[table.Row]:
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        before = _megabytes(venv)
        began = time.perf_counter()
        pip = [
            str(venv / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "-c",
            str(ROOT / "constraints.txt"),
            str(ROOT),
        ]
        subprocess.run(pip, check=True)
        took = time.perf_counter() - began
        size = _megabytes(venv) - before
        subprocess.run([str(venv / "bin" / "oarlock"), "--help"], check=True, stdout=subprocess.DEVNULL)
    return [
        table.Row("install", "`pip install .`, size", size, "MB", 120, detail="added to an empty environment"),
        table.Row("install", "`pip install .`, time", took, "s", 20, detail="downloads may be cached"),
    ]


def _megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
