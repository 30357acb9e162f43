"""The findings of `oarlock doctor`: measured values in, a state, a message and the way to repair it out.

Reading the values is the work of the caller: the clock, the disk and the processes of a machine are its own.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from oarlock.display import marks
from oarlock.spec import bodies
from oarlock.spec.hints import extras
from oarlock.spec.input import quantities

LEAST_DISK_BYTES = 1 << 30
LOW_DISK_BYTES = 5 << 30
LEAST_SHM_BYTES = 64 << 20
MOST_SKEW_S = 5.0
MOST_FILE_SKEW_S = 2.0
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "afs", "glusterfs", "beegfs", "9p"}
    | {"fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.ceph"}
)
SET_CLOCK = "Set the clock by NTP: timedatectl set-ntp true"
SET_HOME = "Set OARLOCK_HOME to a directory that you may write."
INSTALL_KUBERNETES = "Install it: pip install 'oarlock[kubernetes]'"
NO_SERVER_TO_REACH = "no server of this home runs; at its start a pod tries whether pods reach it"
START_AGAIN = "Run `oarlock down`, then `oarlock up --detach`. Running jobs go on."


class State(StrEnum):
    GOOD = "good"
    INFO = "info"  # worth knowing; nothing to repair
    WARNING = "warning"  # becomes a problem later
    PROBLEM = "problem"


MARKS: dict[State, marks.Mark] = {
    State.GOOD: marks.Mark("green", "ok"),
    State.INFO: marks.Mark("cyan", "info"),
    State.WARNING: marks.Mark("amber", "warn"),
    State.PROBLEM: marks.Mark("red", "FAIL"),
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`fix` is the next step; only problems and warnings have one."""

    check: str
    state: State
    message: str
    fix: str = ""


def good(check: str, message: str) -> Finding:
    return Finding(check=check, state=State.GOOD, message=message)


def info(check: str, message: str) -> Finding:
    return Finding(check=check, state=State.INFO, message=message)


def warning(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, state=State.WARNING, message=message, fix=fix)


def problem(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, state=State.PROBLEM, message=message, fix=fix)


def disk(home: str, total: int, free: int) -> Finding:
    """Judge the free space, in bytes, of the disk with Oarlock's home."""
    said = f"{quantities.memory_text(free)} of {quantities.memory_text(total)} are free for {home}"
    fix = "Free some space (`oarlock rm` removes jobs that have ended), or set OARLOCK_HOME to a larger disk."
    if free < LEAST_DISK_BYTES:
        return problem("disk", f"the disk is full: {said}", fix)
    if free < LOW_DISK_BYTES:
        return warning("disk", f"the disk is nearly full: {said}", fix)
    return good("disk", said)


def of_server(home: str, state: bodies.ServerState) -> list[Finding]:
    """Judge the values that a server tells of its own machine."""
    found = [problem(part, f"{part}: {said}", "oarlock doctor") for part, said in state.problems.items()]
    if state.disk_bytes:
        found.append(disk(home, state.disk_bytes, state.disk_free_bytes))
    if state.file_system:
        found.append(file_system(home, state.file_system))
    if state.shared_memory_bytes:
        found.append(shared_memory("/dev/shm", state.shared_memory_bytes))
    if state.file_skew_s is not None:
        found.append(file_clock(home, state.file_skew_s))
    if state.programs is not None:
        found += [python(state.programs.python), gpus(state.programs.gpus)]
    return [*found, *(token_file(f"{home}/{name}", mode) for name, mode in state.readable.items())]


def shared_memory(place: str, total: int) -> Finding:
    """Judge the size, in bytes, of the shared memory of this machine or container."""
    if total < LEAST_SHM_BYTES:
        return warning(
            "shared memory",
            f"{place} has only {quantities.memory_text(total)}: data loaders with workers crash when it is full",
            "Give the container more: docker run --shm-size=2g",
        )
    return good("shared memory", f"{place} has {quantities.memory_text(total)}")


def file_system(home: str, kind: str) -> Finding:
    """Judge the type of the file system with Oarlock's home."""
    if kind in NETWORK_FILE_SYSTEMS:
        return problem(
            "file system",
            f"{home} is on a network file system ({kind}), on which SQLite loses data",
            "Set OARLOCK_HOME to a local disk, or use PostgreSQL: oarlock up --database postgresql://...",
        )
    return good("file system", f"{home} is on {kind}")


def file_clock(home: str, skew_s: float) -> Finding:
    """Judge how far the times of new files are ahead of the clock."""
    if abs(skew_s) <= MOST_FILE_SKEW_S:
        return good("clock", "new files get the time of the clock")
    side = "ahead of" if skew_s > 0 else "behind"
    return problem(
        "clock",
        f"new files in {home} get a time {abs(skew_s):.0f} s {side} the clock",
        f"{SET_CLOCK}, on this machine and on the file server.",
    )


def clock_before_installation(day: str) -> Finding:
    return problem("clock", f"the clock is at {day}, which is before Oarlock was installed", SET_CLOCK)


def server_clock(skew_s: float) -> Finding:
    """Judge how far the server's clock is from this machine's."""
    if abs(skew_s) <= MOST_SKEW_S:
        return good("clock", "the clocks of this machine and of the server agree")
    said = f"the clocks of this machine and of the server are {abs(skew_s):.0f} s apart"
    return problem("clock", said, f"{SET_CLOCK}, on both machines.")


def token_file(path: str, mode: int) -> Finding:
    """Judge the permissions of a file with a token."""
    if mode & 0o077:
        return problem("token", f"{path} can be read by others (mode {mode:o})", f"chmod 600 {path}")
    return good("token", f"{path} can be read by you alone")


def server_file_damaged(path: str) -> Finding:
    return problem("server", f"{path} is damaged", "Delete it, then run `oarlock up --detach`.")


def server_gone(path: str, pid: int) -> Finding:
    return problem(
        "server",
        f"{path} names process {pid}, which does not exist: the server died",
        "`oarlock up --detach` starts it again, and it takes over the running jobs. The reason is in server.log beside"
        " that file.",
    )


def server_version(server: str, here: str) -> Finding:
    return problem("server", f"the server is version {server}, and this command line is {here}", START_AGAIN)


def server_token(url: str, token_file: str) -> Finding:
    return problem("server", f"the server at {url} does not accept the token in {token_file}", START_AGAIN)


def server_silent(url: str, pid: int, why: str, log: str) -> Finding:
    said = f"the server (process {pid}) does not answer at {url}: {why}"
    return problem("server", said, f"{START_AGAIN} The server's log is {log}.")


def port_taken(why: str) -> Finding:
    return problem(
        "port",
        f"the server cannot listen on its port: {why}",
        "End the program that uses it (`ss -ltnp` lists it), or set another: OARLOCK_PORT, or `port` in config.toml.",
    )


def python(found: bodies.Python) -> Finding:
    """Judge the `python` of a job."""
    if not found.path:
        said = "there is no `python` on the PATH that jobs get"
        return problem("python", said, "Activate a virtual environment, or use `python3` in commands.")
    if found.fault:
        said = f"{found.path} does not run: {found.fault}"
        return problem("python", said, "Repair the virtual environment, or activate another one.")
    if not found.torch:
        install = extras.command("torch", python=found.path)
        return problem(
            "torch",
            f"jobs use {found.path} (Python {found.version}), which has no torch",
            f"{install}\nJobs without torch can run with --framework plain.",
        )
    return good("python", f"{found.path} is Python {found.version} with torch")


def cgroups_v1(usable: list[str]) -> Finding:
    """Judge the control groups of version 1. `usable` has those of cpu and memory in which we may make groups."""
    if len(usable) == 2:
        return good("cgroups", "cgroup v1 enforces CPU and memory limits")
    if usable:
        said = f"there is no cgroup v2, and cgroup v1 gives only {usable[0]}: the other limit is not enforced"
        return info("cgroups", said)
    return info("cgroups", f"there is no cgroup v2: {WITHOUT_CGROUPS}")


def cgroups_v2(place: str, *, delegated: bool) -> Finding:
    if delegated:
        return good("cgroups", f"{place} is ours")
    how = "systemd-run --user --scope -p Delegate=yes oarlock up"
    return info("cgroups", f"{place} is not delegated to you: {WITHOUT_CGROUPS}. To delegate it: {how}")


WITHOUT_CGROUPS = "CPU and memory limits are not enforced, and a process that leaves its session may outlive its job"


def gpus(driver: bodies.Driver) -> Finding:
    """Judge the GPU driver of a machine."""
    if not driver.tool:
        return info(
            "gpus", "there is a GPU, but no driver tools" if driver.device else "no NVIDIA driver: jobs get no GPUs"
        )
    if driver.fault:
        said = f"nvidia-smi does not run: {driver.fault}"
        return warning("gpus", said, "Install the driver again, or restart the machine.")
    if driver.silence:
        said = f"the GPU driver does not answer: {driver.silence}"
        return warning("gpus", said, "Reload the driver, or restart the machine.")
    return good("gpus", "; ".join(driver.devices))
