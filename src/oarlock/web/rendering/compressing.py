"""Compression of whole answers. A stream of news is not compressed: each of its messages must leave at once.

Pages hold no secret, so the length of a compressed page tells no one anything. Another site gets no page of a user,
because the cookie is a strict one; a page of another port of this host may ask for one, but the browser shows it
neither the page nor its length.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Mapping

from starlette import responses

LEAST_BYTES = 500
LEVEL = 5


def worth(response: responses.Response) -> bool:
    """Return whether the answer is long enough to be compressed, and is not compressed yet."""
    if isinstance(response, responses.StreamingResponse) or "content-encoding" in response.headers:
        return False
    return len(getattr(response, "body", b"")) >= LEAST_BYTES


def compress(response: responses.Response, asked: Mapping[bytes, bytes]) -> None:
    """Compress the body in place, if the browser takes it and it is worth it."""
    if not worth(response) or not taken(asked.get(b"accept-encoding", b"").decode("latin-1")):
        return
    body, stored = bytes(response.body), "vary" in response.headers
    response.body = _kept(body) if stored else packed(body)
    response.headers["content-encoding"] = "gzip"
    response.headers["content-length"] = str(len(response.body))


def packed(content: bytes) -> bytes:
    return gzip.compress(content, LEVEL)


def taken(accepted: str) -> bool:
    """Return whether the browser takes gzip, by its header Accept-Encoding: `gzip;q=0` refuses it."""
    for one in accepted.lower().split(","):
        name, _, weight = one.replace(" ", "").partition(";q=")
        if name == "gzip":
            return not weight or weight.strip("0.") != ""
    return False


@functools.lru_cache(maxsize=32)
def _kept(content: bytes) -> bytes:
    """Return a static file, compressed once."""
    return gzip.compress(content, 9)
