"""Errors on stderr: the place, the message and the next step. OARLOCK_DEBUG=1 adds the traceback."""

from __future__ import annotations

import os
import sys
import traceback

from oarlock.cli.output import terminal
from oarlock.spec import errors


def tell(error: errors.OarlockError, *, as_json: bool = False) -> int:
    """Print the error to stderr and return its exit code."""
    debug(error)
    if as_json:
        _tell_json(error)
        return error.exit_code
    on = terminal.wants_colour(sys.stderr)
    path = f"{terminal.clean(error.path)}: " if error.path else ""
    message = "\n".join(terminal.clean(line) for line in error.message.splitlines())
    terminal.say(f"{terminal.coloured('Error:', 'red', 'bold', on=on)} {path}{message}")
    for line in error.hint.splitlines():
        terminal.say(f"  {terminal.clean(line)}")
    return error.exit_code


def _tell_json(error: errors.OarlockError) -> None:
    import msgspec

    told = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "path": error.path,
        "detail": error.detail,
    }
    terminal.say(msgspec.json.encode({"error": told}).decode())


def tell_usage(message: str, hint: str, *, as_json: bool = False) -> int:
    return tell(errors.InvalidInput(message, hint=hint), as_json=as_json)


def tell_unforeseen(error: BaseException, *, as_json: bool = False) -> int:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:
        return tell(
            errors.OarlockError(
                f"{error.filename}: {error.strerror or error}", hint="Check that the path exists, and its permissions."
            ),
            as_json=as_json,
        )
    return tell(
        errors.OarlockError(
            f"a fault in Oarlock itself: {said}", hint="Please report it, with the output under OARLOCK_DEBUG=1."
        ),
        as_json=as_json,
    )


def debug(error: BaseException) -> None:
    if os.environ.get("OARLOCK_DEBUG"):
        traceback.print_exception(error)
