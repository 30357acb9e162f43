"""The roles within a job, and the effect of their tasks' ends on the whole."""

from __future__ import annotations

from enum import StrEnum


class RoleName(StrEnum):
    WORKER = "worker"
    PS = "ps"
    CHIEF = "chief"
    EVALUATOR = "evaluator"
    LAUNCHER = "launcher"


class OnSuccess(StrEnum):
    """The effect on the job when tasks of this role end well."""

    JOB = "job"  # one such task decides: the job has succeeded
    ALL = "all"  # the job has succeeded when all tasks of all roles that say so have
    NONE = "none"  # nothing: the job does not wait for it (a parameter server)


class OnFailure(StrEnum):
    """The effect on the job when a task of this role fails."""

    ATTEMPT = "attempt"  # the attempt is over; the gang restarts from its last good checkpoint
    RESTART = "restart"  # this task alone is started again, as its next incarnation
    IGNORE = "ignore"  # it is recorded, nothing else


class Framework(StrEnum):
    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    JAX = "jax"
    MPI = "mpi"
    PLAIN = "plain"
