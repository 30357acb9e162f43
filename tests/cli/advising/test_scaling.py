"""The expected speedup, against gangs with known times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oarlock.cli.advising import scaling
from oarlock.cli.advising.scaling import Link, Trial


def trial(workers: int, own_s: float, sync_s: float, sent: float = 1e6) -> Trial:
    return Trial(workers=workers, steps=50, step_s=own_s + sync_s, sync_s=sync_s, sent_bytes=sent, examples=8)


def speedups(found: list[scaling.Prediction], strategy: str) -> dict[int, float]:
    return {each.workers: each.speedup for each in found if each.strategy == strategy}


def test_a_ring_needs_nearly_twice_as_long_with_many_workers() -> None:
    """100 ms of computing and 50 ms of exchange, nearly all of it bytes."""
    found = scaling.predict(trial(1, 0.1, 0.0), {"allreduce": trial(2, 0.1, 0.05)})
    expected = {workers: workers * 0.1 / (0.1 + 0.05 * 2 * (workers - 1) / workers) for workers in (2, 4, 8)}
    assert speedups(found, "allreduce")[1] == 1
    for workers, speedup in expected.items():
        assert speedups(found, "allreduce")[workers] == pytest.approx(speedup, rel=0.02)
    of_64 = next(each for each in found if each.workers == 64)
    assert of_64.least < of_64.speedup < of_64.most, (
        "where the exchange is all latency, 64 workers wait for 63 messages"
    )


def test_a_gather_grows_with_every_worker() -> None:
    found = scaling.predict(trial(1, 0.1, 0.0), {"allreduce": trial(2, 0.1, 0.05), "dgc": trial(2, 0.12, 0.01)})
    assert speedups(found, "dgc")[8] == pytest.approx(8 * 0.1 / (0.12 + 7 * 0.01))
    assert speedups(found, "dgc")[2] > speedups(found, "allreduce")[2]


def test_more_servers_help_until_the_workers_links_are_full() -> None:
    """Two workers at one server take 400 ms: 200 ms for each worker's own bytes, whatever the number of servers."""
    two = trial(2, 0.1, 0.4)
    assert scaling.servers_for(two, 8) == 8
    assert scaling.servers_for(trial(2, 0.1, 0.001), 8) == 1, "the exchange is next to nothing"
    assert 1 < scaling.servers_for(trial(2, 0.1, 0.02), 8) < 8
    with_8 = scaling.exchange_s("ps", two, 8, 8, Link(), 0.0)
    assert with_8 == pytest.approx(0.2)
    assert scaling.exchange_s("ps", two, 8, 2, Link(), 0.0) == pytest.approx(0.8)


def test_a_slower_link_is_never_faster_than_the_measured_one() -> None:
    one, two = trial(1, 0.1, 0.0, 0.0), trial(2, 0.1, 0.02, 25e6)
    slow = scaling.predict(one, {"allreduce": two}, link=Link(1.25e7))
    assert speedups(slow, "allreduce")[2] == pytest.approx(0.2 / 2.1, rel=0.01), "25 MB take 2 s over 100 Mbit/s"
    fast = scaling.predict(one, {"allreduce": two}, link=Link(1e12))
    assert speedups(fast, "allreduce") == speedups(scaling.predict(one, {"allreduce": two}), "allreduce")


def test_the_error_is_that_of_the_checked_sizes() -> None:
    checked = {"allreduce": [trial(4, 0.1, 0.1), trial(6, 0.1, 0.1)], "bf16": [trial(4, 0.1, 0.02)]}
    twos = {"allreduce": trial(2, 0.1, 0.05), "bf16": trial(2, 0.1, 0.02), "dgc": trial(2, 0.1, 0.01)}
    found = scaling.predict(trial(1, 0.1, 0.0), twos, checked)
    errors = {(each.strategy, each.workers): each.error for each in found if each.error is not None}
    assert list(errors) == [("allreduce", 4), ("allreduce", 6), ("bf16", 4)], "dgc was not run with so many"
    assert errors["allreduce", 4] == pytest.approx(4 * 0.1 / 0.175 / 2.0 - 1, abs=0.01)
    assert errors["bf16", 4] == pytest.approx(0.12 / 0.13 - 1, abs=0.01)
    other = scaling.predict(trial(1, 0.1, 0.0), twos, checked, Link(1e6))
    assert all(each.error is None for each in other), "the trials had another network"


def test_servers_are_checked_where_a_trial_has_as_many() -> None:
    for sync_s, servers in ((0.0001, 1), (0.4, 8)):
        for count in (1, 8):
            checked = replace(trial(8, 0.1, 0.1), servers=count)
            found = scaling.predict(trial(1, 0.1, 0.0), {"ps": trial(2, 0.1, sync_s)}, {"ps": [checked]})
            assert [each.workers for each in found if each.error is not None] == ([8] if count == servers else [])
