"""The task to blame for the end of an attempt, and the words for it.

When one rank dies the others follow, most of them with a broken connection as their error. So blame waits for a second
after the first failure; then it goes to the gravest cause, and among equal causes to the earliest.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec

from oarlock.lifecycle.failures import hints
from oarlock.spec import attempts, jobfile, phases

SETTLE_S = 1.0
"""How long after the first failure the others' are waited for."""

GRAVITY: tuple[attempts.Cause, ...] = (
    attempts.Cause.PLATFORM,
    attempts.Cause.OOM,
    attempts.Cause.SIGNAL,
    attempts.Cause.ERROR,
    attempts.Cause.LEFT_EARLY,
    attempts.Cause.PEER,
)
"""The gravest first: a later cause is usually the consequence of an earlier one."""

PEER_LOST: tuple[str, ...] = (
    # The sockets' own words, in any library
    "Connection reset by peer",
    "Connection closed by peer",
    "Connection refused",
    "ECONNREFUSED",
    "ECONNRESET",
    "Broken pipe",
    "Socket closed",
    # Python's names of broken connections: a library may raise them with words of its own
    "ConnectionResetError",
    "ConnectionAbortedError",
    "ConnectionRefusedError",
    "BrokenPipeError",
    # torch.distributed: gloo, NCCL, the TCP store
    "DistBackendError",
    "DistNetworkError",
    "gloo::EnforceNotMet",
    "gloo::IoException",
    "ncclRemoteError",
    "ncclSystemError",
    "NCCL communicator was aborted",
    "Watchdog caught collective operation timeout",
    "failed to recv, got 0 bytes",
    # JAX and TensorFlow: the coordination service
    "coordination service",
    "CoordinationServiceError",
    "heartbeat timeout",
    "UnavailableError",
    "remote process exit",
    # MPI
    "lost communication with a remote",
    "MPI_ERR_PROC_FAILED",
)
"""Last lines of a process after the death of a peer. Compared without regard to case."""

_PEER_LOST = tuple(phrase.lower() for phrase in PEER_LOST)


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    cause: attempts.Cause
    message: str


def lost_a_peer(lines: Iterable[str]) -> bool:
    return any(phrase in line.lower() for line in lines for phrase in _PEER_LOST)


def refined(how: attempts.Exit) -> attempts.Exit:
    """Return the exit with its true cause: errors and watchdog aborts that a lost peer has caused are called so.

    The failure of a download or an upload is never a peer's doing, whatever the network says.
    """
    if how.reason in _REASONS:
        return how
    aborted = how.cause is attempts.Cause.SIGNAL and how.signal == signal.SIGABRT
    if (how.cause is attempts.Cause.ERROR or aborted) and lost_a_peer(how.last_lines):
        return msgspec.structs.replace(how, cause=attempts.Cause.PEER)
    return how


def settle(tasks: Iterable[attempts.Task], spec: jobfile.JobSpec) -> Blame | None:
    """Return the task to blame among those that failed, or None. One of its processes is named where it has several."""
    failed = [task for task in tasks if task.phase is phases.TaskPhase.FAILED and task.exit is not None]
    if not failed:
        return None
    guilty = min(failed, key=_gravity)
    message = sentence(guilty, _several(spec, guilty))
    if _cause(guilty) is attempts.Cause.OOM:
        message += hints.took(spec, guilty)
    return Blame(task=guilty.name, cause=_cause(guilty), message=message)


def _several(spec: jobfile.JobSpec, task: attempts.Task) -> bool:
    return task.role in spec.roles and spec.roles[task.role].nproc > 1


def _gravity(task: attempts.Task) -> tuple[int, float, str]:
    at = task.exit.at if task.exit is not None else task.phase_at
    return GRAVITY.index(_cause(task)), at, task.name


def _cause(task: attempts.Task) -> attempts.Cause:
    cause = task.exit.cause if task.exit is not None else attempts.Cause.PLATFORM
    return cause if cause in GRAVITY else attempts.Cause.ERROR


def sentence(task: attempts.Task, several: bool = False) -> str:
    """Return how the task failed, for people: `worker-1 was killed by SIGKILL`, or with several processes in it
    `worker-1, process 0, was killed by SIGKILL`.
    """
    how = task.exit
    if how is None:
        return f"{task.name} was lost"
    who = f"{task.name}, process {how.process}," if several else task.name
    if how.cause is attempts.Cause.PLATFORM:
        return f"{task.name} was lost: {_REASONS.get(how.reason, how.reason) or 'exit unknown'}"
    if how.cause is attempts.Cause.OOM:
        return f"{task.name} ran out of memory"
    if how.cause is attempts.Cause.SIGNAL:
        return f"{who} was killed by {signal_name(how.signal)}"
    if how.cause is attempts.Cause.LEFT_EARLY:
        return f"{who} ended while it was still needed"
    if how.cause is attempts.Cause.PEER:
        return f"{who} exited with code {how.code}: a connection to a peer broke"
    if how.reason in _REASONS:
        return f"{task.name}: {_REASONS[how.reason]}"
    return f"{who} exited with code {how.code}"


def explains(known: attempts.Exit, told: attempts.Exit) -> bool:
    """Return whether `told` says why a task was stopped from outside, of which only the fact is known."""
    fact = known.cause is attempts.Cause.PLATFORM and known.reason == "stopped"
    return fact and told.cause is attempts.Cause.PLATFORM and bool(told.reason) and told.reason not in _REASONS


def signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


_REASONS = {
    "exit_unknown": "it ended without an exit record",
    "orphaned": "it had no contact to the server for too long",
    "port_taken": "a port that is held for it was taken by another program",
    "not_admitted": "it ended before it was admitted at the barrier",
    "stopped": "it was stopped from outside",
    "stale": "it believed itself to be stale",
    "download_failed": "the code or data could not be fetched",
    "secret_missing": "one of its secrets was changed",
    "environment_failed": "its dependencies could not be installed",
    "command_not_found": "the command was not found",
    "store_failed": "the results could not be uploaded",
}
