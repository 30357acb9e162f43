"""The pictures of pages in the documentation. `make pictures` takes them, in Chromium, from a server that stands still.

Beside them stands the digest of each page's accessibility tree (`browser/golden`) at the time of the picture. So a page
whose content has changed since then is known, and one whose pixels alone have changed is not taken anew.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
DIGESTS = FOLDER / "pages.txt"
GOLDEN = Path(__file__).parent / "browser" / "golden"
PAGES = {"home": "home", "job": "job-runs", "metrics": "metrics", "cluster": "cluster", "submit": "submit"}
"""The name of each picture, and that of its page in the golden texts."""
MOST_BYTES = 60_000
WRITES = os.environ.get("OARLOCK_PICTURES") == "write"


def file_of(name: str, theme: str) -> Path:
    return FOLDER / f"{name}-{theme}.webp"


def digest(name: str) -> str:
    return hashlib.sha256((GOLDEN / f"full-{PAGES[name]}.txt").read_bytes()).hexdigest()[:16]


def digests() -> dict[str, str]:
    """Return the digest of each page at the time of its pictures."""
    lines = DIGESTS.read_text().splitlines() if DIGESTS.exists() else []
    return dict(line.split() for line in lines)


def store(name: str, theme: str, picture: bytes) -> None:
    FOLDER.mkdir(exist_ok=True)
    file_of(name, theme).write_bytes(picture)
    known = {**digests(), name: digest(name)}
    DIGESTS.write_text("".join(f"{one} {known[one]}\n" for one in PAGES if one in known))
