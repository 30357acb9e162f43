"""The promises of every policy (`oarlock.scheduler.policies.contract`). Each policy's tests inherit these."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import examples
from tests.scheduler.policies import candidates

from oarlock.scheduler.policies import contract, registry
from oarlock.spec import errors, plans

# The same test runs for every policy, so each has another executor: that is the point.
inherited = settings(max_examples=examples.at_most(60), suppress_health_check=[HealthCheck.differing_executors])


class PolicyContract:
    policy: contract.Policy
    ended: tuple[plans.Ended, ...] = ()
    slices = False  # whether a gang yields to an equal one once it has had its turn

    def ask(self, crowd: list[contract.Candidate], **given: float) -> list[contract.Wish]:
        budget = msgspec.structs.replace(candidates.BUDGET, ended=self.ended)
        return self.policy.wishes(crowd, budget, candidates.NOW, candidates.RULES, given)

    def test_it_is_known_by_its_name(self) -> None:
        assert registry.named(self.policy.name) is self.policy

    def test_without_candidates_there_are_no_wishes(self) -> None:
        assert self.ask([]) == []

    @inherited
    @given(crowd=candidates.crowds(), seed=st.integers(0, 2**16))
    def test_every_candidate_has_one_wish_that_may_be_granted_in_any_order(
        self, crowd: list[contract.Candidate], seed: int
    ) -> None:
        wishes = self.ask(crowd)
        asked = {one.gang.job: one.gang for one in crowd}
        assert sorted(candidates.jobs(wishes)) == sorted(asked)
        for wish in wishes:
            assert math.isfinite(wish.level), wish
            assert _allowed(asked[wish.job], wish.size), (wish, asked[wish.job])
        assert self.ask(crowd) == wishes, "the same question has the same answer"
        shuffled = random.Random(seed).sample(crowd, len(crowd))
        assert self.ask(shuffled) == wishes, "the order in which candidates come does not matter"

    @inherited
    @given(crowd=candidates.crowds(most=5), one=candidates.gangs("a-runs"), name=st.sampled_from(["0", "zz"]))
    def test_no_gang_is_stopped_for_an_equal(self, crowd: list[contract.Candidate], one: plans.Gang, name: str) -> None:
        """Two gangs differ in their ids and in that one of them runs: the other is no reason to stop it."""
        holder = candidates.running(one, candidates.NOW if self.slices else candidates.NOW - 4000)
        twin = msgspec.structs.replace(one, job=name)
        asked = {
            wish.job: wish
            for wish in self.ask([*crowd, holder, contract.Candidate(gang=twin, served_s=holder.served_s)])
        }
        assert asked[name].level >= asked["a-runs"].level
        assert any(asked["a-runs"].size) or not any(asked[name].size)

    def test_a_parameter_that_it_does_not_know_is_refused(self) -> None:
        with pytest.raises(errors.InvalidInput, match="no parameter 'frist_s'") as refused:
            self.ask([], frist_s=1.0)
        assert refused.value.path == f"policies.{self.policy.name}.frist_s"
        assert refused.value.hint

    def test_its_defaults_are_accepted(self) -> None:
        assert self.ask([], **self.policy.PARAMETERS) == []

    def test_a_parameter_that_is_no_number_is_refused(self) -> None:
        for parameter in self.policy.PARAMETERS:
            with pytest.raises(errors.InvalidInput, match=parameter):
                self.ask([], **{parameter: float("nan")})


def _allowed(gang: plans.Gang, size: plans.Size) -> bool:
    if not any(size):
        return len(size) == len(gang.asks)
    return all(least <= count <= most for least, count, most in zip(gang.smallest, size, gang.largest, strict=True))
