"""The one error tree.

    OarlockError
    ├── InvalidInput        the request can never work as written        exit 2, HTTP 422
    │   ├── UnknownField
    │   ├── MethodNotAllowed  a known path, but not with this method   exit 2, HTTP 405
    │   └── Truncated       the body did not arrive whole                exit 1, HTTP 408
    ├── TooLarge            over a stated limit                          exit 1, HTTP 413
    ├── Unauthenticated     no token, or not one of ours                 exit 1, HTTP 401
    ├── Forbidden           known, but not allowed                       exit 1, HTTP 403
    ├── NotFound                                                         exit 1, HTTP 404
    ├── Conflict            the state has moved on                       exit 1, HTTP 409
    │   ├── NameTaken
    │   ├── VersionMismatch compare-and-swap lost
    │   ├── AlreadyHeld     the slot has a holder
    │   ├── OffsetMismatch  a stream is not that long: go on at `.length`
    │   └── Unsupported     this backend cannot do that                  exit 1, HTTP 409
    ├── Gone                compacted or stale: list again               exit 1, HTTP 410
    │   ├── StaleTask       an earlier attempt or incarnation speaks
    │   └── StaleEpoch      an earlier leader speaks
    ├── Impossible          no state of the cluster could run this       exit 1, HTTP 422
    └── Unavailable         not now: try again                           exit 1, HTTP 503
        ├── GivenUp         no further try would help
        └── ServerNotFound

Every error carries what happened and `hint`, the next step. `path` names the offending field (`roles.worker.gpus`).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

_NUMBERED = re.compile(r"^\[Errno -?\d+\] ")


class OarlockError(Exception):
    """Root of the tree. `code` is the stable word for programs, `status` the HTTP status, `exit_code` the CLI's."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", path: str = "", detail: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        step = f"\n  {self.hint}" if self.hint else ""
        return f"{where}{self.message}{step}"


class InvalidInput(OarlockError):
    code, status, exit_code = "invalid_input", 422, 2


class UnknownField(InvalidInput):
    code = "unknown_field"


class MethodNotAllowed(InvalidInput):
    code, status = "method_not_allowed", 405


class Truncated(InvalidInput):
    code, status, exit_code = "truncated", 408, 1


class TooLarge(OarlockError):
    code, status = "too_large", 413


class Unauthenticated(OarlockError):
    code, status = "unauthenticated", 401


class Forbidden(OarlockError):
    code, status = "forbidden", 403


class NotFound(OarlockError):
    code, status = "not_found", 404


class Conflict(OarlockError):
    code, status = "conflict", 409


class NameTaken(Conflict):
    code = "name_taken"


class VersionMismatch(Conflict):
    code = "version_mismatch"


class AlreadyHeld(Conflict):
    code = "already_held"


class OffsetMismatch(Conflict):
    """The stored length of the stream is `length`. It travels as `detail`, so that a client has it too."""

    code = "offset_mismatch"

    @property
    def length(self) -> int:
        return int(self.detail["length"])


class Unsupported(Conflict):
    code = "unsupported"


class Gone(OarlockError):
    code, status = "gone", 410


class StaleTask(Gone):
    code = "stale_task"


class StaleEpoch(Gone):
    code = "stale_epoch"


class Impossible(OarlockError):
    code, status = "impossible", 422


class Unavailable(OarlockError):
    code, status = "unavailable", 503


class GivenUp(Unavailable):
    code = "given_up"


class ServerNotFound(Unavailable):
    code = "server_not_found"


def words(cause: BaseException) -> str:
    """Return a foreign exception in plain words, without the numbers and classes that systems and libraries add."""
    if isinstance(cause, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return _NUMBERED.sub("", str(cause)).strip() or type(cause).__name__


def tree(root: type[OarlockError] = OarlockError) -> dict[str, type[OarlockError]]:
    """Return every error by its code, so that a client raises the server's error."""
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(tree(child))
    return found
