"""The parts of the cluster that pages show, each with the lines of the event log that may change it.

An open page names its topics, and fetches itself again only after news of one of them. `job:ID` is one job in full. The
topics of a kind of line are those which it may change; a kind that is not listed here may change all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.spec import bodies, events

JOBS = "jobs"
"""The summaries of jobs: phases, reasons, counts."""
QUEUE = "queue"
"""The jobs that wait: their order, reasons and expected starts."""
NODES = "nodes"
"""Nodes and devices, and the jobs that hold them."""
POOLS = "pools"
EVERYTHING = "*"

SHARED = frozenset({QUEUE, NODES, POOLS})
"""The topics that show the jobs of all users: an event of another user's job may change them."""

MOST = 100
"""The most topics of a message; more are told as everything."""

_OF_ONE_JOB = frozenset[str]()
_KINDS: dict[str, frozenset[str]] = {
    "projected": _OF_ONE_JOB,
    "task_kept": _OF_ONE_JOB,
    "logs_missing": _OF_ONE_JOB,
    "stacks_taken": _OF_ONE_JOB,
    "stacks_asked": _OF_ONE_JOB,
    "checkpoint_visible": _OF_ONE_JOB,
    "checkpoint_restored": _OF_ONE_JOB,
    "batch_decided": _OF_ONE_JOB,
    "task_registered": frozenset({JOBS}),
    "task_reported": frozenset({JOBS}),
    "task_hindered": frozenset({JOBS}),
    "task_exited": frozenset({JOBS}),
    "intended": frozenset({JOBS, QUEUE}),
    "edited": frozenset({JOBS, QUEUE, POOLS}),
    "refused": frozenset({JOBS, QUEUE}),
    "nodes_requested": frozenset({JOBS, QUEUE}),
    events.NODES: SHARED,
    events.POOLS: SHARED,
}


SLOW_S, SOON_S = 60, 5
"""Seconds after which a page with a forecast fetches itself without news: time moves it; and where it lacks events."""


def refresh(seq: int, forecast: bodies.Forecasts) -> int:
    """Return the seconds after which a page with event `seq` fetches itself anew because of its forecast."""
    return SLOW_S if forecast.seq >= seq else SOON_S


def of_job(job: str) -> str:
    return f"job:{job}"


def of(lines: Iterable[events.Record]) -> frozenset[str]:
    """Return the topics that these lines of the log may have changed."""
    found: set[str] = set()
    for line in lines:
        if line.job:
            found.add(of_job(line.job))
        found |= _KINDS.get(line.kind, SHARED | {JOBS})
    return frozenset(found) if len(found) <= MOST else frozenset({EVERYTHING})
