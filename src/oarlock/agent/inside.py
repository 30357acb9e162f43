"""`python3 -I agent.pyz --inside DIR COMMAND...`: become a command in the environment of the task's processes.

For platforms that start commands beside the agent, in the same container: `oarlock exec`.
"""

from __future__ import annotations

import json
import os
import sys

NOT_STARTED = 75
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def become(directory: str, command: list[str]) -> int:
    """Return an exit status only where the command could not be started."""
    try:
        with open(os.path.join(directory, "env.json"), encoding="utf-8") as file:
            env = json.load(file)
        with open(os.path.join(directory, "assignment.json"), encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        sys.stderr.write("oarlock: the task has not started its process yet; try again in a moment\n")
        return NOT_STARTED
    for place in (told.get("workdir"), os.path.join(directory, "code"), directory):
        if place and os.path.isdir(place):
            os.chdir(place)
            break
    # The mark last: whatever runs inside a task ends with it.
    env = dict(env, OARLOCK_TASK_KEY=told["key"], OARLOCK_TASK_DIR=directory)
    if sys.stdin.isatty():
        env.setdefault("TERM", "xterm-256color")
    try:
        os.execvpe(command[0], command, env)
    except FileNotFoundError:
        sys.stderr.write(f"oarlock: {command[0]}: no such command in the task's image\n")
        return NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"oarlock: {command[0]}: {error.strerror}\n")
        return NOT_EXECUTABLE
