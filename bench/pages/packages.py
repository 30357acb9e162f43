"""The share of the pages in the wheel and in an installation without extras."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bench import table
from bench.pages import stage

ROOT = Path(__file__).parents[2]
ADDED = ("jinja2", "markupsafe")


def run() -> list[table.Row]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("oarlock-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            ours = sum(one.compress_size for one in opened.infolist() if one.filename.startswith("oarlock/web/"))
        whole = wheel.stat().st_size
    sizes = {name: _bytes(name) for name in ADDED}
    detail = ", ".join(f"{name} {size / 1e6:.2g} MB" for name, size in sizes.items())
    return [
        stage.row(
            "the pages in the wheel", ours / 1e6, "MB", 1, f"compressed; the whole wheel has {whole / 1e6:.2g} MB"
        ),
        stage.row("packages that the pages add to an installation", sum(sizes.values()) / 1e6, "MB", 2, detail),
    ]


def _bytes(name: str) -> int:
    files = importlib.metadata.files(name) or []
    return sum(path.stat().st_size for one in files if (path := Path(str(one.locate()))).is_file())
