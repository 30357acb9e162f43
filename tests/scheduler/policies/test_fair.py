"""Dominant resource fairness among owners."""

from __future__ import annotations

import pytest
from tests.scheduler.policies import candidates, conformance

from oarlock.scheduler.policies import contract, fair
from oarlock.spec import holdings, plans


def shaped(job: str, owner: str, cpus: int, memory: int) -> contract.Candidate:
    ask = plans.Ask(
        role="worker", count=1, min=1, max=1, amount=holdings.Resources(cpus_milli=cpus * 1000, memory_bytes=memory)
    )
    return candidates.waiting(plans.Gang(job=job, name=job, pool="default", asks=(ask,), submitted_at=0.0, owner=owner))


class TestFair(conformance.PolicyContract):
    policy = fair

    def test_the_example_of_the_paper(self) -> None:
        """9 CPUs and 18 GB; A's tasks take 1 CPU and 4 GB, B's 3 CPUs and 1 GB: A gets three, B two (section 4.1)."""
        crowd = [shaped(f"a{i}", "A", 1, 4) for i in range(4)] + [shaped(f"b{i}", "B", 3, 1) for i in range(3)]
        whole = contract.Budget(amount=holdings.Resources(cpus_milli=9000, memory_bytes=18))
        wishes = fair.wishes(crowd, whole, candidates.NOW, candidates.RULES, {})
        assert sorted(candidates.jobs(wishes)[:5]) == ["a0", "a1", "a2", "b0", "b1"]

    def test_the_owner_with_least_devices_is_first_then_the_earliest_job(self) -> None:
        crowd = [
            candidates.running(candidates.gang("a-runs", 5, 8, owner="ada")),
            candidates.waiting(candidates.gang("a-early", 0, 4, owner="ada")),
            candidates.waiting(candidates.gang("b-late", 9, 4, owner="bob")),
            candidates.waiting(candidates.gang("b-later", 10, 8, owner="bob")),
        ]
        assert candidates.jobs(self.ask(crowd)) == ["a-runs", "b-late", "b-later", "a-early"]

    @pytest.mark.parametrize(("asked", "stopped"), [(32, 2), (24, 2), (40, 1), (48, 1), (56, 0)])
    def test_gangs_are_stopped_only_as_far_as_it_makes_shares_more_equal(self, asked: int, stopped: int) -> None:
        """Ada holds all 64 devices in four gangs. Bob's one may take of them what leaves her as much as it gets."""
        crowd = [candidates.running(candidates.gang(f"a{i}", i, 16, owner="ada")) for i in range(4)]
        level = candidates.levels(self.ask([*crowd, candidates.waiting(candidates.gang("b", 9, asked, owner="bob"))]))
        assert sum(level["b"] < level[f"a{i}"] for i in range(4)) == stopped

    def test_no_two_gangs_stop_each_other_in_turn(self) -> None:
        """A gang that was stopped for a newcomer has no claim on its place."""
        stopped = candidates.waiting(candidates.gang("a1", 1, 32, owner="ada", starts=1))
        crowd = [
            candidates.running(candidates.gang("a0", 0, 32, owner="ada")),
            candidates.running(candidates.gang("b", 9, 32, owner="bob")),
        ]
        level = candidates.levels(self.ask([*crowd, stopped]))
        assert level["a1"] > max(level["b"], level["a0"])
