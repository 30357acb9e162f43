"""Has the helper keep what the processes left in the working directory, and says what became of that.

The exit of a task does not depend on it: where files cannot be kept, the record of the task says so.
"""

from __future__ import annotations

import json

from oarlock.agent import client, errand, workdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board

FAILURE_CHARACTERS = 500


class Keeping:
    """`due` once the processes have ended; then `run`, on a thread of its own, leaves `board.kept`."""

    def __init__(self, task: Assignment, errands: errand.Errands, board: Board) -> None:
        self._task, self._errands, self._board = task, errands, board

    def due(self) -> bool:
        return bool(self._task.keep) and workdir.has_news(self._task)

    def run(self, secrets: dict[str, str]) -> None:
        env = errand.helper_environment(self._task.env, secrets)
        try:
            said = self._errands.run(self._arguments(), "files of the working directory", "store_failed", env)
            blanker = self._board.blanker
            self._say(json.loads(blanker.text(said) if blanker else said))
        except (errand.Failed, ValueError, KeyError) as error:
            self.fail(str(error))
        except client.Abandoned:
            pass  # main has cut it short, and says so
        finally:
            self._board.wake()

    def fail(self, why: str) -> None:
        self._say({"failure": why[:FAILURE_CHARACTERS]})

    def _say(self, kept: dict[str, Any]) -> None:
        """The first word counts: what main has cut short is not finished afterwards."""
        if self._board.kept is None:
            self._board.kept = kept

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
