"""The flags of `oarlock run`, as fields of the job file."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click
import pytest

from oarlock.cli.launching import flags
from oarlock.spec import jobfile, roles


def roles_of(base: dict[str, Any], **given: Any) -> Any:
    return flags.merged(base, {f"flag_{name}": value for name, value in given.items()}, ("python", "train.py"), {})[
        "roles"
    ]


def test_cores_and_memory_are_those_of_each_task() -> None:
    """A parameter server and an evaluator took a core each, whatever was said: nothing fitted on two cores."""
    beside = roles_of({}, workers=2, ps=1, evaluator=True, cpus="0.2", memory="1Gi", gpus=1)
    assert {name: role.get("cpus") for name, role in beside.items()} == dict.fromkeys(
        ("worker", "ps", "evaluator"), "0.2"
    )
    assert beside["evaluator"]["memory"] == "1Gi"
    assert beside["worker"]["gpus"] == 1
    assert "gpus" not in beside["ps"]


def test_a_parameter_server_keeps_the_settings_of_the_job_file() -> None:
    written = {"roles": {"worker": {"cpus": 1}, "ps": {"cpus": 2}}}
    assert roles_of(written, cpus="0.5") == {"worker": {"cpus": "0.5"}, "ps": {"cpus": 2}}


def settings_of(name: str) -> dict[str, Any]:
    return next(flag for flag in flags.FLAGS if name in flag.names).settings()


def test_kinds_choices_and_defaults_are_those_of_the_fields() -> None:
    choices = settings_of("--framework")
    assert isinstance(choices["type"], click.Choice)
    assert list(choices["type"].choices) == list(roles.Framework)
    assert choices["show_default"] == "torch"
    shown = {flag.names[0]: flag.settings()["show_default"] for flag in flags.FLAGS}
    fresh = jobfile.JobSpec(command="x")
    assert shown["--priority"] == str(fresh.priority)
    assert shown["--grace"] == fresh.grace
    assert shown["--keep"] == str(fresh.checkpoint.keep)
    assert shown["--preemptible/--not-preemptible"] == "preemptible"
    assert shown["--timeout"] is None, "a job has no time limit unless it is given one"
    assert settings_of("--workers")["type"] is int
    assert settings_of("--cpus")["type"] is str, "0.5 and 500m"
    assert [settings_of("--bucket-bytes")["type"](text) for text in ("4096", "tuned")] == [4096, "tuned"]
    assert settings_of("--gpu-type")["multiple"]
    assert settings_of("--chief")["is_flag"]


@pytest.mark.parametrize("flag", flags.FLAGS, ids=lambda flag: flag.names[0])
def test_a_flag_that_is_not_typed_leaves_the_job_file_alone(flag: flags.Flag) -> None:
    """A default is shown, and never written over the value of a job file."""
    assert flag.settings()["default"] in (None, ())


def test_defaults_are_shown_as_a_reader_would_write_them() -> None:
    words = [sys.executable, "-m", "oarlock.cli.main", "run", "--help"]
    said = " ".join(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert "[default: 30s]" in said
    assert "[default: the number of workers]" in said
