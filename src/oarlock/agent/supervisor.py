"""The life of one task, top-down: register, start, supervise, store, record, wait for the server.

The main thread runs this. It makes every decision, sleeps on the agent's state, and never waits for the network. The
threads that talk to the server may be in the middle of a request when the task ends. They start nothing once `closing`
is set.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from oarlock.agent import environment, exitrecord, files, journal
from oarlock.agent.agentstate import AgentState
from oarlock.agent.failpoints import failpoint
from oarlock.agent.processes import cgroups, killing, process, procfs, tracking
from oarlock.agent.protocol import blanking, client, events, jobsecrets, orders, registration, shipping, stream
from oarlock.agent.transfers import helpercommand, keeping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.protocol import rendezvous
    from oarlock.agent.transfers import copies

TICK_S = 1.0
STOPPING_TICK_S = 0.1
PEER_FAILURE_GRACE_S = 3.0  # for the other processes after one has failed: they mostly hang in a collective
LEAVE_WITHIN_S = 10.0  # after a signal to the agent itself, with the exit record on disk but not delivered
KEEP_WITHIN_S = 20.0  # after a failure or a stop, reported before; the server lets an agent stay for 30 s
KEEP_AT_LEAST_S = 5.0  # after a stop that has used up its grace
LAST_LINES = 20
LAST_LINES_BYTES = 64 << 10
LAST_LINE_CHARACTERS = 2000


class End:
    """An end: its reason (`stopped`, `stale`, `orphaned`, or None: a process failed) and the end of its grace."""

    def __init__(self, reason: str | None, grace_s: float) -> None:
        self.reason, self.grace_s = reason, grace_s
        self.until = time.monotonic() + grace_s


class Supervisor:
    """The supervisor of one task."""

    def __init__(self, task: Assignment) -> None:
        self._task = task
        self._state = AgentState()
        self._journal = journal.Journal(task.path("agent.log"))
        self._cgroup = cgroups.Cgroup(task.cgroup)
        self._oom = cgroups.OutOfMemory(self._cgroup, task.oom_counter)
        self._tracking = tracking.begin(task.limit_mark)
        self._task_processes = killing.TaskProcesses(task.key.text, self._cgroup, self._tracking)
        self._helper = helpercommand.HelperCommand(task, self._state, self._task_processes)
        self._orders = orders.Orders(task, self._connect, self._state, self._task_processes, self._journal)
        self._copies = self._make_copies()
        self._keeping = keeping.Keeping(task, self._helper, self._state)
        self._shipper = shipping.Shipper(task, self._connect, self._state, self._journal, self._copies)
        self._processes: list[process.Process] = []
        self._secret_env: dict[str, str] = {}
        self._started_at: float | None = None
        self._signalled = 0
        self._end_by: float | None = None  # set by a stop, or by a process's failure

    def run(self) -> int:
        """Supervise the task to its end. Return the agent's exit status, which is the record's code."""
        try:
            return self._live()
        except BaseException as error:
            # The server reports a task without an exit record as "exit unknown". No process may be left running.
            self._journal.say(f"the agent itself failed: {type(error).__name__}: {error}")
            self._task_processes.kill()
            raise

    def _live(self) -> int:
        self._prepare()
        outcome = self._register() or self._prepare_files() or self._start()
        if outcome is not None:
            self._log_reason(outcome)
        else:
            outcome = self._supervise()
        self._await_copies()
        left = self._kill_all()
        outcome = self._judge(outcome)
        if outcome.good and self._task.uploads:
            outcome = self._store(outcome)
        self._state.keeping = outcome.reason != "stale" and bool(self._processes) and self._keeping.due()
        if outcome.good:
            self._keep(None)
        self._write_record(outcome, left)
        if not outcome.good:
            self._keep(self._keep_until(outcome))
        self._linger(outcome)
        return outcome.code & 0xFF

    def _prepare(self) -> None:
        signal.set_wakeup_fd(self._state.wake_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for directory in (self._task.report, self._task.results):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        self._write_self()
        if self._task.cgroup and not self._cgroup.usable:
            self._journal.say(f"cgroup {self._task.cgroup} cannot be entered: kill goes by session and mark")
        if self._task.limit_mark is not None and self._tracking.limit_mark is None:
            self._journal.say("the limit mark cannot be set: a lower limit of real-time CPU time is in force here")
        if not self._tracking.adopts:
            self._journal.say("orphans cannot be adopted here: kill goes by session and mark")

    # To the barrier

    def _register(self) -> exitrecord.Outcome | None:
        """Wait for the rendezvous. Return None, or the outcome if the processes cannot start."""
        if self._task.needs_fetching:
            self._state.phase = "DOWNLOADING"
            self._shipper.start()
            self._orders.start()
        began = time.monotonic()
        registration.Registration(self._task, self._connect(), self._state, self._helper).start()
        while self._state.rendezvous is None:
            if self._state.failure is not None:
                return _outcome(*self._state.failure)
            end = self._wanted_end()
            if end is not None:
                return exitrecord.unstarted(end.reason or "stopped")
            if time.monotonic() - began > TICK_S:
                self._orders.start()
            self._state.wait(TICK_S)
        return None

    def _prepare_files(self) -> exitrecord.Outcome | None:
        """Write secrets and files, and fetch a remote checkpoint. Return None, or the outcome of a failure."""
        failpoint("process.before_start")
        meeting = self._state.rendezvous
        assert meeting is not None
        try:
            self._secret_env = jobsecrets.place(self._task, self._state)
            meeting.write_files(self._task)
        except (OSError, ValueError) as error:
            return _outcome("download_failed", f"the task's files could not be written: {error}")
        if not any(not path.startswith("/") for path in meeting.restore):
            return None
        self._state.phase = "DOWNLOADING"
        self._shipper.start()
        self._orders.start()
        failures: list[helpercommand.Failed] = []
        end = self._while(lambda: self._restore(meeting, failures), grace=False)
        if end is not None:
            return exitrecord.unstarted(end.reason or "stopped")
        return _outcome(failures[0].reason, str(failures[0])) if failures else None

    def _restore(self, meeting: rendezvous.Rendezvous, failures: list[helpercommand.Failed]) -> None:
        from oarlock.agent.transfers import restoring  # few jobs keep their checkpoints elsewhere

        env = helpercommand.helper_environment(self._task.env, self._secret_env)
        try:
            bringing = restoring.Restoring(self._task, self._helper, self._state, self._journal)
            meeting.restore = bringing.bring(meeting.restore, env)
        except helpercommand.Failed as error:
            failures.append(error)
        except (client.Abandoned, OSError) as error:
            failures.append(helpercommand.Failed("download_failed", f"no checkpoint can be restored: {error!r}"))

    def _start(self) -> exitrecord.Outcome | None:
        """Start every process. Return None, or the outcome if one cannot be started."""
        meeting = self._state.rendezvous
        assert meeting is not None
        self._started_at = time.time()
        for number in range(self._task.nproc):
            env = environment.build(self._task, os.environ, self._secret_env, meeting, number, self._state.virtual_env)
            try:
                if number == 0:
                    hidden = {name: value for name, value in env.items() if name not in self._secret_env}
                    files.write_json(self._task.path("env.json"), hidden)
                self._start_one(number, env)
            except OSError as error:
                detail = process.why_not(error, self._task.command, self._task.workdir)
                return _outcome("command_not_found", detail, exitrecord.COMMAND_NOT_FOUND)
        self._state.phase = "PROCESSING"
        self._state.detail = None
        if self._copies is not None:
            self._copies.begin(self._secret_env)
        self._shipper.start()
        self._shipper.nudge()
        self._orders.start()
        self._write_self()
        failpoint("process.started")
        return None

    def _start_one(self, number: int, env: dict[str, str]) -> None:
        with self._state.starting:
            started = process.start(
                process.argv_of(self._task.command),
                env,
                self._task.workdir,
                self._task.path(f"stdout.{number}"),
                self._task.path(f"stderr.{number}"),
                self._cgroup,
            )
            self._processes.append(started)
            self._task_processes.add(started.pid)
        if self._cgroup.usable and not self._cgroup.holds(started.pid):
            self._journal.say(f"process {started.pid} did not enter the cgroup: kill goes by session and mark")
            self._task_processes.method = "session"

    def _log_reason(self, outcome: exitrecord.Outcome) -> None:
        """Write the reason to the task's log too, if no process was started: people look there."""
        if not outcome.detail or self._processes:
            return
        if self._state.blanker is None:
            self._state.blanker = blanking.Blanker([])  # the task has received no secret
        with contextlib.suppress(OSError), open(self._task.path("stderr.0"), "a", encoding="utf-8") as file:
            file.write(outcome.detail.rstrip("\n") + "\n")

    # While it runs

    def _supervise(self) -> exitrecord.Outcome | None:
        """Wait until the processes have ended, or the grace after a request to stop is over."""
        end: End | None = None
        while True:
            with self._state.starting:  # a process just started is among the leaders then
                process.reap_adopted(set(self._task_processes.leaders))
            running = [each for each in self._processes if not each.poll()]
            wanted = self._wanted_end()
            if wanted is None and running and any(each.failed for each in self._processes):
                wanted = End(None, min(PEER_FAILURE_GRACE_S, self._task.grace_s))
            if wanted is not None and (end is None or wanted.until < end.until):
                end = self._begin_to_end(wanted, again=end is not None)
                self._end_by = end.until
            if end is None and not running:
                return None
            if end is not None and (time.monotonic() >= end.until or not (running or self._task_processes.alive())):
                return None if end.reason is None else exitrecord.unstarted(end.reason)
            self._state.wait(TICK_S if end is None else max(0.0, min(STOPPING_TICK_S, end.until - time.monotonic())))

    def _begin_to_end(self, end: End, again: bool) -> End:
        if not again:
            for each in self._processes:
                each.signalled = each.running
            if end.grace_s > 0:
                self._task_processes.ask()
        return end

    def _wanted_end(self) -> End | None:
        """Return the most urgent reason to end the task now, or None."""
        if self._state.stale:
            return End("stale", 0.0)
        if self._signalled:
            return End("stopped", self._task.grace_s)
        stop = self._state.orders.get("stop")
        if isinstance(stop, dict):
            grace_s = stop.get("grace_s")
            return End("stopped", self._task.grace_s if grace_s is None else float(grace_s))
        if self._orphaned():
            return End("orphaned", self._task.grace_s)
        return None

    def _orphaned(self) -> bool:
        """Return whether the server was out of contact for too long, or the task's directory was deleted."""
        try:
            os.stat(self._task.directory)
        except FileNotFoundError:
            return True
        except OSError:
            pass  # a disk that does not answer now
        limit_s = self._task.orphan_timeout_s
        return limit_s is not None and time.monotonic() - self._state.last_contact > limit_s

    # Afterwards

    def _await_copies(self) -> None:
        """Wait for the copy of the last checkpoint: without a bound after a good end, for the grace after a stop.

        A failure must be known within seconds. A checkpoint whose copy is cut off is reported at its local place.
        """
        if self._copies is None or not self._copies.busy:
            return
        self._copies.finish()
        if self._end_by is None and any(each.failed for each in self._processes):
            self._end_by = time.monotonic() + min(PEER_FAILURE_GRACE_S, self._task.grace_s)
        elif self._end_by is None:
            self._state.phase = "STORING"
            self._state.detail = "copy of the last checkpoint"
        while self._copies.busy:
            wanted = self._wanted_end()
            if wanted is not None and (self._end_by is None or wanted.until < self._end_by):
                self._end_by = wanted.until
            if self._end_by is not None and time.monotonic() >= self._end_by:
                return
            self._state.wait(STOPPING_TICK_S)

    def _kill_all(self) -> list[int]:
        """Kill every process of the task; return the pids of those that did not die."""
        with self._state.starting:
            self._state.closing = True
        for each in self._processes:
            each.signalled = each.signalled or not each.poll()
        left = self._task_processes.kill()
        if self._copies is not None:
            self._copies.join(killing.GONE_WITHIN_S)
        for each in self._processes:
            each.poll()
            each.reap()
        self._task_processes.leaders = [each.pid for each in self._processes if each.running]
        self._state.ended = True
        self._shipper.nudge()
        if left:
            self._journal.say(f"processes {left} did not die of SIGKILL: they are left to the backend")
        return left

    def _judge(self, outcome: exitrecord.Outcome | None) -> exitrecord.Outcome:
        """Return the final outcome, from the ends of the processes."""
        if not self._processes or (outcome is not None and outcome.reason == "command_not_found"):
            return outcome or exitrecord.unstarted("stopped")
        ending = outcome.reason if outcome is not None else None
        shell = isinstance(self._task.command, str)
        return exitrecord.outcome_of(self._processes, ending, shell, self._oom.happened(), self._oom.exclusive)

    def _store(self, outcome: exitrecord.Outcome) -> exitrecord.Outcome:
        """Upload the results, if there are any. A stop during the upload gives it the stop's grace."""
        if not os.path.isdir(self._task.results) or not os.listdir(self._task.results):
            return outcome
        failpoint("store.before")
        self._state.phase, self._state.closing = "STORING", False
        self._shipper.nudge()
        errors = [helpercommand.Failed("store_failed", "the upload ended without a result")]  # removed by a good end
        end = self._while(lambda: self._upload(errors), grace=True)
        if end is not None:
            return exitrecord.unstarted(end.reason or "stopped")
        if errors:
            return _outcome(errors[-1].reason, str(errors[-1]))
        return outcome

    def _while(self, work: Callable[[], None], grace: bool) -> End | None:
        """Do `work` on a thread of its own. Return the end that stopped it early, or None."""

        def run() -> None:
            try:
                work()
            finally:
                self._state.wake()

        thread = threading.Thread(target=run, name="helper", daemon=True)
        thread.start()
        end: End | None = None
        while thread.is_alive():
            wanted = self._wanted_end()
            if wanted is not None and (end is None or wanted.until < end.until):
                end = wanted
            if end is not None and (not grace or time.monotonic() >= end.until):
                with self._state.starting:
                    self._state.closing = True
                self._task_processes.kill()
                return end
            self._state.wait(TICK_S if end is None else STOPPING_TICK_S)
        return None

    def _upload(self, errors: list[helpercommand.Failed]) -> None:
        uploads = self._task.uploads or {}
        source = self._task.path(uploads.get("source") or "results")
        env = helpercommand.helper_environment(self._task.env, self._secret_env)
        try:
            self._helper.run(["store", source, uploads["to"]], "results", "store_failed", env)
            errors.clear()
        except helpercommand.Failed as error:
            errors.append(error)
        except (client.Abandoned, ValueError, KeyError) as error:
            errors.append(helpercommand.Failed("store_failed", repr(error)))

    def _keep_until(self, outcome: exitrecord.Outcome) -> float:
        """Return the time by which the keeping of files must end, after a failure or within a stop's grace."""
        now = time.monotonic()
        if outcome.killed_by_us and self._end_by is not None:
            return min(max(self._end_by, now + KEEP_AT_LEAST_S), now + KEEP_WITHIN_S)
        return now + KEEP_WITHIN_S

    def _keep(self, by: float | None) -> None:
        """Keep the files left in the working directory, until `by`.

        None, for a good end: until the task is told to end.
        """
        if not self._state.keeping:
            return
        if by is None:
            self._state.phase = "STORING"
        self._state.closing = False
        self._shipper.start()
        self._shipper.nudge()
        thread = threading.Thread(target=self._keeping.run, args=(self._secret_env,), name="keeping", daemon=True)
        thread.start()
        while thread.is_alive():
            end = self._wanted_end() if by is None or self._state.stale else None
            by = end.until if end is not None and (by is None or end.until < by) else by
            if by is not None and time.monotonic() >= by:
                self._keeping.fail("there was not enough time to keep all files")
                with self._state.starting:
                    self._state.closing = True
                self._task_processes.kill()
                break
            self._state.wait(STOPPING_TICK_S)
        self._state.keeping = False
        self._shipper.nudge()

    def _write_record(self, outcome: exitrecord.Outcome, left: list[int]) -> None:
        ends = [
            {
                "code": exitrecord.code_of(each),
                "signal": each.signal,
                "ended_at": each.ended_at,
                "last_lines": self._last_lines(number),
            }
            for number, each in enumerate(self._processes)
        ]
        step = events.last_step(self._task.report, self._task.nproc)
        peak, key = self._oom.peak_bytes(), self._task.key.text
        value = exitrecord.compose(key, outcome, ends, self._started_at, self._task_processes.method, left, step, peak)
        try:
            files.write_json(self._task.path("exit.json"), value, lambda: failpoint("exit.before_rename"))
        except OSError as error:
            self._journal.say(f"the exit record could not be written: {error}")
        failpoint("exit.after_rename")
        if self._task.exit_copy:
            self._copy_record(self._task.exit_copy, value)
        self._state.exit = value

    def _copy_record(self, path: str, value: dict[str, Any]) -> None:
        """Write the record into the platform's own file. A rename would put another file in its place."""
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(exitrecord.brief(value))
        except OSError as error:
            self._journal.say(f"the exit record could not be copied to {path}: {error}")

    def _last_lines(self, number: int) -> list[str]:
        for kind in ("stderr", "stdout"):
            path = self._task.path(f"{kind}.{number}")
            tail = stream.Stream(kind, path, self._state.blanker).tail(LAST_LINES_BYTES)
            lines = tail.decode("utf-8", "replace").replace("\r", "\n").split("\n")
            lines = [line[:LAST_LINE_CHARACTERS] for line in lines if line.strip()]
            if lines:
                return lines[-LAST_LINES:]
        return []

    def _linger(self, outcome: exitrecord.Outcome) -> None:
        """Stay until the server has acknowledged everything, then, after a failure, for the freeze."""
        deleted = not os.path.isdir(self._task.directory)  # tell the server, but do not wait for it
        if outcome.reason == "stale" or (outcome.reason == "orphaned" and not deleted):
            return
        self._shipper.start()
        self._shipper.nudge()
        leave_at: float | None = time.monotonic() + LEAVE_WITHIN_S if deleted else None
        while not (self._state.delivered or self._state.stale or (leave_at is None and self._orphaned())):
            if self._signalled and leave_at is None:
                leave_at = time.monotonic() + min(LEAVE_WITHIN_S, self._task.grace_s)
            if leave_at is not None and time.monotonic() >= leave_at:
                return
            self._state.wait(TICK_S)
        if not outcome.good and not outcome.killed_by_us:
            self._freeze()

    def _freeze(self) -> None:
        until = time.monotonic() + self._task.freeze_s
        while time.monotonic() < until and not (self._signalled or self._state.stale or self._orphaned()):
            if self._state.orders.get("release"):
                return
            self._orders.start()
            self._state.wait(min(TICK_S, max(0.0, until - time.monotonic())))

    # Small things

    def _make_copies(self) -> copies.Copies | None:
        if not self._task.checkpoint_copies:
            return None
        from oarlock.agent.transfers import copies  # few jobs keep their checkpoints elsewhere

        return copies.Copies(self._task, self._helper, self._state, self._journal)

    def _connect(self) -> client.Client:
        return client.Client(self._task, self._state.contact)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signalled = number

    def _write_self(self) -> None:
        value: dict[str, Any] = {
            "key": self._task.key.text,
            "pid": os.getpid(),
            "start_time": procfs.start_time(os.getpid()),
            "processes": [each.pid for each in self._processes],
            "kill": self._task_processes.method,
            "python": sys.version.split()[0],
        }
        try:
            files.write_json(self._task.path("agent.json"), value)
        except OSError as error:
            self._journal.say(f"agent.json could not be written: {error}")


def _outcome(reason: str, detail: str, code: int = 1) -> exitrecord.Outcome:
    outcome = exitrecord.Outcome(reason, code)
    outcome.detail = detail
    return outcome
