"""The command `python3 -I agent.pyz DIR`: supervise the task in DIR. Exit status 75: another agent supervises it."""

from __future__ import annotations

import fcntl
import os
import sys

ALREADY_SUPERVISED = 75
BAD_ASSIGNMENT = 78


def main(arguments: list[str]) -> int:
    if len(arguments) > 3 and arguments[1] == "--inside":
        from oarlock.agent import inside

        return inside.become(arguments[2], arguments[3:])
    if len(arguments) == 4 and arguments[1] == "--reach":
        from oarlock.agent import reach

        return reach.reach(arguments[2], float(arguments[3]))
    if len(arguments) == 3 and arguments[1] == "--bridge":
        from oarlock.agent import bridge

        return bridge.bridge(arguments[2])
    if len(arguments) > 4 and arguments[1] == "--shell":
        from oarlock.agent import assignment, remoteshell

        return remoteshell.shell(assignment.read(arguments[2]), arguments[3], arguments[4:])
    if len(arguments) == 3 and arguments[1] == "--serve-shell":
        from oarlock.agent import assignment, remoteshell

        return remoteshell.serve(assignment.read(arguments[2]))
    if len(arguments) == 4 and arguments[1] == "--environment":
        from oarlock.agent.transfers import virtualenvs

        return virtualenvs.main(arguments[2], arguments[3])
    if len(arguments) != 2:
        sys.stderr.write("usage: python3 -I agent.pyz TASK_DIRECTORY\n")
        return 64
    _without_site(arguments)
    directory = os.path.abspath(arguments[1])
    if not _lock(directory):
        sys.stderr.write(f"oarlock agent: another agent holds {directory}/lock: it supervises this task\n")
        return ALREADY_SUPERVISED
    from oarlock.agent import assignment, failpoints, supervisor

    failpoints.arm(os.environ.pop(failpoints.ENVIRONMENT_NAME, ""))
    failpoints.failpoint("lock.taken")
    try:
        task = assignment.read(directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"oarlock agent: assignment.json cannot be used: {type(error).__name__}: {error}\n")
        return BAD_ASSIGNMENT
    return supervisor.Supervisor(task).run()


def _without_site(arguments: list[str]) -> None:
    """Start again with -S, if it was not given: the image's site-packages may take longer to start than the agent."""
    if sys.flags.no_site or not sys.executable:
        return
    os.execv(sys.executable, [sys.executable, "-I", "-S", arguments[0], *arguments[1:]])


def _lock(directory: str) -> bool:
    """Take the lock that shows that this task has a living agent. The lock ends with this process, or with an exec."""
    fd = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    status = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # do not wait for the threads: they may be in a long poll
