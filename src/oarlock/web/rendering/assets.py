"""Static files: the style sheet and the scripts, named by their content and cached for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parents[1] / "static"
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_DIGITS = 12


class Asset(msgspec.Struct, frozen=True):
    content: bytes
    media: str


class Assets:
    """All static files, read once. `path("page.css")` is the address that changes with the file's content."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._paths: dict[str, str] = {}
        self._files: dict[str, Asset] = {}
        for file in sorted(folder.rglob("*")):
            if file.suffix not in TYPES:
                continue
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
            path = f"/static/{file.stem}.{digest}{file.suffix}"
            self._paths[file.name] = path
            self._files[path] = Asset(content, TYPES[file.suffix])

    def path(self, name: str) -> str:
        return self._paths[name]

    def find(self, path: str) -> Asset | None:
        return self._files.get(path)
