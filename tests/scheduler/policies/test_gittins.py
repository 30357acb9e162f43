"""The Gittins index over the service of ended jobs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.policies import candidates, conformance

from oarlock.scheduler.policies import contract, gittins
from oarlock.spec import errors, plans

NOW = candidates.NOW


def ended(*services: float, name: str = "other", owner: str = "") -> tuple[plans.Ended, ...]:
    return tuple(plans.Ended(owner=owner, name=f"{name}-{i}", served_s=one) for i, one in enumerate(services))


def served(job: str, seconds: float, at: float = 0.0, **known) -> contract.Candidate:
    return candidates.waiting(candidates.gang(job, at, served_s=seconds, starts=1, **known))


def by_definition(services: list[float], served_s: float) -> float:
    """P / E for every end d that a sample allows, term by term."""
    left = [one for one in services if one > served_s]
    quotients = []
    for end in left:
        within = end - served_s
        chance = sum(one - served_s <= within for one in left) / len(left)
        taken = sum(min(one - served_s, within) for one in left) / len(left)
        quotients.append(chance / taken)
    return max(quotients, default=0.0)


class TestGittins(conformance.PolicyContract):
    policy = gittins
    ended = ended(90.0, 100.0, 5000.0, 8000.0, 30_000.0) + ended(7000.0, 7500.0, name="train")

    def ranked(self, crowd: list[contract.Candidate], *ended: plans.Ended, **given: float) -> list[str]:
        budget = contract.Budget(amount=candidates.BUDGET.amount, ended=ended)
        return candidates.jobs(gittins.wishes(crowd, budget, NOW, candidates.RULES, given))

    def levels(self, crowd: list[contract.Candidate], *ended: plans.Ended, **given: float) -> dict[str, float]:
        budget = contract.Budget(amount=candidates.BUDGET.amount, ended=ended)
        return candidates.levels(gittins.wishes(crowd, budget, NOW, candidates.RULES, given))

    @given(
        services=st.lists(st.integers(1, 10**6).map(float), min_size=1, max_size=20),
        age=st.integers(0, 39).map(lambda octave: 0.0 if octave < 2 else 2.0 ** (octave / 2)),
    )
    def test_the_index_is_the_one_of_the_definition(self, services: list[float], age: float) -> None:
        """At ages to which none is rounded, without a least quantum."""
        assert gittins.Sample(services, 0.0).index(age) == pytest.approx(by_definition(services, age))

    def test_known_answers(self) -> None:
        """Half of all take 100, the others 1000. At the start: 1/2 in 100; past 100: 1 in what is left of 1000."""
        sample = gittins.Sample([100.0, 100.0, 1000.0, 1000.0], 0.0)
        assert sample.index(0.0) == pytest.approx(0.5 / 100)
        assert sample.index(128.0) == pytest.approx(1 / 872)
        assert sample.index(1024.0) == 0.0

    def test_a_gang_that_is_likely_to_end_soon_comes_before_one_that_proved_long(self) -> None:
        crowd = [served("long", 200, 0), served("new", 0, 1), served("nearly", 9_960, 2)]
        history = ended(*[100.0] * 5, *[10_000.0] * 5)
        assert self.ranked(crowd, *history, quantum_s=0.0) == ["nearly", "new", "long"]

    def test_it_learns_from_jobs_of_the_same_kind(self) -> None:
        crowd = [served("nightly-9", 0, 0), served("probe-3", 0, 1)]
        history = (*ended(*[50_000.0] * 3, name="nightly"), *ended(*[2_000.0] * 3, name="probe"))
        assert self.ranked(crowd, *history) == ["probe-3", "nightly-9"]
        others = (
            *ended(*[50_000.0] * 3, name="nightly", owner="ada"),
            *ended(*[2_000.0] * 3, name="probe", owner="ada"),
        )
        assert self.ranked(crowd, *others) == ["nightly-9", "probe-3"], "another's jobs are of another kind"

    def test_a_job_of_a_kind_of_which_none_has_ended_is_as_long_as_its_longest_sister(self) -> None:
        sister = candidates.running(candidates.gang("huge-1", 0, 8), NOW - 5_000)
        crowd = [sister, served("huge-2", 0, 1), served("small-1", 0, 2)]
        history = ended(*[3_000.0] * 5, 60_000.0)
        assert self.ranked(crowd, *history) == ["small-1", "huge-1", "huge-2"]

    def test_beyond_all_that_have_ended_the_most_served_job_is_first_and_stays_so(self) -> None:
        most = candidates.running(candidates.gang("most", 9, 1, served_s=9000.0, starts=1))
        less = candidates.waiting(candidates.gang("less", 0, 1, served_s=8000.0, starts=1))
        level = self.levels([less, most], *ended(100.0, 200.0))
        assert level["most"] < level["less"]
        assert self.ranked([less, most, served("new", 0, 99)], *ended(100.0, 200.0)) == ["new", "most", "less"]

    def test_without_any_that_has_ended_it_is_first_come_first_served(self) -> None:
        assert self.ranked([served("b", 0, 2), served("a", 0, 1)]) == ["a", "b"]

    def test_nearly_the_same_index_is_no_reason_to_stop_anybody(self) -> None:
        """Two are looked up at 2 and 3.9 thousand of ten, and the first one runs: its place counts as one step."""
        history = ended(*[10_000.0] * 4)
        runs = candidates.running(candidates.gang("runs", 5, served_s=2_000.0, starts=1))
        level = self.levels([runs, served("better", 3_900)], *history)
        assert level["better"] > level["runs"]
        level = self.levels([runs, served("far-better", 9_000)], *history, quantum_s=0.0)
        assert level["far-better"] < level["runs"]

    def test_a_kind_is_the_owner_and_the_name_without_its_number(self) -> None:
        same = {gittins.kind("ada", name) for name in ("train", "train-2", "train.17", "train_3")}
        assert same == {("ada", "train")}
        assert gittins.kind("ada", "cifar10") == ("ada", "cifar10")
        assert gittins.kind("bob", "train") not in same

    @pytest.mark.parametrize("wrong", [{"step": 1.0}, {"quantum_s": -1.0}, {"patience_s": -1.0}])
    def test_impossible_parameters_are_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(errors.InvalidInput, match="of policy gittins"):
            self.ask([], **wrong)
