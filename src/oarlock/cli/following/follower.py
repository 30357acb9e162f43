"""Follow a job to its end: its stdout on stdout, its stderr and its phase on stderr, its exit code out.

Two threads bring news into one queue, log lines and the job's record; this thread prints. So a slow terminal slows
nothing but itself, and Ctrl-C is heard within a blink. A lost server is said once, waited for, and its lines go on
where they stopped.
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

from oarlock.cli.following import endings, loglines, results
from oarlock.cli.output import progress, screen, terminal
from oarlock.client import requests as building
from oarlock.client import verbs
from oarlock.data import storage
from oarlock.spec import bodies, errors, jobs, phases

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients

LIVE_LOOK_S = 0.3
CALM_LOOK_S = 1.0
_BLINK_S = 0.1
_BATCH = 64
_RECENT = 60  # printed lines that are taken to stand on the screen still
_RECENT_CHARACTERS = 16_384
_QUEUE = 256
LEFT = 130
"""The exit code of somebody who left a job running: how it ends is not known yet."""


class Contact(msgspec.Struct, frozen=True):
    """The server was lost, or is back (`failure` None)."""

    failure: errors.OarlockError | None


class Broken(msgspec.Struct, frozen=True):
    error: BaseException


News = storage.Line | bodies.Ended | jobs.Job | Contact | Broken


class Left(Exception):
    """Whoever followed stops doing so; the job goes on."""


class Follower:
    """One job, one terminal. Who only `watches` leaves with Ctrl-C; whoever started it is asked whether to stop it."""

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
        return loglines.style(
            self._job.spec,
            alone=self._choice.index is not None,
            colour=self._screen.colour_err if stderr else self._screen.colour_out,
            clean=self._screen.err_is_terminal if stderr else self._screen.out_is_terminal,
        )

    def run(self) -> int:
        """Until the job has ended, or whoever follows it leaves. The exit code."""
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
                continue  # the reader of the log notices, and tells

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
                if isinstance(item, storage.Line):
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
        """What has come; waits a blink where nothing has."""
        items: list[News] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._news.get(timeout=_BLINK_S))
            while len(items) < _BATCH:
                items.append(self._news.get_nowait())
        return items

    def _print(self, pieces: list[loglines.Piece]) -> None:
        """Print the pieces in their order. A task's stderr goes to stderr; a reader of the log gets all on stdout."""
        for is_error, group in itertools.groupby(pieces, lambda piece: piece.is_error and not self._watches):
            whole = "".join(piece.text for piece in group)
            if not whole:
                continue
            if is_error or self._one_place:
                self._recent.extend(whole[-_RECENT_CHARACTERS:].splitlines())
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
        """Print the phase where it is a new one, unless the live line shows it."""
        if self._screen.live:
            return
        refusal = job.refusal.message if job.refusal is not None and job.phase is phases.Phase.QUEUED else ""
        phase = progress.phase(job)
        if phase != self._phase or refusal != self._refusal:
            self._phase, self._refusal = phase, refusal
            if not job.terminal:
                self._screen.note(terminal.clean(f"{job.name} {phase}" + (f": {refusal}" if refusal else "")))

    def _tell_frozen(self, job: jobs.Job) -> None:
        """Once: nothing is printed any more while its place is kept, and whoever follows would wait for that."""
        until = job.live.frozen_until if job.live is not None else None
        if until is None or self._frozen or until <= time.time():
            return
        self._frozen = True
        name, clock = terminal.clean(job.name), time.strftime("%H:%M:%S", time.localtime(until))
        self._screen.note(f"{name} has failed: {terminal.clean(job.reason)}. Its place is kept until {clock}:")
        self._screen.note(f"  oarlock exec {name} -- sh\n  oarlock cancel {name}   # frees it")

    def _tell_contact(self, contact: Contact) -> None:
        if contact.failure is None:
            self._screen.note("The server is back.")
        else:
            self._screen.note("The server does not answer; waiting for it. What runs goes on.")

    def _rows(self) -> list[str]:
        """A line that has no end yet, and where the job stands."""
        if not self._screen.live:
            return []
        on, room = self._screen.colour_err, self._screen.columns - 1
        row = progress.status(
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
            self._screen.note("It is being stopped.")
            raise Left
        if self._wants_stop():
            self._stopping = True
            self._screen.note(f"Stopping {terminal.clean(self._job.name)} ...")
            try:
                self._client.cancel(self._job.id, "Ctrl-C")
            except errors.Conflict:
                return  # it has ended meanwhile: the log's last line says how

    def _wants_stop(self) -> bool:
        """Ask; a second Ctrl-C stops, and so does the first where nobody can be asked. Raises Left."""
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
        terminal.say(f"{terminal.clean(self._job.name)} goes on." if not self._stopping else "No longer following.")
        for line in endings.next_steps(self._job):
            terminal.say(line)

    def _finish(self, end: bodies.Ended) -> int:
        checkpoint = None
        try:
            self._job = self._client.job(self._job.id)
            checkpoint = next(iter(self._client.checkpoints(self._job.id)), None)
        except errors.OarlockError:
            pass  # what was last known has to do
        where = results.place(self._client, self._job)
        colour = terminal.wants_colour(sys.stderr)
        for line in endings.summary(self._job, checkpoint, where, colour=colour, printed=list(self._recent)):
            terminal.say(line)
        for line in endings.next_steps(self._job):
            terminal.say(line)
        return verbs.exit_code(end.phase, end.exit_code)
