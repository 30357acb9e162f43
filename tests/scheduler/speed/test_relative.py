"""The speed of a job on a type of GPU where it never ran, from general values, from other jobs, from its own kind."""

from __future__ import annotations

import math

import pytest
from tests.scheduler.policies import candidates

from oarlock.scheduler.speed import relative
from oarlock.spec import curves, plans

SLOW = curves.Allreduce(compute_s=0.1, compute_per_example_s=0.01, near_s=0.05, noise=1000.0)


def on(gpu_type: str, times: float, **known: float) -> curves.OnType:
    """`times` as fast as SLOW."""
    return curves.OnType(gpu_type=gpu_type, model=relative.scaled(SLOW, times, None), **known)


def pair(times: float) -> tuple[curves.OnType, ...]:
    return on("t4", 1.0), on("a100", times)


KIND = ("ada", "train")
OTHER = ("bob", "other")


def test_without_any_job_the_general_figure_holds_with_much_doubt() -> None:
    found = relative.Relative(()).between(KIND, "t4", "a100")
    assert found.ratio == pytest.approx(relative.GENERAL["a100"] / relative.GENERAL["t4"])
    assert found.spread == relative.GENERAL_SPREAD
    assert relative.Relative(()).between(KIND, "t4", "pretended") == (1.0, 2 * relative.GENERAL_SPREAD)
    assert relative.Relative(()).between(KIND, "t4", "t4") == (1.0, 0.0)


def test_other_jobs_lessen_the_doubt_and_jobs_of_the_kind_end_it() -> None:
    nothing = relative.Relative(()).between(KIND, "t4", "a100")
    others = relative.Relative([(OTHER, pair(3.0))] * 20).between(KIND, "t4", "a100")
    same = relative.Relative([(OTHER, pair(3.0))] * 20 + [(KIND, pair(8.0))]).between(KIND, "t4", "a100")
    assert nothing.ratio > others.ratio > 3.0
    assert same.ratio == pytest.approx(8.0, rel=0.1)
    assert nothing.spread > others.spread > same.spread
    assert same.spread < 0.15


def test_ended_jobs_count_as_older_ones_and_each_end_is_taken_in() -> None:
    def over(name: str, times: float) -> plans.Ended:
        return plans.Ended(owner="ada", name=name, served_s=1.0, types=pair(times))

    none = plans.Ended(owner="ada", name="train-0", served_s=1.0)
    ended = (none, *(over(f"train-{times}", times) for times in (2.0, 3.0)))
    for older in (ended, (*ended, over("train-9", 9.0)), ended[:1]):
        together = [(relative.kind(one), one.types) for one in older] + [(KIND, pair(4.0))]
        split = relative.Relative([(KIND, pair(4.0))], relative.of_ended(older))
        assert split.between(KIND, "t4", "a100") == relative.Relative(together).between(KIND, "t4", "a100")
        curve = curves.Curve(model=SLOW, types=(on("t4", 1.0),))
        asked = curve, KIND, ("t4", "a100")
        assert split.completed(*asked) == relative.Relative(together).completed(*asked)


def test_the_estimate_is_the_same_in_both_directions() -> None:
    seen = relative.Relative([(OTHER, pair(5.0)), (KIND, pair(6.0))])
    there, back = seen.between(KIND, "t4", "a100"), seen.between(KIND, "a100", "t4")
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.spread == pytest.approx(back.spread)


def test_measured_types_stay_and_others_are_estimated_with_their_uncertainty() -> None:
    curve = curves.Curve(model=SLOW, types=(on("t4", 1.0),))
    seen = relative.Relative([(KIND, pair(4.0))])
    found = {one.gpu_type: one for one in seen.completed(curve, KIND, ("t4", "a100", "v100")).types}
    assert found["t4"] == curve.types[0]
    assert found["a100"].model.compute_s == pytest.approx(SLOW.compute_s / 4, rel=0.1)
    assert found["a100"].model.noise == 1000.0
    assert 0 < found["a100"].guessed < found["v100"].guessed


def test_an_exchange_is_not_quicker_for_a_quicker_type_unless_that_was_seen() -> None:
    curve = curves.Curve(model=SLOW, types=(on("t4", 1.0),))
    linked = relative.scaled(SLOW, 4.0, curves.Allreduce(compute_s=0, compute_per_example_s=0, near_s=0.001))
    plain = relative.Relative(()).completed(curve, KIND, ("a100",)).types[1]
    seen = relative.Relative([(KIND, (on("t4", 1.0), curves.OnType(gpu_type="a100", model=linked)))])
    assert plain.model.near_s == SLOW.near_s
    assert seen.completed(curve, KIND, ("a100",)).types[1].model.near_s == 0.001


def test_a_type_that_was_tried_on_one_device_alone_exchanges_as_elsewhere() -> None:
    alone = curves.OnType(gpu_type="a100", model=curves.Allreduce(compute_s=0.02, compute_per_example_s=0.002))
    found = relative.Relative(()).completed(curves.Curve(model=SLOW, types=(on("t4", 1.0), alone)), KIND, ())
    assert found.types[1].model.near_s == SLOW.near_s
    assert found.types[1].model.compute_s == 0.02
    assert found.types[1].guessed == 0.0


def test_jobs_of_a_kind_have_one_owner_and_one_name_up_to_its_number() -> None:
    kinds = {relative.kind(candidates.gang("j", name=name, owner="ada")) for name in ("train-1", "train-27", "train")}
    assert kinds == {("ada", "train")}
    assert relative.kind(candidates.gang("j", name="train-1", owner="bob")) not in kinds


def test_a_job_that_was_never_measured_goes_by_the_types_alone() -> None:
    found = relative.general(relative.Relative([(KIND, pair(6.0))]), KIND, ("a100", "t4"))
    assert found["a100"] == 1.0
    assert math.log(found["a100"] / found["t4"]) == pytest.approx(math.log(6.0), rel=0.1)


def test_two_jobs_of_a_kind_compare_the_types_on_which_each_of_them_ran() -> None:
    seen = relative.Relative([(KIND, (on("t4", 1.0),)), (KIND, (on("a100", 8.0),))])
    found = seen.between(KIND, "t4", "a100")
    assert found.ratio == pytest.approx(8.0, rel=0.15)
    assert relative.KIND_SPREAD < found.spread < relative.JOBS_SPREAD
    assert seen.between(OTHER, "t4", "a100") == relative.Relative(()).between(OTHER, "t4", "a100")


def test_one_batch_size_takes_its_shape_from_the_type_with_several() -> None:
    """In its first minutes on a type a job has shown one batch size; the constant part of a step is known elsewhere."""

    def sample(gpu_type: str, local: int, step_s: float) -> curves.Sample:
        return curves.Sample(nodes=1, devices=1, local=local, step_s=step_s, sync_s=0.0, gpu_type=gpu_type)

    samples = (sample("t4", 10, 0.2), sample("t4", 90, 1.0), sample("a100", 90, 0.25))
    guess = curves.Allreduce(compute_s=0.125, compute_per_example_s=0.125 / 90, noise=1000.0)
    curve = curves.Curve(
        model=guess, samples=samples, types=(curves.OnType(gpu_type="a100", model=guess), on("t4", 1.0))
    )
    found = relative.Relative(()).completed(curve, KIND, ("t4", "a100"))
    quick = next(one.model for one in found.types if one.gpu_type == "a100")
    assert quick.compute_s == pytest.approx(0.025)
    assert quick.compute_per_example_s == pytest.approx(0.0025)
