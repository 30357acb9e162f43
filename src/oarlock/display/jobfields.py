"""The fields of a job file as a reader meets them: path, kind, default, accepted words, and one sentence.

Kinds, defaults and words come from the structs of `spec.jobfile`; only the sentences are written here.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from typing import Any

import msgspec

from oarlock.spec import jobfile, roles

ROLE = "roles.ROLE"
_KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): ""}

HELP: dict[str, str] = {
    "command": "The command line for the shell, or a list of a program and its arguments.",
    "name": "The job's name: lower-case letters, digits and dashes.",
    "pool": "The resource pool.",
    "framework": "The framework of the script. It decides the environment variables of each process.",
    "image": "The container image, on Kubernetes.",
    "dependencies": "A requirements file in the directory. It is installed once.",
    "size": "A size that sets cores, memory and GPUs of each task: 1-v100.",
    "roles": "The tasks of each role.",
    "roles.ROLE": "A role: worker, ps, chief, evaluator or launcher.",
    "roles.ROLE.count": "The number of tasks.",
    "roles.ROLE.min": "The fewest tasks with which the gang may run.",
    "roles.ROLE.max": "The most tasks to which the gang may grow.",
    "roles.ROLE.nproc": "The number of processes in each task.",
    "roles.ROLE.cpus": "The number of cores of each task: 4, 0.5 or 500m.",
    "roles.ROLE.memory": "The memory of each task, such as 2Gi.",
    "roles.ROLE.gpus": "The number of GPUs of each task, or a share of one: 0.5.",
    "roles.ROLE.gpu_type": "The accepted types of GPU, best first.",
    "roles.ROLE.gpu_memory": "The least memory of each GPU, such as 40Gi.",
    "roles.ROLE.mixed": "Whether GPUs of several of these types at once will do.",
    "roles.ROLE.on_success": "The effect on the job when a task of this role ends well.",
    "roles.ROLE.on_failure": "The effect on the job when a task of this role fails.",
    "strategy": "The exchange of gradients.",
    "strategy.kind": "How the training library exchanges gradients.",
    "strategy.compression": "The compression of gradients.",
    "strategy.bucket_bytes": "The most bytes of a group in which gradients travel, or tuned.",
    "strategy.sync": "With parameter servers: whether all workers step together.",
    "strategy.staleness": "With parameter servers: the most steps between the fastest and the slowest worker.",
    "strategy.backup": "With parameter servers: the number of slow gradients of a step that are not waited for.",
    "data": "The data to fetch before the start: a list of source and mount.",
    "data[].source": "The URL or path of the data.",
    "data[].mount": "The place of the data in the job's directory.",
    "volumes": "The volumes of the cluster: a list of claim and mount.",
    "volumes[].claim": "The name of the volume claim.",
    "volumes[].mount": "The absolute path of the volume in the task.",
    "volumes[].read_only": "Whether the volume cannot be written.",
    "secrets": "The secrets that the job may read.",
    "secrets[].name": "The name of the secret.",
    "secrets[].as": "Whether the secret is a variable or a file.",
    "results": "The place where results are stored in the end.",
    "files": "The files that are kept of each task.",
    "files.keep": "Whether new and changed files are kept in the end.",
    "files.ignore": "The files not to keep, as in .gitignore.",
    "files.limit": "The most bytes to keep of each task.",
    "files.count": "The most files to keep of each task.",
    "checkpoint": "The checkpoints of the job.",
    "checkpoint.to": "The place of the checkpoints.",
    "checkpoint.every": "The time between checkpoints, such as 10m.",
    "checkpoint.keep": "The number of checkpoints to keep.",
    "priority": "The priority, from 0 to 1000.",
    "preemptible": "Whether a more important job may stop this one.",
    "max_restarts": "The most restarts after failures of the job itself.",
    "timeout": "The longest run time of the job, such as 12h.",
    "start_timeout": "The longest time until the first step.",
    "grace": "The time between the request to stop and the kill.",
    "hang_timeout": "The longest time without progress.",
    "freeze": "The time for which a failed job keeps its place, for a look into it.",
    "placement": "Whether the tasks stand together, or on many nodes.",
    "topology": "A part of the cluster in which all tasks should lie.",
    "topology.same": "The part: all tasks in one of these.",
    "topology.required": "Whether the job waits rather than runs apart.",
    "ps_placement": "Whether parameter servers stand on the nodes of workers, or on other nodes.",
    "batch": "The bounds within which the scheduler may choose the batch size.",
    "batch.size": "The number of examples in a step of the whole gang.",
    "batch.max": "The largest batch size with which the model still learns.",
    "batch.local_min": "The fewest examples of one process at once.",
    "batch.local_max": "The most examples of one process at once.",
    "env": "The environment variables.",
    "tensorboard": "Whether `oarlock.train` writes TensorBoard files; on Kubernetes also a TensorBoard beside the job.",
}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field. `words` are the accepted ones, empty where any text will do."""

    path: str
    kind: str
    default: str = ""
    words: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        return HELP[self.path]


@functools.cache
def fields() -> tuple[Field, ...]:
    """Return all fields, each part before its own fields."""
    return tuple(_of(jobfile.JobSpec, ""))


def _of(part: type[msgspec.Struct], above: str) -> list[Field]:
    found: list[Field] = []
    for field in msgspec.structs.fields(part):
        path = f"{above}{field.encode_name}"
        kinds = _alternatives(field.type)
        inner = [_part(kind) for kind in kinds]
        nested = next((one for one in inner if one is not None), None)
        found.append(Field(path=path, kind=_told(kinds, nested), default=_default(field), words=_words(kinds)))
        if path == "roles":
            found.append(Field(path=ROLE, kind="mapping", words=tuple(str(one) for one in roles.RoleName)))
            found += _of(jobfile.Role, f"{ROLE}.")
        elif nested is not None:
            many = any(typing.get_origin(kind) is tuple for kind in kinds)
            found += _of(nested, f"{path}[]." if many else f"{path}.")
    return found


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _part(kind: Any) -> type[msgspec.Struct] | None:
    for one in (kind, *typing.get_args(kind)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return one
    return None


def _words(kinds: tuple[Any, ...]) -> tuple[str, ...]:
    words = [str(one) for kind in kinds if isinstance(kind, enum.EnumType) for one in list[Any](kind)]
    return ("true", "false") if bool in kinds else tuple(words)


def _told(kinds: tuple[Any, ...], nested: type[msgspec.Struct] | None) -> str:
    if _words(kinds):
        return "one of the words"
    plain = [_KINDS[kind] for kind in kinds if _KINDS.get(kind)]
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        plain.append("list")
    if any(typing.get_origin(kind) is dict for kind in kinds) or (nested is not None and "list" not in plain):
        plain.append("mapping")
    return " or ".join(plain)


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT or value is None or isinstance(value, msgspec.Struct | dict | tuple):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
