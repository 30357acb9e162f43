"""First come, first served."""

from __future__ import annotations

from tests.scheduler.policies import candidates, conformance

from oarlock.scheduler.policies import fifo


class TestFifo(conformance.PolicyContract):
    policy = fifo

    def test_the_earliest_is_first_and_no_gang_is_stopped(self) -> None:
        crowd = [
            candidates.waiting(candidates.gang("late", 30, priority=100)),
            candidates.running(candidates.gang("middle", 20)),
            candidates.waiting(candidates.gang("b-early", 10)),
            candidates.waiting(candidates.gang("a-early", 10)),
        ]
        wishes = self.ask(crowd)
        assert candidates.jobs(wishes) == ["a-early", "b-early", "middle", "late"]
        assert len(set(candidates.levels(wishes).values())) == 1

    def test_sizes_are_as_requested_and_holdings_are_kept(self) -> None:
        elastic = {"least": 2, "most": 8}
        crowd = [
            candidates.waiting(candidates.gang("new", 0, 4, **elastic)),
            candidates.running(candidates.gang("grown", 1, 4, **elastic), size=(8,)),
            candidates.running(candidates.gang("shrunk", 2, 4, **elastic), size=(2,)),
            candidates.running(candidates.gang("stopping", 3, 4, **elastic), size=(8,), stopping=True),
        ]
        assert [wish.size for wish in self.ask(crowd)] == [(4,), (8,), (4,), (4,)]
