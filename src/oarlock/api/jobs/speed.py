"""The speed of a job at several sizes: measured, and by the curve that was fitted to the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.api import routes
from oarlock.scheduler import gangs
from oarlock.scheduler.speed import rates
from oarlock.spec import bodies, curves, jobs, plans
from oarlock.spec.cluster import nodes

MOST_POINTS = 16


async def show(call: routes.Call) -> bodies.Speed:
    job = await call.access.job(call.path["job"])
    if job.curve is None:
        return bodies.Speed(())
    ground = await call.access.shared(lambda view: view.nodes())
    return of(job, job.curve, ground)


def of(job: jobs.Job, curve: curves.Curve, ground: Sequence[nodes.Node]) -> bodies.Speed:
    """Return the measured and fitted speeds of a job on these nodes."""
    model = curve.model
    counted = not isinstance(model, curves.Allreduce) or not any(sample.local for sample in curve.samples)
    points = [_measured(sample, steps=counted) for sample in curve.samples]
    seen = {(point.gpu_type, point.devices, point.servers) for point in points if not point.beside}
    points += [
        point
        for gpu_type in [one.gpu_type for one in curve.types] or [""]
        for point in _fitted(job, curve, ground, gpu_type, steps=counted)
        if (gpu_type, point.devices, point.servers) not in seen
    ]
    running = gangs.running(job, ()).speed
    return bodies.Speed(
        items=tuple(sorted(points, key=_shape)[:MOST_POINTS]),
        unit=bodies.Unit.STEPS if counted else bodies.Unit.EXAMPLES,
        noise=model.noise if isinstance(model, curves.Allreduce) else None,
        per_s=running if not counted or isinstance(model, curves.Servers) else None,
    )


def _shape(one: bodies.SpeedPoint) -> tuple[str, int, int, int, int, str]:
    return one.gpu_type, one.servers, one.devices, one.nodes, one.local, one.beside


def _measured(sample: curves.Sample, *, steps: bool) -> bodies.SpeedPoint:
    taken = 1 if steps else sample.devices * max(1, sample.local)
    return bodies.SpeedPoint(
        devices=sample.devices,
        nodes=sample.nodes,
        servers=sample.servers,
        local=sample.local,
        per_s=taken / sample.step_s,
        measured=sample.count,
        beside=sample.beside,
        gpu_type=sample.gpu_type,
    )


def _fitted(
    job: jobs.Job, curve: curves.Curve, ground: Sequence[nodes.Node], gpu_type: str, *, steps: bool
) -> Iterator[bodies.SpeedPoint]:
    """Yield fitted points at the job's possible sizes, on as few nodes as possible, up to twice the measured size."""
    of_type = [sample for sample in curve.samples if sample.gpu_type == gpu_type] or curve.samples
    at_once = next((sample.local for sample in reversed(of_type) if sample.local), 1)
    suiting = [node for node in ground if any(device.type == gpu_type for device in node.devices)] or ground
    most_each = max((len(node.devices) for node in suiting), default=0)
    known = max((sample.devices for sample in of_type), default=1)
    servers = max((sample.servers for sample in curve.samples), default=0)
    for devices in _sizes(job):
        if devices > 2 * known:
            return
        across = -(-devices // most_each) if most_each else 1
        rate = rates.rate(curve, None, rates.Shape(across, devices, servers, gpu_type))
        by_parts = isinstance(curve.model, curves.Allreduce)
        per_s = rate / devices if steps and by_parts else rate
        local = 0 if steps else at_once
        yield bodies.SpeedPoint(
            devices=devices, nodes=across, servers=servers, local=local, per_s=per_s, gpu_type=gpu_type
        )


def _sizes(job: jobs.Job) -> list[int]:
    """Return the numbers of devices at the job's possible sizes, at most `MOST_POINTS`."""
    asks = [ask for ask in gangs.asks(job.spec) if ask.role in ("chief", "worker")]
    fixed = sum(_devices(ask) * ask.count for ask in asks if ask.min == ask.max)
    found = [fixed] if fixed else []
    for ask in asks:
        if ask.min < ask.max:
            counts = range(ask.min, ask.max + 1)
            step = -(-len(counts) // MOST_POINTS)
            found = [fixed + _devices(ask) * count for count in counts[::step]]
    return found


def _devices(ask: plans.Ask) -> int:
    return max(1, ask.amount.gpus)


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/jobs/{job}/speed",
        show,
        "speed of the job by number of devices: measured, and fitted to the measurements",
        bodies.Speed,
    ),
)
