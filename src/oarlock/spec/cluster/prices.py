"""Prices of machines for an hour, as the server's settings declare them:

[prices]
currency = "EUR"
cpu = 0.04                            # a core, on any node
gpus = { h100 = 3.9, a100 = 2.1 }     # a device, by its type
machines = { "p4d.24xlarge" = 32.77 }  # a whole machine, by its class or its name: instead of the sum of its parts

Without any price nothing is said of costs.
"""

from __future__ import annotations

import math

import msgspec

from oarlock.spec import errors
from oarlock.spec.cluster import nodes


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Per hour, all in one currency."""

    currency: str = ""
    cpu: float = 0.0
    gpus: dict[str, float] = {}
    machines: dict[str, float] = {}

    def check(self) -> None:
        """Raise InvalidInput for a price that is not valid."""
        every = {"cpu": self.cpu}
        every |= {f"gpus.{name}": value for name, value in self.gpus.items()}
        every |= {f"machines.{name}": value for name, value in self.machines.items()}
        for name, value in every.items():
            if not (math.isfinite(value) and value >= 0):
                raise errors.InvalidInput(
                    f"{value} is not a price", path=f"prices.{name}", hint="Give a number from 0."
                )
        if len(self.currency) > 8 or not self.currency.isprintable():
            raise errors.InvalidInput(
                "this is not a currency", path="prices.currency", hint="Write it as EUR, USD or $."
            )

    def priced(self, node: nodes.Node) -> nodes.Node:
        """Return the node with its price: the declared one of its class or its name, else the sum of its parts.

        The cores bear their own price of it, the devices the rest. A node whose backend knows its price keeps that.
        """
        if node.price_per_h:
            return node
        cores = node.capacity.cpus_milli / 1000
        whole = self.machines.get(node.node_class, self.machines.get(node.name))
        if whole is None:
            whole = self.cpu * cores + sum(self.gpus.get(device.type, 0.0) for device in node.devices)
        core = min(self.cpu, whole / cores) if cores else 0.0
        return msgspec.structs.replace(node, price_per_h=whole, core_price_per_h=core)


def amount_text(amount: float, currency: str = "") -> str:
    """Return an amount of money as `3.20 EUR` or `<0.01 EUR`."""
    number = f"{amount:,.2f}" if amount >= 0.01 or amount == 0 else "<0.01"
    return f"{number} {currency}".rstrip()
