"""The names of all the places where a test can make the agent die.

The tests kill the agent at each of them and examine the result. A name that is not listed cannot be used. A listed name
that no test reaches fails the tests, so the list stays true. A failpoint costs nothing unless it is armed.
"""

from __future__ import annotations

import os

ENVIRONMENT_NAME = "OARLOCK_AGENT_FAILPOINT"

NAMES = (
    "lock.taken",
    "fetch.verified",
    "fetch.unpacked",
    "register.before",
    "register.after",
    "rendezvous.received",
    "process.before_start",
    "process.started",
    "logs.before_send",
    "logs.after_send",
    "stop.after_term",
    "kill.before",
    "kill.after",
    "store.before",
    "exit.before_rename",
    "exit.after_rename",
    "report.before_exit",
    "report.after_exit",
)

_armed = ""


def arm(setting: str) -> None:
    """Arm the failpoint of `NAME:kill`, the environment variable's value. ValueError if the name is unknown."""
    global _armed
    name, _, action = setting.partition(":")
    if name and (name not in NAMES or action != "kill"):
        raise ValueError(
            "{}={!r}: the form is NAME:kill, NAME one of {}".format(ENVIRONMENT_NAME, setting, ", ".join(NAMES))
        )
    _armed = name


def failpoint(name: str) -> None:
    """Die by SIGKILL if this failpoint is armed: nothing is flushed or cleaned up."""
    if _armed == name:
        os.kill(os.getpid(), 9)
