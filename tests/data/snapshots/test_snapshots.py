"""Packing: the same content gives the same archive, and the files that cannot or should not be packed are named."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from oarlock.data.snapshots import snapshots, trees
from oarlock.spec import errors


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "lib" / "net.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """A folder that a user without rights can reach: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def names(snapshot: snapshots.Snapshot) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(snapshot.path, encoding="utf-8", errors="surrogateescape") as archive:
        return {member.name: member for member in archive.getmembers()}


def aged(folder: Path) -> None:
    """Wait until every file's times are old enough to be trusted."""
    newest = max(path.lstat().st_ctime for path in [folder, *folder.rglob("*")])
    while time.time() < newest + snapshots.TICK_S + 0.05:
        threading.Event().wait(0.05)


def test_the_archive_holds_files_folders_and_exec_bits(code: Path, cache: Path) -> None:
    snapshot = snapshots.pack(code, cache)
    members = names(snapshot)
    assert list(members) == ["empty", "lib", "lib/net.py", "run.sh", "train.py"]
    assert members["run.sh"].mode == 0o755
    assert members["train.py"].mode == 0o644
    assert {(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members.values()} == {(0, 0, 0, "", "")}
    assert snapshot.count == 3
    assert snapshot.bytes == snapshot.path.stat().st_size
    assert snapshot.digest == "sha256:" + hashlib.sha256(snapshot.path.read_bytes()).hexdigest()


def test_the_same_content_has_the_same_digest(code: Path, cache: Path, tmp_path: Path) -> None:
    first = snapshots.pack(code, cache)
    other = tmp_path / "elsewhere" / "deep"
    shutil.copytree(code, other)
    os.utime(other / "train.py", (1, 1))
    (other / "train.py").chmod(0o600)
    assert snapshots.pack(other, tmp_path / "cache2").digest == first.digest
    (other / "train.py").chmod(0o700)
    assert snapshots.pack(other, tmp_path / "cache2").digest != first.digest


def test_an_unchanged_directory_is_not_read_again(code: Path, cache: Path) -> None:
    aged(code)
    first = snapshots.pack(code, cache)
    again = snapshots.pack(code, cache)
    assert (first.cached, again.cached) == (False, True)
    assert (again.digest, again.count, again.bytes) == (first.digest, first.count, first.bytes)
    # Same size, same mtime: only ctime tells.
    before = (code / "train.py").stat()
    (code / "train.py").write_text("print('HELLO')\n")
    os.utime(code / "train.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = snapshots.pack(code, cache)
    assert not changed.cached
    assert changed.digest != first.digest


def test_a_file_that_was_just_written_is_not_trusted(code: Path, cache: Path) -> None:
    snapshots.pack(code, cache)
    assert not snapshots.pack(code, cache).cached


def test_a_lost_or_cut_archive_is_made_again(code: Path, cache: Path) -> None:
    aged(code)
    first = snapshots.pack(code, cache)
    os.truncate(first.path, 10)
    again = snapshots.pack(code, cache)
    assert not again.cached
    assert again.path.stat().st_size == first.bytes


def test_the_cache_forgets_old_archives(code: Path, cache: Path) -> None:
    for number in range(snapshots.KEPT_ARCHIVES + 5):
        (code / "train.py").write_text(str(number))
        os.utime(snapshots.pack(code, cache).path, (number, number))
    newest = snapshots.pack(code, cache)
    assert newest.path.exists()
    assert len(list(cache.glob("*.tar.gz"))) <= snapshots.KEPT_ARCHIVES + 1


def test_names_that_are_never_packed(code: Path, cache: Path) -> None:
    for folder in [".git", "lib/__pycache__", "node_modules", "env", "state"]:
        (code / folder).mkdir()
        (code / folder / "x").write_text("x")
    (code / "env" / "pyvenv.cfg").write_text("")
    (code / ".gitignore").write_text("*.ckpt\n")
    for name in ["a.ckpt", "b.ckpt", "lib/c.ckpt", "d.ckpt"]:
        (code / name).write_text("x")
    snapshot = snapshots.pack(code, cache, home=code / "state")
    assert set(names(snapshot)) == {".gitignore", "empty", "lib", "lib/net.py", "run.sh", "train.py"}
    assert {one.why: one.count for one in snapshot.left_out} == {
        ".gitignore": 4,
        "a virtual environment": 1,
        "never packed": 4,
    }
    assert "and 1 more (.gitignore)" in str(snapshot.left_out[0])


def test_over_the_limit_the_ten_largest_files_are_named(code: Path, cache: Path) -> None:
    for size in range(12):
        (code / f"f{size:02}").write_bytes(b"x" * (1000 + size))
    with pytest.raises(errors.TooLarge) as caught:
        snapshots.pack(code, cache, limit_bytes=5000)
    assert [name for name, _ in caught.value.detail["largest"]] == [f"f{size:02}" for size in range(11, 1, -1)]
    assert "f11" in caught.value.message
    assert ".oarlockignore" in caught.value.hint
    assert snapshots.pack(code, cache, limit_bytes=50_000).count == 15


def test_links_inside_are_stored_as_their_targets(code: Path, cache: Path) -> None:
    (code / "net.py").symlink_to("lib/net.py")
    (code / "lib2").symlink_to("lib")
    (code / "absolute").symlink_to(code / "train.py")
    members = names(snapshots.pack(code, cache))
    assert {"net.py", "lib2", "lib2/net.py", "absolute"} <= set(members)
    assert all(member.isreg() or member.isdir() for member in members.values())
    assert members["net.py"].size == members["lib/net.py"].size


@pytest.mark.parametrize("target", ["../outside", "/etc/hostname", "lib/../../outside", "/"])
def test_a_link_that_leaves_the_directory_is_refused(code: Path, cache: Path, target: str) -> None:
    (code.parent / "outside").write_text("secret")
    (code / "lib" / "link").symlink_to(target if target.startswith("/") else f"../{target}")
    with pytest.raises(errors.InvalidInput, match="lib/link") as caught:
        snapshots.pack(code, cache)
    assert caught.value.hint
    (code / ".oarlockignore").write_text("/lib/link\n")
    snapshots.pack(code, cache)


def test_a_link_in_circles_is_refused(code: Path, cache: Path) -> None:
    (code / "a").mkdir()
    (code / "b").mkdir()
    (code / "a" / "x").symlink_to("../b")
    (code / "b" / "y").symlink_to("../a")
    with pytest.raises(errors.InvalidInput, match="no end"):
        snapshots.pack(code, cache)
    (code / "a" / "x").unlink()
    (code / "b" / "y").unlink()
    (code / "a" / "self").symlink_to("self")
    (code / "dangling").symlink_to("nowhere")
    snapshot = snapshots.pack(code, cache)
    assert [str(one) for one in snapshot.left_out] == ["dangling, a/self (a link to nothing)"]


def test_pipes_and_sockets_are_left_out_and_said(code: Path, cache: Path) -> None:
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(code / "s"))
        snapshot = snapshots.pack(code, cache)
    assert [str(one) for one in snapshot.left_out] == ["pipe, s (neither a file nor a folder)"]


def test_names_that_are_not_utf8(code: Path, cache: Path) -> None:
    (code / os.fsdecode(b"caf\xe9\n.txt")).write_text("x")
    (code / ("n" * 255)).write_text("long")
    (code / ".gitignore").write_bytes(b"caf\xe8*\n")
    members = names(snapshots.pack(code, cache))
    assert b"caf\xe9\n.txt" in {os.fsencode(name) for name in members}
    assert "n" * 255 in members


@pytest.mark.parametrize("name", ["train.py", "lib"])
def test_a_file_that_cannot_be_read_is_named(others_folder: Path, name: str) -> None:
    """As a user without rights: root reads everything."""
    (others_folder / "lib").mkdir()
    (others_folder / "train.py").write_text("x")
    (others_folder / name).chmod(0)
    program = (
        "import gzip, os, sys, tarfile; from pathlib import Path\n"
        "from oarlock.data.snapshots import snapshots; from oarlock.spec import errors\n"
        "cache = Path(sys.argv[1]) / '.cache-of-test'\n"
        "os.getuid() or (cache.mkdir(), os.chown(cache, 65534, 65534), os.setuid(65534))\n"
        "try: snapshots.pack(Path(sys.argv[1]), cache)\n"
        "except errors.InvalidInput as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(others_folder)], capture_output=True, text=True, timeout=280
    )
    assert f"{name} cannot be read: Permission denied" in done.stdout, done.stderr
    assert ".oarlockignore" in done.stdout


def test_a_directory_that_is_none(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(errors.InvalidInput, match="not a directory"):
        snapshots.pack(tmp_path / "missing", cache)


class TestWhilePacking:
    """The tree changes between the walk and the reading."""

    def write(
        self, code: Path, cache: Path, tree: trees.Tree
    ) -> tuple[snapshots.Packed, tuple[trees.LeftOut, ...], bool]:
        return snapshots.Archives(cache).write(tree)

    def test_a_file_goes(self, code: Path, cache: Path) -> None:
        tree = trees.walk(code)
        (code / "run.sh").unlink()
        packed, left_out, settled = self.write(code, cache, tree)
        assert packed.count == 2
        assert [str(one) for one in left_out] == ["run.sh (gone while packing)"]
        assert not settled

    def test_a_file_grows(self, code: Path, cache: Path) -> None:
        tree = trees.walk(code)
        (code / "run.sh").write_text("#!/bin/sh\n" * 1000)
        _, _, settled = self.write(code, cache, tree)
        assert not settled

    def test_a_file_becomes_a_pipe(self, code: Path, cache: Path) -> None:
        tree = trees.walk(code)
        (code / "run.sh").unlink()
        os.mkfifo(code / "run.sh")
        with pytest.raises(errors.Conflict, match=r"run\.sh"):
            self.write(code, cache, tree)

    def test_a_file_shrinks_while_it_is_read(self, code: Path) -> None:
        entry = next(entry for entry in trees.walk(code).entries if entry.path == b"train.py")
        with (code / "train.py").open("rb") as file, pytest.raises(errors.Conflict, match=r"train\.py"):
            snapshots.Whole(file, entry).read(1000)

    def test_nothing_half_made_stays(self, code: Path, cache: Path) -> None:
        tree = trees.walk(code)
        (code / "run.sh").unlink()
        os.mkfifo(code / "run.sh")
        with pytest.raises(errors.Conflict):
            self.write(code, cache, tree)
        assert list(cache.iterdir()) == []


def test_a_large_file_is_never_in_memory(code: Path, cache: Path) -> None:
    with (code / "large").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    snapshots.pack(code, cache)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_importing_and_packing_load_nothing_heavy(code: Path, cache: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from oarlock.data.snapshots import snapshots\n"
        "snapshots.pack(Path(sys.argv[1]), Path(sys.argv[2])); print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(code), str(cache)], capture_output=True, text=True, timeout=280, check=True
    )
    assert not {"fsspec", "asyncio", "httpx", "pathspec"} & set(done.stdout.split())
