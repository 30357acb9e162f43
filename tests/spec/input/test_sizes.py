"""T-shirt sizes: the published rows, what they fill in, and that ours fill a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.spec import jobfile, roles
from oarlock.spec.input import quantities, sizes, validation

DOCS = Path(__file__).parents[3] / "docs"

PUBLISHED = {
    "1-k80": (4, 24),
    "2-k80": (8, 48),
    "4-k80": (16, 96),
    "1-p100": (8, 24),
    "2-p100": (16, 48),
    "1-v100": (26, 24),
    "2-v100": (42, 48),
}


def test_the_published_rows_are_as_published() -> None:
    found = {row.name: (row.cpus, row.memory_gib) for row in sizes.TABLE.values() if row.source == "FfDL"}
    assert found == PUBLISHED


def test_a_size_fills_missing_amounts_and_nothing_else() -> None:
    spec = validation.load("""
        command: x
        size: 2-V100
        roles:
          worker: {count: 3}
          chief: {cpus: 4, gpu_type: h100, gpus: 1}
          ps: {cpus: 2}
    """)
    told = sizes.filled(spec).roles
    assert told[roles.RoleName.WORKER] == jobfile.Role(count=3, cpus=42, memory="48Gi", gpus=2, gpu_type=("v100",)), (
        "all of it"
    )
    assert told[roles.RoleName.CHIEF] == jobfile.Role(cpus=4, memory="48Gi", gpus=1, gpu_type="h100"), "what is missing"
    assert told[roles.RoleName.PS] == jobfile.Role(cpus=2), "a server computes nothing on GPUs"
    assert sizes.filled(sizes.filled(spec)) == sizes.filled(spec)


def test_without_a_size_nothing_changes() -> None:
    spec = validation.load("command: x")
    assert sizes.filled(spec) is spec


@pytest.mark.parametrize("size", sizes.TABLE.values(), ids=lambda size: size.name)
def test_every_size_is_an_amount_that_a_job_file_could_say(size: sizes.Size) -> None:
    assert size.source in ("FfDL", "ours")
    assert quantities.memory_bytes(size.memory) == size.memory_gib << 30
    assert sizes.find(f" {size.name.upper()}") is size


@pytest.mark.parametrize("name", ["job-file.md", "experiments.md"])
@pytest.mark.parametrize("size", sizes.TABLE.values(), ids=lambda size: size.name)
def test_every_size_is_in_the_tables_of_the_pages(size: sizes.Size, name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("|") and f"`{size.gpu_type}`" in line)
    cells = [cell.strip().replace(" CPUs", "").replace(" GiB", "") for cell in row.split("|")[2:6]]
    assert cells[[1, 2, 4, 8].index(size.gpus)] == f"{size.cpus}, {size.memory_gib}"
