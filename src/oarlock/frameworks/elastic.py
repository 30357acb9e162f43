"""The variables of an elastic job: with them `oarlock.train` follows the rounds of its members."""

from __future__ import annotations

from oarlock.spec import attempts, jobfile, roles

TRAINS = frozenset({roles.RoleName.CHIEF, roles.RoleName.WORKER})


def environment(spec: jobfile.JobSpec, task: attempts.Task) -> dict[str, str]:
    """Return the variables of one task. A task that is to join trains with the others from a later round on. A job of a
    fixed size makes no step with fewer processes than all of them.
    """
    if not jobfile.rejoins(spec) or task.role not in TRAINS:
        return {}
    joins = {"OARLOCK_JOINS": "1"} if task.part is attempts.Part.JOINING else {}
    all_ranks = sum(role.count * role.nproc for name, role in spec.roles.items() if name in TRAINS)
    least = {"OARLOCK_LEAST_RANKS": str(all_ranks)} if jobfile.waits(spec) else {}
    return {"OARLOCK_ELASTIC": "1", **joins, **least}
