"""The thread that sends log bytes, metric bytes, reports and the exit to the server.

The files on disk are the spool: only the present batch is in memory. After an outage the server says how many bytes it
has, and shipping continues there. So every byte arrives once and in order.
"""

from __future__ import annotations

import threading
import time

from oarlock.agent.failpoints import failpoint
from oarlock.agent.protocol import client, events, reports, stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.journal import Journal
    from oarlock.agent.transfers.checkpoints import Checkpoints
    from oarlock.agent.transfers.copies import Copies

REQUEST_SPACING_S = 0.05  # about 20 requests a second
QUIET_POLL_S = 0.2
BUSY_POLL_S = 0.05
BUSY_FOR_S = 2.0
REFUSALS_UNTIL_GIVEN_UP = 3
REFUSED_PAUSE_S = 2.0
STUMBLED_PAUSE_S = 1.0
# A failure must be known within seconds, even if there is a backlog of logs or a slow checkpoint. A good end or a stop
# is reported after logs and checkpoints, because a resume needs them.
FAILURE_AFTER_S = 2.0
GOOD_END_AFTER_S = 60.0


class Shipper:
    def __init__(
        self,
        task: Assignment,
        connect: Callable[[], client.Client],
        state: AgentState,
        journal: Journal,
        copies: Copies | None = None,
    ) -> None:
        self._task, self._connect, self._state, self._journal, self._copies = task, connect, state, journal, copies
        self._events = events.Events(task.report, task.nproc)
        self._checkpoints: Checkpoints | None = None
        self._reports = reports.Reports()
        self._logs: list[stream.Stream] = []
        self._metrics: list[stream.Stream] = []
        self._wake = threading.Event()
        self._started = False
        self._grown = 0
        self._grew_at = time.monotonic()
        self._exit_since: float | None = None
        self._exit_told = False
        self._exit_refusals = 0

    def start(self) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="shipper", daemon=True).start()

    def nudge(self) -> None:
        """Send soon: main has changed a fact."""
        self._wake.set()

    def _run(self) -> None:
        while not (self._state.delivered or self._state.stale):
            try:
                self._deliver(self._connect())
            except client.Stale:
                self._state.mark_stale()
            except Exception as error:  # noqa: BLE001 - the journal tells, and the thread goes on
                self._journal.say(f"shipping stumbled: {type(error).__name__}: {error}")
                time.sleep(STUMBLED_PAUSE_S)

    def _deliver(self, server: client.Client) -> None:
        while not self._state.delivered:
            began = time.monotonic()
            requests = self._turn(server)
            self._rest(requests, time.monotonic() - began)

    def _rest(self, requests: int, took_s: float) -> None:
        """Pause, to keep the request rate when there is work, and to save CPU time when there is none."""
        if any(file.unsent() >= stream.BATCH_BYTES for file in self._logs):
            pause_s = 0.0  # there is a full batch: only the server's answers limit the rate
        elif requests:
            pause_s = REQUEST_SPACING_S * requests - took_s
        else:
            busy = self._state.ended or time.monotonic() - self._grew_at < BUSY_FOR_S
            pause_s = BUSY_POLL_S if busy else QUIET_POLL_S
        if pause_s > 0:
            self._wake.wait(pause_s)
        self._wake.clear()

    def _turn(self, server: client.Client) -> int:
        ended = self._state.ended  # read before the files: if it is true, they no longer grow
        self._open_streams()
        self._limit_spool()
        requests = 0
        for file in self._logs:
            requests += self._ship(server, "/logs/", file, ended)
        for file in self._metrics:
            requests += self._ship(server, "/metrics/", file, ended)
        self._look_at_events()
        requests += self._report(server, time.monotonic())
        if self._exit_told and ended and not self._owes_kept() and self._drained():
            self._state.delivered = True
            self._state.wake()
        return requests

    def _look_at_events(self) -> None:
        checkpoints = self._events.poll()
        for event in checkpoints if self._copies is None else self._copies.take():
            self._post_checkpoint(event)

    def _open_streams(self) -> None:
        """Open the log files, once the secrets that must be blanked in them are known."""
        if self._logs or self._state.blanker is None:
            return
        for number in range(self._task.nproc):
            for kind in ("stdout", "stderr"):
                name = f"{kind}.{number}"
                self._logs.append(stream.Stream(name, self._task.path(name), self._state.blanker))
            path = f"{self._task.report}/metrics-{number}.bin"
            self._metrics.append(stream.Stream(str(number), path, None))

    def _limit_spool(self) -> None:
        sizes = {file: file.unsent() for file in self._logs}
        grown = sum(file.end() for file in self._logs)
        if grown != self._grown:
            self._grown, self._grew_at = grown, time.monotonic()
        excess = sum(sizes.values()) - self._task.spool_bytes
        if excess > 0:
            largest = max(self._logs, key=lambda file: sizes[file])
            dropped = largest.drop(excess + self._task.spool_bytes // 8)
            self._journal.say(f"{largest.name}: {dropped} bytes dropped: the spool is full")

    def _ship(self, server: client.Client, path: str, file: stream.Stream, final: bool) -> int:
        """Send one batch, if there is one; return the number of requests."""
        if (file.refusals >= REFUSALS_UNTIL_GIVEN_UP and final) or time.monotonic() < file.quiet_until:
            return 0
        data = file.batch(final)
        if not data:
            return 0
        failpoint("logs.before_send")
        answer = server.ask("POST", f"{path}{file.name}?offset={file.acknowledged}", data)
        failpoint("logs.after_send")
        length = answer.json().get("length")
        if answer.status in (200, 409) and isinstance(length, int):
            if length == file.acknowledged:
                file.refusals += 1
            else:
                file.refusals = 0
            file.acknowledge(length)
        else:
            file.refusals += 1
            self._journal.say(f"{path}{file.name} was refused with {answer.status}")
        if file.refusals:
            file.quiet_until = time.monotonic() + (REQUEST_SPACING_S if final else REFUSED_PAUSE_S)
        return 1

    def _report(self, server: client.Client, now: float) -> int:
        exit_record = self._state.exit if not self._exit_told and self._exit_may_go(now) else None
        idle_s = now - (self._events.progressed_at or self._grew_at) if self._state.phase == "PROCESSING" else None
        if self._exit_refusals and exit_record is not None:
            body: dict[str, Any] | None = {"exit": exit_record}  # alone: another fact may have caused the refusal
        else:
            body = self._facts(now, idle_s, exit_record)
        if body is None:
            return 0
        if exit_record is not None:
            failpoint("report.before_exit")
        answer = server.ask("POST", "/report", body)
        if answer.ok:
            self._state.take_orders(answer.json().get("orders"))
            self._send_again(answer.json().get("logs"))
        else:
            self._journal.say(f"a report was refused with {answer.status}: {answer.json().get('error', '')}")
        self._reports.told(now, body)
        if "exit" in body:
            self._note_exit(answer)
        return 1

    def _send_again(self, lengths: object) -> None:
        """Continue each stream at the length that the server still has: it has lost the bytes after it."""
        if not isinstance(lengths, dict):
            return
        for file in self._logs:
            length = lengths.get(file.name)
            if isinstance(length, int) and length < file.acknowledged:
                self._journal.say(f"{file.name}: the server asks for it again from byte {length} on")
                file.acknowledge(length)

    def _facts(self, now: float, idle_s: float | None, exit_record: dict[str, Any] | None) -> dict[str, Any] | None:
        return self._reports.due(
            now,
            idle_s,
            phase=self._state.phase,
            detail=self._state.detail,
            hello=self._events.hello,
            restored=self._events.restored,
            progress=self._events.progress,
            exit=exit_record,
            kept=self._state.kept,
        )

    def _note_exit(self, answer: client.Answer) -> None:
        failpoint("report.after_exit")
        self._exit_refusals += not answer.ok
        self._exit_told = answer.ok or self._exit_refusals >= REFUSALS_UNTIL_GIVEN_UP

    def _owes_kept(self) -> bool:
        """Return whether the report about the kept files is still to be sent."""
        return self._state.keeping or not self._reports.has_told("kept", self._state.kept)

    def _exit_may_go(self, now: float) -> bool:
        """Return whether the exit may be reported now. Logs and checkpoints go first, within bounds."""
        record = self._state.exit
        if record is None:
            return False
        self._exit_since = self._exit_since if self._exit_since is not None else now
        good = record["killed_by_us"] or record["code"] == 0
        if now - self._exit_since > (GOOD_END_AFTER_S if good else FAILURE_AFTER_S):
            return True
        return self._drained()

    def _post_checkpoint(self, event: dict[str, Any]) -> None:
        if self._checkpoints is None:
            from oarlock.agent.transfers import checkpoints  # many jobs make no checkpoints

            self._checkpoints = checkpoints.Checkpoints(self._task, self._connect, self._state, self._journal)
        self._checkpoints.post(event)

    def _drained(self) -> bool:
        """Return whether every byte and checkpoint is acknowledged, or was refused for good."""
        if self._checkpoints is not None and self._checkpoints.waiting:
            return False
        given_up = REFUSALS_UNTIL_GIVEN_UP
        return all(not file.unsent() or file.refusals >= given_up for file in self._logs + self._metrics)
