"""The machines, and what is held on each. Everybody who may look sees all of it: who holds what is no secret here."""

from __future__ import annotations

import msgspec

from oarlock.api import routes
from oarlock.spec import holdings, nodes, users


class NodeState(msgspec.Struct, frozen=True):
    node: nodes.Node
    held: holdings.Resources
    holdings: list[holdings.Holding]


class NodeList(msgspec.Struct, frozen=True):
    items: list[NodeState]
    next: str | None = None


async def show_all(call: routes.Call) -> NodeList:
    found, held = await call.access.shared(lambda view: (view.nodes(), view.holdings()))
    by_node: dict[str, list[holdings.Holding]] = {}
    for holding in held:
        by_node.setdefault(holding.node, []).append(holding)
    return NodeList([NodeState(node, total(by_node.get(node.name, [])), by_node.get(node.name, [])) for node in found])


def total(held: list[holdings.Holding]) -> holdings.Resources:
    return sum((holding.amount for holding in held), holdings.Resources())


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/api/v1/nodes",
        handler=show_all,
        needs=users.Right.VIEWER,
        summary="nodes, with what is held on each",
        answer=NodeList,
    ),
)
