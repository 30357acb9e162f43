"""What `oarlock doctor` looks at. Each check takes the surroundings and tells what it found, with the fix.

The surroundings (clock, disk, mounts, environment) are arguments, so that a test can make each of them ill.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

import oarlock
from oarlock.client import places, settings
from oarlock.client.synchronous import client as clients
from oarlock.spec import errors, extras, quantities

LEAST_DISK_BYTES = 1 << 30
LOW_DISK_BYTES = 5 << 30
LEAST_SHM_BYTES = 64 << 20
MOST_SKEW_S = 5.0
MOST_FILE_SKEW_S = 2.0
_CLOCK_SLACK_S = 86_400.0
_PYTHON_TIMEOUT_S = 30.0
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "afs", "glusterfs", "beegfs", "9p"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.ceph"}
)


class State(StrEnum):
    GOOD = "good"
    INFO = "info"  # worth knowing, nothing to mend
    WARNING = "warning"  # will be a problem
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    state: State
    message: str
    fix: str = ""


def _disk(path: Path) -> tuple[int, int]:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    home: Path
    told: settings.Settings | None  # None: the settings themselves cannot be read
    environ: Mapping[str, str]
    clock: Callable[[], float] = time.time
    disk_usage: Callable[[Path], tuple[int, int]] = _disk  # total and free bytes
    mounts: Path = Path("/proc/self/mounts")
    cgroups: Path = Path("/sys/fs/cgroup")
    own_cgroup: Path = Path("/proc/self/cgroup")
    shm: Path = Path("/dev/shm")


Check = Callable[[Surroundings], Iterator[Finding]]


def all_findings(around: Surroundings) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(around)]


def _good(check: str, message: str) -> Finding:
    return Finding(check=check, state=State.GOOD, message=message)


def _info(check: str, message: str) -> Finding:
    return Finding(check=check, state=State.INFO, message=message)


def _problem(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, state=State.PROBLEM, message=message, fix=fix)


def _warning(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, state=State.WARNING, message=message, fix=fix)


def config(around: Surroundings) -> Iterator[Finding]:
    try:
        settings.resolve(around.environ, {})
    except errors.OarlockError as error:
        yield _problem("settings", error.message, error.hint)
    else:
        yield _good("settings", "settings can be read")


def home_writable(around: Surroundings) -> Iterator[Finding]:
    fix = "Set OARLOCK_HOME to a directory that you may write."
    try:
        around.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=around.home) as file:
            file.write(b"oarlock")
            file.flush()
            yield _file_clock(around, os.fstat(file.fileno()).st_mtime)
    except OSError as error:
        yield _problem("home", f"{around.home} cannot be written: {error.strerror or error}", fix)
    else:
        yield _good("home", f"{around.home} can be written")


def _file_clock(around: Surroundings, written_at: float) -> Finding:
    skew = written_at - around.clock()
    if abs(skew) > MOST_FILE_SKEW_S:
        return _problem(
            "clock",
            f"files in {around.home} get a time {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the clock",
            "Set the clock by NTP (timedatectl set-ntp true), on this machine and on the file server.",
        )
    return _good("clock", "files get the time that the clock tells")


def clock_plausible(around: Surroundings) -> Iterator[Finding]:
    """A clock cannot be before the day on which this program was installed."""
    installed_at = Path(oarlock.__file__).stat().st_mtime
    if around.clock() < installed_at - _CLOCK_SLACK_S:
        told = time.strftime("%Y-%m-%d", time.gmtime(around.clock()))
        yield _problem(
            "clock",
            f"the clock says {told}, which is before Oarlock was installed",
            "Set it by NTP: timedatectl set-ntp true",
        )


def disk(around: Surroundings) -> Iterator[Finding]:
    place = next((path for path in (around.home, *around.home.parents) if path.is_dir()), Path("/"))
    try:
        total, free = around.disk_usage(place)
    except OSError as error:
        yield _problem("disk", f"{place}: {error.strerror or error}", "Check the disk.")
        return
    said = f"{quantities.memory_text(free)} of {quantities.memory_text(total)} are free for {around.home}"
    fix = "Free some (oarlock rm forgets ended jobs), or set OARLOCK_HOME to a disk that has room."
    if free < LEAST_DISK_BYTES:
        yield _problem("disk", f"the disk is full: {said}", fix)
    elif free < LOW_DISK_BYTES:
        yield _warning("disk", f"the disk is nearly full: {said}", fix)
    else:
        yield _good("disk", said)


def shared_memory(around: Surroundings) -> Iterator[Finding]:
    if not around.shm.is_dir():
        return
    total, _ = around.disk_usage(around.shm)
    if total < LEAST_SHM_BYTES:
        yield _warning(
            "shared memory",
            f"{around.shm} has {quantities.memory_text(total)}: data loaders with workers die of it",
            "Give the container more: docker run --shm-size=2g",
        )


def network_file_system(around: Surroundings) -> Iterator[Finding]:
    kind = file_system_of(around.home, around.mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        yield _problem(
            "file system",
            f"{around.home} is on a network file system ({kind}), on which SQLite loses data",
            "Set OARLOCK_HOME to a local disk, or use PostgreSQL: oarlock up --database postgresql://...",
        )
    elif kind:
        yield _good("file system", f"{around.home} is on {kind}")


def file_system_of(path: Path, mounts: Path) -> str:
    """The type of the mount that holds `path`, "" where that cannot be known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found = ("", "")
    real = os.path.realpath(path)
    for line in lines:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found[0]):
            found = (point, parts[2])
    return found[1]


def token(around: Surroundings) -> Iterator[Finding]:
    for name in (places.TOKEN_FILE, settings.LOGIN_FILE, "task-secret"):
        path = around.home / name
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue
        if mode & 0o077:
            yield _problem("token", f"{path} can be read by others (mode {mode:o})", f"chmod 600 {path}")
        else:
            yield _good("token", f"{path} is yours alone")


def stale_server(around: Surroundings) -> Iterator[Finding]:
    left = places.read(around.home)
    if left is None:
        if (around.home / places.SERVER_FILE).exists():
            yield _problem(
                "server", f"{around.home / places.SERVER_FILE} is damaged", "Delete it, then: oarlock up --detach"
            )
        return
    path = around.home / places.SERVER_FILE
    if left.pid and not places.alive(left.pid):
        yield _problem(
            "server",
            f"{path} names process {left.pid}, which is gone: the server died without saying so",
            "oarlock up --detach starts it again; it takes over what runs. Its log is server.log beside that file.",
        )
        return
    if left.version and left.version != oarlock.__version__:
        yield _problem(
            "server",
            f"the server is version {left.version}, this is {oarlock.__version__}",
            "oarlock down, then oarlock up --detach; what runs goes on.",
        )
    yield from _ask_server(around, left)


def _ask_server(around: Surroundings, left: places.ServerFile) -> Iterator[Finding]:
    try:
        with clients.Client(told=settings.Settings(home=around.home), timeout_s=5.0) as client:
            client.server()
    except errors.Unauthenticated:
        yield _problem(
            "server",
            f"the server at {left.url} does not know the token in {around.home / 'token'}",
            "oarlock down, up.",
        )
    except errors.OarlockError as error:
        yield _problem(
            "server",
            f"process {left.pid} does not answer at {left.url}: {error.message}",
            f"oarlock down, then oarlock up --detach. Its log is {around.home / 'server.log'}.",
        )
    else:
        yield _good("server", f"the local server answers at {left.url}")


def named_server(around: Surroundings) -> Iterator[Finding]:
    """The server that the settings name: whether it answers, and whether its clock agrees."""
    told = around.told
    if told is None or told.server is None:
        return
    place = places.find(told)
    try:
        with clients.Client(told=told, timeout_s=5.0) as client:
            server = client.server()
            skew = client.clock_skew_s(around.clock)
    except errors.OarlockError as error:
        yield _problem("server", error.message, error.hint)
        return
    yield _good("server", f"{place.url} answers, and knows you as {server.user}")
    if skew is not None and abs(skew) > MOST_SKEW_S:
        yield _problem(
            "clock",
            f"this machine's clock and the server's are {abs(skew):.0f} s apart",
            "Set both by NTP: timedatectl set-ntp true",
        )


def port(around: Surroundings) -> Iterator[Finding]:
    """Whether the port that the server would listen on is free. A running server has it."""
    from oarlock import main

    left = places.read(around.home)
    if left is not None and left.pid and places.alive(left.pid):
        return
    try:
        wanted = main.read_settings(around.environ)
        if not wanted.port:
            yield _good("port", "the server takes a free one")
            return
        main.listen(wanted.host, wanted.port, 0).close()
    except errors.InvalidInput as error:
        yield _problem("settings", error.message, error.hint)
    except errors.OarlockError as error:
        yield _problem(
            "port",
            f"the server's port is taken: {error.message}",
            "End what has it (ss -ltnp shows it), or choose another: OARLOCK_PORT, or port in config.toml.",
        )
    else:
        yield _good("port", f"{wanted.port} is free")


def python(around: Surroundings) -> Iterator[Finding]:
    """What `python` is in a job: the one of this shell."""
    found = shutil.which("python", path=around.environ.get("PATH"))
    if found is None:
        yield _problem(
            "python",
            "there is no `python` on the PATH that jobs get",
            "Activate a virtual environment, or use python3.",
        )
        return
    code = "import sys, importlib.util as u; print(sys.version.split()[0], u.find_spec('torch') is not None)"
    try:
        done = subprocess.run(
            [found, "-c", code], capture_output=True, text=True, timeout=_PYTHON_TIMEOUT_S, check=True, cwd="/"
        )
        version, has_torch = done.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = errors.words(error)
        yield _problem("python", f"{found} does not run: {why}", "Mend or reactivate the virtual environment.")
        return
    if has_torch == "True":
        yield _good("python", f"{found} is Python {version} with torch")
    else:
        yield _problem(
            "torch",
            f"{found} (Python {version}), which jobs use, has no torch",
            f"{extras.command('torch', python=found)}\nOr --framework plain where a job needs none.",
        )


def cgroups(around: Surroundings) -> Iterator[Finding]:
    """Only told: without them limits are not enforced, and what calls setsid may outlive its job. What the server
    found when it tried stands at the nodes (`oarlock nodes --json`, the labels `limit.*`).
    """
    without = "CPU and memory limits are not enforced, and what escapes its session may outlive its job"
    try:
        own = [line.split(":", 2) for line in around.own_cgroup.read_text().splitlines()]
    except OSError:
        own = []
    if not (around.cgroups / "cgroup.controllers").exists():
        kept = [name for name in ("cpu", "memory") if _has_v1(around.cgroups / name, name, own)]
        if len(kept) == 2:
            yield _good("cgroups", "cgroup v1 keeps CPU and memory limits")
        elif kept:
            yield _info("cgroups", f"no cgroup v2 here, and of v1 only {kept[0]}: the other limit is not enforced")
        else:
            yield _info("cgroups", f"no cgroup v2 here: {without}")
        return
    relative = next((path for number, _, path in own if number == "0"), "/")
    place = around.cgroups / relative.strip("/")
    if os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK):
        yield _good("cgroups", f"{place} is ours")
    else:
        yield _info(
            "cgroups", f"{place} is not delegated: {without}. systemd-run --user --scope -p Delegate=yes oarlock up"
        )


def _has_v1(mount: Path, controller: str, own: list[list[str]]) -> bool:
    """Whether we may make groups below our own in this v1 hierarchy; a container may show its own as the root."""
    relative = next((path for _, names, path in own if controller in names.split(",")), None)
    if relative is None:
        return False
    places = [mount / relative.strip("/"), mount]
    return any(os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK) for place in places)


def gpus(around: Surroundings) -> Iterator[Finding]:
    tool = shutil.which("nvidia-smi", path=around.environ.get("PATH"))
    if tool is None:
        seen = Path("/dev/nvidia0").exists()
        yield _info(
            "gpus", "a GPU device is there, but no driver tools" if seen else "no NVIDIA driver: jobs get no GPUs"
        )
        return
    try:
        done = subprocess.run(
            [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_PYTHON_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        yield _warning(
            "gpus", f"nvidia-smi does not run: {errors.words(error)}", "Install the driver again, or reboot."
        )
        return
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        yield _warning(
            "gpus", f"the GPU driver does not answer: {said[0] if said else 'no word'}", "Reload the driver, or reboot."
        )
        return
    yield _good("gpus", "; ".join(done.stdout.strip().splitlines()))


CHECKS: tuple[Check, ...] = (
    config,
    home_writable,
    disk,
    network_file_system,
    clock_plausible,
    token,
    stale_server,
    named_server,
    port,
    python,
    shared_memory,
    cgroups,
    gpus,
)
