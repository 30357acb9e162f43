"""The steps that make a virtual environment, when none is needed, and whole environments with pip's own errors."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from oarlock.agent.transfers import virtualenvs

AGENT = [sys.executable, "-m", "oarlock.agent"]
ABOUT = {"version": "3", "prefix": "/usr", "base": "/usr", "paths": []}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Path]]:
    """The steps that would be run, and the folder of each."""
    told: list[tuple[list[str], Path]] = []
    monkeypatch.setattr(virtualenvs, "call", lambda argv, folder: told.append((argv, folder)))
    monkeypatch.setattr(virtualenvs, "probed", lambda python: ABOUT)
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0))
    return told


def test_an_environment_is_made_once_for_the_same_requirements(
    tmp_path: Path, steps: list[tuple[list[str], Path]]
) -> None:
    wanted = tmp_path / "code" / "requirements.txt"
    wanted.parent.mkdir()
    wanted.write_text("numpy\n")
    cache = tmp_path / "cache"
    place = virtualenvs.run(str(wanted), str(cache), "/usr/bin/python3")
    assert place.parent == cache
    own = f"{place}/bin/python"
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    assert steps == [
        (["/usr/bin/python3", "-I", "-m", "venv", "--system-site-packages", "--without-pip", str(place)], cache),
        ([own, "-m", "pip", "install", *quiet, "--requirement", str(wanted)], wanted.parent),
    ]
    assert virtualenvs.run(str(wanted), str(cache), "/usr/bin/python3") == place
    assert len(steps) == 2, "it is in the cache"
    wanted.write_text("numpy<3\n")
    assert virtualenvs.run(str(wanted), str(cache), "/usr/bin/python3") != place


def test_without_a_pip_of_the_python_one_is_put_in(
    tmp_path: Path, steps: list[tuple[list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 1))
    virtualenvs.make(tmp_path / "env", tmp_path / "requirements.txt", sys.executable, dict(ABOUT))
    assert [argv[1:3] for argv, _ in steps] == [["-I", "-m"], ["-m", "ensurepip"], ["-m", "pip"]]


class Failed:
    """A step that prints two lines and fails."""

    def __init__(self, argv: list[str], **asked: Any) -> None:
        assert "PYTHONPATH" not in asked["env"]
        self.stdout, self.returncode = iter(["one\n", "\n", "two\n"]), 1

    def __enter__(self) -> Failed:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("argv", "shown", "hinted"),
    [
        (
            ["/p", "-m", "pip", "install", "--requirement", "/x/wanted.txt"],
            "pip install --requirement wanted.txt",
            False,
        ),
        (["/p", "-I", "-m", "venv", "/x"], "-I -m venv", True),
    ],
)
def test_a_step_that_fails_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], shown: str, hinted: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setattr(subprocess, "Popen", Failed)
    with pytest.raises(virtualenvs.Failed) as caught:
        virtualenvs.call(argv, tmp_path)
    assert caught.value.message == f"`{shown}` failed:\none\ntwo"
    assert ("python3-venv" in caught.value.hint) is hinted, "pip's own words are enough"


@pytest.mark.parametrize("other", ["numpy-3.dist-info", "a"])
def test_other_packages_of_the_same_python_are_another_environment(tmp_path: Path, other: str) -> None:
    """Images share a cache on a claim, and their files may all have the same time."""
    site = tmp_path / "site-packages"
    (site / "numpy-2.dist-info").mkdir(parents=True)
    about = {**ABOUT, "paths": [str(site)], "kind": ["cpython-311-x86_64-linux-gnu", "linux-x86_64"]}
    os.utime(site, (0, 0))
    key = virtualenvs.key_of("numpy", about)
    assert virtualenvs.key_of("numpy", dict(about)) == key
    assert virtualenvs.key_of("numpy", {**about, "kind": ["cpython-311-aarch64-linux-gnu", "linux-aarch64"]}) != key
    (site / other).mkdir()
    os.utime(site, (0, 0))
    assert virtualenvs.key_of("numpy", about) != key


class Done:
    """The output of a run of the command."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code = process.returncode
        self.said = [json.loads(line) for line in process.stderr.splitlines()]
        self.result = process.stdout.splitlines()[-1] if process.stdout else ""

    @property
    def error(self) -> dict[str, Any]:
        return self.said[-1] if self.said and self.said[-1]["event"] == "error" else {}


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


def wheel(folder: Path, name: str, version: str) -> Path:
    """The smallest wheel: one module that knows its version."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        file: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for file, text in files.items()
    }
    record = "".join(f"{file},sha256={digests[file]},{len(text)}\n" for file, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds packages here and nowhere else."""
    wheel(tmp_path / "wheels", "oarprobe", "1.0")
    wheel(tmp_path / "wheels", "oarprobe", "2.0")
    for name, value in {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the first Python is the job's
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "wheels"


def version_in(place: str) -> str:
    program = "import oarprobe, msgspec; print(oarprobe.version)"  # msgspec: a package of the outer environment
    done = subprocess.run([f"{place}/bin/python", "-c", program], capture_output=True, text=True, timeout=280)
    return done.stdout.strip() or done.stderr


class TestEnvironments:
    def make(self, requirements: Path, cache: Path) -> Done:
        command = [*AGENT, "--environment", str(requirements), str(cache)]
        return Done(subprocess.run(command, capture_output=True, text=True, timeout=280))

    @pytest.mark.long
    def test_once_for_a_content(self, index: Path, work: Path) -> None:
        cache = work / "cache"
        first = fill(work, {"requirements.txt": "oarprobe==1.0\n"}) / "requirements.txt"
        done = self.make(first, cache)
        assert done.code == 0, done.said
        assert version_in(done.result) == "1.0"
        assert any("Installing" in said["detail"] for said in done.said)
        index.rename(index.with_name("gone"))
        copy = fill(work / "other", {"deps.txt": "oarprobe==1.0\n"}) / "deps.txt"
        again = self.make(copy, cache)
        assert (again.code, again.result) == (0, done.result)
        index.with_name("gone").rename(index)
        copy.write_text("oarprobe==2.0\n")
        other = self.make(copy, cache)
        assert other.result != done.result
        assert version_in(other.result) == "2.0"

    def test_tasks_at_once_install_once(self, index: Path, work: Path) -> None:
        requirements = fill(work, {"requirements.txt": "oarprobe\n"}) / "requirements.txt"
        command = [*AGENT, "--environment", str(requirements), str(work / "c")]
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
        ]
        said = [process.communicate(timeout=280) for process in processes]
        assert len({out for out, _ in said}) == 1
        assert sum("Installing collected" in err for _, err in said) == 1

    @pytest.mark.long
    def test_an_environment_that_a_kill_left_is_made_anew(self, index: Path, work: Path) -> None:
        requirements = fill(work, {"requirements.txt": "oarprobe\n"}) / "requirements.txt"
        done = self.make(requirements, work / "cache")
        Path(f"{done.result}.complete").unlink()
        shutil.rmtree(Path(done.result) / "bin")
        assert version_in(self.make(requirements, work / "cache").result) == "2.0"

    def test_pips_last_lines_are_told(self, index: Path, work: Path) -> None:
        requirements = fill(work, {"requirements.txt": "no-such-package-at-all\n"}) / "requirements.txt"
        done = self.make(requirements, work / "cache")
        assert (done.code, done.error["code"]) == (1, "unavailable")
        assert "No matching distribution found for no-such-package-at-all" in done.error["message"]
        assert not list((work / "cache").glob("*.complete"))

    @pytest.mark.parametrize("line", ["-e .", "--editable .", "./lib", "../lib", ".", "/somewhere"])
    def test_a_link_into_the_snapshot_is_refused(self, work: Path, line: str) -> None:
        requirements = fill(work, {"requirements.txt": f"{line}\n"}) / "requirements.txt"
        with pytest.raises(virtualenvs.Refused) as caught:
            virtualenvs.run(str(requirements), str(work / "cache"), sys.executable)
        assert "drop that line" in caught.value.hint

    def test_included_files_and_local_wheels_count(self, index: Path, work: Path) -> None:
        fill(
            work,
            {
                "requirements.txt": "-r more.txt\n-c pins.txt\n./x.whl\n",
                "more.txt": "a\n",
                "pins.txt": "a==1\n",
                "x.whl": "1",
            },
        )
        known = set()
        for name in ("more.txt", "pins.txt", "x.whl", "requirements.txt"):
            known.add("\0".join(virtualenvs.told(work / "requirements.txt")))
            (work / name).write_text((work / name).read_text() + "\n")
        assert len(known) == 4
        fill(work, {"more.txt": "-r requirements.txt\n"})
        assert list(virtualenvs.told(work / "requirements.txt"))

    def test_requirements_or_pythons_that_are_none(self, index: Path, work: Path) -> None:
        assert self.make(work / "missing.txt", work / "cache").error["code"] == "invalid_input"
        requirements = fill(work, {"requirements.txt": ""}) / "requirements.txt"
        with pytest.raises(virtualenvs.Refused, match="not a working Python"):
            virtualenvs.run(str(requirements), str(work / "cache"), "/bin/false")
