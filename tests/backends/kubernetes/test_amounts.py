"""Quantities as Kubernetes writes them. The examples are those of apimachinery's own tests and documentation."""

from __future__ import annotations

import pytest

from oarlock.backends.kubernetes import amounts
from oarlock.spec import errors, holdings


@pytest.mark.parametrize(
    ("text", "per_unit", "up", "down"),
    [
        ("1", 1000, 1000, 1000),
        ("500m", 1000, 500, 500),
        ("0.1", 1000, 100, 100),
        ("1500u", 1000, 2, 1),
        ("1n", 1000, 1, 0),
        ("128974848", 1, 128974848, 128974848),
        ("129e6", 1, 129000000, 129000000),
        ("1E3", 1, 1000, 1000),
        ("1E", 1, 10**18, 10**18),
        ("2Ei", 1, 2 << 60, 2 << 60),
        ("129M", 1, 129000000, 129000000),
        ("123Mi", 1, 123 << 20, 123 << 20),
        ("1.5Gi", 1, 3 << 29, 3 << 29),
        ("128974848000m", 1, 128974848, 128974848),
        ("100500m", 1, 101, 100),
        (".5", 1000, 500, 500),
        ("5.", 1, 5, 5),
    ],
)
def test_a_quantity(text: str, per_unit: int, up: int, down: int) -> None:
    assert (amounts.units(text, per_unit, up=True), amounts.units(text, per_unit, up=False)) == (up, down)


@pytest.mark.parametrize("text", ["", "1 G", "Gi", "1KiB", "--1", "1x", "0x10"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        amounts.exact(text)


def test_a_map_of_requests() -> None:
    said = {"cpu": "250m", "memory": "64Mi", "example.com/gpu": "2", "ephemeral-storage": "1Gi"}
    assert amounts.resources(said, "example.com/gpu", up=True) == holdings.Resources(250, 64 << 20, 2)
    assert amounts.resources({}, "example.com/gpu", up=True) == holdings.Resources()


@pytest.mark.parametrize(("milli", "text"), [(0, "0"), (250, "250m"), (1000, "1"), (1500, "1500m")])
def test_cpus_are_written_as_kubernetes_does(milli: int, text: str) -> None:
    assert amounts.cpu_text(milli) == text
