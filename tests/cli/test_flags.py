"""What the flags of `oarlock run` say in the job file's words."""

from __future__ import annotations

from typing import Any

from oarlock.cli.launching import flags


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


def test_a_parameter_server_keeps_what_the_job_file_says() -> None:
    written = {"roles": {"worker": {"cpus": 1}, "ps": {"cpus": 2}}}
    assert roles_of(written, cpus="0.5") == {"worker": {"cpus": "0.5"}, "ps": {"cpus": 2}}
