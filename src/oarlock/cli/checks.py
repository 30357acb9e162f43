"""The checks of `oarlock doctor`: each reads a part of the machine's state and yields findings.

The surroundings (clock, disk, mounts, environment) are arguments, so that a test can make each of them faulty. The
judgement and the words are in `oarlock.display.findings`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

import oarlock
from oarlock.client import places, programs, settings
from oarlock.client.synchronous import clients
from oarlock.display import findings
from oarlock.spec import errors

_CLOCK_SLACK_S = 86_400.0


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


Findings = Iterator[findings.Finding]
Check = Callable[[Surroundings], Findings]


def all_findings(around: Surroundings, *, cluster: bool = False) -> list[findings.Finding]:
    """Return the findings of this machine, or of the cluster and the settings."""
    return [finding for check in (CLUSTER if cluster else CHECKS) for finding in check(around)]


def config(around: Surroundings) -> Findings:
    try:
        settings.resolve(around.environ, {})
    except errors.OarlockError as error:
        yield findings.problem("settings", error.message, error.hint)
    else:
        yield findings.good("settings", "settings can be read")


def home_writable(around: Surroundings) -> Findings:
    try:
        around.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=around.home) as file:
            file.write(b"oarlock")
            file.flush()
            yield findings.file_clock(str(around.home), os.fstat(file.fileno()).st_mtime - around.clock())
    except OSError as error:
        why = error.strerror or error
        yield findings.problem("home", f"{around.home} cannot be written: {why}", findings.SET_HOME)
    else:
        yield findings.good("home", f"{around.home} can be written")


def clock_plausible(around: Surroundings) -> Findings:
    """Check that the clock is not before the day on which Oarlock was installed."""
    installed_at = Path(oarlock.__file__).stat().st_mtime
    if around.clock() < installed_at - _CLOCK_SLACK_S:
        yield findings.clock_before_installation(time.strftime("%Y-%m-%d", time.gmtime(around.clock())))


def disk(around: Surroundings) -> Findings:
    place = next((path for path in (around.home, *around.home.parents) if path.is_dir()), Path("/"))
    try:
        total, free = around.disk_usage(place)
    except OSError as error:
        yield findings.problem("disk", f"{place}: {error.strerror or error}", "Check the disk.")
    else:
        yield findings.disk(str(around.home), total, free)


def shared_memory(around: Surroundings) -> Findings:
    if around.shm.is_dir():
        yield findings.shared_memory(str(around.shm), around.disk_usage(around.shm)[0])


def network_file_system(around: Surroundings) -> Findings:
    kind = file_system_of(around.home, around.mounts)
    if kind:
        yield findings.file_system(str(around.home), kind)


def file_system_of(path: Path, mounts: Path) -> str:
    """Return the type of the mount that holds `path`; empty if it is not known."""
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


def token(around: Surroundings) -> Findings:
    for name in (places.TOKEN_FILE, settings.LOGIN_FILE, "task-secret"):
        path = around.home / name
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue
        yield findings.token_file(str(path), mode)


def stale_server(around: Surroundings) -> Findings:
    """Check the local server, if the home has the file of one."""
    left = places.read(around.home)
    path = str(around.home / places.SERVER_FILE)
    if left is None:
        if Path(path).exists():
            yield findings.server_file_damaged(path)
        return
    if left.pid and not places.alive(left.pid):
        yield findings.server_gone(path, left.pid)
        return
    if left.version and left.version != oarlock.__version__:
        yield findings.server_version(left.version, oarlock.__version__)
    try:
        with clients.Client(told=settings.Settings(home=around.home), timeout_s=5.0) as client:
            client.server()
    except errors.Unauthenticated:
        yield findings.server_token(left.url, str(around.home / places.TOKEN_FILE))
    except errors.OarlockError as error:
        yield findings.server_silent(left.url, left.pid, error.message, str(around.home / "server.log"))
    else:
        yield findings.good("server", f"the local server answers at {left.url}")


def named_server(around: Surroundings) -> Findings:
    """Check that the server of the settings answers, and that its clock agrees with this one."""
    told = around.told
    if told is None or told.server is None:
        return
    place = places.find(told)
    try:
        with clients.Client(told=told, timeout_s=5.0) as client:
            server = client.server()
            skew = client.clock_skew_s(around.clock)
    except errors.OarlockError as error:
        yield findings.problem("server", error.message, error.hint)
        return
    yield findings.good("server", f"{place.url} answers, and knows you as {server.user}")
    if skew is not None:
        yield findings.server_clock(skew)


def port(around: Surroundings) -> Findings:
    """Check that the port of the server is free, unless a server runs and has it."""
    from oarlock import main

    left = places.read(around.home)
    if left is not None and left.pid and places.alive(left.pid):
        return
    try:
        wanted = main.read_settings(around.environ)
        if not wanted.port:
            yield findings.good("port", "the server takes a free one")
            return
        main.listen(wanted.host, wanted.port, 0).close()
    except errors.InvalidInput as error:
        yield findings.problem("settings", error.message, error.hint)
    except errors.OarlockError as error:
        yield findings.port_taken(error.message)
    else:
        yield findings.good("port", f"{wanted.port} is free")


def python(around: Surroundings) -> Findings:
    """Check the `python` of a job, which is the one of this shell."""
    yield findings.python(programs.python(around.environ.get("PATH")))


def cgroups(around: Surroundings) -> Findings:
    """Check for control groups. The labels `limit.*` in `oarlock nodes --json` tell what the server could enforce."""
    try:
        own = [line.split(":", 2) for line in around.own_cgroup.read_text().splitlines()]
    except OSError:
        own = []
    if not (around.cgroups / "cgroup.controllers").exists():
        usable = [name for name in ("cpu", "memory") if _has_v1(around.cgroups / name, name, own)]
        yield findings.cgroups_v1(usable)
        return
    relative = next((path for number, _, path in own if number == "0"), "/")
    place = around.cgroups / relative.strip("/")
    yield findings.cgroups_v2(str(place), delegated=_writable(place))


def _has_v1(mount: Path, controller: str, own: list[list[str]]) -> bool:
    """Return whether we may make groups below our own in this v1 hierarchy. A container may see its own as the root."""
    relative = next((path for _, names, path in own if controller in names.split(",")), None)
    return relative is not None and any(_writable(place) for place in (mount / relative.strip("/"), mount))


def _writable(group: Path) -> bool:
    return os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK)


def gpus(around: Surroundings) -> Findings:
    yield findings.gpus(programs.gpus(around.environ.get("PATH")))


def kubernetes(around: Surroundings) -> Findings:
    """Examine the cluster. Pods try to reach the server of this home, if one runs."""
    from oarlock import main

    left = places.read(around.home)
    running = left is not None and bool(left.pid) and places.alive(left.pid)
    try:
        told = main.read_settings(around.environ)
        found = main.examine(told, told.pods_url(left.url) if running and left is not None else "")
    except errors.InvalidInput as error:
        yield findings.problem("settings", error.message, error.hint)
    except ModuleNotFoundError as error:
        yield findings.problem("cluster", f"the package {error.name} is not installed", findings.INSTALL_KUBERNETES)
    else:
        for one in found:
            yield (
                findings.problem(one.check, one.message, one.fix) if one.fix else findings.good(one.check, one.message)
            )
        if not running:
            yield findings.info("server", findings.NO_SERVER_TO_REACH)


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

CLUSTER: tuple[Check, ...] = (config, kubernetes)
"""The checks of `--backend kubernetes`."""
