"""The life of a session: what it tells, when it saves, how it ends, what it takes up again."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew, scripts
from tests.train.reporting.test_reports import events, frames
from torch import nn

from oarlock import train
from oarlock.train import agreement, errors, worlds
from oarlock.train.checkpointing import manifests


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    worlds.shutdown()


def diary(folder: Path, rank: int = 0) -> list[str]:
    return (folder / f"diary-{rank}.txt").read_text().splitlines()


def test_hooks_are_told_in_order(tmp_path: Path) -> None:
    scripts.count(tmp_path, every_steps=2, total_steps=3)
    assert diary(tmp_path) == [
        "before 1",
        "after 1",
        "before 2",
        "after 2",
        "before 3",
        "after 3",
        "checkpoint attempt-1-round-1-step-2",
        "checkpoint attempt-1-round-1-step-3",
        "end NoneType True",
    ]


def test_an_error_loses_no_checkpoint_that_one_process_is_writing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        scripts.count(tmp_path, every_steps=2, fail=3)
    (path,) = (tmp_path / "checkpoints").iterdir()
    assert path.name == "attempt-1-round-1-step-2"
    assert manifests.fault(path, manifests.read(path)) is None


def test_an_evaluator_saves_nothing_among_the_checkpoints_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no rank, and would be the chief of a world of its own."""
    monkeypatch.setenv("OARLOCK_ROLE", "evaluator")
    monkeypatch.setenv("OARLOCK_CHECKPOINTS", str(tmp_path / "theirs"))
    with pytest.raises(errors.StateError, match="open no Session where OARLOCK_ROLE is evaluator"):
        scripts.count(tmp_path)
    assert not (tmp_path / "theirs").exists()


def test_under_oarlock_the_job_decides_and_the_agent_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, theirs = tmp_path / "report", tmp_path / "theirs"
    report.mkdir()
    (report / f"stack-{os.getpid()}.ready").touch()
    environment = {
        "OARLOCK_REPORT": report,
        "OARLOCK_PROCESS": 3,
        "OARLOCK_CHECKPOINTS": theirs,
        "OARLOCK_CHECKPOINT_KEEP": 1,
        "OARLOCK_CHECKPOINT_EVERY_S": 3600,
        "OARLOCK_RESULTS": tmp_path / "results",
        "OARLOCK_ATTEMPT": 4,
        "OARLOCK_ROUND": 2,
        "OARLOCK_RESTORE": "",
        "OARLOCK_TENSORBOARD": tmp_path / "results" / "tensorboard",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    scripts.count(tmp_path, every_steps=1, keep=9)
    assert [path.name for path in theirs.iterdir()] == ["attempt-4-round-2-step-4"]
    assert not (tmp_path / "checkpoints").exists()
    told = events(report / "events-3.jsonl")
    assert [each.pop("time") > 1e9 for each in told] == [True] * len(told)
    hello, *middle, checkpoint, done = [each for each in told if each["event"] != "progress"]
    assert hello == {"event": "hello", "library": "0.1.0", "can_rejoin": False, "can_stack": True}
    assert middle == []
    path = theirs / "attempt-4-round-2-step-4"
    assert checkpoint == {
        "event": "checkpoint",
        "step": 4,
        "path": str(path),
        "manifest_sha256": manifests.digest(path / "manifest.json"),
        "bytes": (path / "rank-0.pt").stat().st_size,
    }
    assert done == {"event": "done", "step": 4}
    measured = {"step_s", "sync_s", "data_s", "sent_bytes", "ranks"}
    untimed = [{name: value for name, value in event.items() if name not in measured} for event in told]
    assert {"event": "progress", "step": 4, "total_steps": 4, "loss": 0.25} in untimed
    rows = frames((report / "metrics-3.bin").read_bytes())
    assert [(step, values["loss"]) for step, _, values in rows if "loss" in values] == [
        (1, 1.0),
        (2, 0.5),
        (3, 1 / 3),
        (4, 0.25),
    ]
    assert len(list((tmp_path / "results" / "tensorboard").iterdir())) == 1


def test_a_platform_that_offers_nothing_wants_a_fresh_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts.count(tmp_path, total_steps=2)
    monkeypatch.setenv("OARLOCK_RESTORE", "")
    scripts.count(tmp_path, total_steps=2)
    assert diary(tmp_path).count("before 1") == 2


def test_a_platform_s_offer_comes_before_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts.count(tmp_path, every_steps=2)
    offered = tmp_path / "checkpoints" / "attempt-1-round-1-step-2"
    monkeypatch.setenv("OARLOCK_RESTORE", os.pathsep.join([str(tmp_path / "gone"), str(offered)]))
    monkeypatch.setenv("OARLOCK_REPORT", str(tmp_path / "report"))
    scripts.count(tmp_path)
    told = [each for each in events(tmp_path / "report" / "events-0.jsonl") if each["event"] == "restored"]
    assert [(each["step"], each["path"]) for each in told] == [(2, str(offered))], (
        "what was restored, not what was first"
    )
    assert diary(tmp_path)[-6:-1] == [
        "before 3",
        "after 3",
        "before 4",
        "after 4",
        "checkpoint attempt-2-round-1-step-4",
    ]


def test_an_ended_run_that_is_started_again_has_nothing_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scripts.count(tmp_path)
    capfd.readouterr()
    scripts.count(tmp_path)
    assert "resumed from attempt-1-round-1-step-4" in capfd.readouterr().err
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    scripts.count(tmp_path, total_steps=5)
    assert diary(tmp_path)[-4:-1] == ["before 5", "after 5", "checkpoint attempt-2-round-1-step-5"]


def test_resume_false_begins_at_the_first_step_and_the_next_resumes_from_that(tmp_path: Path) -> None:
    scripts.count(tmp_path, total_steps=9)
    scripts.count(tmp_path, total_steps=2, resume=False)
    scripts.count(tmp_path, total_steps=3)
    assert diary(tmp_path)[-4:-1] == ["before 3", "after 3", "checkpoint attempt-3-round-1-step-3"]


def test_state_that_the_checkpoint_lacks_is_an_error_and_surplus_state_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scripts.count(tmp_path)
    options: dict[str, Any] = {"checkpoints": tmp_path / "checkpoints"}
    lacking = train.Session(model=nn.Linear(1, 1), other=nn.Linear(1, 1), **options)
    with pytest.raises(errors.CheckpointError, match=r"holds model, but no other\. Leave .*resume=False"), lacking:
        pass
    changed = train.Session(model=nn.Linear(2, 1), **options)
    with (
        pytest.raises(errors.CheckpointError, match=r"(?s)model cannot load its state .*size mismatch.*resume=False"),
        changed,
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a session that did not open leaves nothing behind"
    schedule = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([torch.zeros(1)]), lambda step: 1.0)
    scripts.count(tmp_path / "two", schedule=schedule)
    with train.Session(model=nn.Linear(1, 1), checkpoints=tmp_path / "two" / "checkpoints") as session:
        assert session.step == 4
    assert "also holds schedule, which this session does not use" in capfd.readouterr().err


@pytest.mark.parametrize("untrained", [{}, {"batches": None}, {"stopping": train.EarlyStopping("loss", patience=2)}])
def test_a_session_never_goes_on_with_untrained_weights(
    tmp_path: Path, untrained: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """A script without its model in the session is told so before it has lost anything, and is refused afterwards."""
    state = {name: each or train.Batches(scripts.examples(), 5) for name, each in untrained.items()}
    options: dict[str, Any] = {"checkpoints": tmp_path, "total_steps": 3, **state}
    with train.Session(**options) as session:
        list(session.steps())
    assert "saves no model, so no run can go on from its checkpoints. Pass what the steps" in capfd.readouterr().err
    remedy = r"after step 3.*nothing that is trained.*Session\(model=model, optimizer=optimizer\).*resume=False"
    with pytest.raises(errors.CheckpointError, match=remedy), train.Session(**options):
        pass
    with train.Session(**options, resume=False) as session:
        assert session.step == 0
    capfd.readouterr()
    with train.Session(total_steps=1, **state) as session:
        list(session.steps())
    assert "saves no model" not in capfd.readouterr().err, "nothing is saved at all"


def test_state_that_cannot_be_kept_is_refused_at_once() -> None:
    with pytest.raises(errors.StateError, match="answer is a int without state_dict"):
        train.Session(answer=42)
    batches = train.Batches(scripts.examples(), 5)
    with pytest.raises(errors.StateError, match=r"pass Session\(batches=batches\)"):
        next(train.Session().steps(batches))
    with pytest.raises(errors.StateError, match=r"needs oarlock\.train\.Batches"):
        next(train.Session().steps([1, 2], epochs=3))
    with pytest.raises(errors.ReportError, match="outside of `with session:`"):
        train.Session().log(loss=1.0)


def test_a_directory_that_cannot_be_is_an_error_before_any_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    session = train.Session(checkpoints=tmp_path / "file" / "checkpoints")
    with pytest.raises(errors.CheckpointError, match="use a directory that can be written"), session:
        pass


def test_any_iterable_can_be_stepped_over() -> None:
    with train.Session() as session:
        assert list(session.steps("abc")) == ["a", "b", "c"]
        assert session.step == 3


def test_alone_the_exit_code_of_a_request_to_stop_is_that_of_sigterm(tmp_path: Path) -> None:
    def stopped_at_three() -> None:
        with train.Session(model=nn.Linear(1, 1), checkpoints=tmp_path, total_steps=9) as session:
            for step in session.steps():
                if step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
            assert session.should_stop

    with pytest.raises(train.Stopped) as stopped:
        stopped_at_three()
    assert stopped.value.code == 143
    assert [path.name for path in tmp_path.iterdir() if path.name != "oarlock-home"] == ["attempt-1-round-1-step-3"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


READING_AHEAD = """
import pathlib, sys, time, torch
from oarlock import train

class Examples(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        return torch.ones(1)

batches = train.Batches(Examples(), 2, workers=2)
loader = torch.utils.data.DataLoader(Examples(), 2, num_workers=2, worker_init_fn=train.outlast_sigterm)
with train.Session(batches=batches, checkpoints="checkpoints") as session:
    for _ in session.steps(loader if "own" in sys.argv else batches):
        time.sleep(0.01)
        if session.step == 3:
            pathlib.Path("begun").touch()
"""


@pytest.mark.parametrize("own", ["", "own"])
def test_workers_that_read_ahead_outlast_the_request_to_stop(tmp_path: Path, own: str) -> None:
    """An agent asks all processes of a task to stop, also those of a DataLoader. An error must not come before the
    checkpoint.
    """
    command = [sys.executable, "-c", READING_AHEAD, own]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE) as script:
        while script.poll() is None and not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.killpg(script.pid, signal.SIGTERM)
        _, said = script.communicate(timeout=120)
    assert script.returncode == 128 + signal.SIGTERM, said.decode()
    assert len(manifests.complete(tmp_path / "checkpoints")) == 1


def test_a_failing_rank_ends_without_a_checkpoint_and_takes_the_others_along(tmp_path: Path) -> None:
    script = functools.partial(scripts.count, total_steps=None, fail=3, every_steps=2)
    assert crew.run(script, tmp_path, folder=tmp_path) == [1, 1], crew.output(tmp_path)
    assert diary(tmp_path, 1)[-2:] == ["before 3", "end ZeroDivisionError False"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["attempt-1-round-1-step-2"]
    assert "ZeroDivisionError: as asked" in (tmp_path / "rank-1.txt").read_text()


def test_all_stop_at_the_same_step_when_one_rank_has_had_enough(tmp_path: Path) -> None:
    report = {rank: {"OARLOCK_REPORT": str(tmp_path / f"report-{rank}")} for rank in range(2)}
    script = functools.partial(scripts.count, total_steps=None, stop=30)
    assert crew.run(script, tmp_path, folder=tmp_path, env_of_rank=report) == [0, 0], crew.output(tmp_path)
    assert diary(tmp_path, 0) == diary(tmp_path, 1)
    assert diary(tmp_path)[-1] == "end NoneType True"
    steps = len([line for line in diary(tmp_path) if line.startswith("after")])
    assert 30 <= steps < 30 + 2 * agreement.MOST_STEPS
    for rank in range(2):
        told = [(each["event"], each.get("step")) for each in events(tmp_path / f"report-{rank}" / "events-0.jsonl")]
        ends = [each for each in told if each[0] not in ("hello", "progress")]
        assert ends == [("checkpoint", steps), ("done", steps)][rank:], "the chief alone reports the checkpoint"


def test_saving_by_the_clock_happens_at_the_same_steps_everywhere(tmp_path: Path) -> None:
    """Each rank's own clock would have them save at different steps, and wait for each other for ever."""
    script = functools.partial(scripts.count, total_steps=200, every_s=1e-6, keep=1000)
    assert crew.run(script, tmp_path, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    assert diary(tmp_path, 0) == diary(tmp_path, 1)
    saves = [line for line in diary(tmp_path) if line.startswith("checkpoint")]
    assert len(saves) >= 2, "one by the clock, and that of the last step"
    assert len(saves) == len(set(saves))


def test_strategies_and_per_rank_state_come_back_to_their_ranks_and_are_dropped_when_those_change(
    tmp_path: Path,
) -> None:
    fresh = {"strategy": [], "mine": [[], []]}
    assert crew.run(scripts.remember, tmp_path, 2, fresh, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    kept = {"strategy": [1, 2], "mine": [[0], [1]]}
    assert crew.run(scripts.remember, tmp_path, 2, kept, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    dropped = {"strategy": [], "mine": [[]]}
    assert crew.run(scripts.remember, tmp_path, 3, dropped, folder=tmp_path, world_size=1) == [1]
    refusal = "mine of each rank (per_rank) fit only as many ranks. Start 2 processes again, permit the loss with"
    assert refusal in (tmp_path / "rank-0.txt").read_text()
    permitted = functools.partial(scripts.remember, drop_per_rank=True)
    assert crew.run(permitted, tmp_path, 3, dropped, folder=tmp_path, world_size=1) == [0], crew.output(tmp_path)
    said = (tmp_path / "rank-0.txt").read_text()
    assert "saved by 2 ranks, now 1: the random generators' states and mine and strategy are dropped" in said


def test_one_rank_s_bad_shard_makes_all_take_the_checkpoint_before(tmp_path: Path) -> None:
    script = functools.partial(scripts.count, every_steps=2)
    assert crew.run(script, tmp_path, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    shard = tmp_path / "checkpoints" / "attempt-1-round-1-step-4" / "rank-1.pt"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert crew.run(script, tmp_path, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    for rank in range(2):
        assert diary(tmp_path, rank).count("before 3") == 2, "both go back to step 2"
    assert "the digest of rank-1.pt is not the one in its manifest" in crew.output(tmp_path)


class Echo(worlds.World):
    """A chief with peers that wish nothing."""

    def start_largest(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        return lambda: list(numbers)


def test_the_pace_of_exchanges_is_bounded() -> None:
    """Short steps share an exchange, but one that turns out long is soon one of few."""
    now = 0.0
    asked = agreement.Agreement(Echo(0, 2, 0, torch.device("cpu")), clock=lambda: now)
    strides = []
    for step_s, steps in ((0.001, 40), (0.02, 20), (0.03, 20)):
        for _ in range(steps):
            now += step_s
            asked.settle(stop=agreement.GO_ON, save=False)
        strides.append(asked._stride)
    assert strides == [8, 2, 1]


def test_a_long_step_is_the_last_one_when_a_stop_is_asked_for_in_it() -> None:
    now = 0.0
    asked = agreement.Agreement(Echo(0, 2, 0, torch.device("cpu")), clock=lambda: now)
    for step in range(1, 10):
        now += 1.0
        assert asked.settle(stop=agreement.STOP * (step == 9), save=False).stop == agreement.STOP * (step == 9)


def test_one_wish_to_save_is_granted_once() -> None:
    asked = agreement.Agreement(Echo(0, 2, 0, torch.device("cpu")))
    for _ in range(50):
        asked.settle(stop=agreement.GO_ON, save=False)
    due, granted = True, 0
    for _ in range(50):
        if asked.settle(stop=agreement.GO_ON, save=due).save:
            due, granted = False, granted + 1
    assert granted == 1


def test_events_are_json_lines_that_another_program_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OARLOCK_REPORT", str(tmp_path / "report"))
    with train.Session(total_steps=2) as session:
        for _ in session.steps():
            session.log(loss=float("nan"))
    for line in (tmp_path / "report" / "events-0.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
