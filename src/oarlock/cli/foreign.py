"""Commands of other tools, such as Slurm, kubectl and Ray, and their names here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MEANT: dict[str, str] = {
    "ps": "status stat list ls jobs job queue squeue qstat bjobs top overview",
    "ps show": "get",
    "show": "describe inspect info details detail history sacct scontrol events event",
    "cancel": "delete del scancel qdel bkill terminate abort destroy remove-job",
    "halt cancel": "stop kill end quit",
    "halt": "pause suspend hold preempt",
    "resume": "continue unpause release unhalt requeue",
    "resume run": "restart retry rerun",
    "rm": "remove forget clean prune purge",
    "run": "srun salloc launch train torchrun accelerate mpirun",
    "submit": "sbatch qsub bsub create apply",
    "run up": "start",
    "logs": "log tail output attach follow watch stdout stderr cat",
    "exec": "ssh shell sh bash enter connect login-node",
    "nodes": "node sinfo hosts machines gpus gpu resources cluster",
    "pools": "quota quotas partitions partition queues",
    "up": "server serve daemon init",
    "login": "config configure auth context",
    "usage": "cost costs billing sreport",
    "metrics": "metric stats plot",
    "why": "explain reason pending",
    "doctor": "check debug diagnose",
}


def meant(word: str, verbs: Mapping[str, str]) -> str:
    """Return a hint that names our commands for another tool's `word`, or an empty text. `verbs` describes ours."""
    found = [name for name in _of(word.lower()) if name in verbs]
    return "\n".join(f"`oarlock {name}`: {verbs[name]}." for name in found)


def _of(word: str) -> Iterator[str]:
    for ours, theirs in MEANT.items():
        if word in theirs.split():
            yield from ours.split()
