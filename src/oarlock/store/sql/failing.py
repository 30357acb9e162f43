"""Failures of a database, in our words: worth another try at once, not now, or never."""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa

from oarlock.spec import errors

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_AGAIN = {"40001", "40P01"}  # serialisation failure, deadlock
_FULL = {"53100", "53200", "53400"}  # disk full, out of memory, a configured limit


def again(failure: BaseException) -> bool:
    """Return whether nothing happened and the same may work at once: two transactions met, or the connection was lost
    before.
    """
    if not isinstance(failure, sa.exc.DBAPIError):
        return False
    cause = failure.orig
    return failure.connection_invalidated or _state(cause) in _AGAIN


def fatal(failure: BaseException) -> bool:
    """Return whether the transaction as a whole is lost, and not only the change that met the failure."""
    return isinstance(failure, sa.exc.OperationalError | sa.exc.InternalError | sa.exc.InterfaceError)


def translated(failure: BaseException, where: str) -> BaseException:
    """Return the error to raise instead, which names `where` the database is; other errors stay as they are."""
    problem = _problem(failure, where)
    if problem is None:
        return failure
    problem.__cause__ = failure
    return problem


def _problem(failure: BaseException, where: str) -> errors.OarlockError | None:
    if isinstance(failure, sa.exc.TimeoutError):
        return errors.Unavailable(f"all connections to {where} are busy", hint="Try again in a moment.")
    if not isinstance(failure, sa.exc.DBAPIError):
        return None
    if isinstance(failure, sa.exc.IntegrityError):
        return errors.Conflict("the change contradicts what is stored", hint="Read it again and repeat the change.")
    if isinstance(failure, sa.exc.DataError):
        return errors.InvalidInput(
            f"the database cannot keep this: {_brief(failure.orig)}", hint="Use text without NUL, and smaller numbers."
        )
    cause = failure.orig
    if isinstance(cause, sqlite3.Error):
        return _sqlite(cause, where)
    return _postgres(cause, where)


def _sqlite(cause: sqlite3.Error, where: str) -> errors.Unavailable:
    name = getattr(cause, "sqlite_errorname", "") or ""
    if name == "SQLITE_FULL":
        return errors.Unavailable(
            f"the disk of {where} is full; nothing was changed",
            hint=f"Free some space there, then try again: df {where}",
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return errors.Unavailable(
            f"another process holds {where}", hint=f"Wait until it is done, or find the program: fuser {where}"
        )
    if name.startswith("SQLITE_IOERR"):
        return errors.Unavailable(
            f"the disk of {where} fails ({name}); the change may be lost",
            hint="Look for disk errors in the system's log (dmesg) and for free space, then try again.",
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return errors.Unavailable(
            f"{where} cannot be opened for writing ({name})",
            hint=f"Make the file and its directory writable: ls -ld {where}",
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return errors.Unavailable(
            f"{where} is damaged, or no database ({name})",
            hint="Move it away and restore a backup; `sqlite3 FILE .recover` saves what can be read.",
        )
    return errors.Unavailable(f"{where}: {_brief(cause)}", hint="Try again; if it stays, look at the server's log.")


def _postgres(cause: BaseException | None, where: str) -> errors.Unavailable:
    state = _state(cause)
    if state in _FULL:
        return errors.Unavailable(
            f"{where} has no room left ({state}); nothing was changed",
            hint="Free some space on its machine, then try again.",
        )
    if state == "55P03":
        return errors.Unavailable(f"another process holds the lock of {where}", hint="Try again in a moment.")
    if state in _AGAIN:
        return errors.Unavailable(f"too many changes met in {where}", hint="Try again in a moment.")
    return errors.Unavailable(
        f"{where} cannot be used: {_brief(cause)}",
        hint="See that it runs and can be reached (pg_isready), then try again.",
    )


def _state(cause: BaseException | None) -> str | None:
    """Return PostgreSQL's code of the error. SQLite's errors have none, and a server over SQLite imports no psycopg."""
    state = getattr(cause, "sqlstate", None)
    return str(state) if state is not None else None


def _brief(cause: BaseException | None) -> str:
    """Return the first line of a driver's message."""
    return (str(cause or "").strip().splitlines() or ["no reason was given"])[0]
