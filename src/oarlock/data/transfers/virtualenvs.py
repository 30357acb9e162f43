"""The command `environment --requirements FILE --cache DIR`: a virtual environment, made once for each content of FILE.

The environment sees the packages of the job's own Python and adds the missing ones. If that Python is itself in a
virtual environment, its packages are put on the path too, which `--system-site-packages` alone does not do. The key of
the cache is made of the requirements (and the files they name), the Python and the state of its packages. An
environment is made in its final place, because its scripts contain its path. A marker, renamed into place last, shows
that it is complete. Tasks that need the same environment wait for the first.
"""

from __future__ import annotations

import collections
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from oarlock.data import durable
from oarlock.data.transfers import reporting
from oarlock.spec import errors

FORMAT = 1
LAST_LINES = 15
MAX_LINE = 1000
PROBE_S = 60
MAX_REQUIREMENTS_BYTES = 1 << 20
INCLUDES = re.compile(r"(?:-r|-c|--requirement|--constraint)[ =]*(?P<file>\S+)")
LOCAL = re.compile(r"(?:-e\b|--editable\b|\.{1,2}(?:/|$)|/|file:)")

PROBE = """
import json, site, sys, sysconfig
paths = sorted({sysconfig.get_paths()[name] for name in ("purelib", "platlib")})
print(json.dumps({"version": sys.version, "prefix": sys.prefix, "base": sys.base_prefix, "paths": paths}))
"""


def run(requirements: str, cache: str, python: str | None) -> Path:
    """Make the environment, if it is not cached, and return its path.

    InvalidInput for requirements that cannot be used, Unavailable with pip's last lines.
    """
    text = "\0".join(told(Path(requirements)))
    interpreter = python or shutil.which("python") or shutil.which("python3")
    if interpreter is None:
        raise errors.InvalidInput("there is no Python for the job", hint="install Python, or name one with --python")
    about = probed(interpreter)
    place = Path(cache).absolute() / key_of(text, about)
    try:
        durable.make_folder(place.parent)
        with place.with_suffix(".lock").open("w") as lock:
            wait_for(lock.fileno())
            marker = place.with_suffix(".complete")
            if not marker.exists():
                make(place, Path(requirements), interpreter, about)
                durable.write(marker, text.encode(errors="replace"))
            os.utime(marker)
    except OSError as error:
        raise durable.unavailable(error, "the environment", Path(cache)) from error
    return place


def wait_for(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        reporting.detail("waiting for another task that installs the same requirements")
        fcntl.flock(lock, fcntl.LOCK_EX)


def told(file: Path, seen: frozenset[Path] = frozenset()) -> Iterator[str]:
    """Yield the text of a requirements file and of those it includes: all that decides the installed packages."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise errors.InvalidInput(
            f"the requirements file {file} cannot be read: {error.strerror}",
            hint="name a file of the snapshot under `dependencies:`",
            path="dependencies",
        ) from error
    if len(raw) > MAX_REQUIREMENTS_BYTES:
        raise errors.InvalidInput(
            f"{file} is not a requirements file: it has {len(raw):,} bytes", hint="name another file"
        )
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
    path = file.parent / line.removeprefix("file://")
    if not path.is_file():
        raise errors.InvalidInput(
            f"{file.name} asks for {line!r}: an environment outlives the job's directory, and cannot link to it",
            hint="drop that line: the job runs in its snapshot, and imports from there",
            path="dependencies",
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
        raise errors.InvalidInput(
            f"{python} is not a working Python: {errors.words(error)}", hint="name one with --python"
        ) from error
    return dict(about)


def key_of(text: str, about: dict[str, object]) -> str:
    """Return the key of the cache. An environment uses the packages of its Python: if they change, so does the key."""
    paths = [Path(str(path)) for path in list_of(about["paths"])]
    states = [(str(path), path.stat().st_mtime_ns if path.is_dir() else 0) for path in paths]
    told = json.dumps([FORMAT, text, about["version"], about["prefix"], states])
    return hashlib.sha256(told.encode(errors="replace")).hexdigest()[:32]


def list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def make(place: Path, requirements: Path, python: str, about: dict[str, object]) -> None:
    shutil.rmtree(place, ignore_errors=True)
    reporting.detail("making a virtual environment")
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
    """Run a step and report its lines as progress. Unavailable, with the last lines, if it fails."""
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
                reporting.detail(line.strip()[:200])
    if child.returncode:
        raise errors.Unavailable(
            f"`{_shown(argv)}` failed:\n" + "\n".join(line[:MAX_LINE] for line in lines),
            hint=""
            if "pip" in argv and "install" in argv
            else "On Debian, `No module named venv` means that the package python3-venv is missing.",
        )


def _shown(argv: list[str]) -> str:
    """Return the step as a person would type it."""
    if "pip" in argv and "install" in argv:
        return f"pip install --requirement {Path(argv[-1]).name}"
    return " ".join(argv[1:4])
