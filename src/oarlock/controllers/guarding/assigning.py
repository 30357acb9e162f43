"""The assignment of a task: the first message to its agent (docs/agent-protocol.md section 1), built field by field
from the job.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oarlock.frameworks import mpi
from oarlock.lifecycle import batching
from oarlock.spec import attempts, holdings, jobfile, jobs, roles
from oarlock.spec.checkpoints import checkpointlocations
from oarlock.spec.cluster import nodes
from oarlock.spec.input import quantities
from oarlock.spec.protocol import assignments, tasktokens

_WORKER = roles.RoleName.WORKER
_HOLD = ("sleep", "2147483647")
_SERVE = (
    "sh",
    "-c",
    """python=$(command -v python || command -v python3)
"$python" -c 'import importlib.util as known, sys; sys.exit(known.find_spec("torch") is None)' || {
    echo "oarlock: tasks of the role ps run Oarlock's parameter server, and ${python:-python} has no torch. \
Install torch there. A program with servers of its own needs another --framework, such as plain: then its command \
runs in this role." >&2
    exit 1
}
exec "$python" -m oarlock.train.servers""",
)
"""The command of a parameter server, under the Python of the user's environment. The user's own command is not run."""
_LEADERS = (roles.RoleName.LAUNCHER, roles.RoleName.CHIEF, roles.RoleName.WORKER)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a server tells all its agents. `checkpoints` (a path) and `results` (a URL) are the server's own
    locations; a job's files are under its id.
    """

    server: str
    task_secret: bytes
    server_file: str | None = None
    ca_file: str | None = None
    checkpoints: str | None = None
    stored_checkpoints: str | None = None  # the server's own place in an object store, a URL
    checkpoints_visible: bool = True  # to the server; else the agents verify them, and remove old ones
    results: str | None = None
    files: str | None = None  # the server's own location of files left in working directories, a URL
    environments: str | None = None
    helper: tuple[str, ...] = ()
    train_path: str | None = None
    hook_path: str | None = None
    shell: tuple[str, ...] = ()  # runs the words after it in the task at an address, as ssh does
    shell_server: tuple[str, ...] = ()  # the process of a worker that runs them
    orphan_timeout_s: float | None = None
    spool_bytes: int = 1 << 30


def assignment(
    job: jobs.Job,
    attempt: int,
    task: attempts.Task,
    node: nodes.Node | None,
    settings: Settings,
    *,
    share_milli: int = 0,
) -> assignments.Assignment:
    """Return the assignment of one incarnation.

    `node` is where it was placed, as far as it is still known; `share_milli` how many thousandths of its device it
    holds, where it shares one.
    """
    key = task.key(job.id, attempt)
    spec = job.spec
    return assignments.Assignment(
        key=str(key),
        server=settings.server,
        server_file=settings.server_file,
        token=tasktokens.derive(settings.task_secret, key),
        ca_file=settings.ca_file,
        address=node.address if node is not None else "127.0.0.1",
        ports=task.ports,
        snapshot=job.snapshot if job.directory is None else None,
        workdir=job.directory,
        downloads=spec.data,
        uploads=_uploads(job, task, settings),
        keep=_keep(job, key, settings),
        checkpoint_copies=_copies(job, settings),
        tensorboard=spec.tensorboard,
        requirements=spec.dependencies,
        environments=settings.environments,
        helper=settings.helper,
        command=_command(spec, task.role, settings),
        nproc=1 if _holds_slots(spec, task.role) else spec.roles[task.role].nproc,
        env=_environment(job, attempt, task, settings, share_milli) | _gpu_type(task, node),
        path_env=job.shell,
        grace_s=quantities.seconds(spec.grace),
        orphan_timeout_s=settings.orphan_timeout_s,
        spool_bytes=settings.spool_bytes,
        train_path=settings.train_path,
        hook_path=settings.hook_path,
        gpus=_devices(job, task, node),
        freeze_s=quantities.seconds(spec.freeze) if spec.freeze is not None else None,
    )


def limit(spec: jobfile.JobSpec, role: roles.RoleName, gang: Iterable[attempts.Task] = ()) -> holdings.Resources:
    """Return the most that a task of this role may use, by its job file. Absent amounts are not limited.

    MPI's launcher itself starts the processes of the workers that share its machine, so it may use the holdings of
    those workers of its `gang` too. In pods it starts none: `gang` is empty there.
    """
    workers = 0
    if role is roles.RoleName.LAUNCHER and _holds_slots(spec, _WORKER):
        workers = sum(task.role is _WORKER for task in gang)
    counted = [(spec.roles[role], 1), *([(spec.roles[_WORKER], workers)] if workers else [])]
    cpus = memory = 0
    if all(said.cpus is not None for said, _ in counted):
        cpus = sum(quantities.cpus_milli(said.held_cpus) * count for said, count in counted)
    if all(said.memory is not None for said, _ in counted):
        memory = sum(quantities.memory_bytes(said.memory or 0) * count for said, count in counted)
    return holdings.Resources(cpus_milli=cpus, memory_bytes=memory)


def _command(spec: jobfile.JobSpec, role: roles.RoleName, settings: Settings) -> str | tuple[str, ...]:
    if _holds_slots(spec, role):
        return settings.shell_server or _HOLD
    return _SERVE if role is roles.RoleName.PS and jobfile.runs_servers(spec) else spec.command


def _holds_slots(spec: jobfile.JobSpec, role: roles.RoleName) -> bool:
    """Return whether the task only holds slots: an MPI worker waits for its end while the launcher's `mpirun` starts
    processes.
    """
    return spec.framework is roles.Framework.MPI and role is _WORKER and roles.RoleName.LAUNCHER in spec.roles


def _uploads(job: jobs.Job, task: attempts.Task, settings: Settings) -> assignments.Upload | None:
    """Return the place for the task's results.

    The first of the deciding tasks stores at the place itself, each other one in a folder of its own there.
    """
    place = job.spec.results
    if place is None:
        if settings.results is None:
            return None
        place = f"{settings.results.rstrip('/')}/{job.id}"
    leader = next((role for role in _LEADERS if role in job.spec.roles), task.role)
    if (task.role, task.index) == (leader, 0):
        return assignments.Upload("results", place)
    return assignments.Upload("results", f"{place.rstrip('/')}/{task.name}")


def _keep(job: jobs.Job, key: attempts.TaskKey, settings: Settings) -> assignments.Keep | None:
    """Return where the task's files are kept. Each life of each task has a folder of its own, so that none is
    overwritten.
    """
    asked = job.spec.files
    if not asked.keep or settings.files is None or job.directory is not None:
        return None
    return assignments.Keep(
        to=f"{settings.files.rstrip('/')}/{job.id}/{key.role}-{key.index}/{key.life}",
        ignore=asked.ignore,
        limit_bytes=quantities.memory_bytes(asked.limit),
        limit_files=asked.count,
    )


def _environment(
    job: jobs.Job, attempt: int, task: attempts.Task, settings: Settings, share_milli: int
) -> dict[str, str]:
    """Return the job's own variables and ours.

    Ours say where and how often to keep checkpoints, the batch size where we decide it, and how much of its device's
    memory each process may take.
    """
    asked, role = job.spec.checkpoint, job.spec.roles[task.role]
    env = dict(job.spec.env)
    env["OARLOCK_JOB_NAME"] = job.name
    if share_milli:
        env["OARLOCK_GPU_FRACTION"] = f"{share_milli / 1000 / role.nproc:.4g}"
    if job.spec.strategy != jobfile.Strategy():
        env["OARLOCK_STRATEGY"] = msgspec.json.encode(job.spec.strategy).decode()
    if jobfile.runs_servers(job.spec):
        env["OARLOCK_SERVERS_TOKEN"] = tasktokens.of_attempt(settings.task_secret, job.id, attempt)
    if settings.shell and _holds_slots(job.spec, _WORKER):
        env["OARLOCK_SHELL_TOKEN"] = tasktokens.of_attempt(settings.task_secret, job.id, attempt)
        if task.role is roles.RoleName.LAUNCHER:
            env = mpi.remote(settings.shell) | env
    if job.spec.batch is not None:
        env["OARLOCK_BATCH_SIZE"] = str(job.spec.batch.size)
    live = job.live
    batch = batching.told(job, live) if live is not None and live.number == attempt else None
    if batch is not None:
        env["OARLOCK_LOCAL_BATCH"] = str(batch.local)
        env["OARLOCK_ACCUMULATE"] = str(batch.accumulate)
    place = checkpointlocations.directory(job.spec, job.id, settings.checkpoints)
    if place is not None:
        env["OARLOCK_CHECKPOINTS"] = place
    elif checkpointlocations.copies(job.spec, job.id, settings.stored_checkpoints) is not None:
        env["OARLOCK_CHECKPOINTS_SEPARATE"] = "1"
    if asked.every is not None:
        env["OARLOCK_CHECKPOINT_EVERY_S"] = f"{quantities.seconds(asked.every):g}"
    if asked.keep != jobfile.Checkpoint().keep:
        env["OARLOCK_CHECKPOINT_KEEP"] = str(asked.keep)
    return env


def _gpu_type(task: attempts.Task, node: nodes.Node | None) -> dict[str, str]:
    """Return the type of the task's GPUs as a variable, so that its speed is reported with it; nothing without any."""
    held = {device.type for device in node.devices if device.index in task.devices} if node is not None else set()
    return {"OARLOCK_GPU_TYPE": "+".join(sorted(held))} if held else {}


def _copies(job: jobs.Job, settings: Settings) -> assignments.Copies | None:
    """Return the place to which agents copy checkpoints, where the job wants them in an object store.

    Processes write to a directory.

    A directory that the server does not see is kept by the agents in the same way, without a copy. Where tasks share no
    directory, each one stores the shards of its own ranks.
    """
    to = checkpointlocations.copies(job.spec, job.id, settings.stored_checkpoints)
    if to is not None and checkpointlocations.directory(job.spec, job.id, settings.checkpoints) is None:
        return assignments.Copies(to, job.spec.checkpoint.keep, separate=True)
    if to is None and not settings.checkpoints_visible:
        to = checkpointlocations.directory(job.spec, job.id, settings.checkpoints)
    return assignments.Copies(to, job.spec.checkpoint.keep) if to is not None else None


def _devices(job: jobs.Job, task: attempts.Task, node: nodes.Node | None) -> tuple[int, ...] | None:
    """Return the devices that it may see: none of a machine's where it asked for none. Without any, nothing is hidden.

    MPI's launcher sees those of the workers beside it: it starts their processes.
    """
    seen, live = set(task.devices), job.live
    if task.role is roles.RoleName.LAUNCHER and live is not None and _holds_slots(job.spec, _WORKER):
        workers = [one for one in live.tasks if one.role is _WORKER and one.node == task.node]
        seen |= {device for worker in workers for device in worker.devices}
    has_devices = node is not None and bool(node.devices)
    return tuple(sorted(seen)) if seen or has_devices else None
