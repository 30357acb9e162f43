"""The way from a user's text to a valid `JobSpec`, or to the one error that helps.

`load` reads the text of a job file, `decode` takes plain objects (a request's body, flags), `judge` refuses
contradictions: zero workers, a gang larger than its count, two mounts in one place. Every error carries the path of the
field and the next step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import yaml

from oarlock.spec import errors, jobfile, roles
from oarlock.spec.hints import suggestions
from oarlock.spec.input import mounts as places
from oarlock.spec.input import quantities, sizes, strategies

T = TypeVar("T")

MAX_FILE_BYTES = 1 << 20
PAGE = "docs/job-file.md"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
WRITABLE = ("file", "s3", "gs")
"""Schemes of the places where results and checkpoints can be stored."""
_RESERVED_PREFIX = "OARLOCK_"
_STEP = re.compile(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]")
LEAST_GPU_SHARE = 0.01
_RENAMED = {"servers": "ps_placement"}
_TYPED_GPUS = re.compile(
    r"(?P<count>\d+)\s*[:x*]\s*(?P<kind>[A-Za-z][\w.-]*)|(?:gpus?:)?(?P<first>[A-Za-z][\w.-]*)(?::(?P<last>\d+))?"
)
_MAX_DEPTH = 20
_EITHER = re.compile(r"Expected `([a-z]+(?: \| [a-z]+)+)`")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}


def load(text: str | bytes, *, source: str = "the job file") -> jobfile.JobSpec:
    """Return the job file's text (YAML; JSON is YAML) as a judged spec."""
    return decode(fields(text, source=source))


def fields(
    text: str | bytes, *, source: str = "the job file", hint: str = "A job file begins as `command: ...`."
) -> dict[str, Any]:
    """Return the fields of a file, read by `plain`. Raise InvalidInput, with its name, where it has no fields."""
    return mapping(plain(text, source=source), source=source, hint=hint)


def mapping(
    raw: Any, *, source: str = "the job file", hint: str = "A job file begins as `command: ...`."
) -> dict[str, Any]:
    """Return plain objects that name their fields. Raises InvalidInput, naming the file, for others."""
    if not isinstance(raw, dict):
        raise errors.InvalidInput(f"{source} is {'empty' if raw is None else 'not a mapping'}", hint=hint)
    return raw


def plain(text: str | bytes, *, source: str = "the job file") -> Any:
    """Return YAML as plain objects: no tags, no anchors or aliases, no duplicate keys, at most 1 MiB.

    `detail` of an error has the `line`, from 1, where it is known.
    """
    if len(text) > MAX_FILE_BYTES:
        raise errors.TooLarge(f"{source} has {len(text)} bytes", hint=f"At most {MAX_FILE_BYTES} bytes are read.")
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader with less
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise errors.InvalidInput(
            f"{source} is not valid YAML{where}: {error.problem or error.context}",
            hint="Check the indentation and the quotes there.",
            detail={"line": mark.line + 1} if mark else None,
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise errors.InvalidInput(
            f"{source} cannot be read as YAML: {_first_line(error)}", hint="Write plain UTF-8 YAML."
        ) from error


def decode(raw: Any) -> jobfile.JobSpec:
    """Return plain objects as a checked spec."""
    spec = convert(raw, jobfile.JobSpec)
    judge(spec)
    return spec


def convert(raw: Any, kind: type[T], *, page: str = PAGE) -> T:
    """Convert `raw` as msgspec does, with our errors: `roles.worker.gpus`, and the nearest known name.

    `page` is the page of the documentation that lists the accepted fields.
    """
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise explained(error, raw, kind, page=page) from error


def explained(error: msgspec.ValidationError, raw: Any, kind: Any, *, page: str = PAGE) -> errors.InvalidInput:
    """Return a validation error of `raw` as a `kind`, as one of ours."""
    message, _, place = str(error).partition(" - at `")
    steps = [name or int(index) if name or index.isdigit() else ... for name, index in _STEP.findall(place)]
    steps, kind = _resolved(steps, raw, kind)
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{_short(str(step))}" for step in steps).lstrip(".")
    unknown = re.search(r"unknown field `(.*)`", message, re.DOTALL)
    if unknown is not None:
        name = _short(unknown[1])
        known = _field_names(kind)
        moved = _of_a_role(name) if "roles" in known else None
        hint = f"It is said for each role: `{moved}`." if moved else _nearest(_RENAMED.get(name, name), known)
        return errors.UnknownField(f"unknown field {name!r}", path=f"{path}.{name}".lstrip("."), hint=hint)
    invalid = re.search(r"Invalid enum value '?(.*?)'?$", message, re.DOTALL)
    if invalid is not None:
        name = _short(invalid[1])
        return errors.InvalidInput(f"{name!r} is not known here", path=path, hint=_nearest(name, _enum_values(kind)))
    if steps and steps[-1] == "gpus" and isinstance(asked := _at_steps(raw, steps), str):
        hint = gpus_hint(asked, "gpus: {count}, gpu_type: {kind}")
        return errors.InvalidInput(f"{_short(asked)!r} is not a number of GPUs", path=path, hint=hint)
    said = _plain_words(message)
    quoted = said.startswith("expected text, got")
    hint = "Put it in quotes." if quoted else f"See {page} for what is accepted."
    return errors.InvalidInput(said, path=path, hint=hint)


def gpus_hint(asked: str, form: str) -> str:
    """Return how to write a number of GPUs that is given in another tool's form: `1:v100`, `v100:1`, `2xA100`."""
    found = _TYPED_GPUS.fullmatch(asked.strip())
    if found is not None and any(letter.isdigit() for letter in asked):
        count, kind = found["count"] or found["last"] or "1", found["kind"] or found["first"]
        return f"Write {form.format(count=count, kind=kind.lower())}"
    return "Write a number, without quotes: gpus: 2" if asked.strip().isdigit() else "Write a number: gpus: 2"


def judge(spec: jobfile.JobSpec, *, stored: jobfile.JobSpec | None = None) -> None:
    """Raise InvalidInput for the first thing in `spec` that can never be meant. `stored` is the spec before an edit: an
    earlier version may have accepted what this one refuses, and that refuses no edit of another field.
    """
    had = {(error.path, error.message) for error in _found(stored)} if stored is not None else set()
    for error in _found(spec):
        if (error.path, error.message) not in had:
            raise error


def _found(spec: jobfile.JobSpec) -> Iterator[errors.InvalidInput]:
    """Yield what can never be meant in `spec`."""
    for path, check in _checks(spec):
        try:
            check()
        except errors.InvalidInput as error:
            error.path = error.path or path
            yield error


def _checks(spec: jobfile.JobSpec) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "name", lambda: check_name(spec.name) if spec.name is not None else None
    yield "command", lambda: _command(spec.command)
    yield "pool", lambda: check_name(spec.pool)
    yield "roles", lambda: _roles(spec)
    for name, role in spec.roles.items():
        yield f"roles.{name}", lambda name=name, role=role: _role(name, role)  # type: ignore[misc]
    yield "env", lambda: _environment(spec.env)
    yield "data", lambda: _mounts([(f"data[{i}]", item.mount, item.source) for i, item in enumerate(spec.data)])
    yield (
        "volumes",
        lambda: _mounts(
            [(f"volumes[{i}]", item.mount, item.claim) for i, item in enumerate(spec.volumes)], absolute=True
        ),
    )
    yield "secrets", lambda: _secrets(spec.secrets)
    for field in ("image", "dependencies", "size"):
        yield field, lambda field=field: _optional_text(getattr(spec, field))  # type: ignore[misc]
    yield "size", lambda: sizes.find(spec.size) if spec.size is not None else None
    yield "dependencies", lambda: inside(spec.dependencies) if spec.dependencies is not None else None
    yield "strategy", lambda: strategies.check(spec)
    yield "batch", lambda: _batch(spec.batch) if spec.batch is not None else None
    yield "results", lambda: _store(spec.results)
    yield "checkpoint.to", lambda: _store(spec.checkpoint.to)
    yield "checkpoint.keep", lambda: quantities.between(spec.checkpoint.keep, 1, 10_000)
    yield "checkpoint.every", lambda: _positive_seconds(spec.checkpoint.every)
    yield "files.ignore", lambda: _patterns(spec.files.ignore)
    yield "files.limit", lambda: quantities.memory_bytes(spec.files.limit)
    yield "files.count", lambda: quantities.between(spec.files.count, 0, jobfile.MAX_KEPT_FILES)
    yield "priority", lambda: quantities.between(spec.priority, 0, 1000)
    yield "max_restarts", lambda: quantities.between(spec.max_restarts, 0, 10_000)
    for field in ("timeout", "start_timeout", "hang_timeout"):
        yield field, lambda field=field: _positive_seconds(getattr(spec, field))  # type: ignore[misc]
    yield "grace", lambda: quantities.seconds(spec.grace)
    yield "freeze", lambda: spec.freeze is None or quantities.seconds(spec.freeze)


def _batch(batch: jobfile.Batch) -> None:
    bounds = batch.local_max if isinstance(batch.local_max, dict) else {"": batch.local_max}
    if not bounds:
        raise errors.InvalidInput(
            "no type of GPU is named",
            path="batch.local_max",
            hint="Write local_max: 64, or local_max: {t4: 32, a100: 128}.",
        )
    least = {"size": (batch.size, 1), "local_min": (batch.local_min, 1), "max": (batch.max, batch.size)}
    least |= {f"local_max.{name}".rstrip("."): (most, batch.local_min) for name, most in bounds.items()}
    for path, (said, at_least) in least.items():
        if said is not None and said < at_least:
            raise errors.InvalidInput(
                f"{said} is too small", path=f"batch.{path}", hint=f"It must be {at_least} or more."
            )


def _command(command: str | tuple[str, ...]) -> None:
    parts = (command,) if isinstance(command, str) else command
    for part in parts:
        text(part)
    if not parts or not parts[0].strip():
        raise errors.InvalidInput("the command is empty", hint="Say what to run: command: python train.py")


def _roles(spec: jobfile.JobSpec) -> None:
    if not spec.roles:
        raise errors.InvalidInput(
            "a job needs at least one role", hint="Write roles: {worker: {count: 2}}, or leave it out."
        )
    total = sum(role.max if role.max is not None else role.count for role in spec.roles.values())
    if total > jobfile.MAX_TASKS:
        raise errors.InvalidInput(f"{total} tasks are too many", hint=f"A job has at most {jobfile.MAX_TASKS} tasks.")
    for single in (roles.RoleName.CHIEF, roles.RoleName.LAUNCHER):
        if single in spec.roles and spec.roles[single].count > 1:
            raise errors.InvalidInput(
                f"there is one {single} at most", path=f"roles.{single}.count", hint="Set it to 1."
            )


def _role(name: roles.RoleName, role: jobfile.Role) -> None:
    path = f"roles.{name}"
    quantities.between(role.count, 1, jobfile.MAX_TASKS, f"{path}.count")
    if role.min is not None:
        quantities.between(role.min, 1, role.count, f"{path}.min")
    if role.max is not None:
        quantities.between(role.max, role.count, jobfile.MAX_TASKS, f"{path}.max")
    quantities.between(role.nproc, 1, jobfile.MAX_NPROC, f"{path}.nproc")
    _at(f"{path}.cpus", quantities.cpus_milli, role.held_cpus)
    if role.memory is not None:
        _at(f"{path}.memory", quantities.memory_bytes, role.memory)
    if role.gpu_memory is not None:
        _at(f"{path}.gpu_memory", quantities.memory_bytes, role.gpu_memory)
    quantities.between(role.gpus, 0, 1024, f"{path}.gpus")
    if role.gpus > 1 and role.gpus != int(role.gpus):
        raise errors.InvalidInput(
            f"{role.gpus} is neither a share of one GPU nor a whole number",
            path=f"{path}.gpus",
            hint="Write 0.5, 1 or 2.",
        )
    if 0 < role.gpus < LEAST_GPU_SHARE:
        raise errors.InvalidInput(
            f"{role.gpus:g} of a GPU is too little to be a share", path=f"{path}.gpus", hint="Write 0.01 or more."
        )
    for gpu_type in (role.gpu_type,) if isinstance(role.gpu_type, str) else role.gpu_type:
        _at(f"{path}.gpu_type", text, gpu_type)


def _environment(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        shown = _short(name)
        if len(name) > 255 or not _VARIABLE.fullmatch(name):
            raise errors.InvalidInput(
                f"{shown!r} is not a valid name of a variable", path="env", hint="Use letters, digits and _."
            )
        if name.startswith(_RESERVED_PREFIX):
            raise errors.InvalidInput(
                f"{shown} is set by Oarlock itself", path=f"env.{shown}", hint="Choose another name."
            )
        _at(f"env.{shown}", text, value)
    if sum(len(name) + len(value) for name, value in env.items()) > 4 * jobfile.MAX_TEXT_BYTES:
        raise errors.InvalidInput("the environment is too large", hint=f"At most {4 * jobfile.MAX_TEXT_BYTES} bytes.")


def _mounts(mounts: list[tuple[str, str, str]], *, absolute: bool = False) -> None:
    taken: dict[str, str] = {}
    for path, mount, source in mounts:
        _at(path, text, source)
        _at(f"{path}.mount", text if absolute else inside, mount)
        if absolute and (why := places.fault(mount)):
            raise errors.InvalidInput(f"{mount!r} {why}", path=f"{path}.mount", hint="Mount it elsewhere, as /data.")
        key = mount.strip("/")
        if key in taken:
            raise errors.InvalidInput(
                f"{mount!r} is taken by {taken[key]}", path=f"{path}.mount", hint="Mount it elsewhere."
            )
        taken[key] = path


def inside(value: str) -> None:
    """Refuse a path that is absolute or climbs out of the directory it is meant to be in."""
    text(value)
    parts = value.split("/")
    if value.startswith("/") or ".." in parts or not any(part not in ("", ".") for part in parts):
        raise errors.InvalidInput(f"{value!r} leaves the working directory", hint="Give a path below it, without `..`.")


def text(value: str, most: int = jobfile.MAX_TEXT_BYTES) -> None:
    """Refuse text with NUL or lone surrogates, and text that is too long."""
    if len(value) > most or len(value.encode("utf-8", "surrogatepass")) > most:
        raise errors.InvalidInput(f"a text of {len(value)} characters is too long", hint=f"At most {most} bytes.")
    if "\0" in value:
        raise errors.InvalidInput("a text with a NUL character", hint="Take it out.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise errors.InvalidInput("a text that is not valid Unicode", hint="Write it in UTF-8.") from error


def _secrets(secrets: tuple[jobfile.Secret, ...]) -> None:
    for place, secret in enumerate(secrets):
        check_name(secret.name, f"secrets[{place}].name")


def _optional_text(value: str | None) -> None:
    if value is not None:
        text(value)
        if not value.strip():
            raise errors.InvalidInput("it is empty", hint="Give a value, or leave the field out.")


def _store(value: str | None) -> None:
    """Check a place that can be written: an absolute path, or a URL of a file system or an object store."""
    _optional_text(value)
    if value is None or value.startswith("/"):
        return
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in WRITABLE:
        hint = f"Use an absolute path, or a URL that begins with {', '.join(f'{name}://' for name in WRITABLE)}."
        raise errors.InvalidInput(f"nothing can be stored at {_short(value)!r}", hint=hint)
    if scheme == "file" and not rest.removeprefix("localhost").startswith("/"):
        raise errors.InvalidInput(f"{_short(value)!r} names no absolute path", hint="Write file:///absolute/path.")
    if scheme != "file" and not rest.partition("/")[0]:
        raise errors.InvalidInput(f"{_short(value)!r} names no bucket", hint=f"Write {scheme}://BUCKET/PATH.")


def _patterns(patterns: tuple[str, ...]) -> None:
    """Refuse patterns that are none, or too many of them."""
    if len(patterns) > jobfile.MAX_PATTERNS:
        raise errors.InvalidInput(
            f"{len(patterns)} patterns are too many", hint=f"Give at most {jobfile.MAX_PATTERNS}."
        )
    for pattern in patterns:
        text(pattern, jobfile.MAX_PATTERN_CHARACTERS)
        if not pattern.strip() or "\n" in pattern:
            raise errors.InvalidInput(f"{_short(pattern)!r} is not a pattern", hint="Write it as in .gitignore: *.tmp")


def check_name(value: str, path: str = "") -> None:
    """Refuse an invalid name of a job, a pool or a secret."""
    if len(value) > jobfile.MAX_NAME_LENGTH or not _NAME.fullmatch(value):
        raise errors.InvalidInput(
            f"{_short(value)!r} is not a valid name",
            path=path,
            hint=f"Use lower-case letters, digits and dashes, at most {jobfile.MAX_NAME_LENGTH}, no dash at the ends.",
        )


def _positive_seconds(value: str | float | None) -> None:
    if value is not None and quantities.seconds(value) <= 0:
        raise errors.InvalidInput("it must be more than nothing", hint="Leave it out where no limit is meant.")


def _at(path: str, check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except errors.InvalidInput as error:
        error.path = error.path or path
        raise


def _resolved(steps: list[Any], raw: Any, kind: Any) -> tuple[list[Any], Any]:
    """Return the steps, with the key at fault for `...` (msgspec's word for a mapping's value); and the type there."""
    info = kind if isinstance(kind, msgspec.inspect.Type) else msgspec.inspect.type_info(kind)
    if not steps:
        return [], info
    step, rest = steps[0], steps[1:]
    info = _within_union(info, raw)
    if isinstance(info, msgspec.inspect.DictType) and step is ... and isinstance(raw, Mapping):
        step = next((key for key, value in raw.items() if not _converts(value, info.value_type)), "...")
        below, inner = raw.get(step), info.value_type
    elif isinstance(info, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)) and isinstance(step, int):
        below, inner = raw[step], info.item_type
    elif isinstance(info, msgspec.inspect.StructType) and isinstance(raw, Mapping):
        below = raw.get(step)
        inner = next((field.type for field in info.fields if field.encode_name == step), info)
    else:
        return [str(step) if step is ... else step, *("..." if later is ... else later for later in rest)], info
    deeper, found = _resolved(rest, below, inner)
    return [step, *deeper], found


def _at_steps(raw: Any, steps: list[Any]) -> Any:
    for step in steps:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _within_union(info: Any, raw: Any) -> Any:
    """Return the member of a union that `raw` was tried as: a mapping as the struct or dict, a list as the tuple."""
    if not isinstance(info, msgspec.inspect.UnionType):
        return info
    wanted = (
        (msgspec.inspect.StructType, msgspec.inspect.DictType)
        if isinstance(raw, Mapping)
        else (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)
    )
    return next((member for member in info.types if isinstance(member, wanted)), info)


def _converts(value: Any, info: Any) -> bool:
    """Return whether `value` decodes as the type that `info` describes."""
    try:
        msgspec.convert(value, _python_type(info), strict=True)
    except msgspec.ValidationError:
        return False
    return True


def _python_type(info: Any) -> Any:
    if isinstance(info, msgspec.inspect.StrType):
        return str
    return info.cls if isinstance(info, (msgspec.inspect.StructType, msgspec.inspect.EnumType)) else Any


def _field_names(info: Any) -> list[str]:
    info = _within_union(info, {})
    return [field.encode_name for field in info.fields] if isinstance(info, msgspec.inspect.StructType) else []


def _enum_values(info: Any) -> list[str]:
    if isinstance(info, msgspec.inspect.DictType):
        info = info.key_type
    if isinstance(info, msgspec.inspect.UnionType):
        info = next((member for member in info.types if isinstance(member, msgspec.inspect.EnumType)), info)
    return [str(member.value) for member in info.cls] if isinstance(info, msgspec.inspect.EnumType) else []


def _of_a_role(name: str) -> str | None:
    """Return where a field belongs that was written beside `roles`, as other tools have it: `gpus: 2`, `workers: 4`."""
    if name in {"workers", "num_workers"}:
        return "roles.worker.count"
    return f"roles.worker.{name}" if name in jobfile.Role.__struct_encode_fields__ else None


def _nearest(name: str, known: list[str]) -> str:
    nearest = suggestions.nearest(name, known)
    return f"Did you mean `{nearest}`?" if nearest else f"Known here: {', '.join(sorted(known))}."


def _plain_words(message: str) -> str:
    for theirs, ours in (
        ("Object missing required field", "missing required field"),
        ("Expected `object | array`", "expected a mapping"),
        ("Expected `object`", "expected a mapping"),
        ("Expected `array`", "expected a list"),
        ("Expected `str`", "expected text"),
        ("Expected `int`", "expected a whole number"),
        ("Expected `float`", "expected a number"),
        ("Expected `bool`", "expected true or false"),
        ("got `object`", "got a mapping"),
        ("got `array`", "got a list"),
        ("got `str`", "got text"),
        ("got `int`", "got a whole number"),
        ("got `float`", "got a number"),
        ("got `bool`", "got true or false"),
        ("got `null`", "got nothing"),
    ):
        message = message.replace(theirs, ours)
    message = _EITHER.sub(lambda found: f"expected {_either(found[1].split(' | '))}", message)
    return message if len(message) <= 300 else message[:297] + "..."


def _either(kinds: list[str]) -> str:
    """Return `a whole number, a mapping or nothing`, from msgspec's names."""
    *others, last = [_KINDS.get(kind, kind) for kind in kinds]
    return f"{', '.join(others)} or {last}" if others else last


def _short(value: str, most: int = 60) -> str:
    return value if len(value) <= most else value[: most - 3] + "..."


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class _StrictLoader(yaml.SafeLoader):
    """YAML without anchors, aliases, tags and duplicate keys: a job file needs none of them, and attacks are made of
    them.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not accepted", problem_mark=event.start_mark)
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise yaml.MarkedYAMLError(problem=f"the tag {tag[:60]} is not accepted", problem_mark=event.start_mark)
        if self.depth > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is not text", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
