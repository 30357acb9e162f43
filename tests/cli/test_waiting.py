"""The words about waiting jobs, planned jobs, decisions and costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.api import rig as rigs
from tests.cli import typed
from tests.cli.verbs.test_looking import Typed, type_  # noqa: F401 - a fixture
from tests.client import live

from oarlock.spec import events, holdings, jobs
from oarlock.spec.cluster import nodes, prices
from oarlock.spec.input import sizes
from oarlock.store import stores


def price(server: live.LiveServer) -> None:
    """The one node costs 8 an hour: 4 for each of its two GPUs."""

    def write(tx: stores.Transaction) -> nodes.Node:
        return tx.put_node(prices.Prices(gpus={"h100": 4.0}).priced(tx.nodes()[0]))

    server.do(server.rig.store.write(write))


def hold(server: live.LiveServer, gpus: int = 2, **spec: Any) -> jobs.Job:
    """A job that runs on so many of the GPUs."""
    job = server.submit(**spec)
    claim = holdings.Holding(
        job=job.id,
        attempt=1,
        role="worker",
        index=0,
        node="here",
        amount=holdings.Resources(1000, 0, gpus),
        devices=tuple(range(gpus)),
    )
    admitted = events.Admitted(attempt=1, holdings=(claim,), reason="first in order", price_per_h=4.0 * gpus)
    server.do(server.rig.happen(job.id, admitted, events.Launched(attempt=1)))
    server.do(server.rig.store.write(lambda tx: tx.hold([claim])))
    server.process(job.id)
    return job


def job_file(where: Path, **roles: Any) -> str:
    path = where / "job.yaml"
    path.write_text(json.dumps({"command": "true", "name": "asked", "roles": {"worker": roles}}))
    return str(path)


def test_why_is_three_lines(type_: Typed, server: live.LiveServer) -> None:  # noqa: F811
    hold(server, name="big", timeout="1h")
    server.submit(name="digits", roles={"worker": {"count": 2, "gpus": 1}})
    assert type_("why", "digits").splitlines() == [
        "digits has waited 0 s. It needs 2 GPUs and 2 CPUs for 2 tasks; 0 of 2 GPUs are free.",
        "big holds 2 GPUs. It would start once big ends.",
        "It should start within 61 min. No other job waits.",
    ]
    values = json.loads(type_("why", "digits", "--json"))
    assert values["refusal"]["code"] == "no_capacity"
    assert values["forecast"]["latest"] > server.rig.clock.now
    with typed.terminal("why", "digits") as shown:
        assert shown.ended() == 0
    assert "It should start within 61 min." in shown.text


def test_plan_says_now_later_or_never(type_: Typed, server: live.LiveServer, tmp_path: Path) -> None:  # noqa: F811
    price(server)
    assert type_("plan", job_file(tmp_path, count=2, gpus=1)).splitlines() == [
        "Now: It starts on here.",
        "  here: worker-0, worker-1 (GPUs 0-1)",
        "  It costs about 8.00 an hour.",
    ]
    hold(server, gpus=1, name="big", timeout="1h")
    assert type_("plan", job_file(tmp_path, count=2, gpus=1)).splitlines() == [
        "Later: It needs 2 GPUs and 2 CPUs for 2 tasks; 1 of 2 GPUs is free.",
        "  Held by big (1 GPU).",
        "  It would start now with 1 worker instead of 2.",
        "  It should start within 61 min.",
        "  It costs about 8.00 an hour.",
    ]
    assert type_("plan", job_file(tmp_path, gpus=3), code=1).splitlines() == [
        "Never: It needs 3 GPUs and 1 CPU for 1 task; one task needs 3 GPUs, and no node has more than 2.",
        "  Ask for less for each task.",
    ]
    told = json.loads(type_("plan", job_file(tmp_path, count=2, gpus=1), "--json"))
    assert (told["when"], told["position"], told["price_per_h"]) == ("later", 1, 8.0)
    assert server.rig.store is not None
    assert [job.name for job in server.do(server.rig.store.read(lambda view: view.active()))] == ["big"], (
        "none was stored"
    )


def test_show_lists_decisions_and_the_cost(type_: Typed, server: live.LiveServer) -> None:  # noqa: F811
    waits = server.submit(name="waits")
    server.refuse(waits.id, "0 of 2 GPUs are free.")
    job = hold(server, name="paid")
    server.rig.clock.now += 900
    said = re.sub(r"\n {12}", " ", type_("show", "paid"))  # lines that were broken between words
    assert re.search(r"\n  cost [\d,.]+ so far, 8.00 an hour\n", said), "this process's clock is not the rig's"
    assert "admitted attempt 1: 1 task on here (GPUs 0-1): first in order " in " ".join(said.split())
    assert "refused no_capacity  0 of 2 GPUs are free.\n" in type_("show", "waits")
    values = json.loads(type_("show", "paid", "--json"))
    assert values["cost"] > 2.0
    assert [one["what"] for one in values["decisions"]] == ["admitted"]
    assert "cost" not in type_("show", "waits"), "a price of nothing is not named"
    wide = type_("ps", "--wide")
    assert job.name in wide
    assert "COST" in wide
    assert "here" in wide
    assert "COST" not in type_("ps")
    assert type_("usage").splitlines()[1].split()[-1] == "2.00"


def test_sizes_need_no_server(type_: Typed, home: Path) -> None:  # noqa: F811
    lines = type_("sizes").splitlines()
    assert lines[0].split() == ["SIZE", "GPUS", "TYPE", "CPUS", "MEMORY", "SOURCE"]
    assert "2-v100     2  v100    42    48 GiB  FfDL" in lines
    items = json.loads(type_("sizes", "--json"))["items"]
    assert len(items) == len(sizes.TABLE)
    assert items[0] == {"name": "1-k80", "cpus": 4, "memory": "24Gi", "gpus": 1, "gpu_type": "k80", "source": "FfDL"}


def test_an_unknown_size_names_the_nearest(
    type_: Typed,  # noqa: F811
    server: live.LiveServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from oarlock.cli import main

    assert main.main(["run", "--no-snapshot", "--detach", "--size", "3-v100", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "--size" in said
    assert "1-v100, 2-v100, 4-v100, 8-v100" in said


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (0, "", "0.00"),
        (3.2, "EUR", "3.20 EUR"),
        (0.0123, "$", "0.01 $"),
        (0.0023, "$", "<0.01 $"),
        (12345.6, "", "12,345.60"),
    ],
)
def test_amounts_of_money(amount: float, currency: str, text: str) -> None:
    assert prices.amount_text(amount, currency) == text


def test_the_rig_has_the_node_that_these_tests_speak_of() -> None:
    assert (rigs.NODE.name, len(rigs.NODE.devices), rigs.NODE.devices[0].type) == ("here", 2, "h100")
