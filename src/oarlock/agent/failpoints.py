"""Every place where the agent can be made to die, by name.

The tests kill the agent at each of these and look at what is left. A name that is not listed cannot be used, and a
listed one that no test reaches fails the tests, so the list stays true. Nothing here costs anything unless armed.
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
    """Take `NAME:kill` from the environment variable's value. An unknown name is an error, not a silent no-op."""
    global _armed
    name, _, action = setting.partition(":")
    if name and (name not in NAMES or action != "kill"):
        raise ValueError(
            "{}={!r}: the form is NAME:kill, NAME one of {}".format(ENVIRONMENT_NAME, setting, ", ".join(NAMES))
        )
    _armed = name


def failpoint(name: str) -> None:
    """Die here by SIGKILL, with nothing flushed and nothing cleaned up, if this point is armed."""
    if _armed == name:
        os.kill(os.getpid(), 9)
