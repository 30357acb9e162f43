"""A command inside the task: in the environment and the directory of its processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from oarlock.agent import inside

CODE = "import sys; from oarlock.agent import __main__; sys.exit(__main__.main(sys.argv))"


@pytest.fixture
def task(tmp_path):
    """The directory of a task whose processes run."""
    (tmp_path / "code").mkdir()
    (tmp_path / "env.json").write_text(json.dumps({"PATH": "/usr/bin:/bin", "LR": "0.1"}))
    (tmp_path / "assignment.json").write_text(json.dumps({"key": "j-1/1/worker/0/1", "command": "true"}))
    return tmp_path


def run(task, *command):
    argv = [sys.executable, "-c", CODE, "--inside", str(task), *command]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_it_has_the_environment_and_the_directory_of_the_processes(task):
    ran = run(task, "sh", "-c", "echo $LR $OARLOCK_TASK_KEY $OARLOCK_TASK_DIR; pwd; exit 7")
    assert ran.stdout.splitlines() == [f"0.1 j-1/1/worker/0/1 {task}", str(task / "code")]
    assert ran.returncode == 7


def test_the_environment_of_the_agent_does_not_reach_it(task, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert "PYTHONHASHSEED" not in run(task, "env").stdout


def test_another_directory_of_work_is_used(task, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    told = {"key": "j-1/1/worker/0/1", "command": "true", "workdir": str(elsewhere)}
    (task / "assignment.json").write_text(json.dumps(told))
    assert run(task, "pwd").stdout.strip() == str(elsewhere)


def test_before_the_processes_start_the_next_step_is_said(task):
    (task / "env.json").unlink()
    ran = run(task, "true")
    assert (ran.returncode, "try again" in ran.stderr) == (inside.NOT_STARTED, True)


def test_a_command_that_is_not_there_is_named(task):
    ran = run(task, "no-such-command")
    assert (ran.returncode, "no-such-command: no such command" in ran.stderr) == (inside.NOT_FOUND, True)
    assert run(task, "/etc/passwd").returncode == inside.NOT_EXECUTABLE
