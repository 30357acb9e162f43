"""Parts of the verbs that `Client` and `AsyncClient` share: everything without waiting."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from oarlock.client import packing
from oarlock.spec import errors, jobfile, phases
from oarlock.spec.cluster import poolchanges

if TYPE_CHECKING:
    from datetime import tzinfo

    from oarlock.spec import jobs

SHELL_VARIABLES = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables of the shell that a local server gets, so that `python` is the same program in the job."""

POLL_S = 0.5
EVENT_WAIT_S = 20.0
MAX_STEP_DIGITS = 18

Wanted = jobfile.JobSpec | Mapping[str, Any] | str | Path
"""A job as its spec, as plain objects in the job file's form, or as the path of a job file."""


def spec_of(wanted: Wanted) -> jobfile.JobSpec:
    """Return a valid spec. Raises InvalidInput with the path of the field."""
    from oarlock.spec.input import validation

    if isinstance(wanted, jobfile.JobSpec):
        validation.judge(wanted)
        return wanted
    if isinstance(wanted, (str, Path)):
        return validation.load(read_file(Path(wanted)), source=str(wanted))
    return validation.decode(dict(wanted))


def continued_of(text: str) -> tuple[str, int | None]:
    """Return the job and the step of `JOB` or `JOB@STEP`. Raises InvalidInput."""
    job, at, step = text.partition("@")
    if not job or (at and not (step.isascii() and step.isdigit() and len(step) <= MAX_STEP_DIGITS)):
        raise errors.InvalidInput(f"{text!r} is not a job with a step", hint="Write JOB or JOB@STEP, as train@50.")
    return job, int(step) if at else None


def continues(job: str, step: int | None) -> str:
    """Return the text for `Submission.continues`."""
    return job if step is None else f"{job}@{step}"


def fields_of(earlier: jobs.Job) -> dict[str, Any]:
    """Return the fields of a job file for a job that continues another one, without the name of an active job.

    The values that the server has filled in from a size are left out, so that another size can be given.
    """
    from oarlock.spec.input import sizes

    fields: dict[str, Any] = msgspec.to_builtins(earlier.spec)
    if not earlier.terminal:
        fields.pop("name", None)
    if earlier.spec.size is not None:
        meant = msgspec.structs.replace(
            earlier.spec, roles={name: jobfile.Role(count=role.count) for name, role in earlier.spec.roles.items()}
        )
        filled = msgspec.to_builtins(sizes.filled(meant))["roles"]
        for name, role in fields["roles"].items():
            for field in ("cpus", "memory", "gpus", "gpu_type"):
                if field in role and role[field] == filled[name].get(field):
                    del role[field]
    return fields


def directory_of(earlier: jobs.Job) -> Path | None:
    """Return the directory of the job's code, None where it had none. Raises InvalidInput where it is missing here."""
    if earlier.snapshot is None and earlier.directory is None:
        return None
    where = earlier.directory or earlier.sent_from
    place = Path(where)
    if not where or not place.is_dir():
        said = f"{where}, from which its code came, is not here" if where else "the job does not record it"
        raise errors.InvalidInput(
            f"the directory of {earlier.name} cannot be sent again: {said}",
            path="directory",
            hint="Name the directory.",
        )
    return place


def change_of(fields: Mapping[str, Any]) -> poolchanges.Change:
    """Return the change of a pool. Raises UnknownField, and InvalidInput for an invalid value."""
    from oarlock.spec.input import validation

    return validation.convert(fields, poolchanges.Change, page="docs/pools.md")


def read_file(path: Path) -> bytes:
    """Return the content of a job file. Raises InvalidInput."""
    try:
        with path.open("rb") as file:
            return file.read((1 << 20) + 1)
    except OSError as error:
        raise errors.InvalidInput(
            f"{path} cannot be read: {error.strerror or error}", hint="Give the path of a job file (YAML)."
        ) from error


def shell_of(environ: Mapping[str, str], program: str | None = None) -> dict[str, str]:
    """Return the shell's variables. For `.venv/bin/oarlock` without an activated `.venv`, this Python comes first.

    `program` is the path by which this process was called, by default `sys.argv[0]`. A link elsewhere (pipx) does not
    tell the user's own environment.
    """
    shell = {name: environ[name] for name in SHELL_VARIABLES if environ.get(name)}
    folder = str(Path(sys.argv[0] if program is None else program).absolute().parent)
    on_path = shell.get("PATH", "").split(os.pathsep)
    if sys.prefix != sys.base_prefix and folder == str(Path(sys.executable).parent) and folder not in on_path:
        shell |= {"PATH": os.pathsep.join([folder, *filter(None, on_path)]), "VIRTUAL_ENV": sys.prefix}
    return shell


def submission(
    spec: jobfile.JobSpec, code: packing.Code, shell: Mapping[str, str], continues: str | None = None
) -> jobfile.Submission:
    return jobfile.Submission(
        spec=spec,
        snapshot=code.digest,
        shell=dict(shell),
        in_place=code.in_place,
        left_out=code.left_out,
        sent_from=code.sent_from,
        continues=continues,
    )


def fresh_key() -> str:
    """Return a new idempotency key. All tries of one submission use the same key."""
    return os.urandom(16).hex()


def login_link(url: str, code: str, path: str = "/") -> str:
    """Return the address that logs a browser in. The code stands in the fragment, which no server and no log sees."""
    return f"{url}/login#{urlencode({'code': code, 'next': path})}"


def exit_code(phase: phases.Phase, code: int | None) -> int:
    """Return the exit code for a command that has followed a job to its end: the job's own, where it has one."""
    if phase is phases.Phase.COMPLETED:
        return 0
    return code or {phases.Phase.CANCELED: 130, phases.Phase.HALTED: 130}.get(phase, 1)


def since_of(text: str, now: float | None = None, zone: tzinfo | None = None, *, path: str = "since") -> float:
    """Return Unix seconds from a time ago (`10m`), from Unix seconds, or from a date (`2026-01-31T12:00`).

    A date that names no zone is one of `zone`, by default of this machine's. `path` is the field that an error names.
    """
    from oarlock.spec.input import quantities

    try:
        if text.replace(".", "", 1).isdigit() and 1e8 < float(text) < 1e12:
            return float(text)
        return (time.time() if now is None else now) - quantities.seconds(text)
    except errors.InvalidInput:
        pass
    import datetime as dt

    try:
        read = dt.datetime.fromisoformat(text)
        return (read.replace(tzinfo=zone) if read.tzinfo is None else read).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise errors.InvalidInput(
            f"{text!r} is not a valid time", path=path, hint="Write 10m, 2h, or 2026-01-31T12:00."
        ) from error
