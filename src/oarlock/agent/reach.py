"""The command `agent.pyz --reach URL`: try whether the server can be reached from here, as agents reach it.

A server runs it in a pod when it starts. The variable OARLOCK_CA holds the PEM of the authority that agents trust, if
the system's do not suffice. Exit status 0: the server answered. 1: it did not, and stderr says why.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

from oarlock.agent.assignment import Assignment
from oarlock.agent.protocol import client

CA_VARIABLE = "OARLOCK_CA"
PAUSE_S = 1.0
UNAUTHENTICATED = 401


def reach(url: str, patience_s: float) -> int:
    """Ask until the server answers, or until the patience ends."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as authority:
        authority.write(os.environ.get(CA_VARIABLE, ""))
        authority.flush()
        ca_file = authority.name if os.environ.get(CA_VARIABLE) else None
        task = Assignment("/", {"key": "reach/1/worker/0/1", "server": url, "command": "", "ca_file": ca_file})
        deadline = time.monotonic() + patience_s
        why = _why_not(task)
        while why and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            why = _why_not(task)
    if why:
        sys.stderr.write(f"{why}\n")
    return 1 if why else 0


def _why_not(task: Assignment) -> str:
    """Return why the server was not reached; empty where it was. It refuses the request, which has no valid token."""
    try:
        connection = client.Connection(task)
    except (OSError, ValueError) as error:
        return _words(error)
    try:
        answer = connection.exchange("GET", "/secrets", None, 0.0, None)
    except (OSError, ValueError) as error:
        return _words(error)
    finally:
        connection.close()
    if answer.status == UNAUTHENTICATED and "error" in answer.json():
        return ""
    return f"the answer has the status {answer.status} and is not that of an Oarlock server"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
