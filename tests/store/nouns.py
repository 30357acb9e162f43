"""Small jobs, nodes and claims for the store's tests."""

from __future__ import annotations

import msgspec

from oarlock.spec import attempts, holdings, jobfile, jobs, phases
from oarlock.spec.cluster import nodes


def job(job_id: str = "j-1", *, name: str | None = None, owner: str = "ann", at: float = 1.0, **more) -> jobs.Job:
    spec = jobfile.JobSpec(command="python train.py", env={"GREETING": 'naïve "☃"\n\t\\'})
    return jobs.Job(id=job_id, name=name or job_id, owner=owner, spec=spec, created_at=at, **more)


def ended(one: jobs.Job, phase: phases.Phase = phases.Phase.COMPLETED) -> jobs.Job:
    return msgspec.structs.replace(one, phase=phase, reason="it is over")


def node(
    name: str = "n1", *, cpus: int = 8, devices: int = 4, ports: tuple[int, int] | None = (20000, 20999)
) -> nodes.Node:
    return nodes.Node(
        name=name,
        capacity=holdings.Resources(cpus_milli=cpus * 1000, memory_bytes=64 << 30, gpus=devices),
        devices=tuple(nodes.Device(index=index, type="h100") for index in range(devices)),
        ports=ports,
    )


def claim(
    job: str = "j-1", *, index: int = 0, node: str = "n1", cpus: int = 1, memory: int = 1 << 30, **more
) -> holdings.Holding:
    amount = holdings.Resources(cpus_milli=cpus * 1000, memory_bytes=memory)
    return holdings.Holding(
        **({"job": job, "attempt": 1, "role": "worker", "index": index, "node": node, "amount": amount} | more)
    )


def share(job: str = "j-1", *, device: int = 0, milli: int = 500, **more) -> holdings.Holding:
    amount = holdings.Resources(cpus_milli=1000, memory_bytes=1 << 30, gpu_milli=milli)
    return claim(job, devices=(device,), amount=amount, **more)


def checkpoint(job: str = "j-1", *, attempt: int = 1, step: int = 10) -> jobs.Checkpoint:
    path = f"ckpt/attempt-{attempt}-round-1-step-{step}"
    return jobs.Checkpoint(
        job=job, step=step, attempt=attempt, round=1, path=path, manifest_sha256="0" * 64, bytes=1 << 40, at=2.0
    )


def attempt(number: int = 1, **task) -> attempts.Attempt:
    tasks = (attempts.Task(role="worker", index=0, **task),) if task else ()
    return attempts.Attempt(number=number, started_at=1.0, tasks=tasks)
