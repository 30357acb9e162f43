"""The life of one task, top-down: arrive, start, supervise, store, record, linger.

The main thread runs this and never waits for the network: it sleeps on the board, and decides. Threads that do speak
with the server may be anywhere in their conversations when the end comes; they start nothing once `closing` is set.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from oarlock.agent import (
    arrival,
    blanking,
    cgroups,
    client,
    environment,
    errand,
    events,
    files,
    following,
    jobsecrets,
    journal,
    keeping,
    killing,
    orders,
    process,
    procfs,
    record,
    shipping,
    stream,
)
from oarlock.agent.board import Board
from oarlock.agent.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from oarlock.agent import copies, rendezvous
    from oarlock.agent.assignment import Assignment

TICK_S = 1.0
STOPPING_TICK_S = 0.1
PEER_FAILURE_GRACE_S = 3.0  # for the others of one task, after one has failed: they mostly hang in a collective
LEAVE_WITHIN_S = 10.0  # after a signal to the agent itself, with the exit record on disk but not delivered
KEEP_WITHIN_S = 20.0  # after a failure or a stop, whose exit is told first; the server lets an agent stay for 30 s
KEEP_AT_LEAST_S = 5.0  # after a stop that has used up its grace
LAST_LINES = 20
LAST_LINES_BYTES = 64 << 10
LAST_LINE_CHARACTERS = 2000


class End:
    """Why the task is to end (`stopped`, `stale`, `orphaned`, or None: a peer failed) and until when it may do so."""

    def __init__(self, reason: str | None, grace_s: float) -> None:
        self.reason, self.grace_s = reason, grace_s
        self.until = time.monotonic() + grace_s


class Supervisor:
    def __init__(self, task: Assignment) -> None:
        self._task = task
        self._board = Board()
        self._journal = journal.Journal(task.path("agent.log"))
        self._cgroup = cgroups.Cgroup(task.cgroup)
        self._oom = cgroups.OutOfMemory(self._cgroup, task.oom_counter)
        self._hold = following.take(task.limit_mark)
        self._reach = killing.Reach(task.key.text, self._cgroup, self._hold)
        self._errands = errand.Errands(task, self._board, self._reach)
        self._orders = orders.Orders(task, self._connect, self._board, self._reach, self._journal)
        self._copies = self._make_copies()
        self._keeping = keeping.Keeping(task, self._errands, self._board)
        self._shipper = shipping.Shipper(task, self._connect, self._board, self._journal, self._copies)
        self._processes: list[process.Process] = []
        self._secret_env: dict[str, str] = {}
        self._started_at: float | None = None
        self._signalled = 0
        self._end_by: float | None = None  # once a stop, or a peer's failure, has set a limit

    def run(self) -> int:
        """Returns the agent's exit status: the record's code."""
        try:
            return self._live()
        except BaseException as error:
            # No exit record is a failure of its own ("exit unknown"), but nothing may be left running behind it.
            self._journal.say(f"the agent itself failed: {type(error).__name__}: {error}")
            self._reach.kill()
            raise

    def _live(self) -> int:
        self._prepare()
        outcome = self._arrive() or self._equip() or self._start()
        if outcome is not None:
            self._say_why(outcome)
        else:
            outcome = self._supervise()
        self._await_copies()
        left = self._clear_away()
        outcome = self._settle(outcome)
        if outcome.good and self._task.uploads:
            outcome = self._store(outcome)
        self._board.keeping = outcome.reason != "stale" and bool(self._processes) and self._keeping.due()
        if outcome.good:
            self._keep(None)
        self._write_record(outcome, left)
        if not outcome.good:
            self._keep(self._keep_by(outcome))
        self._linger(outcome)
        return outcome.code & 0xFF

    def _prepare(self) -> None:
        signal.set_wakeup_fd(self._board.wake_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for directory in (self._task.report, self._task.results):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        self._write_self()
        if self._task.cgroup and not self._cgroup.usable:
            self._journal.say(f"cgroup {self._task.cgroup} cannot be entered: kill goes by session and mark")
        if self._task.limit_mark is not None and self._hold.limit_mark is None:
            self._journal.say("the limit mark cannot be set: a lower limit of real-time CPU time is in force here")
        if not self._hold.adopts:
            self._journal.say("orphans cannot be adopted here: kill goes by session and mark")

    # To the barrier

    def _arrive(self) -> record.Outcome | None:
        """None once the rendezvous is here; else why there will be no start."""
        if self._task.needs_fetching:
            self._board.phase = "DOWNLOADING"
            self._shipper.start()
            self._orders.start()
        began = time.monotonic()
        arrival.Arrival(self._task, self._connect(), self._board, self._errands).start()
        while self._board.rendezvous is None:
            if self._board.failure is not None:
                return _outcome(*self._board.failure)
            end = self._why_end()
            if end is not None:
                return record.unstarted(end.reason or "stopped")
            if time.monotonic() - began > TICK_S:
                self._orders.start()
            self._board.wait(TICK_S)
        return None

    def _equip(self) -> record.Outcome | None:
        """None once secrets, files and a checkpoint from elsewhere are in place; else why they are not."""
        failpoint("process.before_start")
        meeting = self._board.rendezvous
        assert meeting is not None
        try:
            self._secret_env = jobsecrets.place(self._task, self._board)
            meeting.write_files(self._task)
        except (OSError, ValueError) as error:
            return _outcome("download_failed", f"the task's files could not be written: {error}")
        if not any("://" in path for path in meeting.restore):
            return None
        self._board.phase = "DOWNLOADING"
        self._shipper.start()
        self._orders.start()
        failures: list[errand.Failed] = []
        end = self._while(lambda: self._restore(meeting, failures), grace=False)
        if end is not None:
            return record.unstarted(end.reason or "stopped")
        return _outcome(failures[0].reason, str(failures[0])) if failures else None

    def _restore(self, meeting: rendezvous.Rendezvous, failures: list[errand.Failed]) -> None:
        from oarlock.agent import restoring  # few jobs keep their checkpoints elsewhere

        env = errand.helper_environment(self._task.env, self._secret_env)
        try:
            bringing = restoring.Restoring(self._task, self._errands, self._board, self._journal)
            meeting.restore = bringing.bring(meeting.restore, env)
        except errand.Failed as error:
            failures.append(error)
        except (client.Abandoned, OSError) as error:
            failures.append(errand.Failed("download_failed", f"no checkpoint can be restored: {error!r}"))

    def _start(self) -> record.Outcome | None:
        """None once every process runs; else why one could not."""
        meeting = self._board.rendezvous
        assert meeting is not None
        self._started_at = time.time()
        for number in range(self._task.nproc):
            env = environment.build(self._task, os.environ, self._secret_env, meeting, number, self._board.virtual_env)
            try:
                if number == 0:
                    hidden = {name: value for name, value in env.items() if name not in self._secret_env}
                    files.write_json(self._task.path("env.json"), hidden)
                self._start_one(number, env)
            except OSError as error:
                where = "" if os.path.isdir(self._task.workdir) else f" ({self._task.workdir} is not a directory)"
                name = f"{error.filename}: " if error.filename else ""
                detail = f"the command cannot be started: {name}{error.strerror or error}{where}"
                return _outcome("command_not_found", detail, record.COMMAND_NOT_FOUND)
        self._board.phase = "PROCESSING"
        self._board.detail = None
        if self._copies is not None:
            self._copies.begin(self._secret_env)
        self._shipper.start()
        self._shipper.nudge()
        self._orders.start()
        self._write_self()
        failpoint("process.started")
        return None

    def _start_one(self, number: int, env: dict[str, str]) -> None:
        with self._board.starting:
            started = process.start(
                process.argv_of(self._task.command),
                env,
                self._task.workdir,
                self._task.path(f"stdout.{number}"),
                self._task.path(f"stderr.{number}"),
                self._cgroup,
            )
            self._processes.append(started)
            self._reach.add(started.pid)
        if self._cgroup.usable and not self._cgroup.holds(started.pid):
            self._journal.say(f"process {started.pid} did not enter the cgroup: kill goes by session and mark")
            self._reach.way = "session"

    def _say_why(self, outcome: record.Outcome) -> None:
        """What kept the processes from starting goes into the task's log too: that is where people look."""
        if not outcome.detail or self._processes:
            return
        if self._board.blanker is None:
            self._board.blanker = blanking.Blanker([])  # the task was told no secret: there is none to be blanked
        with contextlib.suppress(OSError), open(self._task.path("stderr.0"), "a", encoding="utf-8") as file:
            file.write(outcome.detail.rstrip("\n") + "\n")

    # While it runs

    def _supervise(self) -> record.Outcome | None:
        """Until the processes have ended by themselves, or have been asked to and the grace is over."""
        end: End | None = None
        while True:
            with self._board.starting:  # what has just been started is among the leaders
                process.reap_strangers(set(self._reach.leaders))
            running = [each for each in self._processes if not each.poll()]
            wanted = self._why_end()
            if wanted is None and running and any(each.failed for each in self._processes):
                wanted = End(None, min(PEER_FAILURE_GRACE_S, self._task.grace_s))
            if wanted is not None and (end is None or wanted.until < end.until):
                end = self._begin_to_end(wanted, again=end is not None)
                self._end_by = end.until
            if end is None and not running:
                return None
            if end is not None and (time.monotonic() >= end.until or not (running or self._reach.alive())):
                return None if end.reason is None else record.unstarted(end.reason)
            self._board.wait(TICK_S if end is None else max(0.0, min(STOPPING_TICK_S, end.until - time.monotonic())))

    def _begin_to_end(self, end: End, again: bool) -> End:
        if not again:
            for each in self._processes:
                each.signalled = each.running
            if end.grace_s > 0:
                self._reach.ask()
        return end

    def _why_end(self) -> End | None:
        """The most urgent reason to end the task now."""
        if self._board.stale:
            return End("stale", 0.0)
        if self._signalled:
            return End("stopped", self._task.grace_s)
        stop = self._board.orders.get("stop")
        if isinstance(stop, dict):
            grace_s = stop.get("grace_s")
            return End("stopped", self._task.grace_s if grace_s is None else float(grace_s))
        if self._orphaned():
            return End("orphaned", self._task.grace_s)
        return None

    def _orphaned(self) -> bool:
        """Out of contact for too long; or somebody has deleted the task's directory, and with it all that a server
        could ever learn of it.
        """
        try:
            os.stat(self._task.directory)
        except FileNotFoundError:
            return True
        except OSError:
            pass  # a disk that does not answer now
        limit_s = self._task.orphan_timeout_s
        return limit_s is not None and time.monotonic() - self._board.last_contact > limit_s

    # Afterwards

    def _await_copies(self) -> None:
        """What was saved last is still on its way: a good end waits for it, a stop as long as its grace lasts.

        A failure has to be known within seconds. What is cut off is reported where it lies on this machine.
        """
        if self._copies is None or not self._copies.busy:
            return
        self._copies.finish()
        if self._end_by is None and any(each.failed for each in self._processes):
            self._end_by = time.monotonic() + min(PEER_FAILURE_GRACE_S, self._task.grace_s)
        elif self._end_by is None:
            self._board.phase = "STORING"
            self._board.detail = "copy of the last checkpoint"
        while self._copies.busy:
            wanted = self._why_end()
            if wanted is not None and (self._end_by is None or wanted.until < self._end_by):
                self._end_by = wanted.until
            if self._end_by is not None and time.monotonic() >= self._end_by:
                return
            self._board.wait(STOPPING_TICK_S)

    def _clear_away(self) -> list[int]:
        """Nothing of the task is left running after this, or it is named."""
        with self._board.starting:
            self._board.closing = True
        for each in self._processes:
            each.signalled = each.signalled or not each.poll()
        left = self._reach.kill()
        if self._copies is not None:
            self._copies.join(killing.GONE_WITHIN_S)
        for each in self._processes:
            each.poll()
            each.reap()
        self._reach.leaders = [each.pid for each in self._processes if each.running]
        self._board.ended = True
        self._shipper.nudge()
        if left:
            self._journal.say(f"processes {left} did not die of SIGKILL: they are left to the backend")
        return left

    def _settle(self, outcome: record.Outcome | None) -> record.Outcome:
        """What the processes say of their end, once they have all ended."""
        if not self._processes or (outcome is not None and outcome.reason == "command_not_found"):
            return outcome or record.unstarted("stopped")
        ending = outcome.reason if outcome is not None else None
        shell = isinstance(self._task.command, str)
        return record.judge(self._processes, ending, shell, self._oom.happened(), self._oom.exclusive)

    def _store(self, outcome: record.Outcome) -> record.Outcome:
        """Upload the results, if there are any. A stop that comes now gives the upload its grace."""
        if not os.path.isdir(self._task.results) or not os.listdir(self._task.results):
            return outcome
        failpoint("store.before")
        self._board.phase, self._board.closing = "STORING", False
        self._shipper.nudge()
        errors = [errand.Failed("store_failed", "the upload ended without a word")]  # until it says otherwise
        end = self._while(lambda: self._upload(errors), grace=True)
        if end is not None:
            return record.unstarted(end.reason or "stopped")
        if errors:
            return _outcome(errors[-1].reason, str(errors[-1]))
        return outcome

    def _while(self, work: Callable[[], None], grace: bool) -> End | None:
        """Have `work` done on a thread of its own; the end that cut it short, if one did."""

        def run() -> None:
            try:
                work()
            finally:
                self._board.wake()

        thread = threading.Thread(target=run, name="errand", daemon=True)
        thread.start()
        end: End | None = None
        while thread.is_alive():
            wanted = self._why_end()
            if wanted is not None and (end is None or wanted.until < end.until):
                end = wanted
            if end is not None and (not grace or time.monotonic() >= end.until):
                with self._board.starting:
                    self._board.closing = True
                self._reach.kill()
                return end
            self._board.wait(TICK_S if end is None else STOPPING_TICK_S)
        return None

    def _upload(self, errors: list[errand.Failed]) -> None:
        uploads = self._task.uploads or {}
        source = self._task.path(uploads.get("source") or "results")
        env = errand.helper_environment(self._task.env, self._secret_env)
        try:
            self._errands.run(["store", source, uploads["to"]], "results", "store_failed", env)
            errors.clear()
        except errand.Failed as error:
            errors.append(error)
        except (client.Abandoned, ValueError, KeyError) as error:
            errors.append(errand.Failed("store_failed", repr(error)))

    def _keep_by(self, outcome: record.Outcome) -> float:
        """Until when files may be kept after a failure, or within what a stop has left of its grace."""
        now = time.monotonic()
        if outcome.killed_by_us and self._end_by is not None:
            return min(max(self._end_by, now + KEEP_AT_LEAST_S), now + KEEP_WITHIN_S)
        return now + KEEP_WITHIN_S

    def _keep(self, by: float | None) -> None:
        """Keep what the processes left in the working directory. A good end waits for it; any other is told before."""
        if not self._board.keeping:
            return
        if by is None:
            self._board.phase = "STORING"
        self._board.closing = False
        self._shipper.start()
        self._shipper.nudge()
        thread = threading.Thread(target=self._keeping.run, args=(self._secret_env,), name="keeping", daemon=True)
        thread.start()
        while thread.is_alive():
            end = self._why_end() if by is None or self._board.stale else None
            by = end.until if end is not None and (by is None or end.until < by) else by
            if by is not None and time.monotonic() >= by:
                self._keeping.fail("there was no time for all of it")
                with self._board.starting:
                    self._board.closing = True
                self._reach.kill()
                break
            self._board.wait(STOPPING_TICK_S)
        self._board.keeping = False
        self._shipper.nudge()

    def _write_record(self, outcome: record.Outcome, left: list[int]) -> None:
        ends = [
            {
                "code": record.code_of(each),
                "signal": each.signal,
                "ended_at": each.ended_at,
                "last_lines": self._last_lines(number),
            }
            for number, each in enumerate(self._processes)
        ]
        step = events.last_step(self._task.report, self._task.nproc)
        peak, key = self._oom.peak_bytes(), self._task.key.text
        value = record.compose(key, outcome, ends, self._started_at, self._reach.way, left, step, peak)
        try:
            files.write_json(self._task.path("exit.json"), value, lambda: failpoint("exit.before_rename"))
        except OSError as error:
            self._journal.say(f"the exit record could not be written: {error}")
        failpoint("exit.after_rename")
        self._board.exit = value

    def _last_lines(self, number: int) -> list[str]:
        for kind in ("stderr", "stdout"):
            path = self._task.path(f"{kind}.{number}")
            tail = stream.Stream(kind, path, self._board.blanker).tail(LAST_LINES_BYTES)
            lines = tail.decode("utf-8", "replace").replace("\r", "\n").split("\n")
            lines = [line[:LAST_LINE_CHARACTERS] for line in lines if line.strip()]
            if lines:
                return lines[-LAST_LINES:]
        return []

    def _linger(self, outcome: record.Outcome) -> None:
        """Stay until everything is acknowledged, then for the freeze after a failure."""
        taken_away = not os.path.isdir(self._task.directory)  # a server may still be told, but is not waited for
        if outcome.reason == "stale" or (outcome.reason == "orphaned" and not taken_away):
            return
        self._shipper.start()
        self._shipper.nudge()
        leave_at: float | None = time.monotonic() + LEAVE_WITHIN_S if taken_away else None
        while not (self._board.delivered or self._board.stale or (leave_at is None and self._orphaned())):
            if self._signalled and leave_at is None:
                leave_at = time.monotonic() + min(LEAVE_WITHIN_S, self._task.grace_s)
            if leave_at is not None and time.monotonic() >= leave_at:
                return
            self._board.wait(TICK_S)
        if not outcome.good and not outcome.killed_by_us:
            self._freeze()

    def _freeze(self) -> None:
        until = time.monotonic() + self._task.freeze_s
        while time.monotonic() < until and not (self._signalled or self._board.stale or self._orphaned()):
            if self._board.orders.get("release"):
                return
            self._orders.start()
            self._board.wait(min(TICK_S, max(0.0, until - time.monotonic())))

    # Small things

    def _make_copies(self) -> copies.Copies | None:
        if not self._task.checkpoint_copies:
            return None
        from oarlock.agent import copies  # few jobs keep their checkpoints elsewhere

        return copies.Copies(self._task, self._errands, self._board, self._journal)

    def _connect(self) -> client.Client:
        return client.Client(self._task, self._board.contact)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signalled = number

    def _write_self(self) -> None:
        value: dict[str, Any] = {
            "key": self._task.key.text,
            "pid": os.getpid(),
            "start_time": procfs.start_time(os.getpid()),
            "processes": [each.pid for each in self._processes],
            "kill": self._reach.way,
            "python": sys.version.split()[0],
        }
        try:
            files.write_json(self._task.path("agent.json"), value)
        except OSError as error:
            self._journal.say(f"agent.json could not be written: {error}")


def _outcome(reason: str, detail: str, code: int = 1) -> record.Outcome:
    outcome = record.Outcome(reason, code)
    outcome.detail = detail
    return outcome
