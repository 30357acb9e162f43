"""The definitions of OarlockJob and OarlockPool: structural, as Kubernetes demands, and the same as the structs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from oarlock.api.customresources import definitions
from oarlock.spec import jobfile, resources
from oarlock.spec.cluster import pools

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
    kinds = list(yaml.safe_load_all(definitions.text()))
    assert [one["spec"]["names"]["kind"] for one in kinds] == ["OarlockJob", "OarlockPool"]
    versions = [version for one in kinds for version in one["spec"]["versions"]]
    found = [node for version in versions for node in nodes(version["schema"]["openAPIV3Schema"])]
    assert len(found) > 120
    for one in found:
        assert FORBIDDEN.isdisjoint(one), one
        assert ("type" in one) != (set(one) - {"nullable", "description"} == {definitions.KEEP}), one


def test_a_job_has_the_fields_of_the_job_file_and_three_of_its_own() -> None:
    (version,) = definitions.definition()["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    assert set(properties["spec"]["properties"]) == {*jobfile.JobSpec.__struct_fields__, *definitions.OWN} - {"name"}
    assert {"halt", "snapshot", "continues"} == set(definitions.OWN)
    assert set(properties["status"]["properties"]) == set(resources.JobStatus.__struct_encode_fields__)


def test_a_pool_has_the_fields_of_a_pool() -> None:
    (version,) = definitions.pool_definition()["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    assert set(properties["spec"]["properties"]) == {*pools.Pool.__struct_fields__} - {"name", "version", "object_uid"}
    assert set(properties["status"]["properties"]) == set(resources.PoolStatus.__struct_encode_fields__)
