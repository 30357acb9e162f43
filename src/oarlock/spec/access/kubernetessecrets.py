"""A key of a Kubernetes Secret, to which a secret of the server refers: the server has the name, and never the value.

The namespace of the pods also holds the server's own Secrets, with the tokens of tasks. A job that
could name one of them would act as another job's task. Their names begin with the id of a job and the number of an
attempt, and such names are refused.
"""

from __future__ import annotations

import re

import msgspec

from oarlock.spec import errors

CAPABILITY = "secret-references"
"""A capability of the server: tasks get the values of Kubernetes Secrets."""

_SECRET = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_OF_A_GANG = re.compile(r"j-[0-9a-z]+-[0-9]+-.*")


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Secret `secret` in the namespace of the pods, and the item `key` of its data."""

    secret: str
    key: str

    def __str__(self) -> str:
        return f"{self.secret}/{self.key}"


class Named(msgspec.Struct, frozen=True):
    """A secret of a job, and the key of the Kubernetes Secret that has its value."""

    name: str
    at: Reference

    def __str__(self) -> str:
        return f"{self.name}={self.at}"


def parse(text: str) -> Reference:
    """Return the reference that `SECRET/KEY` names. Raises InvalidInput."""
    secret, slash, key = text.partition("/")
    if not slash:
        raise errors.InvalidInput(
            f"{text[:300]!r} does not name a key of a Secret.", path="kubernetes", hint="Write it as SECRET/KEY."
        )
    found = Reference(secret, key)
    judge(found)
    return found


def judge(told: Reference) -> None:
    """Raise InvalidInput for a name that Kubernetes does not take, and for a Secret of the server's own."""
    if _OF_A_GANG.fullmatch(told.secret):
        raise errors.InvalidInput(
            f"The Secret {told.secret} is one of Oarlock's own: such Secrets hold the tokens of tasks, with which a job"
            " could act as another job.",
            path="kubernetes.secret",
            hint="Put the value into a Secret of another name, which does not begin like j-01hf7yat00wzvc04bq-1-.",
        )
    if not _SECRET.fullmatch(told.secret):
        raise errors.InvalidInput(
            f"{told.secret[:300]!r} is not a valid name of a Secret.",
            path="kubernetes.secret",
            hint="Use small letters, digits, hyphens and dots, as `kubectl get secrets` shows it.",
        )
    if not _KEY.fullmatch(told.key):
        raise errors.InvalidInput(
            f"{told.key[:300]!r} is not a valid key of a Secret.",
            path="kubernetes.key",
            hint="Use letters, digits, hyphens, dots and underscores.",
        )
