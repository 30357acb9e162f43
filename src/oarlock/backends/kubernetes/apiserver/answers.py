"""The API server's errors as errors of our own tree. The server's own message is kept: it names quota and webhook."""

from __future__ import annotations

import msgspec

from oarlock.backends.kubernetes.apiserver import objects
from oarlock.spec import errors

ALREADY_EXISTS = "AlreadyExists"

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Codes of answers after which the same request is sent again. Every request of ours may be repeated."""

_KINDS: dict[int, tuple[type[errors.OarlockError], str]] = {
    401: (errors.Unauthenticated, "Check the credentials: kubectl --kubeconfig FILE auth can-i list pods"),
    403: (
        errors.Forbidden,
        "Give the account the right that it lacks, or change the quota or webhook that the message names.",
    ),
    404: (errors.NotFound, "Look at the object again."),
    405: (errors.MethodNotAllowed, "The cluster does not offer this request."),
    409: (errors.Conflict, "Look at the object again."),
    410: (errors.Gone, "List the objects again."),
    413: (errors.TooLarge, "Make the object smaller."),
    422: (errors.InvalidInput, "Correct the field that the message names."),
}


def status(code: int, body: bytes) -> objects.Status:
    """Return the status in an answer. A proxy in front of the API server may have written something else."""
    try:
        found = msgspec.json.decode(body, type=objects.Status)
    except msgspec.MsgspecError:
        found = objects.Status(message=body[:200].decode(errors="replace").strip())
    return msgspec.structs.replace(found, code=code)


def error(found: objects.Status) -> errors.OarlockError:
    """Return the error with the status as its `detail`."""
    kind, hint = _KINDS.get(found.code, (errors.Unavailable, "It is tried again."))
    return kind(found.message or f"the API server answered {found.code}", hint=hint, detail=found)


def reason(failure: errors.OarlockError) -> str:
    """Return the server's one-word reason, such as `AlreadyExists`; empty where the error is not one of its answers."""
    return failure.detail.reason if isinstance(failure.detail, objects.Status) else ""
