"""A reader who copies every block of a page, in order, into one shell, with a local server in a home of their own."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.documentation import blocks

BIN = Path(sys.prefix) / "bin"
LIMIT_S = 1500
"""The bound of a page that hangs. One takes 2 to 150 s on two idle cores, and several times that beside other tests."""


class Reader:
    """`folder` gets the home, a clone, an empty directory to work in, and what the last blocks said."""

    def __init__(self, folder: Path, *, activated: bool = True) -> None:
        self._folder = folder
        self.work = folder / "work"
        self.clone = folder / "oarlock"
        self.said = folder / "said"
        self._tools = folder / "stand-ins"
        for place in (self.work, self._tools, folder / "home", folder / "blocks"):
            place.mkdir(parents=True)
        _make_clone(self.clone)
        path = [each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "oarlock").exists()]
        found = [str(self._tools), *([str(BIN)] if activated else []), *path]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OARLOCK_", "VIRTUAL_ENV"))}
        self.env = kept | {"HOME": str(folder / "home"), "PATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1"}

    def stand_in(self, name: str, text: str) -> None:
        """A program `name` that stands first on the PATH."""
        tool = self._tools / name
        tool.write_text(text)
        tool.chmod(0o755)

    def stand_in_module(self, name: str, text: str) -> None:
        (self._tools / f"{name}.py").write_text(text)
        self.env["PYTHONPATH"] = str(self._tools)

    def reads(
        self, page: Sequence[blocks.Block], work: Path, instead: Mapping[str, str], limit_s: float = LIMIT_S
    ) -> None:
        """Run the page's blocks. `instead` holds the lines in whose place something shorter is run."""
        script = self._folder / "page.sh"
        script.write_text(self._script(page, instead))
        with self.said.open("wb") as out:
            shell = subprocess.Popen(
                ["bash", "-eu", "-o", "pipefail", str(script)],
                cwd=work,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = shell.wait(limit_s)
            finally:
                if shell.poll() is None:
                    os.killpg(shell.pid, signal.SIGKILL)
                    shell.wait()
        assert code == 0, f"it ended with {code}:\n{self.said.read_text(errors='replace')[-6000:]}"

    def _script(self, page: Sequence[blocks.Block], instead: Mapping[str, str]) -> str:
        lines = []
        for block in page:
            copy = self._folder / "blocks" / f"line-{block.line}"
            copy.write_text(_shorter(block.text, instead) if block.language == "sh" else block.text)
            lines.append(f"echo '=== the block at line {block.line}'")
            if block.language == "sh":
                lines.append(f". {shlex.quote(str(copy))}")
            elif block.file:
                lines.append(f"cp {shlex.quote(str(copy))} {shlex.quote(block.file)}")
            elif block.language == "python":
                lines.append(f"python - < {shlex.quote(str(copy))}")
        return "\n".join(lines) + "\n"

    def leaves(self) -> None:
        """End the processes that the page has left."""
        if not (self._folder / "home" / ".oarlock").exists():
            return
        oarlock, env = str(BIN / "oarlock"), self.env
        left = subprocess.run([oarlock, "ps", "--all", "--quiet"], env=env, capture_output=True, text=True, check=False)
        for verb in ("cancel --wait", "down"):
            more = left.stdout.split() if verb != "down" else []
            if verb == "down" or more:
                command = [oarlock, *verb.split(), *more]
                subprocess.run(command, env=env, capture_output=True, check=False, timeout=280)


def _make_clone(clone: Path) -> None:
    """The files of the repository that pages use, with an environment into which everything was installed."""
    clone.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(blocks.ROOT / name, clone / name)
    ignored = shutil.ignore_patterns("checkpoints", "found", "__pycache__")
    for name in ("deploy", "examples"):
        shutil.copytree(blocks.ROOT / name, clone / name, ignore=ignored)
    environment = clone / ".venv"
    environment.mkdir()
    for inner in Path(sys.prefix).iterdir():
        if not inner.name.startswith(".setup"):
            (environment / inner.name).symlink_to(inner)
    (environment / ".setup").touch()


def _shorter(text: str, instead: Mapping[str, str]) -> str:
    return "".join(instead.get(_command(line), line) + "\n" for line in text.splitlines())


def _command(line: str) -> str:
    """The line without the remark behind it."""
    return line.partition("  #")[0].rstrip()
