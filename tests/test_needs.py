"""A test that was skipped is told of; where CI is set, only the needs of the table excuse it, and none that are met."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXCUSED = """
from tests import needs

@needs.mark("mounts", there=False)
def test_one():
    pass

def test_two():
    needs.skip("mounts", "permission denied")

def test_three():
    needs.skip("tracing")
"""
UNEXCUSED = """
import pytest

def test_four():
    pytest.importorskip("a_module_that_is_not_there")
"""


def run(folder: Path, text: str, ci: str, met: str = "") -> tuple[int, str]:
    (folder / "test_some.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.needs", "-c", os.devnull]
    done = subprocess.run(
        [*command, "-n", "1", "--rootdir", str(folder), str(folder)],
        cwd=ROOT,
        env={**os.environ, "CI": ci, "TEST_NEEDS_MET": met, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_needs_of_the_table_are_counted_and_excused(tmp_path: Path) -> None:
    code, said = run(tmp_path, EXCUSED, ci="true")
    assert code == 0, said
    assert "2 skipped, no mounts here. Needed: the right to mount" in said
    assert "1 skipped, no tracing here" in said


@pytest.mark.parametrize(
    ("met", "said"),
    [
        ("tracing, mirrors", "TEST_NEEDS_MET names what is not in the table: mirrors"),
        ("no GPU,mounts", "2 skipped, no mounts here. Needed: the right to mount a small tmpfs"),
    ],
)
@pytest.mark.parametrize("ci", ["", "true"])
def test_a_need_that_the_run_has_promised_to_meet_excuses_nothing(tmp_path: Path, met: str, said: str, ci: str) -> None:
    """As where `make test-kube` has a cluster that cannot do what the tests ask of it."""
    code, printed = run(tmp_path, EXCUSED, ci, met)
    assert code == 1, printed
    assert said in printed
    assert "TEST_NEEDS_MET promises it" in printed
    assert run(tmp_path, EXCUSED, ci, "IPv6,no GPU")[0] == 0


@pytest.mark.parametrize(("ci", "expected"), [("", 0), ("true", 1)])
def test_any_other_skipped_test_fails_where_ci_is_set(tmp_path: Path, ci: str, expected: int) -> None:
    code, said = run(tmp_path, EXCUSED + UNEXCUSED, ci)
    assert code == expected, said
    assert "not in the table: Skipped: could not import 'a_module_that_is_not_there'" in said
    kept = tmp_path / ".pytest_cache" / "v" / "oarlock" / "skipped"  # `.ci/run` looks for it
    assert kept.exists() == bool(ci)
