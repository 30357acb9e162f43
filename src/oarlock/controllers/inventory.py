"""The inventory of machines: the backend's nodes with their prices, written to the store for the scheduler to read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from oarlock.backends import backends
from oarlock.controllers import leadership
from oarlock.spec import events
from oarlock.spec.cluster import nodes, prices
from oarlock.store import stores

PERIOD_S = 10.0
SPACING_S = 0.5
"""Changes that the backend tells of are read at most so often."""


class Inventory:
    """Asks the backend at every `PERIOD_S`, and soon after it has told of a change. A node that is gone while something
    is held on it stays, as not ready.
    """

    name = "inventory"

    def __init__(
        self,
        store: stores.Store,
        backend: backends.Backend,
        leading: leadership.Leading,
        *,
        clock: Callable[[], float],
        period_s: float = PERIOD_S,
        prices: prices.Prices | None = None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._leading = leading
        self._clock = clock
        self._period_s = period_s
        self._prices = prices
        self._due = 0.0
        self._looked_at = 0.0

    def wake_at(self) -> float | None:
        if self._leading.epoch is None:
            return None
        return self._looked_at + SPACING_S if self._backend.nodes_changed() else self._due

    async def tick(self) -> None:
        epoch, now = self._leading.epoch, self._clock()
        if epoch is None or (0 < self._due - now <= self._period_s and not self._news(now)):
            return
        self._due = 0.0  # until all of this is done: an attempt that fails begins anew
        present = await self._backend.nodes()
        if self._prices is not None:
            present = [self._prices.priced(node) for node in present]
        stored = await self._store.read(lambda view: view.nodes())
        if _unversioned(present) != _unversioned(stored):
            await self._store.write(lambda tx: _write(tx, present, now), epoch=epoch)
        self._looked_at, self._due = now, now + self._period_s

    def _news(self, now: float) -> bool:
        """Return whether the backend tells of a change, and the last look is not too recent."""
        return now >= self._looked_at + SPACING_S and self._backend.nodes_changed()


def _unversioned(listed: list[nodes.Node]) -> dict[str, nodes.Node]:
    return {node.name: msgspec.structs.replace(node, version=0) for node in listed}


def _write(tx: stores.Transaction, present: list[nodes.Node], now: float) -> None:
    before = {node.name: node for node in tx.nodes()}
    stored = dict(before)
    held = {claim.node for claim in tx.holdings()}
    for node in present:
        known = stored.pop(node.name, None)
        wanted = msgspec.structs.replace(node, version=known.version if known is not None else 0)
        if wanted != known:
            tx.put_node(wanted)
    for name, node in stored.items():
        if name not in held:
            tx.remove_node(name)
        elif node.ready:
            tx.put_node(msgspec.structs.replace(node, ready=False, reason="the backend does not list it any more"))
    after = {node.name: node for node in tx.nodes()}
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if changed:
        tx.tell(events.NODES, changed, at=now)
