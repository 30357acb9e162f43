"""From the flags of `run` to a job, in the job file's own form: a flag is a field under another name.

`FLAGS` is the one table; the flags, their help, the merge onto a job file and the translation of an error's path back
into the flag all come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from oarlock.cli import command
from oarlock.spec import errors

F = TypeVar("F", bound=Callable[..., Any])

# A flag for what each task takes holds for the roles that compute. Parameter servers and evaluators keep what the job
# file says; where it says nothing, they take the same cores and memory.
COMPUTING = ("worker", "chief")
BESIDE = ("ps", "evaluator")
BESIDE_FIELDS = ("cpus", "memory")


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is the field's in the job file; `*` stands for each computing role. `kind` is a click type or None."""

    names: tuple[str, ...]
    path: str
    help: str
    section: str
    kind: Any = None
    metavar: str | None = None
    multiple: bool = False
    choices: tuple[str, ...] = ()

    @property
    def argument(self) -> str:
        return "flag_" + self.names[0].partition("/")[0].lstrip("-").replace("-", "_")


def _gpus(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        from oarlock.spec import validation

        hint = validation.gpus_hint(text, "--gpus {count} --gpu-type {kind}").replace("gpus: 2", "--gpus 2")
        raise errors.InvalidInput(f"{text[:60]!r} is no number of GPUs", path="--gpus", hint=hint) from None


TASKS, JOB, DATA, LIFE = "Tasks", "Job", "Code and data", "Life"

FLAGS: tuple[Flag, ...] = (
    Flag(
        names=("--workers", "-w"), path="roles.worker.count", kind=int, metavar="N", section=TASKS, help="Worker tasks."
    ),
    Flag(
        names=("--min-workers",),
        path="roles.worker.min",
        kind=int,
        metavar="N",
        section=TASKS,
        help="Start with as few as this.",
    ),
    Flag(
        names=("--max-workers",),
        path="roles.worker.max",
        kind=int,
        metavar="N",
        section=TASKS,
        help="Grow to as many as this.",
    ),
    Flag(names=("--ps",), path="roles.ps.count", kind=int, metavar="N", section=TASKS, help="Parameter servers."),
    Flag(names=("--chief",), path="roles.chief.count", kind=bool, section=TASKS, help="A chief beside the workers."),
    Flag(
        names=("--evaluator",),
        path="roles.evaluator.count",
        kind=bool,
        section=TASKS,
        help="An evaluator beside the workers.",
    ),
    Flag(
        names=("--nproc",), path="roles.*.nproc", kind=int, metavar="N", section=TASKS, help="Processes in each task."
    ),
    Flag(
        names=("--gpus", "-g"), path="roles.*.gpus", kind=_gpus, metavar="N", section=TASKS, help="GPUs for each task."
    ),
    Flag(
        names=("--gpu-type",),
        path="roles.*.gpu_type",
        multiple=True,
        metavar="TYPE",
        section=TASKS,
        help="An acceptable type; repeat it, best first.",
    ),
    Flag(
        names=("--gpu-memory",),
        path="roles.*.gpu_memory",
        metavar="SIZE",
        section=TASKS,
        help="Memory that each GPU must have: 40Gi.",
    ),
    Flag(
        names=("--mixed",),
        path="roles.*.mixed",
        kind=bool,
        section=TASKS,
        help="GPUs of several of these types at once will do.",
    ),
    Flag(
        names=("--cpus", "-c"),
        path="roles.*.cpus",
        metavar="N",
        section=TASKS,
        help="Cores for each task: 4, 0.5 or 500m.",
    ),
    Flag(
        names=("--memory", "-m"),
        path="roles.*.memory",
        metavar="SIZE",
        section=TASKS,
        help="Memory for each task: 2Gi.",
    ),
    Flag(
        names=("--size",), path="size", metavar="SIZE", section=TASKS, help="A T-shirt size in place of these: 1-v100."
    ),
    Flag(names=("--name", "-n"), path="name", metavar="NAME", section=JOB, help="Else it is made from the script's."),
    Flag(names=("--pool",), path="pool", metavar="POOL", section=JOB, help="The resource pool."),
    Flag(
        names=("--framework",),
        path="framework",
        choices=("torch", "tensorflow", "jax", "mpi", "plain"),
        section=JOB,
        help="What the processes expect to find in their environment.",
    ),
    Flag(
        names=("--priority",),
        path="priority",
        kind=int,
        metavar="N",
        section=JOB,
        help="0 to 1000; 50 where nothing is said.",
    ),
    Flag(
        names=("--preemptible/--not-preemptible",),
        path="preemptible",
        kind=bool,
        section=JOB,
        help="Whether a more important job may take its place.",
    ),
    Flag(
        names=("--placement",),
        path="placement",
        choices=("pack", "spread"),
        section=JOB,
        help="Tasks together, or apart.",
    ),
    Flag(
        names=("--same",),
        path="topology.same",
        choices=("node", "nvlink", "rack", "zone"),
        section=JOB,
        help="All tasks in one of these where possible.",
    ),
    Flag(
        names=("--ps-placement",),
        path="ps_placement",
        choices=("beside", "apart"),
        section=JOB,
        help="Place parameter servers on the workers' nodes, or on other nodes.",
    ),
    Flag(
        names=("--batch-size",),
        path="batch.size",
        kind=int,
        metavar="N",
        section=JOB,
        help="Examples in a step of the whole gang.",
    ),
    Flag(
        names=("--max-batch-size",),
        path="batch.max",
        kind=int,
        metavar="N",
        section=JOB,
        help="Let the scheduler raise that to so many.",
    ),
    Flag(
        names=("--strategy",),
        path="strategy.kind",
        choices=("allreduce", "ps", "none"),
        section=JOB,
        help="How gradients are exchanged.",
    ),
    Flag(
        names=("--compression",),
        path="strategy.compression",
        choices=("none", "fp16", "bf16", "powersgd", "dgc"),
        section=JOB,
        help="Of gradients.",
    ),
    Flag(names=("--image",), path="image", metavar="IMAGE", section=DATA, help="The container image, on Kubernetes."),
    Flag(
        names=("--dependencies",),
        path="dependencies",
        metavar="FILE",
        section=DATA,
        help="A requirements file in the directory, installed once.",
    ),
    Flag(
        names=("--data",),
        path="data",
        multiple=True,
        metavar="SRC:MOUNT",
        section=DATA,
        help="Fetch SRC (a URL or path) to MOUNT in the directory.",
    ),
    Flag(
        names=("--volume",),
        path="volumes",
        multiple=True,
        metavar="CLAIM:PATH[:ro]",
        section=DATA,
        help="A cluster volume at an absolute path.",
    ),
    Flag(
        names=("--secret",),
        path="secrets",
        multiple=True,
        metavar="NAME[:file]",
        section=DATA,
        help="A secret as a variable, or as a file.",
    ),
    Flag(
        names=("--env", "-e"),
        path="env",
        multiple=True,
        metavar="K=V",
        section=DATA,
        help="An environment variable; K alone passes this shell's.",
    ),
    Flag(
        names=("--results",), path="results", metavar="URL", section=DATA, help="Where results are stored in the end."
    ),
    Flag(
        names=("--keep-files/--no-keep-files",),
        path="files.keep",
        kind=bool,
        section=DATA,
        help="Whether what is new or changed in the working directory is kept in the end.",
    ),
    Flag(
        names=("--ignore-files",),
        path="files.ignore",
        multiple=True,
        metavar="PATTERN",
        section=DATA,
        help="Do not keep these; a pattern as in .gitignore; repeat it.",
    ),
    Flag(
        names=("--files-limit",),
        path="files.limit",
        metavar="SIZE",
        section=DATA,
        help="The most that is kept of each task: 10G.",
    ),
    Flag(
        names=("--files-count",),
        path="files.count",
        kind=int,
        metavar="N",
        section=DATA,
        help="The most files that are kept of each task.",
    ),
    Flag(names=("--checkpoint-every",), path="checkpoint.every", metavar="TIME", section=LIFE, help="10m."),
    Flag(
        names=("--checkpoint-to",),
        path="checkpoint.to",
        metavar="URL",
        section=LIFE,
        help="Else the server's own place.",
    ),
    Flag(names=("--keep",), path="checkpoint.keep", kind=int, metavar="N", section=LIFE, help="Checkpoints to keep."),
    Flag(
        names=("--timeout",),
        path="timeout",
        metavar="TIME",
        section=LIFE,
        help="The longest that the job may run: 12h.",
    ),
    Flag(
        names=("--start-timeout",),
        path="start_timeout",
        metavar="TIME",
        section=LIFE,
        help="The longest way to the first step of its processes.",
    ),
    Flag(
        names=("--grace",), path="grace", metavar="TIME", section=LIFE, help="Between the request to stop and the kill."
    ),
    Flag(
        names=("--hang-timeout",),
        path="hang_timeout",
        metavar="TIME",
        section=LIFE,
        help="The longest without progress.",
    ),
    Flag(
        names=("--freeze",),
        path="freeze",
        metavar="TIME",
        section=LIFE,
        help="Keep a failed job's place so long, for `exec`.",
    ),
    Flag(
        names=("--max-restarts",),
        path="max_restarts",
        kind=int,
        metavar="N",
        section=LIFE,
        help="The most restarts after failures of the job's own.",
    ),
    Flag(
        names=("--tensorboard",), path="tensorboard", kind=bool, section=LIFE, help="Write TensorBoard's event files."
    ),
)


def job_flags(function: F) -> F:
    """Every field of the job file as an option."""
    import click

    for flag in reversed(FLAGS):
        settings: dict[str, Any] = {"help": flag.help, "metavar": flag.metavar, "default": None}
        if flag.kind is bool:
            settings["is_flag"] = True
        elif flag.choices:
            settings["type"] = click.Choice(flag.choices)
        elif flag.kind is not None:
            settings["type"] = flag.kind
        if flag.multiple:
            settings.update(multiple=True, default=())
        function = command.option(*flag.names, flag.argument, section=flag.section, **settings)(function)
    return function


def merged(
    base: Mapping[str, Any], given: Mapping[str, Any], words: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """`base`, a job file's plain objects or nothing, with what the flags say; a command given here wins.

    `given` maps the flags' argument names to what was typed, None or () where nothing was.
    """
    raw: dict[str, Any] = {**base}
    if words:
        raw["command"] = command_of(words)
    values = {flag: given.get(flag.argument) for flag in FLAGS}
    # Counts first: what a task takes is said to the roles that there are then.
    for flag, value in sorted(values.items(), key=lambda item: ".*" in item[0].path):
        if value is None or value == ():
            continue
        read = _LISTS.get(flag.path)
        if read is not None:
            value = [read(text, environ) for text in value]
        if flag.path == "env":
            raw["env"] = {**_mapping(raw, "env"), **dict(value)}
        elif flag.multiple and flag.path in ("data", "volumes", "secrets"):
            raw[flag.path] = [*raw.get(flag.path, ()), *value]
        elif flag.path.startswith("roles."):
            _set_role(raw, flag, list(value) if flag.multiple else value)
        else:
            _set(raw, flag.path.split("."), value)
    return raw


def command_of(words: Sequence[str]) -> str | list[str]:
    """One word with spaces in it is a line for the shell; more words are a program and its arguments."""
    return words[0] if len(words) == 1 and any(letter.isspace() for letter in words[0]) else list(words)


def blamed(error: errors.InvalidInput, given: Mapping[str, Any]) -> errors.InvalidInput:
    """The error with the flag that was typed in the place of the field's path."""
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
    """What is there, where it is a mapping: what else it may be, the judging of the whole will say."""
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
            f"{text!r} is no volume", path="--volume", hint="Write CLAIM:/PATH or CLAIM:/PATH:ro."
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
