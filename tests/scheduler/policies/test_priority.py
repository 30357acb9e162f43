"""Higher priority first; lower ones may be stopped for it."""

from __future__ import annotations

from tests.scheduler.policies import candidates, conformance

from oarlock.scheduler.policies import priority


class TestPriority(conformance.PolicyContract):
    policy = priority

    def test_higher_first_then_the_earlier_job(self) -> None:
        crowd = [
            candidates.waiting(candidates.gang("low", 0, priority=10)),
            candidates.waiting(candidates.gang("second", 2, priority=90)),
            candidates.waiting(candidates.gang("first", 1, priority=90)),
        ]
        assert candidates.jobs(self.ask(crowd)) == ["first", "second", "low"]

    def test_a_gang_may_be_stopped_for_a_higher_one_alone(self) -> None:
        crowd = [
            candidates.running(candidates.gang("runs", 5, priority=50)),
            candidates.waiting(candidates.gang("higher", 9, priority=51)),
            candidates.waiting(candidates.gang("equal", 0, priority=50)),
            candidates.waiting(candidates.gang("lower", 0, priority=0)),
        ]
        level = candidates.levels(self.ask(crowd))
        assert level["higher"] < level["runs"] == level["equal"] < level["lower"]
