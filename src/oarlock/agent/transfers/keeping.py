"""The keeping of files that the processes left in the working directory. The helper command does it.

The exit of a task does not depend on it. If files cannot be kept, the record of the task says so.
"""

from __future__ import annotations

import json

from oarlock.agent.protocol import client
from oarlock.agent.transfers import helpercommand, workdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment

FAILURE_CHARACTERS = 500


class Keeping:
    """The keeping of one task's files. `run`, on a thread of its own, writes the result to `state.kept`."""

    def __init__(self, task: Assignment, helper: helpercommand.HelperCommand, state: AgentState) -> None:
        self._task, self._helper, self._state = task, helper, state

    def due(self) -> bool:
        return bool(self._task.keep) and workdir.has_new_files(self._task)

    def run(self, secrets: dict[str, str]) -> None:
        env = helpercommand.helper_environment(self._task.env, secrets)
        try:
            said = self._helper.run(self._arguments(), "files of the working directory", "store_failed", env)
            blanker = self._state.blanker
            self._say(json.loads(blanker.text(said) if blanker else said))
        except (helpercommand.Failed, ValueError, KeyError) as error:
            self.fail(str(error))
        except client.Abandoned:
            pass  # main has ended it, and reports that
        finally:
            self._state.wake()

    def fail(self, why: str) -> None:
        self._say({"failure": why[:FAILURE_CHARACTERS]})

    def _say(self, kept: dict[str, Any]) -> None:
        """Record the result. The first result counts, so that a run that main has ended cannot change it."""
        if self._state.kept is None:
            self._state.kept = kept

    def _arguments(self) -> list[str]:
        keep = self._task.keep or {}
        return [
            "keep",
            self._task.workdir,
            str(keep["to"]),
            "--baseline",
            self._task.path(workdir.BASELINE),
            "--limit-bytes",
            str(int(keep.get("limit_bytes") or 0)),
            "--limit-files",
            str(int(keep.get("limit_files") or 0)),
            *["--ignore=" + str(pattern) for pattern in keep.get("ignore") or ()],
        ]
