"""The schemes of URLs that may be a source of data or a destination of results."""

from __future__ import annotations

from urllib.parse import urlsplit

from oarlock.spec import errors

SCHEMES = ("file", "http", "https", "s3", "gs")
SIGNED = "oarlock:checkpoints"
"""The installation's own place for checkpoints: the server signs the requests of its tasks (`signedplaces`)."""


def signed(url: str) -> bool:
    """Return whether the URL is below the installation's own place for checkpoints."""
    return url.startswith(f"{SIGNED}/")


def of(url: str) -> str:
    """Return the scheme of a URL; `file` for an absolute path. InvalidInput if it is not allowed."""
    if url.startswith("/"):
        return "file"
    found = urlsplit(url).scheme
    if found not in SCHEMES or "\0" in url:
        raise errors.InvalidInput(
            f"{url!r} is not a place from which Oarlock can read or to which it can write",
            hint=f"use an absolute path or a URL with one of the schemes {', '.join(SCHEMES)}",
            path="source",
        )
    return found
