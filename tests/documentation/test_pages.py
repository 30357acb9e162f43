"""Every block of the README, of docs/ and of the examples does what a reader who copies it wants, as it stands."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import marks
from tests.documentation import blocks, readers

from oarlock import configuration
from oarlock.client import settings

SCENARIO = "examples/11-scheduling/pack-or-spread.yaml"
INSTEAD = {
    # Each of these simulates days, for 16 s to minutes; tests/simulator/test_experiments.py does it with fewer jobs.
    f"oarlock simulate {SCENARIO}": f"oarlock simulate {SCENARIO} --until 1h",
    f"oarlock simulate {SCENARIO} --out found": f"oarlock simulate {SCENARIO} --out found --until 1h",
    "oarlock simulate pack-or-spread.yaml": "oarlock simulate pack-or-spread.yaml --until 1h",
    "oarlock simulate pack-or-spread.yaml --policy las": "oarlock simulate pack-or-spread.yaml --policy las --until 1h",
    "oarlock simulate pack-or-spread.yaml --out found": "oarlock simulate pack-or-spread.yaml --out found --until 1h",
    "oarlock simulate who-waits.yaml": "oarlock simulate who-waits.yaml --until 2h",
    # Several seeds of such a scenario, 80 s to minutes each.
    **{
        f"python examples/11-scheduling/draw.py {name}": f"python examples/11-scheduling/draw.py {name} --help"
        for name in ("pack-or-spread", "gang-or-pods", "load", "elastic-or-fixed", "prediction-error")
    },
    "python draw.py pack-or-spread --seeds 2 --out pictures": "python draw.py pack-or-spread --help",
    # Trainings of 10 s each: tests/train/test_digits.py and tests/e2e/training/test_training.py run them.
    "python train.py": "python train.py --help",
    "torchrun --nproc-per-node 2 train.py": "command -v torchrun",
    "oarlock submit oarlock.yaml --follow": "oarlock plan oarlock.yaml",
}
"""Lines that take too long for a suite of some minutes, and what is run in their place. There are no others."""
SHORTENED = {
    "docs/experiments.md",
    "docs/simulator.md",
    "examples/01-digits/README.md",
    "examples/11-scheduling/README.md",
}
"""The pages in which they are: the same line on another page is run as it stands."""

PIP = f"""#!/bin/sh
exec {readers.BIN}/python - "$@" <<'END'
# Installs nothing: a registry is not asked in tests. The extra that is named must be one.
import re, sys, tomllib
from pathlib import Path
extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
install, what = sys.argv[1:]
found = re.fullmatch(r"\\.(?:\\[([a-z0-9]+)\\])?", what)
sys.exit(0 if install == "install" and found and (found[1] is None or found[1] in extras) else f"pip {{sys.argv[1:]}}")
END
"""
JAX = """
# Stands in for jax, which is not among what the tests install: it takes the numbers that jax takes.
import os

class distributed:
    @staticmethod
    def initialize(num_processes, process_id):
        host, _, port = os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")
        assert host and int(port) and 0 <= process_id < num_processes == 2

process_index = lambda: int(os.environ["JAX_PROCESS_ID"])
process_count = lambda: int(os.environ["JAX_NUM_PROCESSES"])
"""


SHORT = {"docs/job-file.md"}
"""The page that `make test` reads; `make test-long` reads all others."""


def name(page: Path) -> str:
    return str(page.relative_to(blocks.ROOT))


def runnable(page: Path) -> list[blocks.Block]:
    return [
        block for block in blocks.of(page.read_text(encoding="utf-8")) if block.language in ("sh", "python", "yaml")
    ]


ON_A_CLUSTER = {"docs/kubernetes.md"}
"""The pages that install Oarlock on a cluster: tests/node reads these, on a cluster that runs pods."""
RUNNABLE = {name(page): page for page in blocks.PAGES if runnable(page) and name(page) not in ON_A_CLUSTER}


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[readers.Reader]:
    """The README makes its own environment active; its readers have done so."""
    one = readers.Reader(tmp_path, activated=request.node.callspec.id != "README.md")
    one.stand_in("pip", PIP)
    if importlib.util.find_spec("jax") is None:
        one.stand_in_module("jax", JAX)
    yield one
    one.leaves()


def begins_in(page: Path, reader: readers.Reader) -> Path:
    """Pages about the clone are run there; the other pages need only an empty directory."""
    if name(page) == "docs/experiments.md":
        return reader.clone
    return reader.clone / page.relative_to(blocks.ROOT).parent if page.name == "README.md" else reader.work


@pytest.mark.timeout(readers.LIMIT_S + 60)
@pytest.mark.parametrize("of", marks.long_except(SHORT, RUNNABLE))
def test_a_page_works_by_copying(of: str, reader: readers.Reader) -> None:
    page = RUNNABLE[of]
    reader.reads(runnable(page), begins_in(page, reader), INSTEAD if name(page) in SHORTENED else {})


def test_nothing_is_shortened_that_no_page_says() -> None:
    assert {name(page) for page in blocks.PAGES} >= SHORT
    said = "".join(page.read_text(encoding="utf-8") for page in blocks.PAGES if name(page) in SHORTENED)
    assert not [line for line in INSTEAD if line not in said]


TABLES = [(page, block) for page in blocks.PAGES for block in blocks.of(page.read_text()) if block.language == "toml"]


@pytest.mark.parametrize(("page", "block"), TABLES, ids=[f"{name(page)}:{block.line}" for page, block in TABLES])
def test_settings_of_a_page_are_read(page: Path, block: blocks.Block, home: Path) -> None:
    assert block.file == configuration.CONFIG_FILE
    home.mkdir()
    (home / block.file).write_text(block.text)
    configuration.read()
    settings.read_config(home / block.file)
