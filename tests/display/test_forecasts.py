"""The verdict of `oarlock plan`, in lines."""

from __future__ import annotations

from oarlock.display.jobs import forecasts
from oarlock.spec import holdings, plans, refusals


def shown(**fields: object) -> list[str]:
    forecast = plans.Forecast(**fields)  # type: ignore[arg-type]
    return [line for line in forecasts.lines(forecast, "EUR") if line]


def held(node: str, index: int, *devices: int) -> holdings.Holding:
    amount = holdings.Resources(1000, 0, len(devices))
    return holdings.Holding(job="", attempt=1, role="worker", index=index, node=node, amount=amount, devices=devices)


def test_now_with_nodes_and_price() -> None:
    placement = (held("n0", 0, 0), held("n0", 1, 1), held("n1", 2))
    assert shown(when=plans.When.NOW, message="It starts on n0, n1.", placement=placement, price_per_h=2.5) == [
        "Now: It starts on n0, n1.",
        "n0: worker-0, worker-1 (GPUs 0-1)",
        "n1: worker-2",
        "It costs about 2.50 EUR an hour.",
    ]
    many = tuple(held(f"n{index}", index) for index in range(20))
    assert shown(when=plans.When.NOW, message="", placement=many)[-1] == "and 4 more nodes"


def test_later_with_holders_change_and_place() -> None:
    refusal = refusals.Refusal(
        code=refusals.Code.NO_CAPACITY,
        message="",
        needed={"gpus": 2.0},
        holders=(refusals.Holder("j-1", "big", {"gpus": 1.0}), refusals.Holder("j-2", "cpu-only", {"cpus": 4.0})),
        change="It would start now with 1 worker.",
    )
    later = {"when": plans.When.LATER, "message": "It waits.", "refusal": refusal, "expected": "It should start soon."}
    assert shown(**later, position=2, waiting=3) == [
        "Later: It waits.",
        "Held by big (1 GPU).",
        "It would start now with 1 worker.",
        "It should start soon. It would be number 2 of 3 waiting jobs.",
    ]
    assert shown(**later, position=1, waiting=1)[-1] == "It should start soon."
