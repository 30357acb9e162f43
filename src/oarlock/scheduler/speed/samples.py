"""From the reports of a running job's processes to the samples and the speed curve that the scheduler uses.

A device counts as one process of the model. A task with four GPUs and one process that drives them all counts as four
processes, each with a quarter of the process's batch. A task without a GPU counts as one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from oarlock.scheduler.speed import convergence, fitting, rates
from oarlock.spec import attempts, curves, jobs, roles

RANKED = (roles.RoleName.CHIEF, roles.RoleName.WORKER)
"""The roles that train. The reports of the first one come first."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a job. `at` is the time of the newest report, in Unix seconds."""

    at: float
    sample: curves.Sample
    total: int  # examples in a step of the whole gang, as the curve counts them
    parts: int  # of a step, with one exchange at the last of them
    step: int
    steps_left: int | None = None
    noise: float | None = None
    loss: float | None = None


def seen(job: jobs.Job, beside: str = "") -> Seen | None:
    """Return the measurement that the last reports of the job's processes give together.

    Return None if there is no report yet, or if reports differ because a new batch size is being taken up. `beside` is
    the job that shares its device, where the job asks for the whole of it.
    """
    live = job.live
    ranked = _ranked(live) if live is not None and live.stop is None else []
    told = [task.progress for task in ranked if task.progress is not None and task.progress.step_s]
    if live is None or not told or len({(one.ranks, one.local, one.accumulate) for one in told}) != 1:
        return None
    first = told[0]
    ranks, accumulate = first.ranks or len(ranked), first.accumulate or 1
    waited = [one.sync_s for one in told if one.sync_s is not None]
    if ranks > 1 and len(waited) < len(told):
        return None  # another library exchanges the gradients: its part of a step is not known
    devices = sum(max(1, int(job.spec.roles[task.role].gpus)) for task in ranked)
    local = round(first.local * ranks / devices) if first.local else 0
    sample = curves.Sample(
        nodes=len({task.node for task in ranked}),
        devices=devices,
        local=local,
        step_s=sum(one.step_s or 0.0 for one in told) / len(told),
        sync_s=sum(waited) / len(waited) if waited else 0.0,
        data_s=sum(one.data_s or 0.0 for one in told) / len(told),
        servers=sum(task.role is roles.RoleName.PS for task in live.tasks),
        beside=beside,
        gpu_type=_gpu_type(told),
    )
    return Seen(
        at=max(one.at for one in told),
        sample=sample,
        total=max(1, local) * devices * accumulate,
        parts=accumulate,
        step=first.step,
        steps_left=None if first.total_steps is None else max(0, first.total_steps - first.step),
        noise=first.noise,
        loss=first.loss,
    )


def speed(job: jobs.Job) -> float | None:
    """Return the progress per second as measured now, in the curve's unit; None without a measurement."""
    last = seen(job)
    if last is None:
        return None
    sample = last.sample
    step_s = sample.step_s + (last.parts - 1) * max(0.0, sample.step_s - sample.sync_s)
    if sample.servers:
        return 1 / step_s
    known = job.curve.model if job.curve is not None else None
    noise = last.noise if last.noise is not None or not isinstance(known, curves.Allreduce) else known.noise
    return last.total / step_s * _worth(job, last.total, noise)


def curve(
    job: jobs.Job, last: Seen, new: Iterable[curves.Sample], losses: Sequence[tuple[float, float]]
) -> curves.Curve:
    """Return the job's curve with the new samples folded in. `losses` are (step, loss), as far as they are known."""
    known = job.curve
    samples: tuple[curves.Sample, ...] = known.samples if known is not None else ()
    for sample in new:
        samples = fitting.merged(samples, sample)
    model = _model(job, last, samples)
    falls = convergence.fitted(losses) or (known.convergence if known is not None else None)
    return curves.Curve(
        model=model,
        left=_left(job, last, model, falls),
        convergence=falls,
        samples=samples,
        types=_types(known, last, model, samples),
    )


def _types(
    known: curves.Curve | None, last: Seen, model: curves.Model, samples: Sequence[curves.Sample]
) -> tuple[curves.OnType, ...]:
    """Return a model for each type of GPU that a sample names, the type of the last sample first.

    The gradient noise belongs to the job and not to the type: all models get the last measured one.
    """
    if not last.sample.gpu_type or not isinstance(model, curves.Allreduce):
        return () if known is None else known.types
    found = [curves.OnType(gpu_type=last.sample.gpu_type, model=model)]
    for name in sorted({one.gpu_type for one in samples} - {"", last.sample.gpu_type}):
        old = next((one.model for one in known.types if one.gpu_type == name), None) if known is not None else None
        fitted = old or fitting.allreduce(_on_type(samples, name))
        if fitted is not None:
            found.append(curves.OnType(gpu_type=name, model=msgspec.structs.replace(fitted, noise=model.noise)))
    return tuple(found)


def _model(job: jobs.Job, last: Seen, samples: Sequence[curves.Sample]) -> curves.Model:
    """Return the model fitted to the samples without a neighbour on the device, if there are any; else to all."""
    gpu_type = last.sample.gpu_type
    samples = _on_type(_alone(samples) or samples, gpu_type)
    known = _known_on(job.curve, gpu_type)
    if (
        job.curve is not None
        and isinstance(known, curves.Allreduce)
        and _alike(samples, _on_type(_alone(job.curve.samples), gpu_type))
    ):
        return known if last.noise is None else msgspec.structs.replace(known, noise=last.noise)
    if last.sample.servers:
        served = fitting.servers(samples, batch=float(last.total))
        if served is not None:
            return served
    noise = last.noise
    if noise is None and job.curve is not None and isinstance(job.curve.model, curves.Allreduce):
        noise = job.curve.model.noise
    fitted = fitting.allreduce(samples, noise)
    assert fitted is not None, "the last sample is always usable"
    return fitted


def _known_on(curve: curves.Curve | None, gpu_type: str) -> curves.Model | None:
    """Return the model that was fitted before to the samples of that type."""
    if curve is None:
        return None
    return next((one.model for one in curve.types if one.gpu_type == gpu_type), curve.model)


def _on_type(samples: Sequence[curves.Sample], gpu_type: str) -> list[curves.Sample]:
    """Return the samples of that type; all of them if `gpu_type` is empty."""
    return [one for one in samples if not gpu_type or one.gpu_type == gpu_type]


def _gpu_type(told: Sequence[attempts.Progress]) -> str:
    """Return the type of GPU that the processes report. Several types are joined with `+`."""
    return "+".join(sorted({part for one in told for part in one.gpu_type.split("+") if part}))


def _alone(samples: Sequence[curves.Sample]) -> list[curves.Sample]:
    return [one for one in samples if not one.beside]


def _alike(samples: Sequence[curves.Sample], known: Sequence[curves.Sample]) -> bool:
    """Return whether the samples are the known ones except for their counts: then there is nothing to fit."""
    return len(samples) == len(known) and all(
        new is old or msgspec.structs.replace(new, count=old.count) == old
        for new, old in zip(samples, known, strict=True)
    )


def _left(job: jobs.Job, last: Seen, model: curves.Model, falls: curves.Convergence | None) -> float | None:
    """Return the progress still to be made, in the model's unit.

    The job reports it; else the job is expected to end when its loss has settled.
    """
    steps = float(last.steps_left) if last.steps_left is not None else None
    if steps is None and falls is not None:
        steps = convergence.to_go(falls, last.step)
    if steps is None or not isinstance(model, curves.Allreduce):
        return steps
    return steps * last.total * _worth(job, last.total, model.noise)


def _worth(job: jobs.Job, total: int, noise: float | None) -> float:
    """Return the progress per example of a step with `total` examples."""
    if job.spec.batch is None:
        return 1.0
    return rates.efficiency(noise, job.spec.batch.size, max(total, job.spec.batch.size))


def _ranked(live: attempts.Attempt) -> list[attempts.Task]:
    found = [task for task in live.members if task.role in RANKED]
    return sorted(found, key=lambda task: (RANKED.index(task.role), task.index))
