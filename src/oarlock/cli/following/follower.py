"""A job followed to its end: its stdout on stdout, its stderr and its phase on stderr, its exit code as ours.

Two threads put news into one queue: log lines, and the job's record. The main thread prints them. So a slow terminal
delays only the printing, and Ctrl-C is answered at once. If the server is lost, a note says so once, and the lines
continue where they stopped as soon as it is back.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from oarlock.cli.following import loglines, results, statusline
from oarlock.cli.output import screen, terminal
from oarlock.client import requests as building
from oarlock.client import verbs
from oarlock.display import marks
from oarlock.display.jobs import endings, progress
from oarlock.spec import bodies, errors, jobs, phases, tasklogs

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients

LIVE_LOOK_S = 0.3
CALM_LOOK_S = 1.0
_BLINK_S = 0.1
_BATCH = 64
_RECENT = 60  # printed lines that are assumed to be still on the screen
_RECENT_CHARACTERS = 16_384
_QUEUE = 256
LEFT = 130
"""The exit code if the user leaves the job running: its own exit code is not known yet."""


class Contact(msgspec.Struct, frozen=True):
    """The server was lost, or is back (`failure` is None)."""

    failure: errors.OarlockError | None


class Broken(msgspec.Struct, frozen=True):
    error: BaseException


News = tasklogs.Line | bodies.Ended | jobs.Job | Contact | Broken


class Left(Exception):
    """The user stops following; the job goes on."""


class Follower:
    """One job, one terminal. On Ctrl-C a user who only `watches` leaves; the user who started the job is asked."""

    def __init__(
        self,
        client: clients.Client,
        job: jobs.Job,
        choice: building.LogChoice | None = None,
        *,
        watches: bool = False,
    ) -> None:
        self._watches = watches
        self._client = client
        self._job = job
        self._choice = choice or building.LogChoice()
        self._screen = screen.Screen()
        self._one_place = terminal.same_place(sys.stdout, sys.stderr)
        self._writer = loglines.Writer(self._style(stderr=False), self._style(stderr=not watches))
        self._recent: collections.deque[str] = collections.deque(maxlen=_RECENT)
        self._news: queue.Queue[News] = queue.Queue(_QUEUE)
        self._over = threading.Event()
        self._interrupts = 0
        self._terminated = False
        self._asking = False
        self._stopping = False
        self._phase = ""
        self._attempt = 0
        self._refusal = ""
        self._frozen = False

    def _style(self, *, stderr: bool) -> loglines.Style:
        stream = sys.stderr if stderr else sys.stdout
        return loglines.style(
            self._job.spec,
            alone=self._choice.index is not None,
            colour=self._screen.colour_err if stderr else self._screen.colour_out,
            clean=self._screen.err_is_terminal if stderr else self._screen.out_is_terminal,
            raw=terminal.takes_bytes(stream),
        )

    def run(self) -> int:
        """Follow until the job has ended or the user leaves. Return the exit code."""
        threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._look)]
        with self._signals():
            for thread in threads:
                thread.start()
            try:
                end = self._show()
            except Left:
                self._screen.close()
                self._say_left()
                return LEFT if not self._terminated else 128 + signal.SIGTERM
            finally:
                self._over.set()
                self._screen.close()
        return self._finish(end)

    # The threads that bring news

    def _read(self) -> None:
        try:
            for item in self._client.log_items(
                self._job.id,
                self._choice,
                follow=True,
                blocks=True,
                on_contact=lambda failure: self._put(Contact(failure)),
            ):
                self._put(item)
        except BaseException as error:  # noqa: BLE001 - told and raised by the thread that prints
            self._put(Broken(error))

    def _look(self) -> None:
        pause = LIVE_LOOK_S if self._screen.live else CALM_LOOK_S
        while not self._over.wait(pause):
            try:
                self._put(self._client.job(self._job.id))
            except errors.OarlockError:
                continue  # the reader of the log reports it

    def _put(self, item: News) -> None:
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._news.put(item, timeout=1.0)
                return

    # The thread that prints

    def _show(self) -> bodies.Ended:
        self._tell_job(self._job)
        while True:
            self._heed_signals()
            pieces: list[loglines.Piece] = []
            for item in self._batch():
                if isinstance(item, tasklogs.Line):
                    pieces.append(self._writer.piece(item))
                    continue
                self._print(pieces)
                if isinstance(item, bodies.Ended):
                    self._print(self._writer.rest())
                    return item
                self._tell(item)
            self._print(pieces)
            self._screen.rows(self._rows())

    def _batch(self) -> list[News]:
        """Return the news; wait a moment if there is none."""
        items: list[News] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._news.get(timeout=_BLINK_S))
            while len(items) < _BATCH:
                items.append(self._news.get_nowait())
        return items

    def _print(self, pieces: list[loglines.Piece]) -> None:
        """Print the pieces in their order. A task's stderr goes to stderr; a reader of the log gets all on stdout."""
        for is_error, group in itertools.groupby(pieces, lambda piece: piece.is_error and not self._watches):
            for whole in loglines.joined(group):
                if is_error or self._one_place:
                    end = whole[-_RECENT_CHARACTERS:]
                    self._recent.extend((end if isinstance(end, str) else end.decode(errors="replace")).splitlines())
                self._screen.print(whole, self._rows(), is_error=is_error)
        pieces.clear()

    def _tell(self, item: jobs.Job | Contact | Broken) -> None:
        if isinstance(item, jobs.Job):
            self._tell_job(item)
        elif isinstance(item, Contact):
            self._tell_contact(item)
        else:
            raise item.error

    def _tell_job(self, job: jobs.Job) -> None:
        self._job = job
        attempt = job.attempt
        if attempt is not None and attempt.number > max(1, self._attempt) and job.live is not None:
            before = job.attempts[-2].verdict if len(job.attempts) > 1 else None
            why = f": {before.message}" if before is not None else ""
            self._screen.note(terminal.clean(f"Attempt {attempt.number} begins{why}"))
        self._attempt = attempt.number if attempt is not None else self._attempt
        self._tell_phase(job)
        self._tell_frozen(job)

    def _tell_phase(self, job: jobs.Job) -> None:
        """Print a new phase, unless the live line shows it."""
        if self._screen.live:
            return
        refusal = job.refusal.message if job.refusal is not None and job.phase is phases.Phase.QUEUED else ""
        phase = progress.phase(job)
        if phase != self._phase or refusal != self._refusal:
            self._phase, self._refusal = phase, refusal
            if not job.terminal:
                self._screen.note(terminal.clean(f"{job.name} {phase}" + (f": {refusal}" if refusal else "")))

    def _tell_frozen(self, job: jobs.Job) -> None:
        """Say once that the failed job keeps its place: it prints nothing more, and the user would wait in vain."""
        until = job.live.frozen_until if job.live is not None else None
        if until is None or self._frozen or until <= time.time():
            return
        self._frozen = True
        name, clock = terminal.clean(job.name), time.strftime("%H:%M:%S", time.localtime(until))
        self._screen.note(f"{name} has failed: {terminal.clean(job.reason)}. Its place is kept until {clock}.")
        self._screen.note(f"Look inside: oarlock exec {name} -- sh\nFree the place: oarlock cancel {name}")

    def _tell_contact(self, contact: Contact) -> None:
        if contact.failure is None:
            self._screen.note("The server is back.")
        else:
            self._screen.note("The server does not answer. The job goes on; waiting for the server.")

    def _rows(self) -> list[str]:
        """Return the output line that has no end yet, and the status line."""
        if not self._screen.live:
            return []
        on, room = self._screen.colour_err, self._screen.columns - 1
        row = statusline.status(
            self._job,
            time.time(),
            room,
            unicode=self._screen.unicode,
            paint=lambda text, colour: terminal.coloured(text, colour, on=on),
        )
        pending = self._writer.pending
        return [terminal.cut(pending, room), row] if pending else [row]

    # Signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.signal(signal.SIGTERM, self._on_terminate)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._asking:
            raise KeyboardInterrupt

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        if self._asking:
            raise KeyboardInterrupt

    def _heed_signals(self) -> None:
        if self._terminated:
            raise Left
        if not self._interrupts:
            return
        self._interrupts = 0
        if self._watches:
            raise Left
        if self._stopping:
            self._screen.note("The job is being stopped.")
            raise Left
        if self._wants_stop():
            self._stopping = True
            self._screen.note(f"Stopping {terminal.clean(self._job.name)} ...")
            try:
                self._client.cancel(self._job.id, "Ctrl-C")
            except errors.Conflict:
                return  # it has just ended: the last line of the log says how
            except errors.ServerNotFound as error:
                name = terminal.clean(self._job.name)
                hint = f"{name} goes on. {error.hint} Then: oarlock cancel {name}"
                raise errors.ServerNotFound(error.message, hint=hint) from error

    def _wants_stop(self) -> bool:
        """Ask the user. A second Ctrl-C means yes, and so does the first without a terminal. Raises Left."""
        if not (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stderr)):
            return True
        self._screen.rows([])
        self._asking = True
        try:
            while True:
                terminal.say()
                sys.stderr.write("Stop the job, or leave it running? [s]top, [l]eave, [f]ollow on: ")
                sys.stderr.flush()
                word = sys.stdin.readline()
                choice = word.strip().lower()[:1]
                if not word or choice == "l":
                    raise Left
                if choice == "s":
                    return True
                if choice == "f":
                    return False
        except KeyboardInterrupt:
            terminal.say()
            if self._terminated:
                raise Left from None
            return True
        finally:
            self._asking = False

    # The end

    def _say_left(self) -> None:
        with contextlib.suppress(errors.OarlockError):
            self._job = self._client.job(self._job.id)  # it may have ended since the last look
        name = terminal.clean(self._job.name)
        if self._job.terminal:
            terminal.say(f"{name} has ended: {self._job.phase}.")
        else:
            terminal.say(f"{name} is being stopped." if self._stopping else f"{name} goes on.")
        self._say_next_steps()

    def _finish(self, end: bodies.Ended) -> int:
        checkpoint = None
        try:
            self._job = self._client.job(self._job.id)
            checkpoint = next(iter(self._client.checkpoints(self._job.id)), None)
        except errors.OarlockError:
            pass  # the last known record will do
        job, name = self._job, terminal.clean(self._job.name)
        colour = terminal.wants_colour(sys.stderr)
        phase = terminal.coloured(str(job.phase), marks.PHASES[job.phase].colour, "bold", on=colour)
        terminal.say(f"{name} {phase}{endings.heading(job)}")
        for line in endings.summary(job, checkpoint, results.place(self._client, job), seen=self._seen):
            terminal.say(terminal.clean(line))
        self._say_next_steps()
        return verbs.exit_code(end.phase, end.exit_code)

    def _seen(self, line: str) -> bool:
        return any(above.endswith(terminal.clean(line)) for above in self._recent)

    def _say_next_steps(self) -> None:
        for line in endings.next_steps(self._job):
            terminal.say(terminal.clean(line))
