"""Errors on the wire: what `oarlock.spec.errors` means becomes one JSON body; what did not decode, one of those errors.

Whatever somebody sends gets an answer that names the field and the next step. What nobody foresaw is logged with its
traceback, and answered with a body that says nothing about the inside.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oarlock.spec import bodies, errors, jobfile, validation

PAGE = "docs/rest-api.md"
MAX_QUOTED = 2000
"""The most characters of a message: a sender's own words may be in it."""


def body(error: errors.OarlockError) -> bytes:
    told = bodies.ErrorBody(
        code=error.code,
        message=_quotable(error.message),
        hint=_quotable(error.hint),
        path=_quotable(error.path),
        detail=error.detail,
    )
    return msgspec.json.encode(bodies.Failure(told))


def unforeseen() -> errors.OarlockError:
    return errors.OarlockError(
        "The server failed at this request.", hint="The reason is in server.log of the server's home; please report it."
    )


def from_decoding(error: Exception, raw: bytes, wanted: Any) -> errors.InvalidInput:
    """What is wrong with a body that did not decode as `wanted`: with the path, and the nearest name for an unknown."""
    if isinstance(error, msgspec.ValidationError):
        try:
            page = validation.PAGE if wanted is jobfile.Submission else PAGE
            explained = validation.explained(error, msgspec.json.decode(raw), wanted, page=page)
            if wanted is jobfile.Submission:  # the sender thinks in the job file's paths
                explained.path = explained.path.removeprefix("spec.")
            return explained
        except (ValueError, RecursionError) as deeper:  # wrong in a part that was not looked at before
            error = deeper
    if isinstance(error, RecursionError):
        return errors.InvalidInput("The body is nested too deeply.", hint="No request needs more than ten levels.")
    return errors.InvalidInput(f"The body is not JSON: {str(error)[:200]}.", hint="Send one JSON document in UTF-8.")


def _quotable(text: str) -> str:
    """Text that may hold a sender's own words: shortened, and without what a terminal would obey."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text[:MAX_QUOTED])
    return clean if len(text) <= MAX_QUOTED else f"{clean} ..."
