"""From the reports of a job's processes to one measurement, and from measurements to the job's curve."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.scheduler import reported

from oarlock.scheduler import gangs
from oarlock.scheduler.speed import convergence, samples
from oarlock.spec import attempts, curves, jobs

TWO = "{roles: {worker: {count: 2, gpus: 1}}}"
SAMPLE = curves.Sample(nodes=1, devices=2, local=32, step_s=0.2, sync_s=0.05)


def told(job: jobs.Job, *changes: dict[str, Any]) -> jobs.Job:
    """Return the job with these changes to the report of its first task, of its second one..."""
    live = job.live
    assert live is not None
    tasks = tuple(
        msgspec.structs.replace(task, progress=msgspec.structs.replace(task.progress, **change))
        for task, change in zip(live.tasks, changes, strict=True)
    )
    return msgspec.structs.replace(job, attempts=(msgspec.structs.replace(live, tasks=tasks),))


@pytest.mark.parametrize(
    ("text", "ranks", "local", "shape"),
    [
        ("{roles: {worker: {count: 4, gpus: 1}}}", 4, 32, (2, 4, 32)),
        ("{roles: {worker: {count: 2, gpus: 4, nproc: 4}}}", 8, 32, (2, 8, 32)),
        ("{roles: {worker: {count: 2, gpus: 4}}}", 2, 32, (2, 8, 8)),  # a process drives four
        ("{roles: {worker: {gpus: 4}}}", 4, 32, (1, 4, 32)),  # torchrun inside of it
        ("{roles: {worker: {count: 3}}}", 3, 16, (2, 3, 16)),
        ("{roles: {worker: {count: 2, gpus: 0.5}}}", 2, 16, (2, 2, 16)),
        ("{roles: {chief: {gpus: 1}, worker: {count: 2, gpus: 1}}}", 3, None, (2, 3, 0)),
    ],
)
def test_a_device_is_a_process_of_the_model(
    text: str, ranks: int, local: int | None, shape: tuple[int, int, int]
) -> None:
    seen = samples.seen(reported.job(text, ranks=ranks, local=local))
    assert seen is not None
    assert (seen.sample.nodes, seen.sample.devices, seen.sample.local) == shape


def test_parameter_servers_have_a_model_of_their_own() -> None:
    job = reported.job("{framework: tensorflow, roles: {worker: {count: 2}, ps: {count: 2}}}", ranks=1, local=8)
    seen = samples.seen(job)
    assert seen is not None
    assert (seen.sample.servers, seen.sample.devices) == (2, 2)
    found = samples.curve(job, seen, [seen.sample], [])
    assert isinstance(found.model, curves.Servers)
    assert found.left == 100, "steps"


def test_speed_is_counted_as_the_curve_counts() -> None:
    """Parts of a step but the last do not wait; beyond the initial batch size an example is worth less."""
    text = "{batch: {size: 64, max: 256}, roles: {worker: {count: 2, gpus: 1}}}"
    known = curves.Curve(model=curves.Allreduce(compute_s=1, compute_per_example_s=0, noise=64.0))
    job = reported.job(text, ranks=2, local=32, accumulate=2, curve=known)
    worth = (64 + 64) / (64 + 128)
    assert samples.speed(job) == pytest.approx(128 / (2.0 + 1.5) * worth)
    assert gangs.running(job, ()).speed == samples.speed(job)
    assert samples.speed(reported.job("{}", ranks=1, local=32)) == pytest.approx(32 / 2.0)
    seen = samples.seen(job)
    assert seen is not None
    assert samples.curve(job, seen, [seen.sample], []).left == pytest.approx(100 * 128 * worth)


def test_a_gang_on_several_types_is_measured_as_such() -> None:
    job = reported.job("{roles: {worker: {count: 2, gpus: 1, mixed: true}}}", ranks=2, local=32)
    seen = samples.seen(told(job, {"gpu_type": "v100"}, {"gpu_type": "t4"}))
    assert seen is not None
    assert seen.sample.gpu_type == "t4+v100"


def test_one_measurement_is_the_mean_of_all_reports() -> None:
    """The newest report gives its time, the chief gives the step."""
    job = reported.job("{roles: {chief: {gpus: 1}, worker: {gpus: 1}}}", ranks=2, local=32)
    worker = {"step_s": 3.0, "sync_s": 1.5, "data_s": 0.5, "at": 7.0, "step": 99}
    chief = {"total_steps": 50, "step": 20, "loss": 0.5}
    order = [chief if task.role == "chief" else worker for task in job.live.tasks]
    seen = samples.seen(told(job, *order), beside="other")
    assert seen is not None
    of_both = curves.Sample(nodes=1, devices=2, local=32, step_s=2.5, sync_s=1.0, data_s=0.25, beside="other")
    assert seen.sample == of_both
    assert (seen.at, seen.step, seen.steps_left, seen.loss, seen.total) == (7.0, 20, 30, 0.5, 64)


@pytest.mark.parametrize(
    ("changes", "is_seen"),
    [
        ([{}, {}], True),
        ([{}, {"step_s": None}], True),  # the second has not made a step
        ([{"step_s": None}, {"step_s": None}], False),
        ([{"step_s": 0.0}, {"step_s": 0.0}], False),
        ([{}, {"local": 16}], False),  # a new batch size is being taken up
        ([{}, {"accumulate": 2}], False),
        ([{}, {"ranks": 3}], False),
        ([{}, {"sync_s": None}], False),  # another library exchanges the gradients
        ([{"sync_s": None, "ranks": 1}, {"sync_s": None, "ranks": 1}], True),  # nothing is exchanged
    ],
)
def test_reports_that_make_a_measurement(changes: list[dict[str, Any]], is_seen: bool) -> None:
    assert (samples.seen(told(reported.job(TWO, ranks=2, local=32), *changes)) is not None) is is_seen


def test_a_stopping_attempt_is_not_measured() -> None:
    job = reported.job(TWO, ranks=2, local=32)
    stopping = msgspec.structs.replace(job.live, stop=attempts.Cause.PLATFORM)
    assert samples.seen(msgspec.structs.replace(job, attempts=(stopping,))) is None
    assert samples.seen(msgspec.structs.replace(job, attempts=())) is None
    assert samples.speed(msgspec.structs.replace(job, attempts=())) is None


def test_steps_beyond_the_last_one_are_not_left() -> None:
    seen = samples.seen(reported.job("{}", ranks=1, local=8))
    assert seen is not None
    assert seen.steps_left == 100
    over = samples.seen(told(reported.job("{}", ranks=1, local=8), {"step": 120}))
    assert over is not None
    assert over.steps_left == 0


def last(gpu_type: str = "", **more: Any) -> samples.Seen:
    sample = msgspec.structs.replace(SAMPLE, gpu_type=gpu_type, beside=more.pop("beside", ""))
    return samples.Seen(**{"at": 1.0, "sample": sample, "total": 64, "parts": 1, "step": 1000, **more})


def losses() -> list[tuple[float, float]]:
    return [(float(k), 1 / (0.002 * k + 0.4) + 0.3) for k in range(0, 1000, 10)]


def known(*new: samples.Seen) -> jobs.Job:
    """Return a job whose curve these measurements have made, one after the other."""
    job = msgspec.structs.replace(reported.job(TWO, ranks=2, local=32), curve=None)
    for seen in new:
        job = msgspec.structs.replace(job, curve=samples.curve(job, seen, [seen.sample], losses()))
    return job


def test_the_remaining_work_comes_from_the_job_else_from_its_loss() -> None:
    """Optimus needs it of every job, and many scripts do not know how many steps they will make."""
    job = known()
    assert samples.curve(job, last(steps_left=10), [SAMPLE], losses()).left == 10 * 64
    foretold = samples.curve(job, last(), [SAMPLE], losses())
    assert foretold.convergence is not None
    assert foretold.left == pytest.approx(convergence.to_go(foretold.convergence, 1000) * 64)
    assert samples.curve(job, last(), [SAMPLE], []).left is None


def test_a_curve_keeps_a_fitted_loss_while_there_are_too_few_reports() -> None:
    """After a restart a server has few losses; the fit that is kept with the job still foretells the end."""
    job = known(last())
    assert samples.curve(job, last(), [SAMPLE], losses()[:2]).convergence == job.curve.convergence


@pytest.mark.parametrize(("old", "new", "kept"), [(700.0, None, 700.0), (700.0, 900.0, 900.0), (None, 900.0, 900.0)])
def test_the_newest_gradient_noise_holds(old: float | None, new: float | None, kept: float) -> None:
    """With the same samples again only the noise changes; with others the curve is fitted anew and keeps it too."""
    job = known(last(noise=old))
    assert samples.curve(job, last(noise=new), [SAMPLE], []).model.noise == kept
    other = last(noise=new)
    other = msgspec.structs.replace(other, sample=msgspec.structs.replace(SAMPLE, local=64, step_s=0.3))
    assert samples.curve(job, other, [other.sample], []).model.noise == kept


def test_the_same_samples_again_are_not_fitted_again() -> None:
    job = known(last())
    again = samples.curve(job, last(), [SAMPLE], [])
    assert again.model is job.curve.model
    assert again.samples[0].count == 2


def test_measurements_beside_another_job_count_only_while_there_are_no_others() -> None:
    slow = last(beside="other")
    slow = msgspec.structs.replace(slow, sample=msgspec.structs.replace(slow.sample, step_s=0.9))
    assert known(slow).curve.model != known(last()).curve.model
    both = known(slow, last())
    assert len(both.curve.samples) == 2
    assert both.curve.model == known(last()).curve.model


def test_each_type_has_its_model_and_the_last_one_comes_first() -> None:
    """The noise belongs to the job: the model of the first type gets the last measured one."""
    quick = last("a100", noise=900.0)
    quick = msgspec.structs.replace(quick, sample=msgspec.structs.replace(quick.sample, step_s=0.1, sync_s=0.025))
    job = known(last("t4", noise=500.0), quick)
    assert [(one.gpu_type, one.model.noise) for one in job.curve.types] == [("a100", 900.0), ("t4", 900.0)]
    assert job.curve.types[0].model == job.curve.model
    assert job.curve.types[1].model == known(last("t4", noise=900.0)).curve.model
    back = samples.curve(job, last("t4", noise=900.0), [], [])
    assert [one.gpu_type for one in back.types] == ["t4", "a100"]
    assert back.model == job.curve.types[1].model
    untold = samples.curve(job, last(), [], [])
    assert untold.types == job.curve.types
