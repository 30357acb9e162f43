"""Start the programs of `tests.store.writers`, read what they say, and end them, each by its process."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 240


class Program:
    """`lines` grows as it speaks."""

    def __init__(self, arguments: Sequence[str], cwd: Path, before: Sequence[str] = ()) -> None:
        asked = [*before, sys.executable, "-m", "tests.store.writers", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        self.process = subprocess.Popen(
            asked,
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.errors = ""
        self._spoken: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._listen, self._complain)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a half line was not said
                self.lines.append(line.rstrip("\n"))
                self._spoken.put(line.rstrip("\n"))
        self._spoken.put(None)

    def _complain(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def until(self, word: str) -> str:
        """The next line that begins with this word. Fails when the program ends without it, or is silent for long."""
        while (line := self._spoken.get(timeout=PATIENCE_S)) is not None:
            if line.split()[0].startswith(word):
                return line
        self._threads[1].join(PATIENCE_S)
        raise AssertionError(f"ended without saying {word!r}: {self.errors}")

    def until_stopped(self) -> None:
        """Wait until SIGSTOP has stopped it: it says that it is about to be stopped a moment before."""
        seen = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED, f"it ended instead: {self.finish()} {self.errors}"

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def finish(self) -> int:
        """Wait for its end and for all that it said; its exit code."""
        code = self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.finish()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def running(*arguments: object, cwd: Path, before: Sequence[str] = ()) -> Iterator[Program]:
    program = Program([str(argument) for argument in arguments], cwd, before)
    try:
        yield program
    finally:
        program.kill()
