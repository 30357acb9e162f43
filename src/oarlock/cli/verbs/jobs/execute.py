"""`oarlock exec`: a command inside a task, with this terminal's input and output.

If stdin is a terminal, the command gets one too. Keys are sent as they are typed, and the size is always the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.client.synchronous import session as sessions


@command.verb("exec", short_help="Run a command inside a task", context_settings={"allow_interspersed_args": False})
@command.job_argument
@click.argument("words", nargs=-1, required=True, metavar="[--] COMMAND...", type=click.UNPROCESSED)
@command.option(
    "--role", metavar="ROLE", show_default="the first; in a frozen job the failed task's", help="Role of the task."
)
@command.option("--index", type=int, metavar="I", show_default="0, or the failed task's", help="Index of the task.")
@command.option(
    "--tty/--no-tty", default=None, show_default="tty if stdin is one", help="Whether the command gets a terminal."
)
@command.connected
def execute(
    client: clients.Client, job: str, words: tuple[str, ...], role: str | None, index: int | None, tty: bool | None
) -> int:
    """Run COMMAND inside a running or frozen task of JOB. The exit code is the command's.

    Options go before JOB: oarlock exec --role worker --index 1 JOB -- ls
    """
    if words[0] != "--" and words[0].startswith("-"):
        raise errors.InvalidInput(
            f"{words[0][:60]!r} is not a command", hint="Options go before the job: oarlock exec --index 1 JOB -- ls"
        )
    wants_tty = (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stdout)) if tty is None else tty
    command_words = words[1:] if words[0] == "--" else words
    rows, columns = _size(sys.stdout.fileno()) if terminal.is_terminal(sys.stdout) else (24, 80)
    with client.exec_session(
        job, command_words, role=role, index=index, tty=wants_tty, rows=rows, columns=columns
    ) as session:
        threading.Thread(target=_send_input, args=(session,), daemon=True).start()
        with _raw_terminal(session) if wants_tty and terminal.is_terminal(sys.stdin) else contextlib.nullcontext():
            return _show_output(session)


def _size(handle: int) -> tuple[int, int]:
    """Return rows and columns. A terminal without a size (`script`, some CI) says 0 by 0."""
    size = os.get_terminal_size(handle)
    return size.lines or 24, size.columns or 80


def _show_output(session: sessions.Session) -> int:
    from oarlock.client import execution

    for item in session.output():
        if isinstance(item, execution.Exited):
            return item.code
        stream = sys.stdout.buffer if item.stream == "stdout" else sys.stderr.buffer
        stream.write(item.data)
        stream.flush()
    return 1


def _send_input(session: sessions.Session) -> None:
    from oarlock.client import execution

    try:
        while chunk := os.read(sys.stdin.fileno(), execution.CHUNK_BYTES):
            session.send(chunk)
    except (OSError, ValueError):
        pass  # a missing stdin counts as an empty one
    session.close_stdin()


@contextlib.contextmanager
def _raw_terminal(session: sessions.Session) -> Iterator[None]:
    """Send keys as they are typed, Ctrl-C too, and restore the terminal in the end."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def resized(*_: object) -> None:
        threading.Thread(target=session.resize, args=_size(handle), daemon=True).start()

    heard = signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(handle, termios.TCSADRAIN)  # TCSADRAIN keeps keys that were typed ahead
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, heard)
