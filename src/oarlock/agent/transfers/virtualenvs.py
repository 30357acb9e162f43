"""The command `agent.pyz --environment FILE CACHE`: a virtual environment, made once for each content of FILE.

The environment sees the packages of the job's own Python and adds the missing ones. If that Python is itself in a
virtual environment, its packages are put on the path too, which `--system-site-packages` alone does not do. The key of
the cache is made of the requirements (and the files they name), the Python and the state of its packages: in pods,
images of several jobs share a cache. An environment is made in its final place, because its scripts contain its path. A
marker, renamed into place last, shows that it is complete. Tasks that need the same environment wait for the first.

Progress and errors are objects on stderr, one a line, as the helper command writes them. The path is the last line on
stdout. It runs beside the user's processes, in their image, under the agent's own interpreter.
"""

from __future__ import annotations

import collections
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from oarlock.agent import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

FORMAT = 2
LAST_LINES = 15
MAX_LINE = 1000
PROBE_S = 60
MAX_REQUIREMENTS_BYTES = 1 << 20
MAX_MESSAGE = 4000
FULL = (errno.ENOSPC, errno.EDQUOT)
INCLUDES = re.compile(r"(?:-r|-c|--requirement|--constraint)[ =]*(?P<file>\S+)")
LOCAL = re.compile(r"(?:-e\b|--editable\b|\.{1,2}(?:/|$)|/|file:)")

PROBE = """
import json, site, sys, sysconfig
paths = sorted({sysconfig.get_paths()[name] for name in ("purelib", "platlib")})
kind = [sysconfig.get_config_var("SOABI"), sysconfig.get_platform()]
print(json.dumps({"version": sys.version, "prefix": sys.prefix, "base": sys.base_prefix, "paths": paths, "kind": kind}))
"""


class Failed(Exception):
    """An environment that could not be made. `status` is 2 if the request can never work as written, else 1."""

    def __init__(self, message: str, hint: str = "", status: int = 1) -> None:
        super().__init__(message)
        self.message, self.hint, self.status = message, hint, status


class Refused(Failed):
    """Requirements that cannot be used."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint, 2)


def main(requirements: str, cache: str) -> int:
    """Make the environment and print its path. Return the exit status."""
    try:
        place = run(requirements, cache, None)
    except Failed as error:
        code = "invalid_input" if error.status == 2 else "unavailable"
        _say(event="error", code=code, message=error.message[-MAX_MESSAGE:], hint=error.hint)
        return error.status
    sys.stdout.write(f"{place}\n")
    sys.stdout.flush()  # this process ends without the interpreter's own end
    return 0


def run(requirements: str, cache: str, python: str | None) -> Path:
    """Make the environment, if it is not cached, and return its path.

    Raises Refused for requirements that cannot be used, Failed with pip's last lines.
    """
    text = "\0".join(told(Path(requirements)))
    interpreter = python or shutil.which("python") or shutil.which("python3")
    if interpreter is None:
        raise Refused("there is no Python for the job", "install Python where the job runs")
    about = probed(interpreter)
    place = Path(cache).absolute() / key_of(text, about)
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with place.with_suffix(".lock").open("w") as lock:
            wait_for(lock.fileno())
            marker = place.with_suffix(".complete")
            if not marker.exists():
                make(place, Path(requirements), interpreter, about)
                files.write_atomically(str(marker), text)
            os.utime(marker)
    except OSError as error:
        hint = f"free some space under {cache}" if error.errno in FULL else f"check the disk that holds {cache}"
        raise Failed(f"the environment could not be stored: {error.strerror or error}", hint) from error
    return place


def wait_for(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _detail("waiting for another task that installs the same requirements")
        fcntl.flock(lock, fcntl.LOCK_EX)


def told(file: Path, seen: frozenset[Path] = frozenset()) -> Iterator[str]:
    """Yield the text of a requirements file and of those it includes: all that decides the installed packages."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise Refused(
            f"the requirements file {file} cannot be read: {error.strerror}",
            "name a file of the snapshot under `dependencies:`",
        ) from error
    if len(raw) > MAX_REQUIREMENTS_BYTES:
        raise Refused(f"{file} is not a requirements file: it has {len(raw):,} bytes", "name another file")
    text = raw.decode("utf-8-sig", errors="replace")
    yield text
    for line in text.replace("\\\n", " ").splitlines():
        line = line.split(" #")[0].strip()
        include = INCLUDES.fullmatch(line)
        if include is not None and "://" not in include["file"]:
            inner = file.parent / include["file"]
            if inner not in seen:
                yield from told(inner, seen | {file})
        elif LOCAL.match(line):
            yield local(file, line)


def local(file: Path, line: str) -> str:
    """Return the content digest of a wheel beside the requirements. Refuse a folder: the cache outlives it."""
    path = file.parent / (line[len("file://") :] if line.startswith("file://") else line)
    if not path.is_file():
        raise Refused(
            f"{file.name} asks for {line!r}: an environment outlives the job's directory, and cannot link to it",
            "drop that line: the job runs in its snapshot, and imports from there",
        )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def probed(python: str) -> dict[str, object]:
    try:
        done = subprocess.run(
            [python, "-I", "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        about = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Refused(f"{python} is not a working Python: {error}", "install Python where the job runs") from error
    return dict(about)


def key_of(text: str, about: dict[str, object]) -> str:
    """Return the key of the cache. An environment uses the packages of its Python: if they change, so does the key."""
    paths = [Path(str(path)) for path in list_of(about["paths"])]
    states = [(str(path), *_state(path)) for path in paths]
    told = json.dumps([FORMAT, text, about["version"], about["prefix"], about.get("kind"), states])
    return hashlib.sha256(told.encode(errors="replace")).hexdigest()[:32]


def _state(folder: Path) -> tuple[int, list[str]]:
    """Return what tells apart two states of the packages. The names have their versions: images may share one time."""
    if not folder.is_dir():
        return 0, []
    return folder.stat().st_mtime_ns, sorted(os.listdir(folder))


def list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def make(place: Path, requirements: Path, python: str, about: dict[str, object]) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _detail("making a virtual environment")
    call([python, "-I", "-m", "venv", "--system-site-packages", "--without-pip", str(place)], place.parent)
    own = str(place / "bin" / "python")
    if about["prefix"] != about["base"]:
        (site,) = [Path(str(path)) for path in list_of(probed(own)["paths"])][:1]
        lines = [f"import site; site.addsitedir({path!r})" for path in list_of(about["paths"])]
        (site / "oarlock-outer.pth").write_text("\n".join(lines) + "\n")
    if subprocess.run([own, "-m", "pip", "--version"], capture_output=True, timeout=PROBE_S, check=False).returncode:
        call([own, "-m", "ensurepip", "--default-pip"], place.parent)
    pip = [own, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    call([*pip, "--requirement", str(requirements.absolute())], requirements.absolute().parent)


def call(argv: list[str], folder: Path) -> None:
    """Run a step and report its lines as progress. Raises Failed, with the last lines, if it fails."""
    lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with subprocess.Popen(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None  # it is a pipe
        for line in child.stdout:
            if line.strip():
                lines.append(line.rstrip())
                _detail(line.strip()[:200])
    if child.returncode:
        raise Failed(
            f"`{_shown(argv)}` failed:\n" + "\n".join(line[:MAX_LINE] for line in lines),
            ""
            if "pip" in argv and "install" in argv
            else "On Debian, `No module named venv` means that the package python3-venv is missing.",
        )


def _shown(argv: list[str]) -> str:
    """Return the step as a person would type it."""
    if "pip" in argv and "install" in argv:
        return f"pip install --requirement {Path(argv[-1]).name}"
    return " ".join(argv[1:4])


def _detail(text: str) -> None:
    _say(event="progress", detail=text)


def _say(**fields: str) -> None:
    sys.stderr.write(json.dumps(fields) + "\n")
    sys.stderr.flush()
