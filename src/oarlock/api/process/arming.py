"""Failpoints that the environment arms: the tests kill or stop a server at a named point."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from oarlock.spec.process import failpoints

VARIABLE = "OARLOCK_FAILPOINT"


def arm(environ: Mapping[str, str]) -> None:
    """Arm the failpoint of the environment: `OARLOCK_FAILPOINT=guardian.after_launch` kills this process there.

    `NAME:3` kills it the third time. `NAME:3:stop` stops it then, as SIGSTOP does; a SIGCONT lets it go on.
    `NAME:3:kill:PATH` counts only while there is a file at this path.
    """
    wanted = environ.get(VARIABLE)
    if not wanted:
        return
    name, count, action, while_there = [*wanted.split(":", 3), "", "", ""][:4]
    left = int(count or 1)

    def end() -> None:
        nonlocal left
        if while_there and not Path(while_there).exists():
            return
        left -= 1
        if left == 0:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)

    failpoints.arm(name, end)
