"""The surroundings of a job: pretended devices, an environment of its own, a full disk."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import needs
from tests.e2e import shell as shells


@pytest.mark.long
def test_a_laptop_plays_a_cluster(fresh: shells.Shell) -> None:
    """Devices are held, told apart, and never given twice; what wants more than there is waits or is refused."""
    fresh.do("up", "--detach", "--virtual-nodes", "2", "--virtual-gpus", "4")
    assert fresh.do("nodes").stdout.count("virtual-") == 2
    fresh.do("run", "--name", "four", "--workers", "4", "--gpus", "2", "--cpus", "0.1", "--", "true")
    placed = sorted((task["node"], task["devices"]) for task in fresh.job("four")["attempts"][0]["tasks"])
    assert placed == [
        ("virtual-0", [0, 1]),
        ("virtual-0", [2, 3]),
        ("virtual-1", [0, 1]),
        ("virtual-1", [2, 3]),
    ]
    show = "import os; print('sees', repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    pretended = fresh.do("run", "--gpus", "2", "--", "python", "-c", show)
    assert "sees ''" in pretended.stdout, "what is pretended must not reach a real device"
    never = fresh.do("run", "--workers", "3", "--gpus", "4", "--", "true", code=1)
    assert "12 GPUs" in never.stderr
    assert "8 GPUs" in never.stderr


@pytest.mark.long
def test_dependencies_are_installed_once_for_each_content(fresh: shells.Shell) -> None:
    wheels = fresh.home.parent / "wheels"
    wheels.mkdir()
    wheel(wheels, "oarlock_test_greeting", "greeting = 'hello from a package'")
    fresh.write("requirements.txt", f"--no-index\n--find-links {wheels}\noarlock-test-greeting\n")
    say = ["python", "-c", "import oarlock_test_greeting as g; print(g.greeting)"]
    first = fresh.do("run", "--workers", "2", "--dependencies", "requirements.txt", "--", *say)
    assert first.stdout.count("hello from a package") == 2
    (environment,) = [path for path in (fresh.home / "environments").iterdir() if path.is_dir()]
    made = environment.stat().st_ino
    (wheels / "oarlock_test_greeting-1.0-py3-none-any.whl").unlink()  # a second installation would fail
    again = fresh.do("run", "--dependencies", "requirements.txt", "--", *say)
    assert "hello from a package" in again.stdout
    assert [path.stat().st_ino for path in (fresh.home / "environments").iterdir() if path.is_dir()] == [made]


@pytest.mark.long
def test_dependencies_that_cannot_be_had_are_named(fresh: shells.Shell) -> None:
    fresh.write("requirements.txt", "--no-index\nno-such-package-anywhere\n")
    done = fresh.do("run", "--max-restarts", "0", "--dependencies", "requirements.txt", "--", "true", code=1)
    assert "no-such-package-anywhere" in done.stderr


def wheel(folder: Path, name: str, text: str) -> None:
    """A wheel by hand: a module and the three files that every wheel has."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[shells.Shell]:
    """A user whose home is a disk of 24 MB."""
    one = shells.Shell(tmp_path)
    with needs.small_disk(one.home, "24m"):
        yield one
        one.do("down", code=None)


def test_a_full_disk_is_said_and_survived(small_disk: shells.Shell) -> None:
    """A submit is refused whole, with the reason; once there is room everything goes on."""
    small_disk.do("run", "--", "echo", "before")
    filler = small_disk.home / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(65536))
    small_disk.write("train.py", "print('x')\n" + "# new content, so that a snapshot must be stored\n" * 2000)
    refused = small_disk.do("run", "--name", "during", "--", "python", "train.py", code=1)
    assert "disk" in refused.stderr.lower() or "space" in refused.stderr.lower()
    filler.unlink()
    assert "x" in small_disk.do("run", "--name", "after", "--", "python", "train.py").stdout
    jobs = small_disk.json("ps", "--all") if "--all" in small_disk.do("ps", "--help").stdout else small_disk.json("ps")
    names = {job["name"] for job in (jobs["items"] if isinstance(jobs, dict) else jobs)}
    assert "during" not in names
