"""`keep`: what is new or changed in a working directory is kept within its bounds, the rest counted by reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oarlock.agent import assignment
from oarlock.agent.transfers import workdir
from oarlock.data import filekeys
from oarlock.data.transfers import reporting, workfiles
from oarlock.spec import attempts, errors

KEY = "j-1/{}/worker/0/1"


class Directory:
    """A working directory of a task whose baseline is taken by the agent's own code, and the place to keep it at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.code = root / "task" / "code"
        self.code.mkdir(parents=True)
        self.place = root / "home" / "files" / "j-1" / "worker-0"

    def write(self, name: str | bytes, content: bytes = b"x") -> Path:
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.code), os.fsencode(name))))  # noqa: PTH118  (bytes)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def begin(self) -> None:
        self.task = assignment.Assignment(str(self.root / "task"), {"key": KEY.format(1), "command": "true"})
        workdir.write_baseline(self.task)

    def keep(self, life: str = "attempt-1", *patterns: str, size: int = 10**9, files: int = 1000) -> attempts.Kept:
        command = [sys.executable, "-m", "oarlock.data", "keep", self.code, (self.place / life).as_uri()]
        command += ["--baseline", self.root / "task" / "baseline", "--limit-bytes", size, "--limit-files", files]
        words = [str(word) for word in (*command, *(f"--ignore={pattern}" for pattern in patterns))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=attempts.Kept)

    def kept(self, life: str = "attempt-1") -> set[str]:
        root = self.place / life
        found = (os.fsencode(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
        return {filekeys.of(name) for name in found}


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_new_and_changed_files_are_kept_and_nothing_else(directory: Directory) -> None:
    directory.write("train.py")
    directory.write("config.yaml", b"lr: 1")
    directory.write("data/rows.csv", b"1,2")
    directory.begin()
    assert not workdir.has_new_files(directory.task)
    directory.write("config.yaml", b"lr: 2")
    directory.write("ckpt.pt", b"weights")
    directory.write("lightning_logs/version_0/metrics.csv", b"1")
    directory.write("data/tokens.bin", b"12")
    directory.write(b"odd \xff%\n.bin", b"3")
    directory.write("__pycache__/train.cpython-311.pyc", b"cache")
    assert workdir.has_new_files(directory.task)
    found = directory.keep()
    assert directory.kept() == {
        "ckpt.pt",
        "config.yaml",
        "data/tokens.bin",
        "lightning_logs/version_0/metrics.csv",
        "odd %FF%25%0A.bin",
    }
    assert (found.files, found.changed, found.bytes) == (5, 1, 7 + 5 + 2 + 1 + 1)
    assert found.not_kept == (attempts.NotKept(why="a cache", count=1, bytes=5, examples=("__pycache__/",)),)


def test_a_cache_alone_is_not_worth_a_process(directory: Directory) -> None:
    directory.write("train.py")
    directory.begin()
    directory.write("__pycache__/train.cpython-311.pyc")
    directory.write("package/__pycache__/a.pyc")
    assert not workdir.has_new_files(directory.task)


def test_patterns_of_the_job_leave_out_and_bring_back(directory: Directory) -> None:
    directory.begin()
    directory.write("wandb/run/log", b"123")
    directory.write("wandb/run/media/x.png", b"4567")
    directory.write("a.tmp", b"1")
    directory.write("keep.tmp", b"2")
    directory.write(".venv/bin/python", b"3")
    found = directory.keep("attempt-1", "wandb/", "*.tmp", "!keep.tmp", "!.venv/")
    assert directory.kept() == {"keep.tmp", ".venv/bin/python"}
    assert found.not_kept == (
        attempts.NotKept(why="ignored by files.ignore", count=3, bytes=8, examples=("a.tmp", "wandb/")),
    )


def test_links_and_other_things_than_files(directory: Directory) -> None:
    directory.begin()
    directory.write("step-10.pt", b"weights")
    (directory.code / "last.pt").symlink_to("step-10.pt")
    (directory.code / "shadow").symlink_to("/etc/shadow")
    (directory.code / "gone").symlink_to("nowhere")
    (directory.code / "logs").mkdir()
    directory.write("logs/a.txt", b"a")
    (directory.code / "latest").symlink_to("logs")
    os.mkfifo(directory.code / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(directory.code / "socket"))
        found = directory.keep()
    assert directory.kept() == {"step-10.pt", "last.pt", "logs/a.txt"}
    assert not (directory.place / "attempt-1" / "last.pt").is_symlink()
    assert {group.why: group.examples for group in found.not_kept} == {
        "a link that leads out of the directory": ("gone", "shadow"),
        "a link to a folder": ("latest",),
        "neither a file nor a folder": ("pipe", "socket"),
    }


def test_files_over_the_limit_are_named_and_those_higher_up_come_first(directory: Directory) -> None:
    directory.begin()
    directory.write("deep/er/small", b"1")
    directory.write("model.pt", b"m" * 60)
    directory.write("huge.pt", b"h" * 1000)
    directory.write("deep/part", b"p" * 50)
    found = directory.keep(size=100)
    assert directory.kept() == {"model.pt", "deep/er/small"}
    assert [(group.why, group.count, group.bytes) for group in found.not_kept] == [("over the limit of 100 B", 2, 1050)]
    found = directory.keep("attempt-2", files=1)
    assert directory.kept("attempt-2") == {"model.pt"}
    assert [(group.why, group.count) for group in found.not_kept] == [("over the limit of 1 files", 3)]


def test_lives_do_not_overwrite_each_other_and_the_oldest_make_room(directory: Directory) -> None:
    directory.begin()
    lives = ["attempt-1", "attempt-1-incarnation-2", "attempt-2", "attempt-10"]
    for number, life in enumerate(lives):
        (directory.code / "ckpt.pt").unlink(missing_ok=True)  # each life has a directory of its own
        directory.write("ckpt.pt", bytes([number]) * 10)
        found = directory.keep(life, size=30)
    assert found.removed == ("attempt-1",)
    assert [(directory.place / life / "ckpt.pt").read_bytes()[0] for life in lives[1:]] == [1, 2, 3]
    assert not (directory.place / "attempt-1").exists()
    late = directory.keep("attempt-1-incarnation-3", size=10)
    assert late.removed == ("attempt-1-incarnation-2",), "a late life never takes the place of a later one"
    assert directory.kept("attempt-10") == {"ckpt.pt"}


def test_files_are_linked_and_not_copied_where_that_can_be(directory: Directory) -> None:
    directory.begin()
    path = directory.write("ckpt.pt", b"w" * 1000)
    directory.keep()
    assert (directory.place / "attempt-1" / "ckpt.pt").stat().st_ino == path.stat().st_ino


def test_without_a_baseline_nothing_is_taken_for_new(directory: Directory) -> None:

    with pytest.raises(errors.Unavailable, match="list of the files that were there before"):
        workfiles.known(str(directory.root / "nowhere"))


@pytest.mark.parametrize("name", [b"a", b"a\xff.bin", b"100%", b"\x1b[31m", "é/ü".encode(), b"a b\nc", b"%FF"])
def test_every_name_has_one_key(name: bytes) -> None:
    key = filekeys.of(name)
    assert key.isprintable()
    assert b"/".join(filekeys.parts(key)) == name


@pytest.mark.parametrize(
    "key", ["..", "a/../b", "a//b", "/etc/passwd", "a/%2e%2e/b", "a%2Fb", "a%00", "x/" * 300 + "x"]
)
def test_no_key_leads_elsewhere(key: str) -> None:
    with pytest.raises(errors.InvalidInput):
        filekeys.parts(key)


def test_a_file_that_vanishes_during_the_look_costs_no_other(directory: Directory) -> None:
    directory.begin()
    for name in ("a", "b", "c"):
        directory.write(name)
    looked = workfiles.changes(os.fsencode(directory.code), {}, workfiles.rules(()), workfiles.Ledger())
    first = next(looked).path
    (directory.code / "b").unlink()
    assert [first, *(one.path for one in looked)] == [b"a", b"c"]


def test_the_agent_passes_over_a_file_that_vanishes(directory: Directory) -> None:
    names = {f"f{number}".encode() for number in range(3)}
    for name in names:
        directory.write(name)
    looked = workdir._files(os.fsencode(directory.code))
    first, _ = next(looked)
    gone = min(names - {first})
    (directory.code / os.fsdecode(gone)).unlink()
    assert {first, *(path for path, _ in looked)} == names - {gone}


# Within this process


def found(place: Path, *names: str) -> list[workfiles.Found]:
    """Return these files of a folder, as if each was new; one that is not there has vanished meanwhile."""
    sizes = [(place / name).stat().st_size if (place / name).exists() else 1 for name in names]
    return [
        workfiles.Found(name.encode(), os.fsencode(place / name), size, changed=False)
        for name, size in zip(names, sizes, strict=True)
    ]


def not_kept(ledger: workfiles.Ledger) -> dict[str, tuple[int, int]]:
    return {one.why: (one.count, one.bytes) for one in ledger.summary()}


def test_new_and_changed_files_below_a_directory_are_found(tmp_path: Path) -> None:
    for name in ("same", "changed", "new", "deep/er/new", "logs/a.log", "__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    before = {
        b"same": workfiles.record(b"same", (tmp_path / "same").lstat()),
        b"changed": b"0 0 0 0 changed",
    }
    ledger = workfiles.Ledger()
    rules = workfiles.rules(["*.log", "*.bak"])
    told = {one.path: one.changed for one in workfiles.changes(os.fsencode(tmp_path), before, rules, ledger)}
    assert told == {b"changed": True, b"new": False, b"deep/er/new": False}
    assert not_kept(ledger) == {workfiles.IGNORED: (1, 10), workfiles.A_CACHE: (1, 17)}


def test_kept_files_are_put_and_one_that_vanished_is_told(tmp_path: Path) -> None:
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "deep" / "a").write_text("abc")
    ledger, meter = workfiles.Ledger(), reporting.Meter("kept", 2, 4)
    of = found(tmp_path / "code", "deep/a", "gone")
    placed = workfiles.Folder(tmp_path / "kept").put(of, ledger, meter)
    assert placed == of[:1]
    assert (tmp_path / "kept/deep/a").read_text() == "abc"
    assert not_kept(ledger) == {workfiles.UNREADABLE: (1, 1)}


def test_files_for_the_server_are_sent_by_their_keys(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("abc")
    sent: list[tuple[bytes, str]] = []

    class Place:
        def send(self, path: bytes, key: str) -> None:
            if path.endswith(b"gone"):
                raise FileNotFoundError(path)
            sent.append((path, key))

    place: Any = Place()
    ledger = workfiles.Ledger()
    of = found(tmp_path, "a b", "gone")
    assert workfiles.AtServer(place).put(of, ledger, reporting.Meter("kept", 2, 4)) == of[:1]
    assert sent == [(os.fsencode(tmp_path / "a b"), filekeys.of(b"a b"))]
    assert not_kept(ledger) == {workfiles.UNREADABLE: (1, 1)}


@pytest.mark.parametrize(
    ("left_bytes", "left_files", "removed"),
    [
        (30, 3, []),
        (29, 3, []),
        (20, 9, []),
        (19, 9, ["attempt-1"]),
        (99, 1, ["attempt-1"]),
        (5, 9, ["attempt-2", "attempt-1"]),
    ],
)
def test_earlier_lives_go_from_the_latest_on_that_does_not_fit(
    tmp_path: Path, left_bytes: int, left_files: int, removed: list[str]
) -> None:
    """The own life and later ones stay, whatever they hold."""
    for life in ("attempt-1", "attempt-2", "attempt-3"):
        (tmp_path / life).mkdir()
        (tmp_path / life / "x").write_bytes(bytes(10))
    assert workfiles.Folder(tmp_path / "attempt-3").delete_older(left_bytes, left_files) == removed
    assert {path.name for path in tmp_path.iterdir()} == {"attempt-1", "attempt-2", "attempt-3"} - set(removed)


def test_the_higher_and_smaller_of_many_files_are_kept() -> None:
    of = [
        workfiles.Found(name, name, size, changed=False)
        for name, size in ((b"deep/a", 1), (b"large", 50), (b"small", 2), (b"b", 40))
    ]
    ledger = workfiles.Ledger()
    kept = workfiles.within(of, workfiles.Bounds(bytes=60, files=2), ledger)
    assert [one.path for one in kept] == [b"small", b"b"]
    assert not_kept(ledger) == {"over the limit of 2 files": (2, 51)}
