"""The roles within a job, and what their tasks' ends mean for the whole."""

from __future__ import annotations

from enum import StrEnum


class RoleName(StrEnum):
    WORKER = "worker"
    PS = "ps"
    CHIEF = "chief"
    EVALUATOR = "evaluator"
    LAUNCHER = "launcher"


class OnSuccess(StrEnum):
    """What it means for the job that tasks of this role ended well."""

    JOB = "job"  # one such task decides: the job has succeeded
    ALL = "all"  # the job has succeeded when all tasks of all roles that say so have
    NONE = "none"  # nothing: the job does not wait for it (a parameter server)


class OnFailure(StrEnum):
    """What it means for the job that a task of this role failed."""

    ATTEMPT = "attempt"  # the attempt is over; the gang restarts from its last good checkpoint
    RESTART = "restart"  # this task alone is started again, as its next incarnation
    IGNORE = "ignore"  # it is recorded, nothing else


class Framework(StrEnum):
    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    JAX = "jax"
    MPI = "mpi"
    PLAIN = "plain"
