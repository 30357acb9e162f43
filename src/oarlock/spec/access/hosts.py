"""The host of a request: in its Host header, and in the origin of the page that sent it. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def name(host: str) -> str:
    """Return the Host header without its port, in lower case; `[::1]` keeps its brackets."""
    lower = host.lower()
    return lower.partition("]")[0] + "]" if lower.startswith("[") else lower.partition(":")[0]


def of_origin(origin: str) -> str | None:
    """Return host and port of an origin, or None for a text that is not the URL of a host."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:  # an unclosed bracket
        return None
