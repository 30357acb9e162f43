"""The documentation names exactly the verbs, flags, fields, settings and SDK methods that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oarlock import configuration
from oarlock.backends.kubernetes import site
from oarlock.cli import main, reference
from oarlock.cli.launching import flags
from oarlock.client import settings
from oarlock.client.synchronous import clients
from oarlock.spec import jobfile, roles

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_reference_is_in_step_with_the_command_line() -> None:
    assert page("cli.md") == reference.renewed(page("cli.md")), "python -m oarlock.cli.reference docs/cli.md"


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_is_documented(verb: str) -> None:
    assert f"### `oarlock {verb}`" in page("cli.md")


def fields_of(kind: Any) -> list[tuple[str, str]]:
    return [(kind.__name__, field.encode_name) for field in msgspec.structs.fields(kind)]


PARTS = (
    jobfile.JobSpec,
    jobfile.Role,
    jobfile.Strategy,
    jobfile.DataSource,
    jobfile.Volume,
    jobfile.Secret,
    jobfile.Checkpoint,
    jobfile.Topology,
    jobfile.Batch,
)


@pytest.mark.parametrize(("part", "field"), [one for part in PARTS for one in fields_of(part)])
def test_every_field_of_the_job_file_is_documented(part: str, field: str) -> None:
    assert f"`{field}`" in page("job-file.md")


@pytest.mark.parametrize("role", roles.RoleName)
def test_every_role_is_documented(role: roles.RoleName) -> None:
    assert f"`{role}`" in page("job-file.md")


def test_every_field_can_be_said_by_a_flag() -> None:
    """Without the fields that only a job file has."""
    said = {flag.path for flag in flags.FLAGS}
    only_in_files = {"roles.*.on_success", "roles.*.on_failure", "topology.required"}
    only_in_files |= {"batch.local_min", "batch.local_max"}
    for name in [field for _, field in fields_of(jobfile.JobSpec)]:
        if name in ("command", "roles", "strategy", "files", "checkpoint", "topology", "batch"):
            continue
        assert name in said
    for part, prefix in (
        (jobfile.Role, "roles.*."),
        (jobfile.Checkpoint, "checkpoint."),
        (jobfile.Topology, "topology."),
        (jobfile.Batch, "batch."),
    ):
        for _, field in fields_of(part):
            path = prefix + field
            assert path in said | only_in_files | {"roles.*.count", "roles.*.min", "roles.*.max"}, path


@pytest.mark.parametrize("flag", flags.FLAGS, ids=lambda flag: flag.names[0])
def test_every_flag_is_beside_its_field(flag: flags.Flag) -> None:
    assert flag.names[0].rpartition("/")[2] in page("job-file.md")


@pytest.mark.parametrize("setting", settings.ClientTable.__struct_fields__)
def test_every_setting_is_documented(setting: str) -> None:
    assert f"`OARLOCK_{setting.upper()}`" in page("cli.md")
    assert f"`{setting}`" in page("cli.md")


@pytest.mark.parametrize("setting", configuration.FLAGS)
def test_every_setting_of_the_server_is_documented(setting: str) -> None:
    assert f"`{setting}`" in page("operations.md")


@pytest.mark.parametrize("setting", site.Site.__struct_fields__)
def test_every_setting_of_a_cluster_is_documented(setting: str) -> None:
    assert f"`{setting}`" in page("kubernetes.md")


@pytest.mark.parametrize("verb", [name for name in dir(clients.Client) if not name.startswith("_")])
def test_every_verb_of_the_sdk_is_documented(verb: str) -> None:
    assert re.search(rf"`{verb}(\(|`)", page("python-sdk.md"))
