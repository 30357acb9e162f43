"""The agent's exit record (`exit.json`, docs/agent-protocol.md section 1) as the `Exit` that the job's record keeps.

It reaches the server two ways, reported by the agent and read by the backend that found it, and must mean the same
both times.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.spec import attempts

KEPT_LINES = 20
KEPT_LINE_CHARACTERS = 1000

_PLATFORM_REASONS = frozenset({"orphaned", "port_taken"})
_NEUTRAL_REASONS = frozenset({"stopped", "stale"})


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How one process of the task ended."""

    code: int | None = None
    signal: int | None = None
    ended_at: float | None = None
    last_lines: tuple[str, ...] = ()


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`exit.json`. Fields that a newer agent may add are ignored."""

    code: int
    reason: str = ""
    signal: int | None = None
    killed_by_us: bool = False
    oom: bool = False
    processes: tuple[ProcessRecord, ...] = ()
    ended_at: float | None = None
    kill: str = ""
    step: int | None = None  # the farthest that its processes have told of
    memory_peak_bytes: int | None = None
    detail: str = ""  # the last message of an errand (a download, an installation, an upload)


def read(raw: bytes, *, now: float) -> attempts.Exit:
    """Return the exit record in these bytes. Raises msgspec.DecodeError for anything else."""
    return understand(msgspec.json.decode(raw, type=ExitRecord), now=now)


def understand(record: ExitRecord, *, now: float) -> attempts.Exit:
    """Return the meaning of the record. `now` stands in for a missing time of the end."""
    first = _first_failure(record.processes)
    lines = (*(record.processes[first].last_lines if record.processes else ()), *record.detail.splitlines())
    return attempts.Exit(
        code=record.code,
        cause=_cause(record),
        at=record.ended_at if record.ended_at is not None else now,
        signal=record.signal,
        reason=record.reason,
        last_lines=tuple(line[:KEPT_LINE_CHARACTERS] for line in lines[-KEPT_LINES:]),
        killed_by=record.kill,
        process=first,
        step=record.step,
        memory_peak_bytes=record.memory_peak_bytes,
    )


def _cause(record: ExitRecord) -> attempts.Cause:
    if record.oom or record.reason == "oom":
        return attempts.Cause.OOM
    if record.killed_by_us or record.reason in _NEUTRAL_REASONS:
        return attempts.Cause.STOPPED
    if record.reason in _PLATFORM_REASONS:
        return attempts.Cause.PLATFORM
    if record.code == 0:
        return attempts.Cause.SUCCEEDED
    if record.signal is not None:
        return attempts.Cause.SIGNAL
    return attempts.Cause.ERROR


def _first_failure(processes: Sequence[ProcessRecord]) -> int:
    """Return the process that failed first; the first one where none did."""
    failed = [(one.ended_at or 0.0, place) for place, one in enumerate(processes) if one.code]
    return min(failed)[1] if failed else 0
