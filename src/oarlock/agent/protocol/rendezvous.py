"""The rendezvous, which the server gives when the gang has registered. With it each process finds the others."""

from __future__ import annotations

import os

from oarlock.agent import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oarlock.agent.assignment import Assignment


class Rendezvous:
    """A rendezvous: `round`, files to write first, one environment per process, and checkpoints to restore."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.round = int(fields.get("round") or 0)
        self.files: dict[str, str] = fields.get("files") or {}
        self.restore: list[str] = fields.get("restore") or []
        self._processes: list[dict[str, Any]] = fields.get("processes") or []

    def environment(self, process: int, directory: str) -> dict[str, str]:
        """Return the variables of process number `process`, with `{task_dir}` filled in."""
        if process >= len(self._processes):
            return {}
        env = self._processes[process].get("env") or {}
        return {name: str(value).replace("{task_dir}", directory) for name, value in env.items()}

    def write_files(self, task: Assignment) -> None:
        for relative, text in self.files.items():
            path = files.inside(task.directory, relative)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.write_atomically(path, text.replace("{task_dir}", task.directory))

    def announce(self, task: Assignment) -> None:
        """Tell the running processes of the round: `report/rendezvous.json` holds the newest one."""
        self.write_files(task)
        envs = [self.environment(process, task.directory) for process in range(len(self._processes))]
        value = {
            "round": self.round,
            "lost": self.fields.get("lost") or 0,
            "processes": [{"env": env} for env in envs],
            "restore": self.restore,
        }
        files.write_json(os.path.join(task.report, "rendezvous.json"), value)
