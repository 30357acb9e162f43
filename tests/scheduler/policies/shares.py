"""Gangs of one device that were measured, alone and beside others, and gangs on half a device."""

from __future__ import annotations

import msgspec
from tests.scheduler.policies import candidates

from oarlock.scheduler.policies import contract
from oarlock.spec import curves, plans

NOW = candidates.NOW
replace = msgspec.structs.replace


def small(job: str, **beside: float) -> plans.Gang:
    """Return a gang of one device that says its need of memory. Alone a step takes 1 s, beside others so long."""
    samples = [
        curves.Sample(nodes=1, devices=1, local=8, step_s=step_s, sync_s=0.0, beside=mate, count=3)
        for mate, step_s in {"": 1.0, **beside}.items()
    ]
    curve = curves.Curve(model=curves.Table(rates=(1.0,)), samples=tuple(samples))
    gang = candidates.gang(job, 0, curve=curve)
    return replace(gang, asks=(replace(gang.asks[0], gpu_memory_bytes=2**30),))


BESIDE = curves.Curve(
    model=curves.Table(rates=(1.0,)),
    samples=(curves.Sample(nodes=1, devices=1, local=8, step_s=1.0, sync_s=0.0, beside="x", count=9),),
)


def on_a_half(gang: plans.Gang, device: int = 0) -> contract.Candidate:
    one = candidates.running(gang, NOW - 300)
    assert one.running is not None
    (claim,) = one.running.holdings
    amount = replace(claim.amount, gpus=0, gpu_milli=500)
    return replace(one, running=replace(one.running, holdings=(replace(claim, amount=amount, devices=(device,)),)))
