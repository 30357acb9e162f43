"""The price of a job's holdings, by the prices of nodes, devices and cores."""

from __future__ import annotations

import pytest
from tests.scheduler.explaining.test_reasons import node

from oarlock.scheduler import pricing
from oarlock.spec import holdings
from oarlock.spec.cluster import nodes, prices


@pytest.mark.parametrize(
    ("told", "of", "claims", "price"),
    [
        ({"gpus": {"h100": 4.0}}, node("a"), [(1000, 1), (1000, 2)], 12.0),
        ({"gpus": {"h100": 4.0}, "cpu": 0.5}, node("a"), [(2000, 1)], 5.0),
        ({"gpus": {"a100": 4.0}}, node("a"), [(1000, 4)], 0.0),
        ({"machines": {"big": 20.0}}, node("a", node_class="big"), [(1000, 1)], 5.0),
        ({"machines": {"a": 20.0}, "cpu": 0.5}, node("a"), [(4000, 1)], 6.0),
        ({"machines": {"a": 20.0}}, node("a", gpus=0), [(2000, 0)], 5.0),
        ({"cpu": 0.5}, node("a", gpus=0), [(3000, 0)], 1.5),
        ({"machines": {"a": 1.0}, "cpu": 0.5}, node("a"), [(8000, 4)], 1.0),
    ],
)
def test_a_job_pays_for_its_holdings(told: dict, of: nodes.Node, claims: list[tuple[int, int]], price: float) -> None:
    priced = prices.Prices(**told).priced(of)
    held = [
        holdings.Holding(job="j", attempt=1, role="worker", index=0, node="a", amount=holdings.Resources(cpus, 0, gpus))
        for cpus, gpus in claims
    ]
    assert pricing.Book([priced]).per_hour(held) == pytest.approx(price)


@pytest.mark.parametrize("kind", ["gpus", "machines", "both"])
def test_a_job_that_holds_a_whole_node_pays_for_all_of_it(kind: str) -> None:
    told = prices.Prices(
        cpu=0.25,
        gpus={"h100": 3.0} if kind != "machines" else {},
        machines={"a": 31.0} if kind != "gpus" else {},
    )
    priced = told.priced(node("a"))
    whole = holdings.Holding(job="j", attempt=1, role="worker", index=0, node="a", amount=priced.capacity)
    assert pricing.Book([priced]).per_hour([whole]) == pytest.approx(priced.price_per_h)
    assert told.priced(priced) == priced, "asked again it is the same"


def test_half_a_device_costs_half() -> None:
    priced = prices.Prices(gpus={"h100": 3.0}).priced(node("a"))
    half = holdings.Holding(
        job="j", attempt=1, role="worker", index=0, node="a", amount=holdings.Resources(0, 0, 0, 500)
    )
    assert pricing.Book([priced]).per_hour([half]) == 1.5
