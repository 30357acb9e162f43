"""The agent's hold on its descendants, which finds them when they have left session, parents and environment behind.

On Linux there are two means, and each finds what the other one might miss:

- The agent is the *subreaper* of its descendants: a process whose parent has ended becomes a child of the agent, not of
  process 1. So everything that the agent ever started is found by walking from parents to children.
- The agent has a *limit mark*: a soft limit on real-time CPU time (RLIMIT_RTTIME) far above any time that can pass,
  another one for each task. Like every limit it is inherited by children, and neither `setsid` nor `exec` nor an
  emptied environment changes it. Others read it in /proc/PID/limits, also when the agent is dead.

Where a system has none of them (macOS), the task is known by its sessions and its mark alone.
"""

from __future__ import annotations

from oarlock.agent import procfs

PR_SET_CHILD_SUBREAPER = 36


class Hold:
    """`adopts`: orphans of this process become its children. `limit_mark`: what they carry, or None."""

    def __init__(self, adopts: bool = False, limit_mark: int | None = None) -> None:
        self.adopts, self.limit_mark = adopts, limit_mark


def take(limit_mark: int | None) -> Hold:
    """Let this process adopt its orphans and carry the mark, as far as the system can do either."""
    return Hold(_adopt_orphans(), limit_mark if limit_mark is not None and _carry(limit_mark) else None)


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
