"""Trials of real scripts: their means, and the words for those that cannot be measured."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oarlock.cli.advising import trials
from oarlock.cli.verbs.jobs import advise
from oarlock.spec import errors

SCRIPT = """
import time
import torch
from oarlock import train

torch.set_num_threads(1)
model = torch.nn.Linear(64, 1100)  # its gradients would go by shared memory
optimizer = torch.optim.Adam(model.parameters())
train.data_parallel(model, optimizer)
batches = train.Batches((torch.randn(6400, 64),), 8, seed=1)
with train.Session(model=model, optimizer=optimizer, batches=batches, checkpoints="here", every_steps=5) as session:
    for (x,) in session.steps(batches, epochs=2):
        time.sleep(0.02)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
TELLS = """
import json, os, sys
rank = os.environ["RANK"]
assert os.environ["OARLOCK_RESTORE"] == "" and os.environ["WORLD_SIZE"] == "2" and os.environ["OMP_NUM_THREADS"] == "3"
assert json.loads(os.environ["OARLOCK_STRATEGY"]) == {"kind": "ps"}
with open(os.environ["OARLOCK_REPORT"] + f"/events-{rank}.jsonl", "w") as file:
    for step, step_s, sync_s in ((4, 9.0, 8.0), (10, 0.2, 0.1), (12, 0.6, 0.5)):
        late = 0.05 if rank == "1" else 0.0
        event = {"event": "progress", "step": step, "step_s": step_s, "sync_s": sync_s - late, "sent_bytes": 100.0}
        file.write(json.dumps(event | {"local": 8, "accumulate": 2}) + chr(10))
    file.write('{"event": "done"}' + chr(10) + '{"event": "pro')
"""


def test_a_trial_takes_the_mean_without_the_first_steps(tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    command = [sys.executable, str(tmp_path / "tells.py")]
    found = trials.run(command, 2, seconds=60.0, strategy={"kind": "ps"}, threads=3)
    assert (found.workers, found.steps, found.examples, found.sent_bytes) == (2, 8, 16, 100.0)
    assert found.step_s == pytest.approx((6 * 0.2 + 2 * 0.6) / 8)
    assert found.sync_s == pytest.approx((6 * 0.1 + 2 * 0.5) / 8 - 0.05), "a rank that is late makes the others wait"


def test_a_script_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match=r"(?s)process 0 of 2 ended with code 3.*Session.*no data here"):
        trials.run([sys.executable, "-c", "print('no data here'); raise SystemExit(3)"], 2, seconds=1.0)
    with pytest.raises(errors.InvalidInput, match="cannot be started"):
        trials.run([str(tmp_path / "missing")], 1, seconds=1.0)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_advise_measures_a_real_script_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("--json", "--seconds", "1", "--strategy", "dgc", "--no-threads", "--check", "2")
    command = [sys.executable, "-m", "oarlock.cli.main", "advise", *words, "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found["two"]) == ["allreduce"]
    assert "momentum of Adam" in found["refused"]["dgc"]
    assert found["one"]["step_s"] > 0.02
    assert found["two"]["allreduce"]["sent_bytes"] == 4 * 65 * 1100
    assert found["ratio"] > 0
    checked = next(each for each in found["predictions"] if each["workers"] == 2 and each["strategy"] == "allreduce")
    assert checked["measured"] > 0
    assert checked["error"] == pytest.approx(checked["speedup"] / checked["measured"] - 1)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"], "its checkpoints went into the trials' folders"


TELLS_BY_STRATEGY = """
import json, os
told = json.loads(os.environ["OARLOCK_STRATEGY"])
wait_s = (0.1 if told.get("compression") == "none" else 0.001) if os.environ["WORLD_SIZE"] != "1" else 0.0
with open(os.environ["OARLOCK_REPORT"] + "/events-" + os.environ["RANK"] + ".jsonl", "w") as file:
    for step in (10, 20):
        event = {"event": "progress", "step": step, "step_s": 0.05 + wait_s, "sync_s": wait_s, "sent_bytes": 1e6}
        file.write(json.dumps(event) + chr(10))
"""


def test_a_check_runs_the_strategy_that_was_predicted() -> None:
    """The script has a compression of its own, so that it is faster than dense allreduce."""
    script = [sys.executable, "-c", TELLS_BY_STRATEGY]
    words = ["--no-threads", "--seconds", "1", "--strategy", "bf16", "--check", "2"]
    done = CliRunner().invoke(advise.advise, [*words, "--json", "--", *script])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [each["strategy"] for each in told["checked"]] == ["allreduce", "bf16"]
    checked = [each["error"] for each in told["predictions"] if each["workers"] == 2]
    assert checked == pytest.approx([0.0, 0.0], abs=0.01)
    said = " ".join(CliRunner().invoke(advise.advise, [*words, "--", *script]).stdout.split())
    for strategy, speedup in (("allreduce", "0.67"), ("bf16", "1.96")):
        assert f"{strategy} with 2 workers: predicted {speedup}, measured {speedup}, error" in said
    assert "Not checked: the predictions for 4, 8, 16, 32, 64 workers." in said
    over = CliRunner().invoke(advise.advise, [*words, "--link", "1", "--", *script]).stdout
    assert "No prediction was checked: this machine has no such network." in " ".join(over.split())


def test_workers_are_checked_where_each_has_the_cores_of_the_other_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the answer says how to check a prediction, and the step to expect."""
    script = [sys.executable, "-c", TELLS_BY_STRATEGY]
    words = ["--no-threads", "--seconds", "1", "--strategy", "bf16"]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    said = " ".join(CliRunner().invoke(advise.advise, [*words, "--", *script]).stdout.split())
    assert "No prediction was checked: 4 workers would share the 5 cores of this machine" in said
    assert "With OMP_NUM_THREADS=1 in the environment" in said
    assert "A step should take 201 ms with allreduce, 52." in said
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = " ".join(CliRunner().invoke(advise.advise, [*words, "--", *script]).stdout.split())
    assert "bf16 with 4 workers: predicted" in said
    assert "bf16 with 8 workers" not in said, "which this machine does not have the cores for"
    assert "Not checked: the predictions for 2, 8, 16, 32, 64 workers." in said


SHARES_CORES = """
import json, os
workers = int(os.environ["WORLD_SIZE"])
with open(os.environ["OARLOCK_REPORT"] + "/events-" + os.environ["RANK"] + ".jsonl", "w") as file:
    for step in (10, 20):
        event = {"event": "progress", "step": step, "step_s": 0.05 * max(2, workers), "sync_s": 0.0, "sent_bytes": 1e6}
        file.write(json.dumps(event) + chr(10))
"""


def test_a_check_says_that_its_workers_shared_cores() -> None:
    script = [sys.executable, "-c", SHARES_CORES]
    words = ["--no-threads", "--seconds", "1", "--strategy", "bf16", "--check", "2", "--check", "3"]
    said = " ".join(CliRunner().invoke(advise.advise, [*words, "--", *script]).stdout.split())
    assert "bf16 with 3 workers: predicted 3.00, measured 2.00, error +50%. Without the waiting for gradients" in said
    assert said.count("a step took 1.50 times that of 2 workers: they shared cores") == 2
    assert "took 1.00 times" not in said


TELLS_BY_SERVERS = """
import json, os
told = json.loads(os.environ["OARLOCK_STRATEGY"])
workers = int(os.environ["WORLD_SIZE"])
wait_s = 0.4 / 2 * workers / told["servers"] if told.get("kind") == "ps" else 0.0
with open(os.environ["OARLOCK_REPORT"] + "/events-" + os.environ["RANK"] + ".jsonl", "w") as file:
    for step in (10, 20):
        event = {"event": "progress", "step": step, "step_s": 0.1 + wait_s, "sync_s": wait_s, "sent_bytes": 1e6}
        file.write(json.dumps(event) + chr(10))
"""


def test_a_check_has_as_many_parameter_servers_as_the_prediction() -> None:
    script = [sys.executable, "-c", TELLS_BY_SERVERS]
    words = ["--no-threads", "--seconds", "1", "--strategy", "ps", "--check", "4"]
    done = CliRunner().invoke(advise.advise, [*words, "--json", "--", *script])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [each["servers"] for each in told["checked"] if each["strategy"] == "ps"] == [4]
    (checked,) = (one for one in told["predictions"] if one["workers"] == 4 and one["strategy"] == "ps")
    assert (checked["servers"], checked["error"]) == (4, pytest.approx(0.0, abs=0.02))
    said = CliRunner().invoke(advise.advise, [*words, "--", *script])
    assert "4 workers ps, 4 servers ..." in said.output
    told = " ".join(said.stdout.split())
    assert re.search(r"ps with 4 workers: predicted 1.33, measured 1.33, error [+-]0%, 4 servers", told)


FAILS_LATER = """
import json, os, pathlib, sys, time
report = pathlib.Path(os.environ["OARLOCK_REPORT"])
event = {"event": "progress", "step": 5, "step_s": 0.1, "sync_s": 0.0}
(report / ("events-" + os.environ["RANK"] + ".jsonl")).write_text(json.dumps(event) + chr(10))
while len(list(report.glob("events-*"))) < 2:
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    raise SystemExit("out of memory")
time.sleep(80)
pathlib.Path(sys.argv[1]).touch()
"""


def test_a_process_that_fails_after_its_first_steps_ends_the_trial(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match=r"(?s)process 1 of 2 ended with code 1 in the trial.*out of memory"):
        trials.run([sys.executable, "-c", FAILS_LATER, str(tmp_path / "to the end")], 2, seconds=90.0)
    assert not (tmp_path / "to the end").exists(), "the other process was waited for"


def test_a_script_without_steps_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not end by itself: its trial was ended."""
    monkeypatch.setattr(trials, "START_S", 0.5)
    with pytest.raises(errors.InvalidInput, match=r"(?s)told of no steps within 0.5 s.*Session"):
        trials.run([sys.executable, "-c", "import time; print('here', flush=True); time.sleep(100)"], 1, seconds=1.0)


TELLS_ON = """
import json, os, time
with open(os.environ["OARLOCK_REPORT"] + "/events-0.jsonl", "w") as file:
    for step in range(1, 40):
        file.write(json.dumps({"event": "progress", "step": step, "step_s": 0.1, "sync_s": 0.0}) + chr(10))
        file.flush()
        time.sleep(0.02)
"""


def test_a_trial_may_be_longer_than_the_wait_for_its_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "START_S", 0.0)
    monkeypatch.setattr(trials, "_told", _told_at_once(trials._told))
    assert trials.run([sys.executable, "-c", TELLS_ON], 1, seconds=60.0).steps == 38


def _told_at_once(told: Callable[[Path, int], list[dict[str, Any]]]) -> Callable[[Path, int], list[dict[str, Any]]]:
    """Let the first look find steps, however slow the machine starts the script."""

    def wait(folder: Path, rank: int) -> list[dict[str, Any]]:
        while not told(folder, rank):
            time.sleep(0.01)
        return told(folder, rank)

    return wait


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_trial_ends_with_its_command(tmp_path: Path, number: int) -> None:
    """A signal to `oarlock advise`, as that of a closed terminal, leaves no process of the script behind."""
    script = (
        "import os, pathlib, time; pathlib.Path('pid.new').write_text(str(os.getpid())); "
        "os.rename('pid.new', 'pid'); time.sleep(120)"
    )
    command = [sys.executable, "-m", "oarlock.cli.main", "advise", "--no-threads", "--", sys.executable, "-c", script]
    ignored = signal.signal(number, signal.SIG_DFL)  # a child of `nohup` would inherit that it is ignored
    try:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    finally:
        signal.signal(number, ignored)
    try:
        while running.poll() is None and not (tmp_path / "pid").exists():
            time.sleep(0.05)
        running.send_signal(number)
        assert running.wait(timeout=100) == 128 + number
    finally:
        running.kill()
        running.wait()
    pid = int((tmp_path / "pid").read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the script goes on")
