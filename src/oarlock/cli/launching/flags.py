"""The flags of `oarlock run`: each is a field of the job file under another name.

`FLAGS` is the one table. The options and their help, the merge onto a job file, and the translation of an error's path
back into the flag come from it. The kind, the choices and the default of a flag are those of its field.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from oarlock.cli import command
from oarlock.spec import errors, jobfile

F = TypeVar("F", bound=Callable[..., Any])

# A resource flag holds for the roles that compute. Parameter servers and evaluators keep the amounts of the job file;
# without such amounts they take the same cores and memory.
COMPUTING = ("worker", "chief")
BESIDE = ("ps", "evaluator")
BESIDE_FIELDS = ("cpus", "memory")
SWITCHES = ("roles.chief.count", "roles.evaluator.count")
"""Counts that are 0 or 1."""


class Flag(NamedTuple):
    """`path` is the path of the field in the job file; `*` stands for each computing role. `default` is for a reader,
    if the field has none of its own.
    """

    section: str
    typed: str
    path: str
    metavar: str | None
    help: str
    default: str = ""

    @property
    def names(self) -> list[str]:
        return self.typed.split()

    @property
    def argument(self) -> str:
        return "flag_" + self.names[0].partition("/")[0].lstrip("-").replace("-", "_")

    @property
    def field(self) -> msgspec.structs.FieldInfo:
        """Return the field of the job file."""
        first, _, rest = self.path.partition(".")
        found = _fields(jobfile.JobSpec)[first]
        if not rest:
            return found
        part = jobfile.Role if first == "roles" else _alternatives(found.type)[0]
        return _fields(part)[rest.rpartition(".")[2]]

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the click option."""
        field = self.field
        alternatives = _alternatives(field.type)
        first = alternatives[0]
        told: dict[str, Any] = {"help": self.help, "metavar": self.metavar, "default": None}
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if first is bool or self.path in SWITCHES:
            positive, _, negative = self.names[0].partition("/")
            shown = positive.lstrip("-") if negative and default else ""
            return told | {"is_flag": True, "show_default": shown or None}
        told["show_default"] = self.default or (None if default in (None, ()) else str(default))
        if typing.get_origin(first) in (tuple, dict):
            return told | {"multiple": True, "default": (), "show_default": self.default or None}
        if isinstance(first, type) and issubclass(first, enum.StrEnum):
            return told | {"type": click.Choice([str(one) for one in first])}
        return told | {"type": _READERS.get(alternatives, str)}


@functools.cache
def _fields(part: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(part)}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types that a field may have, without None."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return tuple(one for one in kinds if one is not types.NoneType)


def _gpus(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        from oarlock.spec.input import validation

        hint = validation.gpus_hint(text, "--gpus {count} --gpu-type {kind}").replace("gpus: 2", "--gpus 2")
        raise errors.InvalidInput(f"{text[:60]!r} is not a number of GPUs", path="--gpus", hint=hint) from None


def _number_or_word(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


_READERS: dict[tuple[Any, ...], Callable[[str], Any]] = {(int,): int, (float,): _gpus, (int, str): _number_or_word}

_ROWS: dict[str, list[tuple[str, ...]]] = {
    "Tasks": [
        ("--workers -w", "roles.worker.count", "N", "Number of worker tasks."),
        ("--min-workers", "roles.worker.min", "N", "Fewest workers to start with.", "the number of workers"),
        ("--max-workers", "roles.worker.max", "N", "Most workers to grow to.", "the number of workers"),
        ("--ps", "roles.ps.count", "N", "Number of parameter servers.", "0"),
        ("--chief", "roles.chief.count", "", "Add a chief to the workers."),
        ("--evaluator", "roles.evaluator.count", "", "Add an evaluator to the workers."),
        ("--nproc", "roles.*.nproc", "N", "Number of processes in each task."),
        ("--gpus -g", "roles.*.gpus", "N", "Number of GPUs for each task."),
        ("--gpu-type", "roles.*.gpu_type", "TYPE", "Accepted type of GPU. Repeat it for more types, best first."),
        ("--gpu-memory", "roles.*.gpu_memory", "SIZE", "Least memory of each GPU, such as 40Gi."),
        ("--mixed", "roles.*.mixed", "", "Accept GPUs of several of these types at once."),
        ("--cpus -c", "roles.*.cpus", "N", "Number of cores for each task: 4, 0.5 or 500m.", "1, and idle ones"),
        ("--memory -m", "roles.*.memory", "SIZE", "Memory for each task, such as 2Gi."),
        ("--size", "size", "SIZE", "T-shirt size that sets cores, memory and GPUs: 1-v100."),
    ],
    "Job": [
        ("--name -n", "name", "NAME", "Name of the job.", "from the script's name"),
        ("--pool", "pool", "POOL", "Resource pool."),
        ("--framework", "framework", "", "Framework that the script uses. It decides the environment variables."),
        ("--priority", "priority", "N", "Priority, from 0 to 1000."),
        ("--preemptible/--not-preemptible", "preemptible", "", "Whether a more important job may stop this one."),
        ("--placement", "placement", "", "Place the tasks together, or on many nodes."),
        ("--same", "topology.same", "", "Place all tasks within one of these, if possible."),
        ("--ps-placement", "ps_placement", "", "Place parameter servers on the workers' nodes, or on other nodes."),
        ("--batch-size", "batch.size", "N", "Number of examples in a step of the whole gang."),
        ("--max-batch-size", "batch.max", "N", "Largest batch size that the scheduler may choose.", "--batch-size"),
        ("--strategy", "strategy.kind", "", "Exchange of gradients."),
        ("--compression", "strategy.compression", "", "Compression of gradients."),
        ("--bucket-bytes", "strategy.bucket_bytes", "N|tuned", "Most bytes of a group in which gradients travel."),
    ],
    "Code and data": [
        ("--image", "image", "IMAGE", "Container image, on Kubernetes."),
        ("--dependencies", "dependencies", "FILE", "Requirements file in the directory, installed once."),
        ("--data", "data", "SRC:MOUNT", "Data to fetch: SRC (a URL or path) to MOUNT in the directory."),
        ("--volume", "volumes", "CLAIM:PATH[:ro]", "Volume of the cluster, at an absolute path."),
        ("--secret", "secrets", "NAME[:file]", "Secret, as a variable or as a file."),
        ("--env -e", "env", "K=V", "Environment variable. K alone takes the value of this shell."),
        ("--results", "results", "URL", "Place where results are stored in the end.", "the server's own"),
        ("--keep-files/--no-keep-files", "files.keep", "", "Whether new and changed files are kept in the end."),
        ("--ignore-files", "files.ignore", "PATTERN", "Files not to keep, as in .gitignore. Can be repeated."),
        ("--files-limit", "files.limit", "SIZE", "Most bytes to keep of each task."),
        ("--files-count", "files.count", "N", "Most files to keep of each task."),
    ],
    "Life": [
        ("--checkpoint-every", "checkpoint.every", "TIME", "Interval between checkpoints, such as 10m."),
        ("--checkpoint-to", "checkpoint.to", "URL", "Place of the checkpoints.", "the server's own"),
        ("--keep", "checkpoint.keep", "N", "Number of checkpoints to keep."),
        ("--timeout", "timeout", "TIME", "Longest run time of the job, such as 12h."),
        ("--start-timeout", "start_timeout", "TIME", "Longest time until the first step."),
        ("--grace", "grace", "TIME", "Time between the request to stop and the kill."),
        ("--hang-timeout", "hang_timeout", "TIME", "Longest time without progress."),
        ("--freeze", "freeze", "TIME", "Time for which a failed job keeps its place, for `oarlock exec`."),
        ("--max-restarts", "max_restarts", "N", "Most restarts after failures of the job itself."),
        (
            "--tensorboard",
            "tensorboard",
            "",
            "Let oarlock.train write TensorBoard files; on Kubernetes also run TensorBoard.",
        ),
    ],
}
FLAGS = tuple(
    Flag(section, typed, path, metavar or None, *rest)
    for section, rows in _ROWS.items()
    for typed, path, metavar, *rest in rows
)


def job_flags(function: F) -> F:
    """Add every flag as an option."""
    for flag in reversed(FLAGS):
        function = command.option(*flag.names, flag.argument, section=flag.section, **flag.settings())(function)
    return function


def merged(
    base: Mapping[str, Any], given: Mapping[str, Any], words: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return `base`, the plain objects of a job file, with the fields that the flags and the command set.

    `given` maps the flags' argument names to the typed values: None or () for a flag that was not typed.
    """
    raw: dict[str, Any] = {**base}
    if words:
        raw["command"] = command_of(words)
    values = {flag: given.get(flag.argument) for flag in FLAGS}
    # Counts come first: they add roles, and resource flags set the fields of all roles.
    for flag, value in sorted(values.items(), key=lambda item: ".*" in item[0].path):
        if value is None or value == ():
            continue
        read = _LISTS.get(flag.path)
        if read is not None:
            value = [read(text, environ) for text in value]
        if flag.path == "env":
            raw["env"] = {**_mapping(raw, "env"), **dict(value)}
        elif read is not None:
            raw[flag.path] = [*raw.get(flag.path, ()), *value]
        elif flag.path.startswith("roles."):
            _set_role(raw, flag, list(value) if isinstance(value, tuple) else value)
        else:
            _set(raw, flag.path.split("."), value)
    return raw


def command_of(words: Sequence[str]) -> str | list[str]:
    """Return one word with spaces as a line for the shell, and several words as a program with its arguments."""
    return words[0] if len(words) == 1 and any(letter.isspace() for letter in words[0]) else list(words)


def blamed(error: errors.InvalidInput, given: Mapping[str, Any]) -> errors.InvalidInput:
    """Return the error with the typed flag in place of the path of its field."""
    for flag in FLAGS:
        if given.get(flag.argument) in (None, ()):
            continue
        patterns = [flag.path.replace("*", role) for role in COMPUTING + BESIDE] if "*" in flag.path else [flag.path]
        if any(error.path == one or error.path.startswith((one + ".", one + "[")) for one in patterns):
            error.path = flag.names[0].partition("/")[0]
            return error
    return error


def _set_role(raw: dict[str, Any], flag: Flag, value: Any) -> None:
    _, role, field = flag.path.split(".")
    roles = {**_mapping(raw, "roles")}
    if role == "*":
        computing = [name for name in roles if name in COMPUTING] or ["worker"]
        for name in computing:
            roles[name] = {**_mapping(roles, name), field: value}
        for name in (name for name in roles if name in BESIDE and field in BESIDE_FIELDS):
            roles[name] = {field: value, **_mapping(roles, name)}
    elif value is True:
        roles.setdefault(role, {"count": 1})
        roles.setdefault("worker", {})
    elif value is not False:
        roles[role] = {**_mapping(roles, role), field: value}
        if role == "ps":
            roles.setdefault("worker", {})
    raw["roles"] = roles


def _set(raw: dict[str, Any], path: list[str], value: Any) -> None:
    *outer, last = path
    place = raw
    for name in outer:
        place[name] = {**_mapping(place, name)}
        place = place[name]
    place[last] = value


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the mapping of that name; an empty one for a wrong type, which the validation reports."""
    found = raw.get(name)
    return found if isinstance(found, Mapping) else {}


def _data(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    source, colon, mount = text.rpartition(":")
    if not colon or not source or not mount or mount.startswith("//"):
        raise errors.InvalidInput(f"{text!r} has no mount", path="--data", hint="Write SOURCE:MOUNT, as s3://b/x:data.")
    return {"source": source, "mount": mount}


def _volume(text: str, environ: Mapping[str, str]) -> dict[str, Any]:
    claim, colon, rest = text.partition(":")
    mount, _, mode = rest.partition(":")
    if not colon or not claim or not mount or mode not in ("", "ro", "rw"):
        raise errors.InvalidInput(
            f"{text!r} is not a volume", path="--volume", hint="Write CLAIM:/PATH or CLAIM:/PATH:ro."
        )
    return {"claim": claim, "mount": mount, **({"read_only": True} if mode == "ro" else {})}


def _secret(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    name, colon, form = text.partition(":")
    return {"name": name, **({"as": form} if colon else {})}


def _variable(text: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        if name not in environ:
            raise errors.InvalidInput(f"{name!r} is not set here", path="--env", hint="Write it as NAME=VALUE.")
        value = environ[name]
    return name, value


_LISTS: dict[str, Callable[[str, Mapping[str, str]], Any]] = {
    "data": _data,
    "volumes": _volume,
    "secrets": _secret,
    "env": _variable,
}
