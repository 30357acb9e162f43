"""Errors of the API: an error of `oarlock.spec.errors` becomes a JSON body, and a body that cannot be decoded an error.

An invalid request gets an answer that names the field and the next step. The log gets an unexpected exception with its
traceback; the client does not see the details.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oarlock.spec import bodies, errors, jobfile
from oarlock.spec.input import validation

PAGE = "docs/rest-api.md"
MAX_QUOTED = 2000
"""The longest message. It may quote the request."""


def body(error: errors.OarlockError) -> bytes:
    """Return the JSON body for an error."""
    told = bodies.ErrorBody(
        code=error.code,
        message=_quotable(error.message),
        hint=_quotable(error.hint),
        path=_quotable(error.path),
        detail=error.detail,
    )
    return msgspec.json.encode(bodies.Failure(told))


def unforeseen() -> errors.OarlockError:
    """Return the error for an unexpected exception."""
    return errors.OarlockError(
        "The server failed to handle this request.",
        hint="Please report it, with the reason from server.log in the server's home.",
    )


def from_decoding(error: Exception, raw: bytes, wanted: Any) -> errors.InvalidInput:
    """Return the error for a body that cannot be decoded as `wanted`: the field's path, and the nearest known name."""
    if isinstance(error, msgspec.ValidationError):
        try:
            page = validation.PAGE if wanted is jobfile.Submission else PAGE
            explained = validation.explained(error, msgspec.json.decode(raw), wanted, page=page)
            if wanted is jobfile.Submission:  # users know the paths of the job file
                explained.path = explained.path.removeprefix("spec.")
            return explained
        except (ValueError, RecursionError) as deeper:  # another part of the body is wrong, too
            error = deeper
    if isinstance(error, RecursionError):
        return errors.InvalidInput("The body is nested too deeply.", hint="Use at most ten levels.")
    return errors.InvalidInput(f"The body is not JSON: {str(error)[:200]}.", hint="Send one JSON document in UTF-8.")


def _quotable(text: str) -> str:
    """Return a text that may quote the request, shortened and without control characters."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text[:MAX_QUOTED])
    return clean if len(text) <= MAX_QUOTED else f"{clean} ..."
