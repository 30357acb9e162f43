"""The cost of holdings per hour, from the prices of their nodes."""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.spec import holdings
from oarlock.spec.cluster import nodes


class Book:
    """The prices of a cluster's nodes. A node without a price costs nothing."""

    def __init__(self, of: Iterable[nodes.Node]) -> None:
        self._nodes = {node.name: node for node in of if node.price_per_h}

    def per_hour(self, claims: Iterable[holdings.Holding]) -> float:
        if not self._nodes:
            return 0.0
        return sum(share(claim, self._nodes[claim.node]) for claim in claims if claim.node in self._nodes)


def share(claim: holdings.Holding, node: nodes.Node) -> float:
    """Return a holding's part of its node's price per hour: its cores at their price, and its share of the devices.

    On a node without devices the cores bear the whole price. So a job that holds all of a node pays for all of it, and
    the parts of all jobs never exceed the price.
    """
    cores = node.capacity.cpus_milli / 1000
    if not node.devices:
        return node.price_per_h * claim.amount.cpus_milli / 1000 / cores if cores else 0.0
    device = (node.price_per_h - node.core_price_per_h * cores) / len(node.devices)
    return node.core_price_per_h * claim.amount.cpus_milli / 1000 + device * claim.amount.devices
