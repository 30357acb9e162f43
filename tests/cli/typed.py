"""Command lines as people type them: a process of its own, with pipes or on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 240.0
COMMAND = [sys.executable, "-m", "oarlock.cli.main"]


def run(
    *words: str, cwd: Path | None = None, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(env or {})},
        check=False,
    )


def until(true: Callable[[], Any], what: str = "it did not come about") -> Any:
    end = time.monotonic() + TIMEOUT_S
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Terminal:
    """A command on a pseudo-terminal of 24 rows and 80 columns: its screen, and keys to press."""

    def __init__(
        self, *words: str, cwd: Path | None = None, env: dict[str, str] | None = None, size: tuple[int, int] = (24, 80)
    ) -> None:
        self.raw = b""
        self._master, slave = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, "TERM": "xterm", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C is a key of a controlling terminal
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._master, 65536):
                self.raw += chunk

    @property
    def text(self) -> str:
        return self.raw.decode(errors="replace").replace("\r\n", "\n")

    def sees(self, pattern: str) -> None:
        until(lambda: re.search(pattern, self.text), f"{pattern!r} not in {self.text!r}")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def ended(self) -> int:
        """The exit code, once everything was read."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(5)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self._master)
        self._reader.join(5)


@contextlib.contextmanager
def terminal(*words: str, **more: Any) -> Iterator[Terminal]:
    shown = Terminal(*words, **more)
    try:
        yield shown
    finally:
        shown.close()


def screen(raw: str, columns: int = 80) -> Sequence[str]:
    """The last picture of a terminal: enough of one to know carriage return, newline, cursor up and erase below."""
    rows: list[str] = [""]
    row = column = 0
    for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", raw):
        if token == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b["):
            count = int(token[2:-1] or 0) if token[2:-1].isdigit() or not token[2:-1] else 0
            if token.endswith("A"):
                row = max(0, row - max(1, count))
            elif token.endswith("J"):
                rows[row] = rows[row][:column]
                del rows[row + 1 :]
        else:
            for letter in token:
                if column == columns:
                    row, column = row + 1, 0
                    rows += [""] * (row + 1 - len(rows))
                rows[row] = rows[row][:column].ljust(column) + letter + rows[row][column + 1 :]
                column += 1
    return [text.rstrip() for text in rows]
