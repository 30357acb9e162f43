"""Submissions: their check against the present facts, and the job that they would become.

A submission is checked against the spec itself, the capabilities of the backend, the limits of the pool, and the nodes.
A job that can never run is refused with the numbers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec

from oarlock.api.jobs import capabilities, continuing, inplace
from oarlock.api.security import authorisation
from oarlock.api.services import provided
from oarlock.data.transfers import homeguard, schemes
from oarlock.frameworks import mpi
from oarlock.scheduler import gangs
from oarlock.scheduler.explaining import contexts, reasons
from oarlock.spec import errors, jobfile, jobs, phases, plans
from oarlock.spec.access import kubernetessecrets
from oarlock.spec.checkpoints import checkpointlocations
from oarlock.spec.cluster import pooltrees
from oarlock.spec.input import sizes, validation
from oarlock.store import stores

MAX_SHELL_BYTES = 128 * 1024
MAX_DIRECTORY_BYTES = 4096
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INTERPRETERS = {"python", "python3", "torchrun", "sh", "bash", "env", "exec", "mpirun", "mpiexec", "uv", "poetry"}


async def judge(
    services: provided.Services,
    access: authorisation.Access,
    submission: jobfile.Submission,
    *,
    possible: bool = True,
) -> None:
    """Refuse an invalid submission. With `possible`, also refuse one that can never run or that lacks its snapshot."""
    spec = submission.spec
    validation.judge(spec)
    _judge_shell(submission.shell)
    _judge_left_out(submission.left_out)
    _judge_sent_from(submission.sent_from)
    capabilities.refuse(spec, services.about.capabilities, services.about.backend)
    await inplace.refuse(submission.in_place, services.about.capabilities, services.about.backend)
    for place, secret in enumerate(spec.secrets):
        try:
            found = services.secrets.read(secret.name, access.user.name, admin=access.admin)
        except errors.NotFound as error:
            raise errors.InvalidInput(error.message, path=f"secrets[{place}].name", hint=error.hint) from error
        if isinstance(found, kubernetessecrets.Reference):
            capabilities.refuse_reference(place, secret.name, services.about.capabilities, services.about.backend)
    await _judge_places(services, spec)
    if submission.continues is not None:
        await continuing.find(services, access, submission.continues)
    if submission.snapshot is not None:
        if not _DIGEST.fullmatch(submission.snapshot):
            raise errors.InvalidInput(
                "The snapshot is not named by a digest.",
                path="snapshot",
                hint="Use `sha256:` and 64 hexadecimal digits.",
            )
        if not await services.blobs.has(submission.snapshot):
            raise errors.InvalidInput(
                "The server does not have this snapshot.", path="snapshot", hint="Upload it: PUT /api/v1/blobs/DIGEST"
            )
    elif spec.dependencies is not None and possible and submission.in_place is None:
        raise errors.InvalidInput(
            "The requirements file must be in the snapshot, and the job has no snapshot.",
            path="dependencies",
            hint="Upload a snapshot.",
        )
    rules = services.rules()
    gang = gangs.gang(draft(services, access.user.name, submission), of=rules.profiles)
    nodes, declared = await access.shared(lambda view: (view.nodes(), view.pools()))
    pooltrees.check_leaf(spec.pool, declared)
    if possible and nodes:
        empty = plans.Snapshot(nodes=tuple(nodes), pools=tuple(declared), rules=rules)
        refusal = reasons.never(gang, contexts.Context(empty))
        if refusal is not None:
            raise errors.Impossible(
                refusal.message,
                hint=refusal.change or "See the nodes: oarlock nodes",
                detail=msgspec.to_builtins(refusal),
            )


async def _judge_places(services: provided.Services, spec: jobfile.JobSpec) -> None:
    """Refuse places within the server's home, and directories of this machine that tasks cannot write.

    Only tasks have the credentials to check an object store.
    """
    await asyncio.to_thread(_keep_out_of_home, services.about.home, spec)
    for path, place in (("checkpoint.to", spec.checkpoint.to), ("results", spec.results)):
        if place is None or checkpointlocations.elsewhere(place):
            continue
        if capabilities.Capability.LOCAL_FILES not in services.about.capabilities:
            continue  # it is on a volume of the job
        why = await services.checkpoints.unwritable(checkpointlocations.path(place))
        if why:
            raise errors.InvalidInput(
                f"Nothing can be stored at {place}: {why}.",
                path=path,
                hint="Choose a directory that the server's user can write. By default the server's own is used.",
            )


def _judge_left_out(left_out: tuple[jobfile.LeftOut, ...]) -> None:
    if len(left_out) > jobfile.MAX_LEFT_OUT:
        raise errors.TooLarge(
            "The submission names too many files that are left out.",
            path="left_out",
            hint=f"Name at most {jobfile.MAX_LEFT_OUT} paths.",
        )
    for one in left_out:
        validation.text(one.path, jobfile.MAX_LEFT_OUT_CHARACTERS)
        validation.text(one.why, jobfile.MAX_LEFT_OUT_CHARACTERS)


def _keep_out_of_home(home: str, spec: jobfile.JobSpec) -> None:
    """Refuse places within the home. This blocks, because it resolves links.

    Checkpoints may go to the server's own directory, where each job has a folder.
    """
    places = [(f"data[{place}].source", source.source) for place, source in enumerate(spec.data)]
    places += [("results", spec.results)] if spec.results is not None else []
    places += [("checkpoint.to", spec.checkpoint.to)] if spec.checkpoint.to is not None else []
    for path, place in places:
        try:
            schemes.of(place)
            if path.startswith("data"):
                homeguard.check_source(place, home)
            else:
                homeguard.check_destination(place, home, ("checkpoints",) if path == "checkpoint.to" else ())
        except errors.InvalidInput as error:
            error.path = path
            raise


def _judge_sent_from(directory: str) -> None:
    try:
        validation.text(directory, MAX_DIRECTORY_BYTES)
    except errors.InvalidInput as error:
        error.path = "sent_from"
        raise


def _judge_shell(shell: dict[str, str]) -> None:
    if sum(len(name) + len(value) for name, value in shell.items()) > MAX_SHELL_BYTES:
        raise errors.TooLarge(
            "The shell's variables are too large.", path="shell", hint="Send only variables such as PATH."
        )
    for name, value in shell.items():
        if not name or "=" in name:
            raise errors.InvalidInput(
                f"{name[:100]!r} is not a valid name of a variable.", path="shell", hint="Use a name such as PATH."
            )
        for text in (name, value):
            try:
                validation.text(text, MAX_SHELL_BYTES)
            except errors.InvalidInput as error:
                error.path = "shell"
                raise


def draft(services: provided.Services, owner: str, submission: jobfile.Submission) -> jobs.Job:
    """Return the job that the submission would become."""
    now = services.clock()
    spec = completed(submission.spec)
    return jobs.Job(
        id=provided.fresh_id(services, now),
        name=spec.name or f"{stem(spec.command)}-{_suffix(services.entropy)}",
        owner=owner,
        spec=spec,
        created_at=now,
        pool=spec.pool,
        snapshot=submission.snapshot,
        shell=submission.shell,
        directory=submission.in_place.directory if submission.in_place is not None else None,
        left_out=submission.left_out,
        sent_from=submission.sent_from,
        phase_at=now,
    )


def completed(spec: jobfile.JobSpec) -> jobfile.JobSpec:
    """Return the spec with the amounts of its size, and with the launcher that MPI needs."""
    return mpi.with_launcher(sizes.filled(spec))


def stem(command: str | tuple[str, ...]) -> str:
    """Return the name of the script, else of the program: `my-train` for `python -u my_train.py --lr 1`."""
    words = command.split() if isinstance(command, str) else list(command)
    words = words[: words.index("-c")] if "-c" in words else words  # a program follows, not a name
    named = [word for word in words if not (word.startswith("-") or "=" in word or word.isdigit())]
    scripts = [word for word in named if word.endswith((".py", ".sh"))]
    stems = [
        word.rstrip("/").rpartition("/")[2].removesuffix(".py").removesuffix(".sh") for word in scripts[:1] or named
    ]
    stem = next((stem for stem in stems if stem and stem not in _INTERPRETERS), next(iter(stems), "job"))
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "job"


def _suffix(entropy: Callable[[int], bytes]) -> str:
    letters = "bcdfghjkmnpqrstvwxz23456789abcde"
    return "".join(letters[byte & 31] for byte in entropy(4))


def short(view: stores.View, job: jobs.Job) -> jobs.Job:
    """Return an unnamed job with its script's name alone, where no active job of its owner has this name.

    So `oarlock logs train` means the job that was started last.
    """
    if job.spec.name is not None:
        return job
    name = stem(job.spec.command)
    same = stores.JobFilter(owner=job.owner, name=name, phases=phases.NOT_OVER, limit=1)
    return job if view.jobs(same) else msgspec.structs.replace(job, name=name)
