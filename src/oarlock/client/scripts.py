"""Check of the script that a job's command runs, where the script is certain.

Without this check, a missing script would only be noticed when the job runs, after it has waited.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from oarlock.spec import errors, jobfile
from oarlock.spec.hints import suggestions

_INTERPRETERS = ("python", "python3", "torchrun")
_SHELL_WORDS = frozenset("|&;<>()$`\\\"'*?[]{}~#=\n")


def check_without_code(spec: jobfile.JobSpec) -> None:
    """Raise InvalidInput where the job needs a file and is sent without a directory."""
    if spec.dependencies is not None:
        raise errors.InvalidInput(
            "the requirements file must be in the snapshot, and the job has no snapshot",
            path="dependencies",
            hint="Send the directory: leave out --no-snapshot, or `directory=None`.",
        )


def script_of(command: str | Sequence[str]) -> str | None:
    """Return the script that Python runs, None where it is not certain: shell words, -c, -m."""
    if isinstance(command, str):
        if any(letter in _SHELL_WORDS for letter in command):
            return None
        command = command.split()
    words = list(command)
    if len(words) < 2 or words[0].rpartition("/")[2] not in _INTERPRETERS:
        return None
    if not words[1].startswith("-") and words[1].endswith(".py"):
        return words[1]
    return words[2] if words[1] == "-u" and len(words) > 2 and words[2].endswith(".py") else None


def check_named(spec: jobfile.JobSpec, directory: Path) -> None:
    """Raise InvalidInput where a file that the job names is certainly missing, or certainly not a program."""
    check_program(spec.command, directory)
    check_script(spec, directory)
    if spec.dependencies is not None and not (directory / spec.dependencies).is_file():
        raise errors.InvalidInput(
            f"there is no file {spec.dependencies!r} in {directory.absolute()}",
            path="dependencies",
            hint="Give its path within the directory.",
        )


def check_program(command: str | Sequence[str], directory: Path) -> None:
    """Raise InvalidInput where the command begins with a Python file that no system can start as a program."""
    words = command.split() if isinstance(command, str) else command
    if not words or not words[0].endswith(".py"):
        return
    script = directory / words[0]
    starts = _is_program(script) if "/" in words[0] else shutil.which(words[0]) is not None
    if starts or not script.is_file():
        return
    raise errors.InvalidInput(
        f"{words[0]!r} is a Python file, which cannot be started by its name alone",
        path="command",
        hint=f"Start it with Python: python {command if isinstance(command, str) else shlex.join(command)}",
    )


def _is_program(file: Path) -> bool:
    """Return whether the file may be executed and names its interpreter."""
    try:
        with file.open("rb") as opened:
            return os.access(file, os.X_OK) and opened.read(2) == b"#!"
    except OSError:
        return True  # unknown


def check_script(spec: jobfile.JobSpec, directory: Path) -> None:
    """Raise InvalidInput, with the nearest name, where the script is not in the directory."""
    script = script_of(spec.command)
    if script is None or script.startswith("/") or _fetched(spec, script) or (directory / script).exists():
        return
    there = [path.name for path in directory.glob("*.py")]
    near = suggestions.nearest(script, there)
    raise errors.InvalidInput(
        f"there is no {script!r} in {directory.absolute()}",
        path="command",
        hint=f"Did you mean `{near}`?" if near else "Change to its directory, or name it: --dir DIR.",
    )


def check_kept(spec: jobfile.JobSpec, directory: Path, home: Path) -> None:
    """Raise InvalidInput where the script exists but is not in the snapshot."""
    script = script_of(spec.command)
    if script is None or script.startswith("/") or _fetched(spec, script):
        return
    from oarlock.data.snapshots import trees

    wanted = os.path.normpath(script).encode()
    if wanted.startswith(b"..") or any(entry.path == wanted for entry in trees.walk(directory, home=home).entries):
        return
    raise errors.InvalidInput(
        f"{script!r} is left out of the snapshot",
        path="command",
        hint="It is named in .gitignore or .oarlockignore; `!" + script + "` in .oarlockignore includes it.",
    )


def _fetched(spec: jobfile.JobSpec, script: str) -> bool:
    """Return whether the script may come with the data."""
    return any(script.startswith(source.mount.rstrip("/") + "/") or script == source.mount for source in spec.data)
