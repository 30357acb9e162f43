"""Parts of a connection that both clients share: time limits, headers, trust, and httpx's errors as ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from oarlock.client import failures, places, requests
from oarlock.spec import errors

CONNECT_TIMEOUT_S = 5.0
STREAM_PAUSE_S = 75.0
"""A stream that is silent for this long is opened again: the other machine may be gone without notice."""


@contextlib.contextmanager
def translated(place: places.Place, named: str) -> Iterator[None]:
    """Raise httpx's errors as ours."""
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
        raise failures.unsent(place, named, error) from error
    except (httpx.TransportError, httpx.InvalidURL, httpx.StreamError) as error:
        raise failures.lost(place, error) from error


def headers_of(place: places.Place, request: requests.Request[Any]) -> dict[str, str]:
    """Return the headers of a request. Raises Unauthenticated."""
    headers = {"Accept": "application/json", **request.headers}
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    if place.token is not None:
        headers["Authorization"] = f"Bearer {token_of(place)}"
    return headers


def token_of(place: places.Place) -> str:
    """Return the token. Raises Unauthenticated where it cannot be part of a header."""
    token = place.token or ""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise errors.Unauthenticated(
            "the token contains invalid characters", hint="Set OARLOCK_TOKEN again, or run `oarlock login URL`."
        )
    return token


def trust(place: places.Place) -> Any:
    """Return the certificates that httpx trusts. Reading them takes 20 ms, which plain HTTP does not need."""
    if not place.url.startswith("https:"):
        return False
    if place.ca_file is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=place.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise errors.InvalidInput(
            f"{place.ca_file} cannot be used: {errors.words(error)}",
            path="ca_file",
            hint="Name a PEM file of the authority.",
        ) from error
