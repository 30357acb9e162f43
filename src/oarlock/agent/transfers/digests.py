"""The SHA-256 of a file, without loading OpenSSL."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def sha256_of(path: str) -> str:
    digest = _sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(1 << 18), b""):
            digest.update(part)
    return str(digest.hexdigest())


def _sha256() -> Any:
    """Return the interpreter's own SHA-256: hashlib would load OpenSSL, a third of the agent's memory."""
    for name in ("_sha2", "_sha256"):
        try:
            return __import__(name).sha256()
        except (ImportError, AttributeError):
            continue
    import hashlib

    return hashlib.sha256()
