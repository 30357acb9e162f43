"""The task that the backend gives to this agent: `assignment.json`, read once (docs/agent-protocol.md)."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Key:
    """A task key, `JOB/ATTEMPT/ROLE/INDEX/INCARNATION`, in its parts."""

    def __init__(self, text: str) -> None:
        parts = text.split("/")
        if len(parts) != 5 or not all(parts):
            raise ValueError(f"{text!r} is not a task key (JOB/ATTEMPT/ROLE/INDEX/INCARNATION)")
        self.text = text
        self.job, self.attempt, self.role, self.index, self.incarnation = parts


class Assignment:
    """The fields of assignment.json with their defaults, and the paths of the task's directory."""

    def __init__(self, directory: str, fields: dict[str, Any]) -> None:
        get = fields.get
        self.directory = directory
        self.key = Key(fields["key"])
        self.server: str = get("server") or ""
        self.server_file: str | None = get("server_file")
        self.token: str = get("token") or ""
        self.ca_file: str | None = get("ca_file")
        variable = get("address_variable") or ""
        self.address: str = get("address") or os.environ.get(variable) or "127.0.0.1"
        self.exit_copy: str | None = get("exit_copy")
        self.ports: list[int] = get("ports") or []
        self.snapshot: str | None = get("snapshot")
        self.downloads: list[dict[str, str]] = get("downloads") or []
        self.uploads: dict[str, str] | None = get("uploads")
        self.keep: dict[str, Any] | None = get("keep")
        self.tensorboard = bool(get("tensorboard"))
        self.checkpoint_copies: dict[str, Any] | None = get("checkpoint_copies")
        self.requirements: str | None = get("requirements")
        self.environments: str | None = get("environments")
        self.secret_variables: dict[str, str] = get("secret_variables") or {}
        self.helper: list[str] = get("helper") or []
        self.mailbox: str | None = get("mailbox")
        self.command: str | list[str] = fields["command"]
        self.nproc = max(1, int(get("nproc") or 1))
        self.env: dict[str, str] = get("env") or {}
        self.path_env: dict[str, str] = get("path_env") or {}
        self.grace_s = _seconds(get("grace_s"), 30.0)
        self.orphan_timeout_s: float | None = get("orphan_timeout_s")
        self.spool_bytes = int(get("spool_bytes") or 1 << 30)
        self.train_path: str | None = get("train_path")
        self.hook_path: str | None = get("hook_path")
        self.cgroup: str | None = get("cgroup")
        self.limit_mark: int | None = get("limit_mark")
        self.oom_counter: str | None = get("oom_counter")
        self.gpus: list[int] | None = get("gpus")
        self.plugged_gpus = int(get("plugged_gpus") or 0)
        self.freeze_s = _seconds(get("freeze_s"), 0.0)
        self.code = os.path.join(directory, "code")
        self.workdir: str = get("workdir") or self.code
        self.report = os.path.join(directory, "report")
        self.results = os.path.join(directory, "results")
        self.checkpoints: str = self.env.get("OARLOCK_CHECKPOINTS") or os.path.join(directory, "checkpoints")

    def path(self, *names: str) -> str:
        return os.path.join(self.directory, *names)

    @property
    def needs_fetching(self) -> bool:
        return bool(self.snapshot or self.downloads or self.requirements)


def read(directory: str) -> Assignment:
    with open(os.path.join(directory, "assignment.json"), encoding="utf-8") as file:
        return Assignment(directory, json.load(file))


def _seconds(value: Any, default: float) -> float:
    return default if value is None else max(0.0, float(value))
