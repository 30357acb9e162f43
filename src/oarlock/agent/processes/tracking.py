"""The means to find the agent's descendants, even after they have left their session, parents and environment.

On Linux there are two means, and each finds processes that the other one might miss:

- The agent is the *subreaper* of its descendants: a process whose parent has ended becomes a child of the agent, not of
  process 1. So a walk from parents to children finds every process that the agent ever started.
- The agent has a *limit mark*: a soft limit on real-time CPU time (RLIMIT_RTTIME), far above any time that can pass and
  different for each task. Children inherit it, and neither `setsid` nor `exec` nor an empty environment changes it.
  Other programs can read it in /proc/PID/limits, even after the agent has died.

On a system with neither (macOS), the processes are known by their sessions and the task's mark alone.
"""

from __future__ import annotations

from oarlock.agent.processes import procfs

PR_SET_CHILD_SUBREAPER = 36


class Tracking:
    """The means in force.

    `adopts`: orphans become children of this process. `limit_mark`: the mark they carry, or None.
    """

    def __init__(self, adopts: bool = False, limit_mark: int | None = None) -> None:
        self.adopts, self.limit_mark = adopts, limit_mark


def begin(limit_mark: int | None) -> Tracking:
    """Let this process adopt its orphans and carry the mark, if the system can do that; return the means in force."""
    return Tracking(_adopt_orphans(), limit_mark if limit_mark is not None and _carry(limit_mark) else None)


def _adopt_orphans() -> bool:
    try:
        import ctypes

        done = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False
    return bool(done)


def _carry(limit_mark: int) -> bool:
    try:
        import resource

        limit: int = resource.RLIMIT_RTTIME
        resource.setrlimit(limit, (limit_mark, resource.getrlimit(limit)[1]))
    except (ImportError, AttributeError, OSError, ValueError):
        return False  # another system, or a hard limit that an administrator has set lower
    return procfs.limit_mark(procfs.OWN) == limit_mark
