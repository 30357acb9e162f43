"""Static files: the style sheet and the scripts, named by their content and cached for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parents[1] / "static"
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
TOGETHER = {
    "frame.js": ("patching.js", "times.js", "keys.js", "reading.js", "live.js"),
    "plots.js": ("plotting.js", "metrics.js"),
}
"""Files that a page loads as one: each request costs a first visit time, of the browser and of the server.

An error in a file stops all that follow it, so the one that does the most is the last.
"""
_DIGITS = 12


class Asset(msgspec.Struct, frozen=True):
    content: bytes
    media: str


class Assets:
    """All static files, read once. `path("page.css")` is the address that changes with the file's content."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._paths: dict[str, str] = {}
        self._files: dict[str, Asset] = {}
        files = {file.name: file.read_bytes() for file in sorted(folder.rglob("*")) if file.suffix in TYPES}
        for whole, parts in TOGETHER.items():
            files[whole] = b"".join(files.pop(part) for part in parts)
        for name, content in files.items():
            stem, dot, kind = name.rpartition(".")
            digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
            path = f"/static/{stem}.{digest}{dot}{kind}"
            self._paths[name] = path
            self._files[path] = Asset(content, TYPES[dot + kind])

    def path(self, name: str) -> str:
        return self._paths[name]

    def find(self, path: str) -> Asset | None:
        return self._files.get(path)
