"""Capabilities of a backend and its server as words, and the refusal of jobs that need other capabilities.

The composition root tells the capabilities of its backend. Each field of a job file either works or is refused here by
its path: no field is accepted and then ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath

from oarlock.data.logs import searching
from oarlock.spec import errors, jobfile, roles, tasklogs
from oarlock.spec.access import kubernetessecrets
from oarlock.spec.checkpoints import checkpointlocations
from oarlock.spec.simulator import simulations

_PLACES = "Name a URL of an object store, or a path on a volume of the job."


class Capability(StrEnum):
    IMAGE = "image"  # tasks run in a container image
    VOLUMES = "volumes"  # cluster volumes can be mounted
    SIZES = "sizes"  # T-shirt sizes are declared
    ELASTIC = "elastic"  # extras above a role's `min`
    GPU_SHARES = "gpu-shares"  # several tasks on one device
    TOPOLOGY = "topology"  # nodes tell their rack, zone or switch
    IN_PLACE = "in-place"  # tasks can run in the user's own directory
    DATA = "data"  # data is fetched before the start
    DEPENDENCIES = "dependencies"  # an environment is made of a requirements file
    RESULTS = "results"  # results are stored at a place of the job's choice
    FILES = "files"  # new and changed files of the working directory are kept
    CHECKPOINTS = "checkpoints"  # checkpoints outlive the task that has saved them
    TENSORBOARD = "tensorboard"  # event files outlive the task
    LOCAL_FILES = "local-files"  # tasks see the files of the server's machine
    MPI = "mpi"  # `mpirun` of one task starts ranks in the others
    SIMULATIONS = simulations.CAPABILITY  # the program of simulations is where tasks run
    SECRET_REFERENCES = kubernetessecrets.CAPABILITY  # tasks get the values of Kubernetes Secrets
    LOG_EXPRESSIONS = tasklogs.EXPRESSIONS  # searches through logs take regular expressions


IMAGE_OF = "image:"
"""Begins the word of a framework that has an image of the installation: `image:torch`."""

OF_GPUS = "-cuda"
"""Ends the word of an image for jobs with GPUs alone: `image:torch-cuda`."""

OWN_CLAIM = "own-claim:"
"""Begins the word of a claim with the checkpoints or environments of all jobs, which no job may mount as a whole."""

PROFILE_MOUNT = "profile-mount:"
"""Begins the word of a place where pods have a volume of an administrator's profile: `profile-mount:POOL:/scratch`,
with `*` for all pools."""

LOCAL: frozenset[Capability] = frozenset(
    {
        Capability.SIZES,
        Capability.ELASTIC,
        Capability.GPU_SHARES,
        Capability.IN_PLACE,
        Capability.DATA,
        Capability.DEPENDENCIES,
        Capability.RESULTS,
        Capability.FILES,
        Capability.CHECKPOINTS,
        Capability.TENSORBOARD,
        Capability.LOCAL_FILES,
        Capability.MPI,
        Capability.SIMULATIONS,
    }
)
"""Capabilities of the local backend."""

PODS: frozenset[Capability] = frozenset(
    {
        Capability.SIZES,
        Capability.ELASTIC,
        Capability.IMAGE,
        Capability.VOLUMES,
        Capability.TOPOLOGY,
        Capability.DATA,
        Capability.DEPENDENCIES,
        Capability.RESULTS,
        Capability.FILES,
        Capability.TENSORBOARD,
        Capability.MPI,
        Capability.SIMULATIONS,
        Capability.SECRET_REFERENCES,
    }
)
"""Capabilities of the Kubernetes backend, whatever the cluster."""


def kubernetes(
    images: Iterable[str],
    mounts: Iterable[tuple[str, str]] = (),
    claim: str = "",
    environments: str = "",
    url: str = "",
) -> frozenset[str]:
    """Return the capabilities of an installation that has images for these frameworks.

    `mounts` has the places of its profiles' volumes, each with its pool, or `*`. `claim` is its volume for checkpoints,
    `environments` that for the environments of dependencies alone, and `url` its place for checkpoints in an object
    store, each if it has one.
    """
    more = {f"{OWN_CLAIM}{one}" for one in (claim, environments) if one}
    if claim or url:
        more.add(Capability.CHECKPOINTS)
    places = {_profile_mount(pool, place) for pool, place in mounts}
    return PODS | more | places | {f"{IMAGE_OF}{framework}" for framework in images}


def told(words: Iterable[str], labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the capabilities that a server tells: those of its backend, its own, and the labels as `name=value`."""
    own = (Capability.LOG_EXPRESSIONS,) if searching.takes_expressions() else ()
    return (*words, *own, *(f"{name}={value}" for name, value in labels.items()))


def _profile_mount(pool: str, place: str) -> str:
    return f"{PROFILE_MOUNT}{pool}:/{place.strip('/')}"


def refuse(spec: jobfile.JobSpec, capabilities: Collection[str], backend: str) -> None:
    """Raise Unsupported for the first field that needs a missing capability."""
    for capability, path, hint in _wants(spec):
        if capability not in capabilities:
            raise errors.Unsupported(f"The {backend} backend does not support `{path}`.", path=path, hint=hint)
    for number, volume in enumerate(spec.volumes):
        if f"{OWN_CLAIM}{volume.claim}" in capabilities:
            raise errors.Unsupported(
                f"The claim {volume.claim} stores checkpoints or environments of all jobs, so a job cannot mount it.",
                path=f"volumes[{number}].claim",
                hint="Leave it out: a job finds its own checkpoints in the folder that $OARLOCK_CHECKPOINTS names.",
            )
        if any(_profile_mount(pool, volume.mount) in capabilities for pool in ("*", spec.pool)):
            raise errors.Unsupported(
                f"An administrator's profile mounts another volume at {volume.mount} in the pods of this pool.",
                path=f"volumes[{number}].mount",
                hint="Mount this one elsewhere. See the table [kubernetes.profiles] of the server's configuration.",
            )
    own = [f"{IMAGE_OF}{spec.framework}"]
    if any(role.gpus for role in spec.roles.values()):
        own.append(f"{IMAGE_OF}{spec.framework}{OF_GPUS}")
    if spec.image is None and Capability.IMAGE in capabilities and not any(one in capabilities for one in own):
        raise errors.Unsupported(
            f"This installation has no image for the framework {spec.framework}.",
            path="image",
            hint="Name an image in the job file. An administrator can set one for all jobs: [kubernetes.images].",
        )


def refuse_reference(place: int, name: str, capabilities: Collection[str], backend: str) -> None:
    """Raise Unsupported for a secret that refers to a Kubernetes Secret, where tasks cannot get its value."""
    if Capability.SECRET_REFERENCES not in capabilities:
        raise errors.Unsupported(
            f"The secret {name} refers to a Kubernetes Secret, which tasks of the {backend} backend do not see.",
            path=f"secrets[{place}].name",
            hint=f"Set one of your own with that name, which is used instead: oarlock secrets set {name}",
        )


def _wants(spec: jobfile.JobSpec) -> Iterator[tuple[Capability, str, str]]:
    if spec.image is not None:
        yield Capability.IMAGE, "image", "Leave it out: tasks run in the environment from which `oarlock` was called."
    if spec.volumes:
        yield (
            Capability.VOLUMES,
            "volumes[0]",
            "Leave it out, and read the path itself: tasks see the files of this machine.",
        )
    yield from _wants_of_files(spec)
    if spec.framework is roles.Framework.MPI and roles.RoleName.LAUNCHER in spec.roles:
        yield Capability.MPI, "framework", "Use another framework than mpi."
    if spec.size is not None:
        yield Capability.SIZES, "size", "Set roles.worker.cpus, .memory and .gpus instead."
    if spec.topology is not None and spec.topology.same is not jobfile.Domain.NODE:
        yield Capability.TOPOLOGY, "topology.same", "Use `node`, or leave topology out."
    for name, role in spec.roles.items():
        if role.min is not None and role.min < role.count:
            yield Capability.ELASTIC, f"roles.{name}.min", "Leave it out: all `count` tasks start together."
        if role.max is not None and role.max > role.count:
            yield Capability.ELASTIC, f"roles.{name}.max", "Leave it out: exactly `count` tasks run."
        if role.gpus != int(role.gpus):
            yield Capability.GPU_SHARES, f"roles.{name}.gpus", "Ask for whole GPUs."


def _is_here(place: str, spec: jobfile.JobSpec) -> bool:
    """Return whether the place is on a machine's own disk: a local one, and not on a volume of the job."""
    if checkpointlocations.elsewhere(place):
        return False
    path = PurePosixPath(checkpointlocations.path(place))
    return not any(path.is_relative_to(volume.mount) for volume in spec.volumes)


def _wants_of_files(spec: jobfile.JobSpec) -> Iterator[tuple[Capability, str, str]]:
    if spec.data:
        yield Capability.DATA, "data[0]", "Mount a volume that has the data, or let the program fetch it."
    for number, source in enumerate(spec.data):
        if _is_here(source.source, spec):
            yield Capability.LOCAL_FILES, f"data[{number}].source", f"Tasks see no files of this machine. {_PLACES}"
    if spec.results is not None and _is_here(spec.results, spec):
        yield Capability.LOCAL_FILES, "results", f"Leave it out: the server keeps them. {_PLACES}"
    if spec.dependencies is not None:
        yield Capability.DEPENDENCIES, "dependencies", "Use an image that has the packages."
    if spec.results is not None:
        yield Capability.RESULTS, "results", "Leave it out, and let the program store its results on a volume."
    if spec.files != jobfile.Files() and spec.files.keep:
        yield Capability.FILES, "files", "Leave it out, and let the program write to a volume."
    to = spec.checkpoint.to
    if to is not None and _is_here(to, spec):
        yield Capability.LOCAL_FILES, "checkpoint.to", f"Leave it out: the server has a place for them. {_PLACES}"
    if spec.checkpoint != jobfile.Checkpoint() and to is None:
        hint = (
            "Set `checkpoint.to` to a URL of an object store, or to a path on a volume of the job:"
            " this installation has no place for checkpoints."
        )
        yield Capability.CHECKPOINTS, "checkpoint", hint
    if spec.tensorboard:
        yield Capability.TENSORBOARD, "tensorboard", "Leave it out, and let the program write to a volume."
