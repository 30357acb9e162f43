"""The use of pools over time against their entitlements, from samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.display import amounts
from oarlock.spec.cluster import samples


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of a pool: its amounts in each sample that has the pool, and when that was taken."""

    pool: str
    resource: str
    times: tuple[float, ...]
    used: tuple[float, ...]
    entitled: tuple[float, ...]

    @property
    def mean_used(self) -> float:
        return sum(self.used) / len(self.used)

    @property
    def mean_entitled(self) -> float:
        return sum(self.entitled) / len(self.entitled)

    def cells(self) -> list[str]:
        """Return the pool, the resource, the mean and the greatest use, the mean entitlement, and the samples."""
        told = (self.mean_used, max(self.used), self.mean_entitled)
        return [self.pool, self.resource, *(amounts.number(one) for one in told), str(len(self.times))]


def over(found: Sequence[samples.Sample]) -> list[Use]:
    """Return the use of each pool: of devices where the cluster had any in that time, else of cores."""
    devices = any(one.used.get("gpus") or one.entitled.get("gpus") for each in found for one in each.pools.values())
    resource = "gpus" if devices else "cpus"
    names = dict.fromkeys(name for each in found for name in each.pools)
    return [_of(name, resource, [each for each in found if name in each.pools]) for name in sorted(names)]


def _of(name: str, resource: str, found: Sequence[samples.Sample]) -> Use:
    return Use(
        pool=name,
        resource=resource,
        times=tuple(each.at for each in found),
        used=tuple(each.pools[name].used.get(resource, 0.0) for each in found),
        entitled=tuple(each.pools[name].entitled.get(resource, 0.0) for each in found),
    )
