"""Failures between client and server as errors of the one tree, and the pauses before another try. Pure."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import msgspec

from oarlock.client import answers, places, requests
from oarlock.spec import bodies, errors

T = TypeVar("T")

UNSENT_PAUSES_S = (0.05, 0.2)
MOST_CAUSES = 16
LOST_PAUSES_S = (0.1, 0.3, 1.0, 2.0)


class Unsent(errors.ServerNotFound):
    """No connection was made. The server has seen no request, so every request may be repeated."""


class Lost(errors.Unavailable):
    """The connection broke or timed out after the request, or a part of it, had been sent."""


def from_response(status: int, body: bytes) -> errors.OarlockError:
    """Return the error in the body of an answer. A body of another form becomes the error of its HTTP status."""
    try:
        return raised(msgspec.json.decode(body, type=bodies.Failure).error, status)
    except (msgspec.DecodeError, RecursionError):
        return raised(bodies.ErrorBody(code="", message=f"the server answered {status}" + _first_line(body)), status)


def raised(told: bodies.ErrorBody, status: int = 500) -> errors.OarlockError:
    """Return the error that the server raised: its class by its code, else by the HTTP status."""
    kind = errors.tree().get(told.code) or _BY_STATUS.get(status, errors.OarlockError)
    hint = told.hint or _HINTS.get(status, "")
    return kind(told.message or f"the server answered {status}", hint=hint, path=told.path, detail=told.detail)


_BY_STATUS: dict[int, type[errors.OarlockError]] = {
    400: errors.InvalidInput,
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.TooLarge,
    422: errors.InvalidInput,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
_HINTS = {
    401: "Log in with `oarlock login URL`, or set OARLOCK_TOKEN.",
    404: "List your jobs with `oarlock ps`.",
}


def decoded(body: bytes, kind: type[T]) -> T:
    """Return the decoded body of an answer. Raises OarlockError for a body of another form."""
    if kind is answers.Nothing and not body.strip():
        body = b"{}"
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.OarlockError(
            f"the server's answer cannot be decoded: {error}",
            hint="Check that it is an Oarlock server of this version: oarlock version",
        ) from error


def unsent(place: places.Place, named: str, cause: Exception) -> Unsent:
    """Return the error for a failed connection. `named` is the setting that names the server."""
    said = f"no server answers at {place.url} ({errors.words(_system_error(cause))})"
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        return Unsent(
            f"the certificate of {place.url} is not trusted",
            hint="Name the file of its authority: OARLOCK_CA_FILE=ca.pem.",
        )
    if place.local:
        return Unsent(said, hint="Start one with `oarlock up --detach`; `oarlock doctor` finds the cause.")
    return Unsent(
        said, hint=f"Check that the server runs, and its address, which comes from {named or 'the settings'}."
    )


def _system_error(cause: BaseException) -> BaseException:
    """Return the system's error below the libraries' errors, else `cause`: asyncio only tells that all tries failed."""
    found: BaseException | None = cause
    for _ in range(MOST_CAUSES):
        if isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is None or (isinstance(found, OSError) and found.errno):
            break
        found = found.__cause__ or found.__context__
    if isinstance(found, OSError) and found.errno is not None and found.errno > 0:
        return OSError(found.errno, os.strerror(found.errno))
    return cause


def lost(place: places.Place, cause: Exception) -> Lost:
    """Return the error for a broken connection."""
    return Lost(f"the connection to {place.url} was lost ({errors.words(cause)})", hint="Try again in a moment.")


def pause_s(request: requests.Request[Any], failure: errors.OarlockError, tries: int) -> float | None:
    """Return the seconds before the next try, after the failure of try number `tries`; None means to give up."""
    if isinstance(failure, Unsent):
        pauses: tuple[float, ...] = UNSENT_PAUSES_S
    elif (
        isinstance(failure, errors.Unavailable)
        and not isinstance(failure, errors.ServerNotFound)
        and request.repeatable
    ):
        pauses = LOST_PAUSES_S
    else:
        return None
    return pauses[tries - 1] if tries <= len(pauses) else None


def _first_line(body: bytes) -> str:
    text = body[:300].decode("utf-8", "replace").strip()
    return f": {text.splitlines()[0][:120]}" if text else ""
