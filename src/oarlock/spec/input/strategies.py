"""The check of a job file's `strategy:`, and of the role `ps` beside it: fields that contradict each other.

`validation` calls it for each job file.
"""

from __future__ import annotations

from oarlock.spec import errors, jobfile, roles
from oarlock.spec.input import quantities


def check(spec: jobfile.JobSpec) -> None:
    """Refuse a field that another field makes meaningless. Raises InvalidInput."""
    asked = spec.strategy
    for field in ("sync", "staleness", "backup"):
        if getattr(asked, field) is not None and asked.kind is not jobfile.StrategyKind.PS:
            raise errors.InvalidInput(
                f"`{field}` is a field of parameter servers",
                path=f"strategy.{field}",
                hint="Set `kind: ps`, or leave it out.",
            )
    if asked.bucket_bytes is not None:
        _groups(asked)
    if asked.staleness is not None:
        quantities.between(asked.staleness, 0, jobfile.MAX_STALENESS, "strategy.staleness")
        if asked.sync is not False:
            raise errors.InvalidInput(
                "synchronous steps are never stale",
                path="strategy.staleness",
                hint="Set `sync: false`, or leave it out.",
            )
    if asked.backup is not None:
        worker = spec.roles.get(roles.RoleName.WORKER)
        quantities.between(asked.backup, 0, worker.count - 1 if worker is not None else 0, "strategy.backup")
        if asked.sync is False:
            raise errors.InvalidInput(
                "asynchronous steps wait for no worker",
                path="strategy.backup",
                hint="Set `sync: true`, or leave it out.",
            )
    if jobfile.runs_servers(spec) or jobfile.serves(spec):
        _parameter_servers(spec)


def _groups(asked: jobfile.Strategy) -> None:
    """Refuse a size of groups that is not one, and where gradients do not travel in groups."""
    path, size = "strategy.bucket_bytes", asked.bucket_bytes
    if size != jobfile.TUNED and not (isinstance(size, int) and size > 0):
        hint = f"Write 4194304, or {jobfile.TUNED}."
        raise errors.InvalidInput(f"{size!r} is not a number of bytes", path=path, hint=hint)
    for told in (asked.kind, asked.compression):
        if told in jobfile.UNGROUPED:
            hint = "Set `kind: allreduce` and another compression, or leave it out."
            raise errors.InvalidInput(f"`{told}` has no groups of gradients", path=path, hint=hint)


def _parameter_servers(spec: jobfile.JobSpec) -> None:
    asked, servers = spec.strategy, spec.roles.get(roles.RoleName.PS)
    if servers is None or not {roles.RoleName.WORKER, roles.RoleName.CHIEF} & set(spec.roles):
        raise errors.InvalidInput(
            "parameter servers need tasks of the roles ps and worker",
            path="strategy.kind" if asked.kind and jobfile.serves(spec) else "roles",
            hint="Write roles: {worker: {count: 2}, ps: {count: 1}}.",
        )
    if spec.framework is not roles.Framework.TORCH:
        raise errors.InvalidInput(
            f"{spec.framework} has parameter servers of its own",
            path="strategy.kind",
            hint="Leave `strategy` out: the role `ps` then runs the command.",
        )
    if servers.on_success not in {None, roles.OnSuccess.NONE}:
        raise errors.InvalidInput(
            "parameter servers serve until the workers have ended, and do not end by themselves",
            path="roles.ps.on_success",
            hint="Leave it out.",
        )
    lossy = asked.compression not in {None, jobfile.Compression.NONE, jobfile.Compression.AUTO}
    if lossy and asked.kind in {jobfile.StrategyKind.PS, jobfile.StrategyKind.AUTO}:
        raise errors.InvalidInput(
            "parameter servers do not compress gradients",
            path="strategy.compression",
            hint="Leave it out, or use `kind: allreduce`.",
        )
