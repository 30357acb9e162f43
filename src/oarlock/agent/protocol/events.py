"""The events that the library in the user's process writes to `report/events-N.jsonl`, read as the file grows.

Only whole lines count. The user's process may write anything into the file, so a line that is not an object is skipped.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 256 << 10
LONGEST_LINE_BYTES = 1 << 20
HELLO_FIELDS = ("library", "can_rejoin", "can_stack", "lost_round")
PROGRESS_FIELDS = (
    *("time", "step", "total_steps", "examples_per_s", "loss", "epoch"),
    *("step_s", "sync_s", "ranks", "local", "accumulate", "noise", "gpu_type", "data_s", "sent_bytes"),
)
STRAGGLER_FIELDS = ("slowest_rank", "slowest_s", "fastest_s")  # told by the chief alone, in the first process
RESTORED_FIELDS = ("step", "path")
LONGEST_TEXT = 200
MOST_STEPS = 1 << 53
TAIL_BYTES = 64 << 10  # the part of the file in which the last step is searched
LONGEST_PATH = 4096


class EventFile:
    """The events of one process. `poll` returns the new ones, in order."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._rest = b""

    def poll(self) -> list[dict[str, Any]]:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return []
        data = os.read(self._fd, READ_BYTES)
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE_BYTES:
            self._rest = b""
        return [event for event in map(_parse, lines) if event is not None]


class Events:
    """The events of all processes: `poll` returns those of some kinds, the attributes hold the newest of others."""

    def __init__(self, report: str, nproc: int, kinds: tuple[str, ...] = ("checkpoint",)) -> None:
        self._kinds = kinds
        self._files = [EventFile(os.path.join(report, f"events-{number}.jsonl")) for number in range(nproc)]
        self.hello: dict[str, Any] | None = None
        self.restored: dict[str, Any] | None = None
        self.progress: dict[str, Any] | None = None
        self._straggler: dict[str, Any] = {}
        self.progressed_at: float | None = None  # monotonic; None before the first event

    def poll(self) -> list[dict[str, Any]]:
        """Read the new events; return those of the kinds among them."""
        checkpoints = []
        for number, file in enumerate(self._files):
            for event in file.poll():
                kind = event.get("event")
                if kind in ("hello", "restored", "progress", "checkpoint", "done"):
                    self.progressed_at = time.monotonic()
                if kind == "hello":
                    self.hello = _greeted(self.hello or {}, _only(event, HELLO_FIELDS))
                elif kind == "restored":
                    self.restored = _only(event, RESTORED_FIELDS, LONGEST_PATH)
                elif kind == "progress":
                    if number == 0:
                        self._straggler = _only(event, STRAGGLER_FIELDS)
                    self.progress = {**_only(event, PROGRESS_FIELDS), **self._straggler}
                elif kind in self._kinds:
                    checkpoints.append(event)
        return checkpoints


def last_step(report: str, nproc: int) -> int | None:
    """Return the highest step among the last events of all processes; None if no event names a step."""
    steps = []
    for number in range(nproc):
        path = os.path.join(report, f"events-{number}.jsonl")
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                lines = file.read(TAIL_BYTES).split(b"\n")
        except OSError:
            continue
        told = [event.get("step") for event in map(_parse, lines) if event is not None]
        steps += [step for step in told if type(step) is int and 0 <= step <= MOST_STEPS]
    return max(steps, default=None)


def _greeted(before: dict[str, Any], hello: dict[str, Any]) -> dict[str, Any]:
    """Return this hello, with the newest lost round that any process has told."""
    lost = [one["lost_round"] for one in (before, hello) if type(one.get("lost_round")) is int]
    return {**hello, "lost_round": max(lost)} if lost else hello


def _only(event: dict[str, Any], names: tuple[str, ...], longest: int = LONGEST_TEXT) -> dict[str, Any]:
    """Return the short values of known names: one invalid field must not spoil the whole report."""
    short = (int, float, str, type(None))
    found = {name: event[name] for name in names if name in event and isinstance(event[name], short)}
    return {name: value[:longest] if isinstance(value, str) else value for name, value in found.items()}


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
