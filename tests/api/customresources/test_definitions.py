"""The definition of OarlockJob: structural, as Kubernetes demands, and the same as the job file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from oarlock.api.customresources import definitions
from oarlock.spec import jobfile, resources

FILE = Path(__file__).parents[3] / "deploy" / "base" / "definitions.yaml"
FORBIDDEN = {"$ref", "anyOf", "allOf", "oneOf", "not", "definitions", "patternProperties", "uniqueItems"}


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    yield schema
    for below in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(below, dict):
            yield from nodes(below)


def test_the_file_of_the_installation_is_current() -> None:
    assert FILE.read_text() == definitions.text(), "run `make definitions`"


def test_the_schema_is_structural() -> None:
    """Each place has a type, or keeps what stands there; none of the keywords that Kubernetes forbids is used."""
    (version,) = yaml.safe_load(definitions.text())["spec"]["versions"]
    found = list(nodes(version["schema"]["openAPIV3Schema"]))
    assert len(found) > 90
    for one in found:
        assert FORBIDDEN.isdisjoint(one), one
        assert ("type" in one) != (set(one) - {"nullable", "description"} == {definitions.KEEP}), one


def test_a_job_has_the_fields_of_the_job_file_and_three_of_its_own() -> None:
    (version,) = definitions.definition()["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    assert set(properties["spec"]["properties"]) == {*jobfile.JobSpec.__struct_fields__, *definitions.OWN} - {"name"}
    assert {"halt", "snapshot", "continues"} == set(definitions.OWN)
    assert set(properties["status"]["properties"]) == set(resources.JobStatus.__struct_encode_fields__)
