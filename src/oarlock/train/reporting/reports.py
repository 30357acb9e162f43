"""The reports of a training process, written without delaying the training.

`log` puts a row into a queue and returns. A daemon thread writes the queued rows every 0.25 s, or when there are 64 KB:
as whole frames of `metrics-N.bin`, points of TensorBoard's event file, progress events, and a line on the terminal. GPU
values are copied on their device and fetched together by the thread: logging never waits for the GPU. Events that the
server acts on (a checkpoint, the end) are written at once. The formats are those of docs/agent-protocol.md, section 3.
This module works without torch.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oarlock.train.reporting.fetching import NUMBERS, Fetching
from oarlock.train.reporting.progress import Line, Progress
from oarlock.train.reporting.rows import Row, Sink

VERSION = "0.1.0"
FLUSH_S = 0.25
FLUSH_BYTES = 64 << 10
PROGRESS_EVERY_S = 1.0  # with the event at the end at most two in any second
QUEUED_ROWS = 50_000
UNSENT_BYTES = 16 << 20

_FRAME = struct.Struct("<BI")
_ROW_HEAD = struct.Struct("<HQd")


class Appender:
    """An append-only file of whole records.

    The rest of a record that a full disk cut off is written first next time.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._unsent = b""

    def write(self, records: bytes) -> None:
        """Write records. After an OSError they wait for the next call, up to UNSENT_BYTES of them."""
        if len(self._unsent) + len(records) <= UNSENT_BYTES:
            self._unsent += records
        while self._unsent:
            self._unsent = self._unsent[os.write(self._descriptor, self._unsent) :]

    def close(self) -> None:
        os.close(self._descriptor)


class MetricFrames:
    """The sink `metrics-N.bin`: a schema frame for each new set of names, then a row frame for each row."""

    def __init__(self, path: Path) -> None:
        self._file = Appender(path)
        self._schemas: dict[tuple[str, ...], tuple[int, struct.Struct]] = {}

    def write(self, rows: Sequence[Row]) -> None:
        frames = []
        for row in rows:
            schema = self._schemas.get(row.names)
            if schema is None:
                schema = self._schemas[row.names] = (len(self._schemas), struct.Struct(f"<BIHQd{len(row.names)}d"))
                payload = json.dumps({"id": schema[0], "names": row.names}).encode()
                frames.append(_FRAME.pack(1, len(payload)) + payload)
            number, layout = schema
            frames.append(layout.pack(2, layout.size - _FRAME.size, number, row.step, row.time, *row.values))
        self._file.write(b"".join(frames))

    def close(self) -> None:
        self._file.close()


class Reports:
    """All reports of one process. `events` and `sinks` may be absent; `line` is for a person at the terminal."""

    def __init__(self, *, events: Path | None = None, sinks: Sequence[Sink] = (), line: Line | None = None) -> None:
        self.progress = Progress()
        self._events = Appender(events) if events else None
        self._sinks = list(sinks)
        self._line = line
        self._fetching = Fetching()
        self._drawing: Sink | None = None  # the chief's file for TensorBoard, one of the sinks
        self._queue: collections.deque[tuple[int, float, tuple[str, ...], tuple[Any, ...]]] = collections.deque()
        self._told = (0, -PROGRESS_EVERY_S, 0)  # step, time and examples of the last progress event
        self._failed: set[str] = set()
        self._writing = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="oarlock-reports", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def begin(self, step: int, examples: int | None) -> None:
        """Count the speed from here: the steps of earlier attempts do not belong to it."""
        self.progress.step, self.progress.examples = step, examples
        self._told = (step, time.monotonic(), examples or 0)

    def draw(self, opened: Callable[[], Sink | None]) -> None:
        """Write rows to the file that `opened` returns, if it returns one, in the place of the one before."""
        with self._writing:
            if self._drawing is not None:
                self._sinks.remove(self._drawing)
                self._guarded(type(self._drawing).__name__, self._drawing.close)
            self._drawing = opened()
            if self._drawing is not None:
                self._sinks.append(self._drawing)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Queue a row. Values are numbers or tensors of one element; ReportError for other values."""
        row = tuple(values.values())
        if not NUMBERS.issuperset(map(type, row)):
            row = self._fetching.held(values)
        queue = self._queue
        queue.append((step, time.time(), tuple(values), row))
        if len(queue) * (_ROW_HEAD.size + 8 * len(row)) >= FLUSH_BYTES:
            self._wake.set()
            if len(queue) >= QUEUED_ROWS:
                self.flush()

    def event(self, event: str, **fields: object) -> None:
        """Write one line to the events file now, after all rows logged before."""
        with self._writing:
            self.flush()
            self._write_event(event, fields)

    def flush(self) -> None:
        """Write the queued rows. A failure is reported once; it loses reports, but does not end the training."""
        self._guarded("reports", self._write_rows)

    def _write_rows(self) -> None:
        with self._writing:
            rows = self._fetching.fetched([self._queue.popleft() for _ in range(len(self._queue))])
            if rows:
                self.progress.note(rows)
                for sink in self._sinks:
                    self._guarded(type(sink).__name__, lambda sink=sink: sink.write(rows))
            self._tell_progress(last=False)

    def close(self) -> None:
        """Write the rest and stop. Safe to call twice; a forked child has nothing to write."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._wake.set()
        self._thread.join()
        with self._writing:
            self.flush()
            self._guarded("reports", lambda: self._tell_progress(last=True))
            for sink in self._sinks:
                self._guarded(type(sink).__name__, sink.close)
            if self._events:
                self._events.close()
            if self._line:
                self._line.close()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(FLUSH_S)
            self._wake.clear()
            self._guarded("reports", self._fetching.keep_apart)
            self.flush()

    def _tell_progress(self, *, last: bool) -> None:
        now, progress = time.monotonic(), self.progress
        step, when, examples = self._told
        if progress.step == step or (not last and now - when < PROGRESS_EVERY_S):
            if self._line and last:
                self._line.show(progress, last=True)
            return
        if progress.examples is not None and (now - when >= FLUSH_S or progress.examples_per_s is None):
            progress.examples_per_s = max(0, progress.examples - examples) / max(now - when, 1e-9)
        self._told = (progress.step, now, progress.examples or 0)
        fields = progress.fields()
        self._write_event("progress", fields)
        row = progress.measured(fields)
        for sink in self._sinks if row else ():
            self._guarded(type(sink).__name__, lambda sink=sink: sink.write([row]))
        if self._line:
            self._line.show(progress, last=last)

    def _write_event(self, event: str, fields: Mapping[str, object]) -> None:
        if self._events:
            line = json.dumps({"event": event, "time": time.time(), **fields}).encode() + b"\n"
            file = self._events
            self._guarded("events", lambda: file.write(line))

    def _guarded(self, what: str, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # no failure of a report may end the training
            if what not in self._failed:
                self._failed.add(what)
                sys.stderr.write(f"oarlock.train: {what} cannot be written ({error}); training continues without it\n")


def opened(report: Path | None, process: str, *, line: Line | None) -> Reports:
    """Return the reports of a process, in the directory `report` where there is one."""
    sinks: list[Sink] = []
    if report:
        report.mkdir(parents=True, exist_ok=True)
        sinks.append(MetricFrames(report / f"metrics-{process}.bin"))
    return Reports(events=report / f"events-{process}.jsonl" if report else None, sinks=sinks, line=line)
