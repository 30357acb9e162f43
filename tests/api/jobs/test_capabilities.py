"""A field that tasks of the backend cannot honour is refused by its path; it is never accepted and then ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oarlock.api.jobs import capabilities
from oarlock.backends.kubernetes import site
from oarlock.spec import errors, jobfile, roles

PODS = capabilities.kubernetes({"torch": "registry.example/torch:2"})
ONLY_CUDA = capabilities.kubernetes({"torch-cuda": "registry.example/torch-cuda:2"})


def spec(fields: dict[str, Any]) -> jobfile.JobSpec:
    return msgspec.convert({"command": "true", **fields}, jobfile.JobSpec)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"data": [{"source": "s3://b/d", "mount": "d"}, {"source": "/d", "mount": "e"}]}, "data[1].source"),
        ({"results": "/out"}, "results"),
        ({"results": "file:///out", "volumes": [{"claim": "c", "mount": "/outer"}]}, "results"),
        ({"checkpoint": {"every": "5m"}}, "checkpoint"),
        ({"checkpoint": {"to": "/c"}}, "checkpoint.to"),
        ({"roles": {"worker": {"gpus": 0.5}}}, "roles.worker.gpus"),
        ({"framework": "jax"}, "image"),
    ],
)
def test_pods_refuse_fields_that_they_cannot_honour(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(errors.Unsupported) as raised:
        capabilities.refuse(spec(fields), PODS, "kubernetes")
    assert raised.value.path == path
    assert raised.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"framework": "jax", "image": "registry.example/jax:1"},
        {"volumes": [{"claim": "imagenet", "mount": "/data"}]},
        {"files": {"ignore": ["*.tmp"]}},
        {"data": [{"source": "s3://b/d", "mount": "d"}], "results": "s3://b/out", "tensorboard": True},
        {"results": "/out/here", "volumes": [{"claim": "c", "mount": "/out"}]},
        {"topology": {"same": "rack"}},
        {"checkpoint": {"to": "/c/here", "every": "5m"}, "volumes": [{"claim": "c", "mount": "/c"}]},
        {"checkpoint": {"to": "s3://b/c", "every": "5m"}},
        {"framework": "mpi", "image": "registry.example/mpi:1", "roles": {"launcher": {}, "worker": {}}},
        {"roles": {"worker": {"count": 2, "min": 1, "max": 4}}},
    ],
)
def test_pods_take_the_rest(fields: dict[str, Any]) -> None:
    capabilities.refuse(spec(fields), PODS, "kubernetes")


@pytest.mark.parametrize("place", [{"claim": "checkpoints"}, {"url": "s3://bucket/kept"}])
def test_an_installation_with_a_place_takes_checkpoints_of_a_job_without_one(place: dict[str, str]) -> None:
    asked = spec({"checkpoint": {"every": "5m"}})
    capabilities.refuse(asked, capabilities.kubernetes({"torch": "t"}, **place), "kubernetes")


@pytest.mark.parametrize("claim", ["checkpoints", "cache"])
def test_no_job_mounts_the_checkpoints_or_environments_of_all_jobs(claim: str) -> None:
    claimed = capabilities.kubernetes({"torch": "t"}, claim="checkpoints", environments="cache")
    volumes = [{"claim": "imagenet", "mount": "/data"}, {"claim": claim, "mount": "/all"}]
    with pytest.raises(errors.Unsupported) as raised:
        capabilities.refuse(spec({"volumes": volumes}), claimed, "kubernetes")
    assert raised.value.path == "volumes[1].claim"
    capabilities.refuse(spec({"volumes": volumes[:1], "checkpoint": {"every": "5m"}}), claimed, "kubernetes")


@pytest.mark.parametrize(
    ("pool", "mount", "refused"),
    [
        ("research", "/scratch", True),
        ("research", "/scratch/", True),
        ("default", "/scratch", False),
        ("research", "/scratch/mine", False),
        ("default", "/shared", True),
    ],
)
def test_no_job_mounts_a_volume_where_a_profile_of_its_pool_has_one(pool: str, mount: str, refused: bool) -> None:
    """The API server would refuse its pods at each launch."""
    profiles = {
        "fast": site.Profile(pools=("research",), volumes=(jobfile.Volume(claim="s", mount="/scratch"),)),
        "all": site.Profile(volumes=(jobfile.Volume(claim="t", mount="/shared"),)),
    }
    mounts = site.Site(profiles=profiles).profile_mounts()
    profiled = capabilities.kubernetes({"torch": "t"}, mounts=mounts)
    told = spec({"pool": pool, "volumes": [{"claim": "a", "mount": "/a"}, {"claim": "b", "mount": mount}]})
    if not refused:
        capabilities.refuse(told, profiled, "kubernetes")
        return
    with pytest.raises(errors.Unsupported) as raised:
        capabilities.refuse(told, profiled, "kubernetes")
    assert raised.value.path == "volumes[1].mount"


@pytest.mark.parametrize("fields", [{"image": "a"}, {"volumes": [{"claim": "c", "mount": "/m"}]}])
def test_processes_of_this_machine_have_no_containers(fields: dict[str, Any]) -> None:
    with pytest.raises(errors.Unsupported):
        capabilities.refuse(spec(fields), capabilities.LOCAL, "local")
    capabilities.refuse(spec({"data": [{"source": "/d", "mount": "d"}]}), capabilities.LOCAL, "local")


def test_the_image_for_jobs_with_gpus_is_for_those_alone() -> None:
    with_gpus = jobfile.JobSpec(command="x", roles={roles.RoleName.WORKER: jobfile.Role(gpus=1)})
    capabilities.refuse(with_gpus, ONLY_CUDA, "kubernetes")
    without = jobfile.JobSpec(command="x", roles={roles.RoleName.WORKER: jobfile.Role()})
    with pytest.raises(errors.Unsupported, match="no image for the framework torch"):
        capabilities.refuse(without, ONLY_CUDA, "kubernetes")
